"""Rows of the base that a table goes on with: referenced, not rewritten (spec/v1/06-tables.md).

A segment that stays is referenced with a bitmap of its live rows. Two kinds are rewritten, so
that neither the dead bytes nor the number of segments grows with the number of saves:
  * those of which less than half the rows stay, so that at most as many rows are dead as live;
  * small ones, when there are many of one size: a row is rewritten about once per size class
    over its life, however many saves follow.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from snapfmt.errors import InputError
from snapfmt.format import arrow_stream
from snapfmt.format.columns import from_values
from snapfmt.limits import KIB, MIB
from snapfmt.reading.segment import SegmentReader
from snapfmt.writing.rows import Rows

LIVE_SHARE = 0.5
"""A segment of which a smaller share of the stored rows stays is rewritten."""
SMALLEST_TIER = 256 * KIB
"""Stored live bytes of a segment; all smaller ones are of one size class."""
TIER_FACTOR = 8
"""Ratio of the size classes, and segments of one class that may stay."""
LARGE = 32 * MIB
"""Segments of at least these live bytes are never joined: half of a full one."""

Positions = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Carried:
    """A segment of the base, and which of its live rows stay."""

    number: int
    """Of the segment in the base's table."""
    segment: SegmentReader
    kept: Positions | None
    """Positions among the live rows, ascending; None when all stay."""

    @property
    def rows(self) -> int:
        """Rows that stay."""
        return self.segment.rows if self.kept is None else len(self.kept)

    @property
    def live_bytes(self) -> int:
        """Stored bytes of the rows that stay, roughly."""
        document = self.segment.document
        return document.data.size * self.rows // max(document.rows, 1)

    def keys(self) -> pa.Array:
        """Keys of the rows that stay, in order."""
        found = self.segment.key_column
        return found if self.kept is None else found.take(pa.array(self.kept))

    def bitmap(self) -> bytes | None:
        """A new bitmap of live rows; None when the segment's own, or none, still holds."""
        if self.kept is None:
            return None
        live = self.segment.live
        bits = np.zeros(self.segment.document.rows, np.bool_)
        bits[self.kept if live is None else live[self.kept]] = True
        return np.packbits(bits, bitorder="little").tobytes()

    def read(self) -> Iterator[Rows]:
        """The rows that stay as columns, batch by batch, verified."""
        segment = self.segment
        keys = self.keys().to_pylist()
        position = 0
        with segment.reading(0, segment.rows):
            for number, chosen in segment.select(self.kept):
                columns = segment.read(number, chosen)
                count = next(iter(columns.values())).rows if columns else _count(chosen)
                own = keys[position : position + count]
                position += count
                yield [
                    (arrow_stream.KEY_COLUMN, from_values(arrow_stream.KEY_SIGNATURE, own)),
                    *sorted(columns.items()),
                ]


class Carrier:
    """What one table takes over from its base."""

    def __init__(self, table: str, segments: Sequence[SegmentReader]) -> None:
        self.segments = list(segments)
        self._table = table
        self._taken: dict[int, Carried] = {}

    def take(self, number: int, rows: Any = None) -> Carried:
        """Take rows of one segment over; see `TableWriter.carry`.

        Raises:
            InputError: If there is no such segment, it was taken already, or rows do not fit.
        """
        if type(number) is not int or not 0 <= number < len(self.segments):
            raise InputError(
                f"the base's table {self._table} has {len(self.segments)} segments",
                what=repr(number),
            )
        if number in self._taken:
            raise InputError(f"table {self._table} has this segment already", what=str(number))
        segment = self.segments[number]
        item = Carried(number, segment, _positions(rows, segment.rows, what=self._table))
        self._taken[number] = item
        return item

    def take_all(self, without: Collection[str]) -> None:
        """Take every segment over, without the rows of the given keys."""
        gone = pa.array(sorted(without), pa.large_string())
        if without:
            _gather(self.segments)
        for number, segment in enumerate(self.segments):
            rows = None
            if without:
                rows = ~np.asarray(pc.is_in(segment.key_column, value_set=gone))
            self.take(number, rows)

    def check_keys(self, new: Collection[str]) -> None:
        """Refuse a new row whose key a carried row has; keys are read only if both are there.

        Rows of one table of the base have different keys, and no segment is taken twice, so
        that carried rows cannot repeat one another's.

        Raises:
            InputError: Naming the key.
        """
        there = [item for item in self._taken.values() if item.rows]
        if not new or not there:
            return
        _gather(item.segment for item in there)
        known = pa.chunked_array([item.keys() for item in there], pa.large_string())
        added = pa.array(new, pa.large_string())
        repeated = known.filter(pc.is_in(known, value_set=added))
        if len(repeated):
            raise InputError(
                f"table {self._table} has the key already, in a row of the base",
                what=str(pc.min(repeated).as_py()),
                hint="carry the segment without the row, or do not append it",
            )

    def plan(self) -> tuple[list[Carried], list[Carried]]:
        """What stays as it is, in order; and what is rewritten, those of equal types together."""
        stay: list[Carried] = []
        rewrite: list[Carried] = []
        for item in self._taken.values():
            if item.rows:
                enough = item.rows >= LIVE_SHARE * item.segment.document.rows
                (stay if enough else rewrite).append(item)
        alike: dict[tuple[Any, ...], list[Carried]] = {}
        for item in stay:
            alike.setdefault(_types(item), []).append(item)
        for group in alike.values():
            rewrite += _too_many(group)
        joined = {item.number for item in rewrite}
        return (
            [item for item in stay if item.number not in joined],
            sorted(rewrite, key=lambda item: (_types(item), item.number)),
        )


def gather_rows(items: Iterable[Carried]) -> None:
    """Fetch what says where the rows of these segments lie, in few requests."""
    _gather((item.segment for item in items), to_read=True)


def _too_many(group: Sequence[Carried]) -> list[Carried]:
    """Segments of equal types that are to become one: whole size classes that are full."""
    tiers: dict[int, list[Carried]] = {}
    for item in group:
        if item.live_bytes < LARGE:
            tiers.setdefault(_tier(item.live_bytes), []).append(item)
    found: list[Carried] = []
    for tier in range(max(tiers, default=-1) + 1):
        # What was joined so far may fill the next class.
        arrives = bool(found) and _tier(sum(item.live_bytes for item in found)) == tier
        if len(tiers.get(tier, ())) + arrives >= TIER_FACTOR:
            found += tiers[tier]
    return found


def _tier(size: int) -> int:
    tier = 0
    while size >= SMALLEST_TIER * TIER_FACTOR**tier:
        tier += 1
    return tier


def _types(item: Carried) -> tuple[Any, ...]:
    return tuple(
        sorted(
            (spec.name, spec.kind, spec.dtype, spec.ndim) for spec in item.segment.document.columns
        )
    )


def _gather(segments: Iterable[SegmentReader], *, to_read: bool = False) -> None:
    """Fetch keys and live rows at once, where they are not known; `to_read`: batch indexes too."""
    items = list(segments)
    places = [
        place for item in items for place in (item.index_places() if to_read else item.key_places())
    ]
    if places:
        items[0].source.gather(places)


def _count(chosen: Positions | slice) -> int:
    return chosen.stop - chosen.start if isinstance(chosen, slice) else len(chosen)


def _positions(rows: Any, count: int, *, what: str) -> Positions | None:
    """Chosen rows as ascending positions; None for all."""
    if rows is None:
        return None
    given = np.asarray(rows)
    if given.dtype == np.bool_:
        if given.shape != (count,):
            raise InputError(f"the segment has {count} live rows, not {given.shape}", what=what)
        found = np.flatnonzero(given)
    else:
        if given.ndim != 1 or (len(given) and given.dtype.kind not in "iu"):
            raise InputError("rows are a mask, or positions among the live rows", what=what)
        found = np.unique(given.astype(np.int64))
        if len(found) != len(given) or (len(found) and not 0 <= found[0] <= found[-1] < count):
            raise InputError(f"positions are different numbers below {count}", what=what)
    return None if len(found) == count else found.astype(np.int64)
