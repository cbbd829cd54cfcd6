"""Reads from a store where requests are dear: few, large, and the same bytes."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from snapfmt import Repository
from snapfmt.errors import CorruptObject, MissingObject
from snapfmt.limits import DEFAULT_LIMITS
from snapfmt.reading import ahead
from snapfmt.reading.ahead import Range, ReadAhead, gather
from snapfmt.reading.snapshot import Snapshot
from snapfmt.storage.local import LocalStore
from snapfmt.storage.memory import MemoryClient
from snapfmt.storage.objects import ObjectStore
from snapfmt.testing.stores import CountingStore

ROWS = 32_768


def save(repository: Repository, rows: int, *, parts: int = 1, tokens: int = 100) -> None:
    data = np.random.default_rng(7).integers(0, 50_000, (rows, tokens))
    with repository.begin() as attempt:
        receipts = []
        for number in range(parts):
            with attempt.part(f"rl/{number}") as part:
                with part.table("rows/train") as table:
                    for start in range(number * rows // parts, (number + 1) * rows // parts, 4096):
                        stop = min(start + 4096, (number + 1) * rows // parts)
                        names = [f"row {row}" for row in range(start, stop)]
                        table.append(names, {"ids": list(data[start:stop])})
                receipts.append(part.seal())
        attempt.publish(receipts)


@pytest.fixture(scope="module")
def client() -> MemoryClient:
    client = MemoryClient()
    save(Repository.open(ObjectStore(client), create=True), ROWS)
    return client


def opened(client: MemoryClient) -> tuple[Snapshot, CountingStore]:
    """The newest snapshot, its manifest read, through a store that counts from here on."""
    store = CountingStore(ObjectStore(client))
    snapshot = Snapshot.open(store, 1)
    store.reads.clear()
    return snapshot, store


def test_one_row_of_many_costs_three_requests(client: MemoryClient) -> None:
    snapshot, store = opened(client)
    row = snapshot.table("rows/train").row("row 20000")
    assert row["ids"].shape == (100,)
    assert len(store.reads) <= 3, store.reads
    assert store.bytes_read < 3_000_000


def test_a_second_row_costs_no_index_again(client: MemoryClient) -> None:
    snapshot, store = opened(client)
    table = snapshot.table("rows/train")
    table.row("row 20000")
    store.reads.clear()
    assert table.row("row 20001")["ids"].shape == (100,)
    assert len(store.reads) == 1, store.reads
    table.keys()
    list(table.batches(["ids"], start=20_000, stop=20_002))
    assert len(store.reads) == 2, "what is known is not fetched, and kept, once more"


@pytest.mark.parametrize("small", [True, False])
def test_rows_of_one_part_need_nothing_of_the_others(small: bool) -> None:
    client = MemoryClient()
    save(Repository.open(ObjectStore(client), create=True), 3000, parts=3)
    store = type("Small", (CountingStore,), {"read_size": 0} if small else {})(ObjectStore(client))
    table = Snapshot.open(store, 1).table("rows/train")
    store.reads.clear()
    assert [key for batch in table.batches(start=10, stop=12) for key in batch.keys] == [
        "row 10",
        "row 11",
    ]
    assert len({key for key, _, _ in store.reads}) == 1, store.reads


def test_all_rows_come_in_large_pieces(client: MemoryClient) -> None:
    snapshot, store = opened(client)
    table = snapshot.table("rows/train")
    seen = sum(len(batch.keys) for batch in table.batches())
    assert seen == ROWS
    stored = sum(item.stored_bytes for item in snapshot.manifest.parts)
    assert len(store.reads) <= 3 + stored // store.read_size + 2
    assert store.bytes_read <= stored + 10_000, "nothing is fetched twice"


def test_the_bytes_are_those_of_small_reads(client: MemoryClient) -> None:
    snapshot, _ = opened(client)
    large = list(snapshot.table("rows/train").batches(start=1000, stop=9000))
    inner = ObjectStore(client)
    type_ = type("Small", (CountingStore,), {"read_size": 0})
    small = list(Snapshot.open(type_(inner), 1).table("rows/train").batches(start=1000, stop=9000))
    assert [batch.keys for batch in large] == [batch.keys for batch in small]
    for one, other in zip(large, small, strict=True):
        assert one.columns["ids"].values.tobytes() == other.columns["ids"].values.tobytes()


def test_a_deep_verify_reads_large_pieces(client: MemoryClient) -> None:
    store = CountingStore(ObjectStore(client))
    report = Repository.open(store).verify()
    assert not report.damage
    packs = sum(size for key, size in store.walk("objects"))
    assert len(store.reads) < 40 + 4 * packs // store.read_size


@pytest.fixture(scope="module")
def motley() -> MemoryClient:
    """A table whose rows have many types, so that it has many segments; a large second column."""
    client = MemoryClient()
    attempt = Repository.open(ObjectStore(client), create=True).begin()
    part = attempt.part("rl")
    with part.table("rows/train") as table:
        for number in range(120):
            small = np.zeros((1,) * (number % 30), ("f4", "i8", "u1", "f8")[number // 30])
            large = np.random.default_rng(number).integers(0, 2**63, 25_000)
            table.append([f"row {number}"], {"small": [small], "large": [large]})
    attempt.publish([part.seal()])
    return client


def test_segments_that_follow_one_another_are_read_in_large_pieces(motley: MemoryClient) -> None:
    snapshot, store = opened(motley)
    table = snapshot.table("rows/train")
    assert sum(len(batch.keys) for batch in table.batches()) == 120
    assert len(table.segments()) == 120
    assert len(store.reads) <= 6 + table.stored_bytes // store.read_size, len(store.reads)


def test_a_deep_verify_of_many_segments_reads_large_pieces(motley: MemoryClient) -> None:
    store = CountingStore(ObjectStore(motley))
    report = Repository.open(store).verify()
    assert not report.findings
    packs = sum(size for key, size in store.walk("objects"))
    assert len(store.reads) < 20 + 3 * packs // store.read_size, len(store.reads)


def test_a_selection_of_columns_is_read_ahead_and_nothing_else(motley: MemoryClient) -> None:
    snapshot, store = opened(motley)
    table = snapshot.table("rows/train")
    began = threading.active_count()
    rows = table.batches(["small"])
    next(rows)
    assert threading.active_count() - began >= ahead.WORKERS, "several requests at a time"
    assert sum(len(batch.keys) for batch in rows) == 119
    assert store.bytes_read < table.stored_bytes // 10


def test_damage_behind_it_costs_a_row_nothing(motley: MemoryClient) -> None:
    """A large piece that is cut off has segments in it that are whole."""
    other = MemoryClient()
    for info in motley.list("", deep=True):
        data = motley.get(info.key, 0, DEFAULT_LIMITS.entry_size)
        other.put(info.key, data, exclusive=True, metadata={})
    table = Snapshot.open(ObjectStore(other), 1).table("rows/train")
    keys = table.keys()
    last = table.segments()[-1].document.data
    for segment in table.segments():
        assert segment.index
    key = f"objects/{last.pack[7:9]}/{last.pack[7:]}"
    other.put(key, motley.get(key, 0, last.offset + 100), exclusive=False, metadata={})
    seen: list[str] = []
    with pytest.raises(CorruptObject):
        seen.extend(key for batch in table.batches() for key in batch.keys)
    assert seen == keys[:-1]


def test_a_selection_of_columns_of_few_rows(client: MemoryClient) -> None:
    snapshot, _ = opened(client)
    rows = list(snapshot.table("rows/train").batches(["ids"], start=5, stop=7))
    assert [batch.keys for batch in rows] == [["row 5", "row 6"]]


class Plain(CountingStore):
    """Ten bytes make a large read."""

    read_size = 10  # type: ignore[assignment]


@pytest.fixture
def plain() -> Plain:
    store = ObjectStore(MemoryClient())
    store.replace("objects/a", bytes(range(200)))
    store.replace("objects/b", bytes(range(100)))
    return Plain(store)


def test_reads_in_and_out_of_order(plain: Plain) -> None:
    whole = bytes(range(200))
    with ReadAhead(plain, [Range("objects/a", 5, 150), Range("objects/b", 0, 25)]) as found:
        for offset, size in [(5, 3), (8, 20), (28, 1), (120, 35), (60, 10), (150, 5)]:
            data = found.get(Range("objects/a", offset, size))
            # What was left behind long ago is the caller's to fetch again.
            assert data in (whole[offset : offset + size], None)
            assert (data is None) == (offset == 60)
        assert found.get(Range("objects/b", 3, 20)) == whole[3:23]
        for offset, size in [(4, 2), (0, 5), (150, 6), (155, 1), (190, 5)]:
            assert found.get(Range("objects/a", offset, size)) is None
        assert found.get(Range("objects/c", 0, 1)) is None


def test_no_more_is_held_than_said(plain: Plain) -> None:
    with ReadAhead(plain, [Range("objects/a", 0, 200)]) as found:
        for offset in range(0, 200, 5):
            assert found.get(Range("objects/a", offset, 5)) is not None
            assert len(found._futures) <= ahead.AHEAD + ahead.BEHIND + 2


def test_many_threads_read_the_same_piece(plain: Plain) -> None:
    got: list[Any] = []
    with ReadAhead(plain, [Range("objects/a", 0, 200)]) as found:
        threads = [
            threading.Thread(target=lambda: got.append(found.get(Range("objects/a", 0, 15))))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert got == [bytes(range(15))] * 8


def test_an_error_reaches_the_reader(plain: Plain) -> None:
    ranges = [Range("objects/a", 190, 30), Range("objects/none", 0, 5)]
    with ReadAhead(plain, ranges) as found:
        # Cut off: whoever asks for less of it may be luckier.
        assert found.get(Range("objects/a", 205, 5)) is None
        with pytest.raises(MissingObject):
            found.get(Range("objects/none", 0, 5))


def test_close_ranges_are_one_request(plain: Plain) -> None:
    ranges = [Range("objects/a", 3, 4), Range("objects/a", 100, 7), Range("objects/b", 0, 2)]
    found = gather(plain, [*ranges, ranges[0]])
    assert {item: bytes(data) for item, data in found.items()} == {
        ranges[0]: bytes(range(3, 7)),
        ranges[1]: bytes(range(100, 107)),
        ranges[2]: b"\0\1",
    }
    assert len(plain.reads) == 2
    assert gather(plain, []) == {}


def test_few_reads_of_a_disk_start_no_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(bytes(range(256)) * 1000)
    monkeypatch.delattr(ahead, "Pool")
    ranges = [Range("file", number * 20_000, 3) for number in range(ahead.FEW)]
    assert list(gather(LocalStore(tmp_path), ranges)) == ranges
    monkeypatch.undo()
    many = [*ranges, Range("file", 200_000, 3)]
    assert list(gather(LocalStore(tmp_path), many)) == many


def test_gathered_bytes_are_checked_like_all_others(client: MemoryClient) -> None:
    other = MemoryClient()
    for info in client.list("", deep=True):
        data = bytearray(client.get(info.key, 0, DEFAULT_LIMITS.entry_size))
        if len(data) > 1_000_000:
            # Keys lie at the end of the only large pack.
            data[-100] ^= 1
        other.put(info.key, data, exclusive=True, metadata={})
    with pytest.raises(CorruptObject):
        Snapshot.open(ObjectStore(other), 1).table("rows/train").row("row 1")
