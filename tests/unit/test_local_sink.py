"""A large object on a local disk: most of it is durable long before the last fsync."""

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from snapfmt.errors import StorageError, StorageFull
from snapfmt.storage import local_sink, posix
from snapfmt.storage.local_sink import JOURNAL, WRITE_BEHIND, LocalSink

PIECE = 1024 * 1024


@pytest.fixture
def sink(tmp_path: Path) -> LocalSink:
    (tmp_path / "work" / JOURNAL).mkdir(parents=True)
    return LocalSink(tmp_path, tmp_path / "work", "x")


def _write(sink: LocalSink, size: int) -> None:
    for number in range(size // PIECE):
        sink.write(bytes([number]) * PIECE)


def test_what_was_written_is_synced_behind_the_writer(
    tmp_path: Path, sink: LocalSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    early = threading.Event()

    def behind(descriptor: int) -> None:
        told.append(threading.current_thread().name)
        posix.sync_data(descriptor)
        early.set()

    def last(descriptor: int) -> None:
        told.append("last")
        posix.fsync_file(descriptor)

    monkeypatch.setattr(local_sink, "sync_data", behind)
    monkeypatch.setattr(local_sink, "fsync_file", last)
    _write(sink, WRITE_BEHIND)
    assert early.wait(60)
    _write(sink, PIECE)
    sink.finish("objects/x")
    assert told == ["snapfmt-sync-behind", "last"]
    assert (tmp_path / "objects" / "x").stat().st_size == WRITE_BEHIND + PIECE


def test_the_writer_waits_for_no_sync_but_the_last(
    sink: LocalSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, count = threading.Event(), []

    def slow(_: int) -> None:
        count.append(1)
        assert go.wait(60)

    monkeypatch.setattr(local_sink, "sync_data", slow)
    _write(sink, 3 * WRITE_BEHIND)
    go.set()
    sink.finish("objects/x")
    assert count == [1]


def _full(_: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_the_error_of_an_early_sync_is_one_of_the_object(
    tmp_path: Path, sink: LocalSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_sink, "sync_data", _full)
    _write(sink, WRITE_BEHIND)
    # The kernel tells an error of the disk once: the fsync that follows succeeds.
    with pytest.raises(StorageFull):
        sink.finish("objects/x")
    assert not (tmp_path / "objects" / "x").exists()
    sink.discard()


def test_after_the_error_of_an_early_sync_nothing_more_is_written(
    sink: LocalSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_sink, "sync_data", _full)
    with pytest.raises(StorageError):
        _write(sink, 64 * WRITE_BEHIND)
    sink.discard()


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(LocalSink.discard, id="discard"),
        pytest.param(lambda sink: sink.finish("objects/x"), id="finish"),
    ],
)
def test_a_descriptor_is_closed_after_its_sync(
    sink: LocalSink, monkeypatch: pytest.MonkeyPatch, end: Callable[[LocalSink], None]
) -> None:
    begun, order = threading.Event(), []
    close = os.close

    def slow(_: int) -> None:
        begun.set()
        threading.Event().wait(0.05)
        order.append("synced")

    def closed(descriptor: int) -> None:
        order.append("closed")
        close(descriptor)

    monkeypatch.setattr(local_sink, "sync_data", slow)
    _write(sink, WRITE_BEHIND)
    assert begun.wait(60)
    monkeypatch.setattr(os, "close", closed)
    end(sink)
    assert order[:2] == ["synced", "closed"]


def _no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize(
    "size", [pytest.param(PIECE, id="small"), pytest.param(WRITE_BEHIND, id="no thread")]
)
def test_the_last_fsync_alone_is_enough(
    tmp_path: Path, sink: LocalSink, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    start: Callable[[threading.Thread], None] = _no_thread
    monkeypatch.setattr(threading.Thread, "start", start)
    _write(sink, size)
    sink.finish("objects/x")
    assert (tmp_path / "objects" / "x").stat().st_size == size


def test_whatever_ends_an_early_sync_is_an_error_of_the_object(
    sink: LocalSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel may have told its error, and nothing had memory to pass it on."""

    def unlucky(_: int) -> None:
        raise MemoryError

    monkeypatch.setattr(local_sink, "sync_data", unlucky)
    _write(sink, WRITE_BEHIND)
    with pytest.raises(MemoryError):
        sink.finish("objects/x")
    sink.discard()


def _closes_fail(patch: pytest.MonkeyPatch) -> list[int]:
    """Every close closes, and says that it failed; the descriptors that were closed."""
    closed: list[int] = []
    close = os.close

    def failing(descriptor: int) -> None:
        closed.append(descriptor)
        close(descriptor)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    patch.setattr(os, "close", failing)
    return closed


def test_a_descriptor_whose_close_fails_is_not_closed_again(
    tmp_path: Path, sink: LocalSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is closed all the same, and may be another thread's file by then."""
    _write(sink, PIECE)
    with monkeypatch.context() as patch:
        closed = _closes_fail(patch)
        with pytest.raises(StorageError):
            sink.finish("objects/x")
        sink.discard()
    assert len(closed) == 1
    assert not list((tmp_path / "work").glob("*.tmp"))


def test_a_file_whose_close_fails_is_removed_all_the_same(
    tmp_path: Path, sink: LocalSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(sink, PIECE)
    with monkeypatch.context() as patch:
        _closes_fail(patch)
        with pytest.raises(StorageError):
            sink.discard()
    assert not list((tmp_path / "work").glob("*.tmp"))
