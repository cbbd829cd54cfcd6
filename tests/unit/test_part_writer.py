"""Parts while they are written: entries, records, seal, and what is refused."""

import hashlib
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from snapfmt import Repository
from snapfmt.errors import (
    AttemptClosed,
    DeadlineExceeded,
    FormatError,
    InputError,
    InvalidRecord,
    LeaseExpired,
    NoMatch,
    StorageFull,
)
from snapfmt.format import jsonl, layout
from snapfmt.format import pack as pack_format
from snapfmt.format.reach import check_counts
from snapfmt.limits import Limits
from snapfmt.storage.local_sink import LocalSink
from snapfmt.writing import part as part_module
from snapfmt.writing.lines import PreparedLine, prepare
from snapfmt_schemas._base import Record

PassTime = Callable[[float], None]

BAD_PATHS = ["../x", "/etc/passwd", "a/../b", "a//b", "./a", "a/.", "", ".", "a/", "a b", "a\\b"]
BAD_PATHS += ["a\0b", "é", "x" * 1025, "-" + "a", "x" * 300 + "/../y", "a\n"]


class Note(Record):
    key: str
    value: int


def test_entries_come_back_with_type_size_and_order(repository: Repository) -> None:
    attempt = repository.begin()
    part = attempt.part("gym/agent/a")
    staged: dict[str, tuple[Any, bytes, str]] = {
        "a.txt": (b"hello", b"hello", "text/plain"),
        "empty": (b"", b"", "application/octet-stream"),
        "pieces": ([b"ab", bytearray(b"cd"), memoryview(b"ef")], b"abcdef", "x/y"),
        "none": ([], b"", "x/y"),
        "view": (memoryview(np.arange(6, dtype=np.uint8))[::2], bytes([0, 2, 4]), "x/y"),
        "deep/er/path.bin": (bytes(range(256)) * 500, bytes(range(256)) * 500, "x/y"),
    }
    for path, (data, _, media_type) in staged.items():
        part.stage(path, data, media_type=media_type)
    part.json("doc.json", {"b": 1, "a": [None, "é"]})
    receipt = part.seal()
    attempt.publish([receipt])
    back = repository.snapshot().part("gym/agent/a")
    assert [entry.path for entry in back.entries()] == [*staged, "doc.json"]
    for path, (_, data, media_type) in staged.items():
        assert back.read(path) == data
        assert back.entry(path).location.size == len(data)
        assert back.entry(path).media_type == media_type
    assert json.loads(back.read("doc.json")) == {"b": 1, "a": [None, "é"]}
    assert receipt.entries == len(staged) + 1
    with pytest.raises(NoMatch):
        back.read("a")


def test_bytes_are_taken_when_stage_returns(repository: Repository) -> None:
    attempt = repository.begin()
    part = attempt.part("p")
    data = bytearray(b"before")
    part.stage("x", data)
    data[:] = b"after!"
    attempt.publish([part.seal()])
    assert repository.snapshot().part("p").read("x") == b"before"


@pytest.mark.parametrize("path", BAD_PATHS, ids=lambda path: repr(path)[:20])
def test_a_path_must_be_relative_and_normalised(repository: Repository, path: str) -> None:
    part = repository.begin().part("p")
    for call in (
        lambda: part.stage(path, b""),
        lambda: part.json(path, {}),
        lambda: part.records(path, []),
    ):
        with pytest.raises(InputError):
            call()
    part.stage("fine", b"x")
    assert part.seal().entries == 1


@pytest.mark.parametrize("name", [path for path in BAD_PATHS if path != "x" * 1025])
def test_a_part_needs_a_relative_and_normalised_name(repository: Repository, name: str) -> None:
    with pytest.raises(InputError):
        repository.begin().part(name)


def test_a_path_is_taken_without_regard_to_case(repository: Repository) -> None:
    part = repository.begin().part("p")
    part.stage("Notes", b"1")
    part.records("lines", [])
    for path in ("Notes", "notes", "NOTES", "lines.index", "LINES"):
        with pytest.raises(InputError, match="already"):
            part.stage(path, b"2")


@pytest.mark.parametrize("data", [["text"], [5], [None], [1.5], [[1]]])
def test_only_bytes_are_staged(repository: Repository, data: Any) -> None:
    part = repository.begin().part("p")
    with pytest.raises(InputError, match="bytes expected"):
        part.stage("x", data)


@pytest.mark.parametrize("value", [{1, 2}, float("nan"), object(), b"", [float("inf")]])
def test_only_strict_json_is_a_document(repository: Repository, value: Any) -> None:
    part = repository.begin().part("p")
    with pytest.raises(InputError):
        part.json("x", value)
    part.json("x", [1])


def test_records_by_line_by_key_and_as_bytes(repository: Repository) -> None:
    attempt = repository.begin()
    part = attempt.part("p")
    notes = [Note(key=f"k{i}", value=i) for i in range(20_000)]
    raw = [b'{"z": 1,  "a" : 2}', b"{}", '{"é": "ü"}'.encode()]
    assert part.records("notes.jsonl", notes, key="key") == 20_000
    assert part.records("raw.jsonl", raw) == 3
    assert part.records("none.jsonl", []) == 0
    receipt = part.seal()
    assert receipt.records == 20_003
    attempt.publish([receipt])
    back = repository.snapshot().part("p")
    assert list(back.records("notes.jsonl", Note)) == notes
    for number in (0, 1, 9_999, 19_999):
        assert back.record("notes.jsonl", f"k{number}", Note) == notes[number]
    assert list(back.lines("raw.jsonl")) == raw
    assert back.read("raw.jsonl") == b"".join(line + b"\n" for line in raw)
    assert list(back.lines("none.jsonl")) == []
    assert back.read("none.jsonl") == b""
    assert len({place.frame_offset for place in back.line_places(back.entry("notes.jsonl"))}) > 1
    with pytest.raises(NoMatch):
        back.record("notes.jsonl", "nobody", Note)
    with pytest.raises(NoMatch):
        back.record("none.jsonl", "0", Note)
    with pytest.raises(FormatError):
        list(back.lines("notes.jsonl.index"))
    assert repository.verify().findings == []


def test_a_record_that_breaks_its_schema_is_named(repository: Repository) -> None:
    attempt = repository.begin()
    part = attempt.part("p")
    part.records("x", [b'{"key": "a", "value": 1}', b'{"key": "b", "value": "one"}'], key="key")
    attempt.publish([part.seal()])
    back = repository.snapshot().part("p")
    assert back.record("x", "a", Note) == Note(key="a", value=1)
    with pytest.raises(FormatError, match=r"x\[b\]"):
        back.record("x", "b", Note)
    with pytest.raises(FormatError, match=r"x:1"):
        list(back.records("x", Note))


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"[]",
        b'"text"',
        b"1",
        b"\xff\xfe",
        '{"k": "a"}'.encode("utf-16"),
        b'{"k": "a"}\n{"k": "b"}',
        b'{"k":\r"a"}',
        b'{"x": 1}',
        b'{"k": 5}',
        b'{"k": ""}',
        b'{"k": "\\ud800"}',
        b'{"k": ' + b"[" * 100_000,
        b'{"k": "a", "x": NaN}',
        b'{"k": "a", "x": [-Infinity]}',
    ],
    ids=lambda line: repr(line)[:24],
)
@pytest.mark.req("R-1")
def test_a_line_must_be_a_json_object_with_its_key(repository: Repository, line: bytes) -> None:
    part = repository.begin().part("p")
    with pytest.raises(InvalidRecord):
        part.records("x", [b'{"k": "fine"}', line], key="k")
    assert part.records("x", [b'{"k": "fine"}'], key="k") == 1
    assert part.seal().records == 1


def test_a_key_comes_once(repository: Repository) -> None:
    part = repository.begin().part("p")
    with pytest.raises(InvalidRecord, match="repeats"):
        part.records("x", [b'{"k": "a"}', b'{"k": "b"}', b'{"k": "a"}'], key="k")


def test_a_line_that_no_reader_takes_is_refused() -> None:
    encoder = jsonl.LinesEncoder(Limits(record_line=jsonl.FRAME_TARGET + 100))
    encoder.add("0", b"x" * 100)
    with pytest.raises(InvalidRecord, match="too long"):
        encoder.add("1", b"x" * 101)


def test_a_sealed_part_is_closed(repository: Repository) -> None:
    part = repository.begin().part("p")
    part.stage("x", b"")
    part.seal()
    for call in (
        lambda: part.stage("y", b""),
        lambda: part.records("y", []),
        lambda: part.table("y"),
        part.seal,
    ):
        with pytest.raises(AttemptClosed):
            call()
    part.abandon()


def test_an_abandoned_part_writes_nothing(repository: Repository, tmp_path: Path) -> None:
    with repository.begin() as attempt:
        with attempt.part("p") as part:
            part.stage("x", b"data" * 1000)
        with pytest.raises(AttemptClosed):
            part.seal()
        assert not list((tmp_path / "run" / "objects").rglob("*"))
    assert not list((tmp_path / "run" / "attempts").rglob("*"))


def test_an_empty_part_is_a_part(repository: Repository) -> None:
    attempt = repository.begin()
    attempt.publish([attempt.part("p").seal()])
    back = repository.snapshot().part("p")
    assert back.entries() == []
    assert back.table_names() == []


def test_a_part_after_its_deadline(repository: Repository, pass_time: PassTime) -> None:
    attempt = repository.begin(lease_seconds=60)
    part = attempt.part("p")
    part.stage("x", b"")
    pass_time(61)
    with pytest.raises(DeadlineExceeded):
        part.seal()
    with pytest.raises(DeadlineExceeded):
        attempt.part("q")


def test_a_part_of_an_abandoned_attempt(repository: Repository) -> None:
    attempt = repository.begin()
    part, other = attempt.part("p"), attempt.part("q")
    part.stage("x", b"data")
    elsewhere = Repository.join(attempt.ticket("elsewhere"))
    attempt.abandon()
    with pytest.raises(AttemptClosed):
        part.seal()
    with pytest.raises(AttemptClosed):
        other.stage("x", b"data")
    with pytest.raises(LeaseExpired):
        elsewhere.stage("x", b"data")
    with pytest.raises(AttemptClosed):
        attempt.part("r")


@pytest.mark.parametrize("method", ["write", "finish"])
def test_a_part_whose_last_pack_fails_is_not_sealed(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """The bytes of a small part are written behind its back: only `seal` can tell of it."""
    attempt = repository.begin()
    part = attempt.part("p")
    made: list[LocalSink] = []
    whole = getattr(LocalSink, method)

    def fail(sink: LocalSink, data: Any) -> None:
        made.append(sink)
        if sink is made[0]:
            raise StorageFull("no space")
        whole(sink, data)

    monkeypatch.setattr(LocalSink, method, fail)
    part.stage("x", b"data")
    with pytest.raises(StorageFull):
        part.seal()
    with pytest.raises(AttemptClosed):
        part.seal()


def test_the_index_is_made_while_the_last_pack_is_synced_and_written_after_it(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, begun, finished = threading.Event(), list[str](), list[str]()
    whole = LocalSink.finish

    def finish(sink: LocalSink, key: str) -> None:
        begun.append(key)
        if len(begun) == 1:
            assert made.wait(10), "the index waits for the pack"
            time.sleep(0.1)
        whole(sink, key)
        finished.append(key)

    def count(*args: Any, **kwargs: Any) -> None:
        assert not finished
        made.set()
        check_counts(*args, **kwargs)

    monkeypatch.setattr(LocalSink, "finish", finish)
    monkeypatch.setattr(part_module, "check_counts", count)
    with repository.begin() as attempt:
        part = attempt.part("p")
        part.stage("x", b"data")
        receipt = part.seal()
        attempt.publish([receipt])
    entry = repository.snapshot().part("p").entry("x")
    assert finished == [
        layout.object_key(entry.location.pack),
        layout.object_key(receipt.index_digest),
    ]


def test_entries_of_several_packs(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack_format, "TARGET_SIZE", 5000)
    attempt = repository.begin()
    part = attempt.part("p")
    data = {f"e{i}": np.random.default_rng(i).bytes(i * 137) for i in range(60)}
    for path, value in data.items():
        part.stage(path, value)
    receipt = part.seal()
    attempt.publish([receipt])
    back = repository.snapshot().part("p")
    assert len({entry.location.pack for entry in back.entries()}) > 10
    assert {path: back.read(path) for path in data} == data
    assert all(entry.location.offset % pack_format.ALIGNMENT == 0 for entry in back.entries())
    objects = [
        path for path in (Path(repository.location) / "objects").rglob("*") if path.is_file()
    ]
    assert receipt.new_objects == len(objects)
    assert receipt.stored_bytes == sum(path.stat().st_size for path in objects)
    assert repository.verify().findings == []


def test_objects_are_named_by_their_bytes(repository: Repository) -> None:
    attempt = repository.begin()
    part = attempt.part("p")
    part.stage("x", b"data")
    attempt.publish([part.seal()])
    found = [path for path in (Path(repository.location) / "objects").rglob("*") if path.is_file()]
    assert len(found) == 2
    for path in found:
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name
        assert path.parent.name == path.name[:2]


def test_prepared_lines_are_stored_as_they_are(repository: Repository) -> None:
    lines = [
        PreparedLine(b'{"key": "a", "token": "kept: its maker answers"}', "a"),
        prepare(Note(key="b", value=2), "key"),
    ]
    attempt = repository.begin()
    with attempt.part("p") as part:
        assert part.records("notes.jsonl", lines, key="not looked at") == 2
        attempt.publish([part.seal()])
    back = repository.snapshot().part("p")
    assert list(back.lines("notes.jsonl")) == [line.data for line in lines]
    assert back.record("notes.jsonl", "b", Note) == Note(key="b", value=2)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([PreparedLine(b"{}", "a"), PreparedLine(b"{}", "a")], "repeats the key 'a'"),
        ([PreparedLine(b"{\n}", "a")], "line break"),
    ],
)
def test_prepared_lines_that_break_a_file_are_refused(
    repository: Repository, lines: list[PreparedLine], said: str
) -> None:
    with (
        repository.begin() as attempt,
        attempt.part("p") as part,
        pytest.raises(InvalidRecord, match=said),
    ):
        part.records("notes.jsonl", lines)
