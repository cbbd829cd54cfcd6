"""Tagged JSON keeps every plain Python value exactly."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from snapfmt.errors import FormatError
from snapfmt.format import tagged
from snapfmt.testing.equality import same
from snapfmt.testing.strategies import TEXT, plain_values


@given(plain_values())
@settings(max_examples=500)
def test_a_value_comes_back(value: object) -> None:
    text = tagged.encode(value)
    text.encode("ascii")
    json.loads(text, parse_constant=lambda name: 1 / 0)
    assert same(tagged.decode(text), value), text
    # A second trip gives the same text: one value, one form.
    assert tagged.encode(tagged.decode(text)) == text


@given(TEXT)
@settings(max_examples=500)
def test_any_code_points_come_back(text: str) -> None:
    assert tagged.decode(tagged.encode({text: text})) == {text: text}


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=8), st.just("00")),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                [
                    "$tuple",
                    "$set",
                    "$frozenset",
                    "$bytes",
                    "$bytearray",
                    "$float",
                    "$dict",
                    "$numpy",
                    "$text",
                    "$other",
                ]
            ),
            inner,
            min_size=1,
            max_size=1,
        ),
    ),
    max_leaves=10,
)


@given(JSON)
@settings(max_examples=500)
def test_any_json_is_read_or_refused_with_a_typed_error(value: object) -> None:
    try:
        found = tagged.decode(json.dumps(value))
    except FormatError:
        return
    # What is read has a form of its own again.
    assert same(tagged.decode(tagged.encode(found)), found)


@given(st.text(max_size=40) | st.binary(max_size=40))
def test_any_bytes_are_read_or_refused_with_a_typed_error(text: str | bytes) -> None:
    try:
        tagged.decode(text)
    except FormatError:
        return
