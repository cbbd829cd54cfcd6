"""Many records at once: the same bytes, the same records and the same refusals as one by one."""

import gc
import json
from collections.abc import Iterator
from itertools import islice

import pyarrow as pa
import pytest

from snapfmt import Repository
from snapfmt.errors import FormatError, NoMatch
from snapfmt.format import batch_index, digest, jsonl
from snapfmt.reading.snapshot import Part
from snapfmt.writing.lines import PreparedLine
from snapfmt_schemas import lines
from snapfmt_schemas.continuation import Continuation
from snapfmt_schemas.lines import from_line, from_lines, to_line
from snapfmt_schemas.resources import ResourceSnapshot

COUNT = 4000


def made(count: int) -> Iterator[Continuation]:
    for number in range(count):
        yield Continuation(
            rollout_id=f"group_{number}",
            attempt_index=0,
            capture_key=f"group_{number}",
            last_committed_model_call_id=f'call, "{number}": ü \n {"x" * (number % 50)}',
            resource_state_revisions={"a tool": number, "a  tool": 1} if number % 3 else None,
        )


def saved(repository: Repository, prepared: list[PreparedLine]) -> Part:
    with repository.begin() as attempt:
        part = attempt.part("p")
        part.records("lines", prepared)
        attempt.publish([part.seal()])
    return repository.snapshot().part("p")


LINE = to_line(
    Continuation(
        rollout_id="p7_g2",
        attempt_index=0,
        capture_key="p7_g2",
        last_committed_model_call_id="call 2",
        resource_state_revisions={"tools": 3},
    )
)
"""As it is written."""


def test_lines_as_they_are_written_are_read_together() -> None:
    unescaped = LINE.replace(b"call 2", "cäll 2".encode())
    escaped = LINE.replace(b"call 2", b"c\\u00e4ll 2")
    for many in ([LINE, LINE], [unescaped], [escaped, LINE], []):
        assert from_lines(Continuation, many) == [from_line(Continuation, line) for line in many]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"attempt_index": 0', b'"attempt_index": 0, "attempt_index": 0'),
        (b'"tools": 3', b'"tools": 3, "tools": 3'),
        (b'"tools": 3', b'"tools": 3,"tools":3'),
        (b'"tools": 3', b'"too ls": 3, "tools": 3, "tools": 3'),
        (b'"tools": 3', b'"to\\u006fls": 3, "tools": 3'),
        (b'"schema_version": 1, ', b""),
        (b'"attempt_index": 0', b'"attempt_index": 0.0'),
        (b'"attempt_index": 0', b'"attempt_index": -0'),
        (b"call 2", b"\\ud800"),
        (b"call 2", b"c\\u00E4ll"),
        (b"}", b""),
        (b"{", b"[{"),
    ],
)
def test_any_other_line_is_left_to_the_reader_of_one(old: bytes, new: bytes) -> None:
    assert from_lines(Continuation, [LINE, LINE.replace(old, new), LINE]) is None


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_as_it_was(enabled: bool) -> None:
    was = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        for many in ([LINE], [b"{"]):
            from_lines(Continuation, many)
            assert gc.isenabled() is enabled
    finally:
        (gc.enable if was else gc.disable)()


def test_records_of_many_frames_come_back(repository: Repository) -> None:
    records = list(made(COUNT))
    with repository.begin() as attempt:
        part = attempt.part("p")
        assert part.records("lines", records, key="capture_key", redact=False) == COUNT
        attempt.publish([part.seal()])
    back = repository.snapshot().part("p")
    assert len({place.frame_offset for place in back.line_places(back.entry("lines"))}) > 2
    assert list(back.records("lines", Continuation)) == records
    assert back.read("lines") == b"".join(to_line(record) + b"\n" for record in records)
    assert back.record("lines", "group_3001", Continuation) == records[3001]
    for key in ("group_4000", "\ud800", ""):
        with pytest.raises(NoMatch, match="no such record"):
            back.record("lines", key, Continuation)
    assert repository.verify().findings == []


def test_a_bad_record_is_named_and_those_before_it_are_given(repository: Repository) -> None:
    bad = COUNT - 700
    prepared = [PreparedLine(to_line(record), "") for record in made(COUNT)]
    prepared[bad] = PreparedLine(b'{"schema_version": 1, "schema_version": 1}', "")
    found = saved(repository, prepared).records("lines", Continuation)
    assert list(islice(found, bad)) == list(made(bad))
    with pytest.raises(FormatError, match="repeats the key 'schema_version'") as caught:
        next(found)
    assert caught.value.what.endswith(f"p/lines:{bad}")


def test_an_index_is_what_a_list_of_its_rows_would_be() -> None:
    for count in (0, 1, COUNT):
        encoder, frames, open_lines = jsonl.LinesEncoder(), list[bytes](), list[bytes]()
        rows, offset = list[tuple[object, ...]](), 0
        for number, record in enumerate(made(count)):
            open_lines.append(to_line(record))
            frame = encoder.add(str(number), open_lines[-1])
            if number == count - 1:
                frame = frame or encoder.flush()
            if not frame:
                continue
            content = sum(len(line) + 1 for line in open_lines)
            mark, at = digest.raw_digest([frame]), 0
            for line in open_lines:
                rows.append((str(len(rows)), offset, len(frame), content, mark, at, len(line)))
                at += len(line) + 1
            frames.append(frame)
            offset += len(frame)
            open_lines.clear()
        columns = [list(column) for column in zip(*rows, strict=True)] or [[]] * 7
        batch = pa.record_batch(columns, schema=jsonl.INDEX_SCHEMA)
        assert encoder.index() == batch_index.to_stream(batch)
        assert (len(frames) > 2) == (count == COUNT)


def test_without_the_fast_encoder_the_lines_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json.encoder, "c_make_encoder", None)
    plain = lines.encoder(", ", ": ", lines._fields)
    for record in made(100):
        assert plain(vars(record)).encode() == to_line(record)


@pytest.mark.parametrize("fast", [True, False])
def test_an_encoder_writes_what_json_writes(fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not fast:
        monkeypatch.setattr(json.encoder, "c_make_encoder", None)
    encode = lines.encoder(",", ":")
    values: list[object] = ["a\u00e9\n", 1.5, -0.0, 2**70, True, None, [], {}]
    for value in [*values, [{"b": [1, "\U0001f600"]}]]:
        assert encode(value) == json.dumps(value, separators=(",", ":"))
    with pytest.raises(ValueError, match="not JSON compliant"):
        encode([float("nan")])
    with pytest.raises(TypeError, match="not JSON serializable"):
        encode({1})


def test_what_came_to_contain_itself_is_not_written() -> None:
    record = ResourceSnapshot(
        rollout_id="r", attempt_index=0, state_revision=0, state={"a": []}, created_at=0.0
    )
    record.state["a"].append(record.state)
    with pytest.raises(ValueError, match="cannot be written"):
        to_line(record)
