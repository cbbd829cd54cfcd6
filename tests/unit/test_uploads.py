"""Packs on their way into a bucket: in pieces, bounded, beside the encoding, and given up."""

import threading
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapfmt.errors import AttemptClosed, SnapfmtError, StorageDenied
from snapfmt.format import pack
from snapfmt.limits import MIB
from snapfmt.repository import Repository
from snapfmt.storage import pieces as pieces_module
from snapfmt.storage.memory import MemoryClient
from snapfmt.storage.objects import ObjectStore
from snapfmt.storage.pieces import Body, Pieces
from snapfmt.testing.bucket_world import found, repository_on, rows, save, whole
from snapfmt.writing import finishing
from snapfmt.writing import pack as pack_writer
from snapfmt.writing.pack import PackWriter
from snapfmt.writing.part import PartWriter

PATIENCE_S = 60.0
PACK = MIB


def of(*pieces: bytes) -> Pieces:
    made = Pieces()
    for piece in pieces:
        made.add(piece)
    return made


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 40)), st.integers(1, 16))
def test_pieces_are_sent_whole_and_more_than_once(sizes: list[int], block: int) -> None:
    given_pieces = [bytes([number % 251]) * size for number, size in enumerate(sizes)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces_module, "BLOCK", block)
        made = of(*given_pieces)
        assert len(made) == sum(sizes)
        for _ in range(2):
            blocks = list(made.blocks())
            assert b"".join(blocks) == b"".join(given_pieces) == bytes(made)
            assert all(0 < len(part) <= block for part in blocks)


def test_small_pieces_take_no_more_memory_than_their_bytes() -> None:
    """Nor do dropped ones, while somebody waits to send the next block."""
    line, count = b"0123456789abcdef", 4 * pieces_module.BLOCK // 16
    tracemalloc.start()
    try:
        made = of(*(bytes(bytearray(line)) for _ in range(count)))
        blocks = made.blocks()
        next(blocks)
        size, _ = tracemalloc.get_traced_memory()
        made.drop()
        left, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(made) <= size < 1.5 * len(made)
    assert left < 1.5 * pieces_module.BLOCK
    del blocks


def test_pieces_that_were_dropped_break_off() -> None:
    made = of(bytes(pieces_module.BLOCK * 2), b"end")
    blocks = made.blocks()
    next(blocks)
    made.drop()
    with pytest.raises(AttemptClosed):
        list(blocks)
    with pytest.raises(AttemptClosed):
        bytes(made)


class Gated(MemoryClient):
    """A server that keeps objects waiting, with their bytes, until its gate is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.waiting = threading.Event(), threading.Semaphore(0)
        self.refuses: set[int] = set()
        self.arrived: list[str] = []
        self.puts = 0

    def put(
        self,
        key: str,
        data: Body,
        *,
        exclusive: bool,
        metadata: Mapping[str, str],
        sha256: bytes | None = None,
    ) -> None:
        if isinstance(data, Pieces):
            self.puts += 1
            number, held = self.puts, bytes(data)
            self.waiting.release()
            if number in self.refuses:
                raise StorageDenied("no", what=key)
            assert self.gate.wait(PATIENCE_S)
            self.arrived.append(key)
            data = held
        super().put(key, data, exclusive=exclusive, metadata=metadata, sha256=sha256)

    def wait_for(self, puts: int) -> None:
        for _ in range(puts):
            assert self.waiting.acquire(timeout=PATIENCE_S)


class Small:
    """Packs and bounds in small."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(pack, "TARGET_SIZE", PACK)
        patch.setattr(finishing, "HELD_BYTES", 5 * PACK // 2)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Gated:
    Small(monkeypatch)
    client = Gated()
    client.gate.set()
    save(repository_on(client, create=True), 1)
    client.gate.clear()
    client.puts, client.arrived, client.waiting = 0, [], threading.Semaphore(0)
    return client


def fill(part: PartWriter, first: int, count: int) -> None:
    for number in range(first, first + count):
        part.stage(f"e{number}", bytes([number]) * PACK)


def two_packs(part: PartWriter) -> None:
    part.stage("first", bytes(PACK // 2))
    part.stage("second", bytes(PACK * 5 // 4))


def in_thread(work: Any) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_a_pack_is_written_while_others_are_sent(bucket: Gated) -> None:
    with repository_on(bucket).begin() as attempt, attempt.part("p", workers=1) as part:
        two_packs(part)
        # Both are on their way, and a third one is begun.
        bucket.wait_for(2)
        part.stage("small", bytes(PACK // 4))
        assert bucket.arrived == []
        bucket.gate.set()
        receipt = part.seal()
        assert len(set(bucket.arrived)) == receipt.new_objects == 4
        attempt.publish([receipt])
    whole(repository_on(bucket), "", leftovers=False)


def packs_of(repository: Repository) -> list[int]:
    """Sizes of a part's packs, in the order in which they were closed."""
    with repository.begin() as attempt, attempt.part("p", workers=1) as part:
        for number in range(10):
            part.stage(f"e{number}", bytes([number]) * (PACK // 4))
        attempt.publish([part.seal()])
    index = repository.snapshot().part("p")
    ends: dict[str, int] = {}
    for entry in index.entries():
        ends[entry.location.pack] = entry.location.offset + entry.location.size
    return list(ends.values())


def test_the_first_pack_that_is_sent_is_small_and_the_second_makes_up_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is sent before it is whole; a disk has long begun with it."""
    Small(monkeypatch)
    sent = packs_of(repository_on(MemoryClient(), create=True))
    on_disk = packs_of(Repository.open(tmp_path, create=True))
    assert [round(4 * size / PACK) for size in sent] == [2, 5, 3]
    assert [round(4 * size / PACK) for size in on_disk] == [4, 4, 2]


def test_what_is_held_in_memory_is_bounded(bucket: Gated, monkeypatch: pytest.MonkeyPatch) -> None:
    most, sinks = [0], []
    make = ObjectStore.sink

    def noted(self: ObjectStore, workspace: str, name: str) -> Any:
        sinks.append(make(self, workspace, name))
        return sinks[-1]

    monkeypatch.setattr(ObjectStore, "sink", noted)
    wait, full = finishing.Finishing.make_room, threading.Event()

    def watched(self: finishing.Finishing, current: Any, size: int) -> None:
        if sum(sink.held for sink in sinks) + size > finishing.HELD_BYTES:
            full.set()
        wait(self, current, size)
        most[0] = max(most[0], sum(sink.held for sink in sinks) + size)

    monkeypatch.setattr(finishing.Finishing, "make_room", watched)
    with repository_on(bucket).begin() as attempt, attempt.part("p", workers=1) as part:
        filling = in_thread(lambda: fill(part, 0, 12))
        assert full.wait(PATIENCE_S)
        bucket.gate.set()
        filling.join(PATIENCE_S)
        attempt.publish([part.seal()])
    assert 2 * PACK < most[0] <= finishing.HELD_BYTES + 64
    assert all(sink.held == 0 for sink in sinks)


def test_what_waits_for_a_pack_is_counted_by_its_bytes(
    bucket: Gated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by its pieces: it takes of the memory that the next pack could be in."""
    monkeypatch.setattr(pack_writer, "SENT_QUEUE_BYTES", PACK)
    handled, full = [0], threading.Event()
    put = PackWriter._put

    def counted(self: PackWriter, target: Any, data: Any) -> None:
        put(self, target, data)
        handled[0] += len(data)
        # What is there, and more than that.
        if handled[0] > finishing.HELD_BYTES + 2 * PACK:
            full.set()

    monkeypatch.setattr(PackWriter, "_put", counted)
    with repository_on(bucket).begin() as attempt, attempt.part("p", workers=1) as part:

        def fill_slowly() -> None:
            for number in range(40):
                part.stage(f"e{number}", bytes([number]) * (PACK // 4))

        filling = in_thread(fill_slowly)
        bucket.wait_for(2)
        assert not full.wait(1.0)
        bucket.gate.set()
        filling.join(PATIENCE_S)
        assert full.is_set()
        attempt.publish([part.seal()])


def test_a_part_is_given_up_while_its_packs_are_stuck(bucket: Gated) -> None:
    repository = repository_on(bucket)
    attempt = repository.begin()
    part = attempt.part("p", workers=1)
    two_packs(part)
    bucket.wait_for(2)
    part.stage("small", b"more")
    ending = in_thread(attempt.abandon)
    ending.join(PATIENCE_S)
    assert not ending.is_alive()
    assert bucket.arrived == []
    assert repository.leases() == []
    with pytest.raises(AttemptClosed):
        part.seal()
    settle(bucket, repository)


def test_a_part_that_another_thread_gives_up_as_it_begins_leaves_no_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    repository = repository_on(MemoryClient(), create=True)
    attempt = repository.begin()
    part = attempt.part("p", workers=1)
    make = ObjectStore.sink

    def given_up(self: ObjectStore, workspace: str, name: str) -> Any:
        sink = make(self, workspace, name)
        in_thread(attempt.abandon).join(PATIENCE_S)
        return sink

    monkeypatch.setattr(ObjectStore, "sink", given_up)
    # Parts of other tests that were never ended have theirs.
    before = set(threading.enumerate())
    with pytest.raises(AttemptClosed):
        part.stage("small", b"more")
    begun = {thread.name for thread in threading.enumerate() if thread not in before}
    assert "snapfmt-pack-writer" not in begun


def settle(bucket: Gated, repository: Repository) -> None:
    """What comes late is found by the next collection, and nothing else is taken."""
    late = [thread for thread in threading.enumerate() if thread.name == "snapfmt-pack-finish"]
    bucket.gate.set()
    for thread in late:
        thread.join(PATIENCE_S)
    assert len(bucket.arrived) == 2
    assert found(repository) == {1: rows(1)}
    report = repository.collect()
    assert {item.key for item in report.objects if item.removed} == set(bucket.arrived)
    whole(repository, "", leftovers=False)


def test_an_upload_that_fails_ends_the_wait_for_the_other(bucket: Gated) -> None:
    bucket.refuses = {2}
    repository = repository_on(bucket)
    with repository.begin() as attempt, attempt.part("p", workers=1) as part:
        errors: list[BaseException] = []

        def run() -> None:
            try:
                fill(part, 0, 2)
                part.seal()
            except SnapfmtError as error:
                errors.append(error)

        sealing = in_thread(run)
        sealing.join(PATIENCE_S)
        assert not sealing.is_alive()
        assert [type(error) for error in errors] == [StorageDenied]
    assert bucket.arrived == []
    bucket.gate.set()
