"""JSON is read one way: what Python would bend on the way is refused, with a typed error."""

import pytest

from snapfmt import Repository
from snapfmt.errors import FormatError, InvalidRecord, LimitExceeded
from snapfmt.format import canonical, tagged
from snapfmt.storage.memory import MemoryClient
from snapfmt.storage.objects import ObjectStore
from snapfmt.writing import lines as written_lines
from snapfmt_schemas import lines
from snapfmt_schemas.continuation import Continuation

BENT = {
    "larger than a double": '{"a": 1e999}',
    "smaller than a double": '{"a": [-1e400]}',
    "a key twice": '{"a": 1, "a": 2}',
    "a key twice, once in other letters": '{"a": 1, "\\u0061": 2}',
    "a mark before it": "\ufeff{}",
    "two values": "{}{}",
    "a NUL behind it": "{}\0",
    "nested too deep": "[" * 100_000,
}


@pytest.mark.parametrize("text", BENT.values(), ids=BENT)
@pytest.mark.req("D-2", "R-7")
def test_what_json_bends_is_refused(text: str) -> None:
    for data in (text, text.encode()):
        with pytest.raises(FormatError):
            tagged.decode(data)
        with pytest.raises(ValueError):  # noqa: PT011
            lines.parse(data)
    with pytest.raises(InvalidRecord):
        written_lines.prepare(text.encode(), what="x", key=None, redact=False)
    with pytest.raises((FormatError, LimitExceeded)):
        canonical.parse(text.encode(), what="x", size_limit=1 << 20)
    with pytest.raises(ValueError):  # noqa: PT011
        lines.from_line(Continuation, text.encode())


@pytest.mark.req("R-7")
@pytest.mark.parametrize(
    "text",
    ['{"$dict": [[1, 2], [1, 3]]}', '{"$set": [1, 1]}', '{"$frozenset": ["a", "a"]}'],
)
def test_what_repeats_in_tagged_json_is_refused(text: str) -> None:
    with pytest.raises(FormatError, match="repeats"):
        tagged.decode(text)


@pytest.mark.req("R-1")
@pytest.mark.parametrize("line", ['{"k": "a", "x": 1e999}', '{"k": "a", "x": 1, "x": 2}'])
def test_verify_reads_lines_as_their_readers_do(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    """Or it would call a snapshot good from which nothing can be restored."""
    with monkeypatch.context() as patch:
        patch.setattr(written_lines, "_parse", lambda data: {"k": "a"})
        with repository.begin() as attempt:
            part = attempt.part("p")
            part.records("r.jsonl", [line.encode()], key="k")
            attempt.publish([part.seal()])
    assert [item.rule for item in repository.verify().damage] == ["format"]


def test_a_workspaces_marker_that_is_nested_too_deep() -> None:
    store = ObjectStore(MemoryClient())
    store.replace("attempts/a/workspace", b"[" * 3000)
    with pytest.raises(FormatError, match="marker"):
        store.has_workspace("attempts/a")
