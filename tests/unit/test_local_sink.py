"""A large object on a local disk: the disk begins with it long before the fsync."""

from pathlib import Path

import pytest

from snapfmt.storage import local_sink, posix
from snapfmt.storage.local_sink import JOURNAL, WRITE_BEHIND, LocalSink

PIECE = 1024 * 1024


def test_what_was_written_is_on_its_way_before_the_fsync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work" / JOURNAL).mkdir(parents=True)
    told: list[tuple[int, int] | str] = []

    def begin(descriptor: int, offset: int, size: int) -> None:
        told.append((offset, size))
        posix.begin_writeback(descriptor, offset, size)

    def sync(descriptor: int) -> None:
        told.append("fsync")
        posix.fsync_file(descriptor)

    monkeypatch.setattr(local_sink, "begin_writeback", begin)
    monkeypatch.setattr(local_sink, "fsync_file", sync)
    sink = LocalSink(tmp_path, tmp_path / "work", "x")
    data = [bytes([number]) * PIECE for number in range(20)]
    for piece in data:
        sink.write(piece)
    sink.finish("objects/x")
    assert told == [(0, WRITE_BEHIND), (WRITE_BEHIND, WRITE_BEHIND), "fsync"]
    assert (tmp_path / "objects" / "x").read_bytes() == b"".join(data)


def test_a_small_object_is_only_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "work" / JOURNAL).mkdir(parents=True)
    monkeypatch.setattr(local_sink, "begin_writeback", lambda *_: 1 / 0)
    sink = LocalSink(tmp_path, tmp_path / "work", "x")
    sink.write(b"1" * PIECE)
    sink.finish("objects/x")
    assert (tmp_path / "objects" / "x").stat().st_size == PIECE
