"""Hundreds of saves on one another: the newest is opened as the first was, and bytes stay few."""

import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from snapfmt import Repository
from snapfmt.testing.stores import WrappedStore
from snapfmt.writing import carry
from snapfmt.writing.carry import Carried, Carrier

ROWS, SAVES = 400, 200


@pytest.fixture
def fast_root(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


class Counting(WrappedStore):
    """Counts requests and bytes that are read."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.requests = Counter[str]()
        self.bytes = 0

    def get(self, key: str, *, limit: int) -> bytes:
        self.requests["get"] += 1
        data = self.inner.get(key, limit=limit)
        self.bytes += len(data)
        return data

    def get_range(self, key: str, offset: int, size: int) -> bytes:
        self.requests["range"] += 1
        self.bytes += size
        return self.inner.get_range(key, offset, size)


def cost_of_opening(repository: Repository) -> tuple[int, int]:
    """Requests and bytes until the newest snapshot says its keys."""
    store: Any = Counting(repository.store)
    table = Repository(store, repository.document, limits=repository.limits).snapshot().table("t")
    assert len(table.keys()) == ROWS
    return sum(store.requests.values()), store.bytes


def one_save(repository: Repository, number: int, random: Any) -> tuple[int, int]:
    """One save with 1% new rows for 1% old ones; bytes written, and rows of them new."""
    new = ROWS // 100
    with repository.begin(base=number - 1 or None) as attempt:
        part = attempt.part("p")
        with part.table("t") as table:
            start, stop = (0, ROWS) if number == 1 else (ROWS + new * (number - 2), None)
            keys = [f"row {i}" for i in range(start, stop or start + new)]
            values = [random.integers(0, 256, 4096, np.uint8) for _ in keys]
            if number > 1:
                first = new * (number - 2)
                table.carry_all([f"row {i}" for i in range(first, first + new)])
            table.append(keys, {"x": values})
        return attempt.publish([part.seal()]).parts[0].stored_bytes, len(keys)


def test_a_chain_costs_its_reader_nothing(fast_root: Path) -> None:
    repository, random = Repository.create(fast_root / "run"), np.random.default_rng(1)
    segments, written, costs = [], [], []
    for number in range(1, SAVES + 1):
        size, rows = one_save(repository, number, random)
        snapshot = repository.snapshot()
        segments.append(len(snapshot.table("t").segments()))
        written.append(size / rows / 4096)
        costs.append(cost_of_opening(repository))
        if number > 3:
            repository.keep_latest(3)
    assert repository.snapshot().table("t").num_rows == ROWS
    assert max(segments) <= 4 * carry.TIER_FACTOR
    assert len(repository.snapshot().manifest.parts) == 1
    # Every row is written once, and again about once per size class over its life.
    assert np.mean(written[1:]) < 4.5
    assert np.median(written[1:]) < 2
    middle, late = costs[SAVES // 2 - 50 : SAVES // 2], costs[-50:]
    for which in (0, 1):
        assert max(c[which] for c in late) <= 1.3 * max(c[which] for c in middle)
    assert max(requests for requests, _ in costs) <= 3 + 2 * max(segments)
    assert repository.verify().ok
    live = sum(path.stat().st_size for path in (fast_root / "run/objects").rglob("*/*"))
    assert live < 4 * ROWS * 4096, "what nothing reaches any more is gone"


class _Segment:
    """As far as the plan looks at a segment."""

    def __init__(self, size: int, rows: int = 100, columns: Any = ()) -> None:
        self.document: Any = self
        self.rows = rows
        self.columns = columns
        self.data: Any = self
        self.size = size


def plan(sizes: list[int]) -> list[int]:
    """Numbers of the segments that are rewritten."""
    carrier = Carrier("t", [_Segment(size) for size in sizes])  # type: ignore[misc]
    for number in range(len(sizes)):
        carrier.take(number)
    stay, rewrite = carrier.plan()
    assert sorted([item.number for item in (*stay, *rewrite)]) == list(range(len(sizes)))
    return [item.number for item in rewrite]


SMALL, FACTOR = carry.SMALLEST_TIER, carry.TIER_FACTOR


@pytest.mark.parametrize(
    ("sizes", "rewritten"),
    [
        ([], 0),
        ([1] * (FACTOR - 1), 0),
        ([1] * FACTOR, FACTOR),
        ([SMALL - 1] * FACTOR, FACTOR),
        # What is joined fills the next class, and that the one after it.
        ([SMALL - 1] * FACTOR + [SMALL] * (FACTOR - 1), 2 * FACTOR - 1),
        ([1] * FACTOR + [SMALL] * (FACTOR - 1), FACTOR),
        ([carry.LARGE] * 50, 0),
        ([1] * (FACTOR - 1) + [SMALL] * (FACTOR - 1) + [SMALL * FACTOR] * (FACTOR - 1), 0),
    ],
)
def test_full_size_classes_are_joined(sizes: list[int], rewritten: int) -> None:
    assert plan(sizes) == list(range(rewritten))


def test_segments_of_other_types_are_not_joined() -> None:
    segments: list[Any] = [_Segment(1) for _ in range(FACTOR - 1)]

    class Spec:
        name, kind, dtype, ndim = "x", "text", "", 0

    carrier = Carrier("t", [*segments, _Segment(1, columns=(Spec,))])  # type: ignore[list-item]
    for number in range(FACTOR):
        carrier.take(number)
    assert carrier.plan()[1] == []


def test_what_stays_counts_and_not_what_is_dead() -> None:
    half = FACTOR // 2
    segments: list[Any] = [_Segment(SMALL - 1)] * half + [_Segment(3 * SMALL // 2)] * half
    carrier = Carrier("t", segments)
    for number in range(FACTOR):
        item = carrier.take(number, range(60))
        assert isinstance(item, Carried)
        assert item.live_bytes < SMALL
    assert len(carrier.plan()[1]) == FACTOR
    whole = Carrier("t", segments)
    for number in range(FACTOR):
        whole.take(number)
    assert whole.plan()[1] == []
