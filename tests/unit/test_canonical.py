"""Documents: one byte form out; hostile bytes in are refused before they cost anything."""

import json
import time
from typing import Any

import pytest

from snapfmt.errors import CorruptError, FormatError, LimitExceeded, UnsupportedVersion
from snapfmt.format import canonical
from snapfmt.limits import Limits
from snapfmt_schemas.attempt import Lease, Owner
from snapfmt_schemas.manifest import Manifest

BIG = 1 << 30


def manifest(**changes: Any) -> Manifest:
    fields: dict[str, Any] = {
        "repository_id": "0" * 32,
        "number": 1,
        "attempt_id": "1" * 32,
        "write_id": "2" * 32,
        "created_at_ns": 5,
        "writer": "w",
        "parts": (),
    }
    return Manifest(**(fields | changes))


def parse(data: bytes, **limits: int) -> Any:
    return canonical.parse(data, what="d", size_limit=BIG, limits=Limits(**limits))


def test_one_document_has_one_form() -> None:
    one = manifest(user_metadata={"b": 1, "a": {"é": [1.5, None, "\u2028"]}})
    other = manifest(user_metadata={"a": {"é": [1.5, None, "\u2028"]}, "b": 1})
    data = canonical.encode(one)
    assert data == canonical.encode(other)
    assert data.endswith(b"}\n")
    assert b" " not in data.replace("é".encode(), b"")
    assert "é".encode() in data
    value = json.loads(data)
    assert list(value) == sorted(value)
    assert canonical.decode(data, Manifest, what="m", size_limit=BIG) == one
    assert canonical.encode(canonical.decode(data, Manifest, what="m", size_limit=BIG)) == data


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_json_lacks_are_never_written(value: float) -> None:
    with pytest.raises(ValueError, match="JSON"):
        canonical.encode(manifest(user_metadata={"x": value}))


NOT_JSON = {
    "empty": b"",
    "blank": b" \n",
    "two documents": b"{}{}",
    "trailing comma": b'{"a":1,}',
    "single quotes": b"{'a':1}",
    "comment": b'{"a":1} // x',
    "nan": b'{"a":NaN}',
    "infinity": b"[Infinity,-Infinity]",
    "repeated key": b'{"a":1,"a":1}',
    "repeated key deep inside": b'[[{"a":{"b":1,"c":2,"b":1}}]]',
    "key repeated through an escape": b'{"a":1,"\\u0061":2}',
    "not utf-8": b'{"a":"\xff"}',
    "utf-16": '{"a":1}'.encode("utf-16"),
    "byte order mark": b"\xef\xbb\xbf{}",
    "control character": b'{"a":"\x01"}',
    "open string": b'{"a":"bcd',
    "open object": b'{"a":{"b":1}',
    "closes more than it opens": b"[]]]]]",
    "null byte": b"{}\0",
    "leading zero": b"[01]",
    "lone minus": b"[-]",
}


@pytest.mark.parametrize("name", NOT_JSON)
def test_what_is_not_strict_json_is_refused(name: str) -> None:
    with pytest.raises(FormatError):
        parse(NOT_JSON[name])


def test_depth_is_counted_outside_of_strings_and_before_parsing() -> None:
    assert parse(b"[" * 64 + b"]" * 64)
    with pytest.raises(LimitExceeded, match="deeper"):
        parse(b"[" * 65 + b"]" * 65)
    with pytest.raises(LimitExceeded):
        parse(b'{"a":' * 65 + b"1" + b"}" * 65)
    assert parse(json.dumps({"x": "[" * 1000 + '"\\{' * 1000}).encode())
    assert parse(b"[" + b",".join([b"[]"] * 1000) + b"]")
    started = time.thread_time()
    with pytest.raises(LimitExceeded):
        parse(b"[" * 10_000_000)
    assert time.thread_time() - started < 20


@pytest.mark.parametrize(
    "data",
    [
        b'"' + b'\\"' * 2_000_000,
        b'"' + b"\\" * 4_000_000,
        b'["' + b"a" * 4_000_000,
        b'"' * 2_000_001,
        b'"a' * 2_000_001,
        b'\\"' * 2_000_000,
    ],
    ids=["escaped quotes", "backslashes", "open", "quotes", "short strings", "stray"],
)
def test_hostile_strings_take_linear_time(data: bytes) -> None:
    started = time.thread_time()
    with pytest.raises(CorruptError):
        parse(data)
    assert time.thread_time() - started < 20, "quadratic time would be hours"


def test_integers_are_bounded_by_their_digits() -> None:
    assert parse(b"[" + b"9" * 4300 + b"]", json_digits=4300) == [10**4300 - 1]
    with pytest.raises(LimitExceeded, match="digits"):
        parse(b"[" + b"9" * 4301 + b"]")
    with pytest.raises(LimitExceeded):
        parse(b"[-12345]", json_digits=5)
    assert parse(b"[-1234]", json_digits=5) == [-1234]


def test_size_is_looked_at_first() -> None:
    with pytest.raises(LimitExceeded, match="6 bytes"):
        canonical.parse(b"not js", what="d", size_limit=5)


@pytest.mark.parametrize("value", [2, 0, -1, "1", None, [1], 1.5, 1.0, True])
def test_another_version_is_told_apart_from_damage(value: Any) -> None:
    text = json.loads(canonical.encode(manifest())) | {"format_version": value}
    text_of = json.dumps(text).encode()
    with pytest.raises(UnsupportedVersion):
        canonical.decode(text_of, Manifest, what="m", size_limit=BIG)
    lease = Lease(
        attempt_id="0" * 32, number=1, started_at_ns=1, expires_at_ns=2, owner=Owner(host="h")
    )
    old = json.loads(canonical.encode(lease)) | {"schema_version": 7}
    with pytest.raises(UnsupportedVersion, match="schema_version 7"):
        canonical.decode(json.dumps(old).encode(), Lease, what="l", size_limit=BIG)


@pytest.mark.parametrize("data", [b"null", b"[]", b"1", b'"x"', b"{}", b'{"number":{}}'])
def test_another_shape_is_a_format_error_that_names_the_place(data: bytes) -> None:
    with pytest.raises(FormatError, match="Manifest"):
        canonical.decode(data, Manifest, what="m", size_limit=BIG)


def test_a_changed_root_document_does_not_pass_its_checksum() -> None:
    data = canonical.encode(manifest().sealed())
    assert canonical.decode(data, Manifest, what="m", size_limit=BIG).checksum is not None
    for before, after in [(b'"number":1', b'"number":2'), (b'"writer":"w"', b'"writer":"x"')]:
        assert before in data
        with pytest.raises(FormatError, match="checksum"):
            canonical.decode(data.replace(before, after), Manifest, what="m", size_limit=BIG)
