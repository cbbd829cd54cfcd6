"""A storage unit's rows as tables: those that the base has are carried, the others written."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from snapfmt.adapters.transfer_queue import names
from snapfmt.adapters.transfer_queue.pins import SpilledValues
from snapfmt.adapters.transfer_queue.remember import Memory, SegmentRows, Tracker, versions_of
from snapfmt.adapters.transfer_queue.state import Counts, Indexes, UnitPlan
from snapfmt.errors import CorruptError, CutInconsistent, MissingObject

if TYPE_CHECKING:
    from snapfmt.writing.part import PartWriter
    from snapfmt.writing.table import TableWriter

_CHUNK_ROWS = 1024
_CHUNK_BYTES = 32 * 1024 * 1024


@dataclass(slots=True)
class UnitCut:
    """References to every value of the unit at the cut."""

    fields: dict[str, dict[int, Any]]
    spilled: SpilledValues | None
    tracker: Tracker
    memory: Memory


@dataclass(frozen=True, slots=True)
class Written:
    """What a unit wrote."""

    receipt: str
    counts: Counts
    carried: int
    """Rows that the base has as they are."""


def write_rows(
    cut: UnitCut, ticket: str, plans: list[UnitPlan], check: Callable[[], None], *, full: bool
) -> Written:
    """Write and seal the unit's part; on what is remembered of the attempt's base unless `full`.

    A base that turns out damaged is not built on, and forgotten.
    """
    from snapfmt.repository import Repository

    with Repository.join(ticket) as part:
        found = None if full else cut.tracker.find(part.base)
        if found is not None:
            try:
                return _write(cut, part, ticket, plans, check, *found)
            except (CorruptError, MissingObject):
                check()
                cut.tracker.forget(found[0])
        else:
            return _write(cut, part, ticket, plans, check, None, set())
    with Repository.join(ticket) as part:
        return _write(cut, part, ticket, plans, check, None, set())


def _write(
    cut: UnitCut,
    part: "PartWriter",
    ticket: str,
    plans: list[UnitPlan],
    check: Callable[[], None],
    base: Memory | None,
    gone: set[int],
) -> Written:
    from snapfmt.writing.part import decode_ticket

    counts, carried = Counts(), 0
    patterns = {} if base is None else dict(base.patterns)
    tables: dict[tuple[str, str], list[SegmentRows]] = {}
    for plan in plans:
        counts.add(plan.partition_id, plan.fields, plan.produced)
        if len(plan.indexes) == 0:
            continue
        place = (plan.partition_id, plan.table)
        known = [] if base is None else base.tables.get(place, [])
        rows = _PlannedRows(cut, plan, patterns)
        with part.table(f"rows/{plan.table}", schema_id=plan.schema_id) as table:
            rows.carry(table, known, gone)
            carried += int(rows.carried.sum())
            for keys, columns in rows.chunks():
                check()
                table.append(keys, columns)
        tables[place] = rows.placed(table, known)
    receipt = part.seal()
    cut.memory.tables, cut.memory.patterns = tables, patterns
    cut.tracker.written(cut.memory, decode_ticket(ticket), base)
    return Written(receipt.model_dump_json(), counts, carried)


class _PlannedRows:
    """The rows of one partition at the cut, in ascending order of their global indexes."""

    def __init__(self, cut: UnitCut, plan: UnitPlan, patterns: dict[tuple[str, ...], int]) -> None:
        self._cut = cut
        self._plan = plan
        count = len(plan.indexes)
        self._keys = [
            names.row_key(key, index)
            for key, index in zip(plan.keys, plan.indexes.tolist(), strict=True)
        ]
        self._arrow_keys = pa.array(self._keys, pa.large_string())
        self._versions = np.zeros(count, np.int64)
        self._fields = np.zeros(count, np.int32)
        self._groups: list[tuple[list[str], npt.NDArray[np.int64]]] = []
        for pattern, rows in patterns_of(plan.produced):
            fields = [name for name, there in zip(plan.fields, pattern, strict=True) if there]
            self._fields[rows] = patterns.setdefault(tuple(sorted(fields)), len(patterns))
            self._groups.append((fields, rows))
        self.carried = np.zeros(count, np.bool_)

    def carry(self, table: "TableWriter", known: list[SegmentRows], gone: set[int]) -> None:
        """Carry the rows that are as they were written, by all that is remembered of them."""
        if not known:
            return
        segments = table.base_segments()
        if [item.rows for item in segments] != [len(item.indexes) for item in known]:
            # Not the table that is remembered: nothing about it is known.
            return
        changed = np.fromiter(gone, np.int64, len(gone))
        candidates: list[tuple[Indexes, npt.NDArray[np.bool_]]] = []
        for segment, item in zip(segments, known, strict=True):
            found = np.searchsorted(self._plan.indexes, item.indexes)
            found[found == len(self._plan.indexes)] = 0
            same = self._plan.indexes[found] == item.indexes
            same &= (self._fields[found] == item.fields) & (item.versions >= 0)
            same &= ~np.isin(item.indexes, changed)
            if same.any():
                # The stored keys say whether this is the row that is meant.
                stored = segment.key_column
                wanted = self._arrow_keys.take(pa.array(found))
                same &= np.asarray(pc.equal(stored, wanted))
            candidates.append((found, same))
            self.carried[found[same]] = True
        self._read_versions(self.carried)
        self.carried[:] = False
        for number, (item, (found, same)) in enumerate(zip(known, candidates, strict=True)):
            same &= self._versions[found] == item.versions
            if same.any():
                table.carry(number, same)
                self.carried[found[same]] = True

    def chunks(self) -> Iterator[tuple[list[str], dict[str, Any]]]:
        """What is not carried; rows with the same produced fields together, so that a segment
        has all its columns."""
        for fields, group in self._groups:
            rows = group[~self.carried[group]]
            for start in range(0, len(rows), _CHUNK_ROWS):
                chosen = rows[start : start + _CHUNK_ROWS]
                indexes = self._plan.indexes[chosen]
                numbers = indexes.tolist()
                keys = [self._keys[row] for row in chosen.tolist()]
                columns = {name: self._gather(name, numbers) for name in fields}
                # Before any bit of them is copied: what changes a value later counts it up.
                self._versions[chosen] = _summed(columns.values(), len(chosen))
                yield from _loaded(self._cut.spilled, keys, indexes, columns)

    def placed(self, table: "TableWriter", known: list[SegmentRows]) -> list[SegmentRows]:
        """Where the rows lie now, to be remembered; after the table was closed."""
        found = []
        for item in table.placed():
            if item.base is not None:
                before = known[item.base.number]
                found.append(before if item.base.kept is None else before.take(item.base.kept))
                continue
            rows = pc.index_in(item.keys, value_set=self._arrow_keys).to_numpy()
            found.append(SegmentRows(self._plan.indexes, self._versions, self._fields).take(rows))
        return found

    def _read_versions(self, chosen: npt.NDArray[np.bool_]) -> None:
        """Sums of the versions of the chosen rows' values; -1 where one counts none."""
        for fields, group in self._groups:
            rows = group[chosen[group]]
            if len(rows):
                indexes = self._plan.indexes[rows].tolist()
                values = (self._gather(name, indexes) for name in fields)
                self._versions[rows] = _summed(values, len(rows))

    def _gather(self, name: str, indexes: list[int]) -> list[Any]:
        values = self._cut.fields.get(name, {})
        try:
            return list(map(values.__getitem__, indexes))
        except KeyError:
            missing = next(index for index in indexes if index not in values)
            key = self._keys[int(np.searchsorted(self._plan.indexes, missing))]
            raise CutInconsistent(
                f"row {key!r} of {self._plan.partition_id!r} was produced but is not here",
                what=name,
                hint="save again",
            ) from None


def _summed(columns: Iterable[list[Any]], rows: int) -> npt.NDArray[np.int64]:
    """Sum of the versions of every row's values; -1 where one counts none."""
    total = np.zeros(rows, np.int64)
    unknown = np.zeros(rows, np.bool_)
    for values in columns:
        versions = versions_of(values)
        unknown |= versions < 0
        total += versions
    return np.where(unknown, -1, total)


def patterns_of(
    produced: npt.NDArray[np.bool_],
) -> Iterator[tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]]:
    """The combinations of produced fields that occur, each with its rows in order."""
    if len(produced) and (produced == produced[0]).all():
        yield produced[0], np.arange(len(produced))
        return
    # Sorting packed bits is many times faster than sorting rows of booleans.
    packed = np.packbits(produced, axis=1)
    words = np.zeros((len(packed), -(-packed.shape[1] // 8) * 8), np.uint8)
    words[:, : packed.shape[1]] = packed
    _, first, kinds = np.unique(
        words.view(np.uint64), axis=0, return_index=True, return_inverse=True
    )
    for kind, row in enumerate(first.tolist()):
        yield produced[row], np.flatnonzero(kinds.reshape(-1) == kind)


def _loaded(
    spilled: SpilledValues | None,
    keys: list[str],
    indexes: Indexes,
    columns: dict[str, list[Any]],
) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """The rows with their values in memory, those from SSD a bounded number of bytes at a time."""
    import torch

    place = torch.from_numpy(indexes)
    if spilled is None:
        yield keys, {names.INDEX_COLUMN: place, **columns}
        return
    start = size = 0
    ready: dict[str, list[Any]] = {name: [] for name in columns}
    for stop in range(1, len(keys) + 1):
        for name, values in columns.items():
            value, read = spilled.load(values[stop - 1])
            ready[name].append(value)
            size += read
        if size >= _CHUNK_BYTES or stop == len(keys):
            yield keys[start:stop], {names.INDEX_COLUMN: place[start:stop], **ready}
            start, size = stop, 0
            ready = {name: [] for name in columns}
