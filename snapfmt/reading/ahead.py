"""Bytes that will be read soon, fetched in large pieces by a few threads.

For stores where a request costs more than its bytes; a local disk has its own read-ahead.
"""

import threading
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

from snapfmt.errors import CorruptError
from snapfmt.storage.base import Store
from snapfmt.threads import Pool

WORKERS = 4
"""Requests at the same time."""
AHEAD = 6
"""Pieces that are fetched before they are asked for."""
BEHIND = 3
"""Pieces that are kept after a later one was asked for: readers are not quite in order."""
GAP = 256 * 1024
"""Bytes that take less time than a request of their own."""
COALESCE = 64 * 1024
"""Cells and segments that are no further apart are read in one go."""
FEW = 8
"""Reads of a local disk that take less time than threads for them."""
PAGE = 4096
"""The same where small reads cost no more than large ones."""


@dataclass(frozen=True, slots=True, order=True)
class Range:
    """Bytes of an object."""

    key: str
    offset: int
    size: int

    @property
    def end(self) -> int:
        """Offset behind the last byte."""
        return self.offset + self.size


def near(store: Store) -> int:
    """Ranges that are no further apart than this are fetched in one request."""
    return GAP if store.read_size else PAGE


def gather(store: Store, ranges: Iterable[Range]) -> dict[Range, memoryview]:
    """All ranges, those that are close to one another by one request."""
    groups: list[list[Range]] = []
    gap = near(store)
    for item in sorted(set(ranges)):
        last = groups[-1][-1] if groups else None
        if last is not None and last.key == item.key and item.offset - last.end <= gap:
            groups[-1].append(item)
        else:
            groups.append([item])

    def fetch(group: list[Range]) -> dict[Range, memoryview]:
        first, end = group[0].offset, max(item.end for item in group)
        data = memoryview(store.get_range(group[0].key, first, end - first))
        return {item: data[item.offset - first : item.end - first] for item in group}

    if len(groups) <= (1 if store.read_size else FEW):
        return {item: data for group in groups for item, data in fetch(group).items()}
    with Pool(WORKERS, thread_name_prefix="snapfmt-gather") as pool:
        return {item: data for found in pool.map(fetch, groups) for item, data in found.items()}


class ReadAhead:
    """Serves reads within the given ranges, as long as they come about in order.

    A context manager as `Pool`; leaving it gives up what is on its way.
    """

    def __init__(self, store: Store, ranges: Sequence[Range]) -> None:
        self._store = store
        joined = _joined(ranges)
        self._pieces = [piece for item in joined for piece in _cut(item, store.read_size)]
        self._futures: dict[int, Future[bytes]] = {}
        self._next = 0
        self._lock = threading.Lock()
        self._places: dict[str, list[tuple[int, int]]] = {}
        for number, piece in enumerate(self._pieces):
            self._places.setdefault(piece.key, []).append((piece.offset, number))
        for places in self._places.values():
            places.sort()
        self._pool = Pool(WORKERS, thread_name_prefix="snapfmt-ahead")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._pool.__exit__(kind)

    def get(self, wanted: Range) -> bytes | None:
        """The bytes, or None where they are not among those that are held.

        Also None where a piece is cut off: the bytes that are asked for may lie before that.
        """
        numbers = self._covering(wanted)
        if not numbers:
            return None
        with self._lock:
            self._fill(numbers[-1] + AHEAD)
            for gone in [number for number in self._futures if number < numbers[0] - BEHIND]:
                del self._futures[gone]
            futures = [self._futures.get(number) for number in numbers]
        found = []
        for number, future in zip(numbers, futures, strict=True):
            if future is None:
                return None
            begin = self._pieces[number].offset
            low, high = max(wanted.offset - begin, 0), wanted.end - begin
            try:
                data = future.result()
            except CorruptError:
                return None
            found.append(data if low == 0 and high >= len(data) else data[low:high])
        return found[0] if len(found) == 1 else b"".join(found)

    def _covering(self, wanted: Range) -> list[int]:
        places = self._places.get(wanted.key, [])
        first = bisect_right(places, (wanted.offset, len(self._pieces))) - 1
        if first < 0:
            return []
        numbers, reached = [], wanted.offset
        for position in range(first, len(places)):
            offset, number = places[position]
            if offset > reached:
                return []
            numbers.append(number)
            reached = max(reached, self._pieces[number].end)
            if reached >= wanted.end:
                break
        # Pieces of one object follow one another, or they are no run of bytes that was planned.
        in_order = all(right == left + 1 for left, right in pairwise(numbers))
        return numbers if reached >= wanted.end and in_order else []

    def _fill(self, last: int) -> None:
        while self._next <= min(last, len(self._pieces) - 1):
            piece = self._pieces[self._next]
            self._futures[self._next] = self._pool.submit(
                self._store.get_range, piece.key, piece.offset, piece.size
            )
            self._next += 1


def _joined(ranges: Iterable[Range]) -> list[Range]:
    """Ranges that follow one another in an object, nearly, as one."""
    found: list[Range] = []
    for item in ranges:
        last = found[-1] if found else None
        if last is not None and last.key == item.key and 0 <= item.offset - last.end <= COALESCE:
            found[-1] = Range(last.key, last.offset, item.end - last.offset)
        else:
            found.append(item)
    return found


def _cut(item: Range, size: int) -> list[Range]:
    return [
        Range(item.key, offset, min(size, item.end - offset))
        for offset in range(item.offset, item.end, size)
    ]
