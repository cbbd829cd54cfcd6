"""What runs inside a storage unit: the cut, the writer of its rows, the loader of its rows."""

import gc
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import chain
from typing import Any

import numpy as np

from snapfmt.adapters.blocks import Blocks
from snapfmt.adapters.transfer_queue import names
from snapfmt.adapters.transfer_queue.hold import Gate, install_gate
from snapfmt.adapters.transfer_queue.jobs import Holding, holding_of, holdings_of, keep
from snapfmt.adapters.transfer_queue.pins import spilled_values
from snapfmt.adapters.transfer_queue.remember import Memory, tracker_of
from snapfmt.adapters.transfer_queue.state import Counts, UnitPlan
from snapfmt.adapters.transfer_queue.unit_rows import UnitCut, Written, write_rows
from snapfmt.errors import CutInconsistent, FormatError, RestoreRefused
from snapfmt.format.columns import MISSING, Column
from snapfmt.reading.segment import Rows, SegmentReader
from snapfmt.threads import in_order
from snapfmt_schemas.collector import without_collections

MUTATORS = ("put_data", "clear", "load_checkpoint")
"""Methods of a unit's storage that change it. Reads pass at any time."""
_ABSENT = object()
_SMALL = 2048
"""Bytes of a cell on average up to which one thread reads them: two hand the interpreter's lock to
one another most of the time, and the other units want their processors."""
_PIECE = 8192
"""References that are gathered without letting another thread run: about a millisecond."""


@dataclass(frozen=True, slots=True)
class Gathered:
    """References to all values, and which rows changed while they were gathered, and since."""

    fields: dict[str, dict[int, Any]]
    memory: Memory


@dataclass(frozen=True, slots=True)
class CutReport:
    """How a unit was held."""

    held_s: float
    waited_s: float
    cells: int


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """Which rows of a snapshot a unit loads: those that the queue looks for in it."""

    location: str
    number: int
    prefix: str
    tables: tuple[tuple[str, str], ...]
    saved_units: int
    units: int


def prepare(unit: Any, timeout_s: float) -> int:
    """Installs the gate and imports what a save needs, so that no hold waits for it."""
    import_module("snapfmt.adapters.torch_values")
    import_module("snapfmt.repository")
    _gate(unit, timeout_s)
    spilled_values(unit.storage_data)
    return len(unit.storage_data._active_keys)


def _gate(unit: Any, timeout_s: float = 30.0) -> Gate:
    data = unit.storage_data
    seen = tracker_of(data).changed
    return install_gate(data, MUTATORS, timeout_s=timeout_s, seen=seen)


def gather(unit: Any, cut_id: str, timeout_s: float, lease_s: float) -> None:
    """Gathers references to all values while writers go on, for a cut of the same id.

    To touch every value takes as long as the memory is slow; to look again at those that changed
    meanwhile does not. Values on an SSD are not gathered: their files may go before the cut.
    """
    gate, data = _gate(unit), unit.storage_data
    if spilled_values(data) is not None:
        return
    tracker = tracker_of(data)
    # No change may be under way that the tracker saw and that has not happened yet.
    gate.hold(cut_id, lease_s=timeout_s, timeout_s=timeout_s)
    try:
        memory = tracker.begin()
    finally:
        gate.release(cut_id)
    gathered = Gathered({}, memory)
    holding = Holding(gathered, lease_s=lease_s, release=lambda _: tracker.drop(memory))
    keep(unit, cut_id, holding)
    for name, values in list(data.field_data.items()):
        own = gathered.fields[name] = {}
        keys = list(values)
        for start in range(0, len(keys), _PIECE):
            some = keys[start : start + _PIECE]
            own |= zip(some, map(values.get, some), strict=True)
        # The collector looks at every value of a new dictionary, twice until it is an old one:
        # that may take longer than the whole cut, and must not happen in it.
        gc.collect(1)


def _gathered(unit: Any, cut_id: str) -> Gathered | None:
    """What was gathered for this cut, unless it was let go; the caller drops its memory."""
    holding = holdings_of(unit).pop(cut_id, None)
    if holding is None:
        return None
    found: Gathered | None = holding.content
    return found if holding.end() else None


def take_cut(unit: Any, cut_id: str, timeout_s: float, lease_s: float) -> CutReport:
    """Has references to all values as they are at one moment; no bytes.

    Of what was gathered before, only rows that changed since are looked at while writers wait;
    without it, all are.
    """
    gate, data = _gate(unit), unit.storage_data
    tracker, before = tracker_of(data), _gathered(unit, cut_id)
    try:
        waited = gate.hold(cut_id, lease_s=timeout_s, timeout_s=timeout_s)
        try:
            fields = _references(data.field_data, before)
            spilled = spilled_values(data)
            if spilled is not None:
                spilled.pin()
            memory = tracker.begin()
        finally:
            held = gate.release(cut_id)
    finally:
        if before is not None:
            tracker.drop(before.memory)
    cut = UnitCut(fields, spilled, tracker, memory)
    keep(unit, cut_id, Holding(cut, lease_s=lease_s, release=_release_cut))
    if held is None:
        raise CutInconsistent("the unit's hold ended before its cut was taken")
    return CutReport(held, waited, sum(map(len, fields.values())))


def _references(
    live: dict[str, dict[int, Any]], before: Gathered | None
) -> dict[str, dict[int, Any]]:
    if before is None or before.memory.lost:
        return {name: values.copy() for name, values in live.items()}
    fields = {}
    for name, values in live.items():
        own = before.fields.get(name)
        if own is None:
            fields[name] = values.copy()
            continue
        for index in before.memory.changed:
            if index in values:
                own[index] = values[index]
            else:
                own.pop(index, None)
        fields[name] = own
    return fields


def _release_cut(holding: Holding) -> None:
    holding.content.tracker.drop(holding.content.memory)
    if holding.content.spilled is not None:
        holding.content.spilled.unpin()


def longest_wait(unit: Any) -> float:
    """Longest time that a writer waited at the unit's gate during the last hold."""
    return _gate(unit).longest_wait


def remembered(unit: Any) -> list[tuple[str, int, str]]:
    """Repository id, number and attempt id of the saves that the unit can build on."""
    return tracker_of(unit.storage_data).known()


def start_write(unit: Any, cut_id: str, ticket: str, plans: list[UnitPlan], full: bool) -> None:
    """Writes the cut's rows in the background; `poll` gives a `Written`.

    Rows that lie in the attempt's base, as this unit remembers, are carried unless `full`.
    """
    holding = holding_of(unit, cut_id)

    def work() -> Written:
        return write_rows(holding.content, ticket, plans, holding.check, full=full)

    holding.start(work, "snapfmt-write")


def start_load(
    unit: Any, load_id: str, request: LoadRequest, lease_s: float, position: int
) -> None:
    """Loads the unit's rows in the background; `poll` gives the `Counts`.

    Raises:
        RestoreRefused: If the unit holds rows.
    """
    data = unit.storage_data
    if data._active_keys or any(data.field_data.values()):
        raise RestoreRefused("a storage unit already holds rows", hint="restore into a fresh queue")
    holding = Holding(data, lease_s=lease_s, release=_release_load)
    keep(unit, load_id, holding)

    def load() -> Counts:
        # Whatever is made here is no garbage, and to look at all of it again takes longer.
        with without_collections():
            return _load(data, request, position, holding.check)

    holding.start(load, "snapfmt-load")


def accept_load(unit: Any, load_id: str, lease_s: float) -> None:
    """The rows now belong to the queue; the end of the lease no longer clears them."""
    holding = holding_of(unit, load_id)
    holding.status(lease_s)
    holding.content = _ABSENT


def revoke_load(unit: Any, load_id: str) -> None:
    """Clears what a load put here, accepted or not; no error when it put nothing."""
    holding = holdings_of(unit).pop(load_id, None)
    if holding is None:
        return
    accepted = holding.content is _ABSENT
    holding.drop()
    if accepted:
        clear_rows(unit.storage_data)


def _release_load(holding: Holding) -> None:
    if holding.content is not _ABSENT:
        clear_rows(holding.content)


def clear_rows(data: Any) -> None:
    """Removes every row that a load put into a unit."""
    data.clear(list(data._active_keys.union(*data.field_data.values())))
    data.field_data.clear()


def _load(data: Any, request: LoadRequest, position: int, check: Callable[[], None]) -> Counts:
    from snapfmt.repository import Repository

    snapshot = Repository.open(request.location).snapshot(request.number)
    counts = Counts()
    step = math.gcd(request.saved_units, request.units)
    blocks = Blocks()
    # A row of saved unit u has an index of u modulo saved_units, so only these can hold ours.
    sources = [unit for unit in range(request.saved_units) if unit % step == position % step]
    for source in sources:
        part = snapshot.part(names.unit_part(request.prefix, source))
        for partition, table in request.tables:
            if f"rows/{table}" not in part.table_names():
                continue
            segments = part.table(f"rows/{table}").segments()
            reads = (
                partial(_read, segment, group, position, request, blocks)
                for segment in segments
                for group in segment.groups(0, segment.rows)
            )
            groups = (read() for read in reads) if _are_small(segments) else in_order(reads)
            for indexes, columns in chain.from_iterable(groups):
                check()
                fields = list(columns)
                produced = np.ones((len(indexes), len(fields)), np.bool_)
                for column, name in enumerate(fields):
                    there = [value is not MISSING for value in columns[name]]
                    produced[:, column] = there
                    _put(data, name, indexes[there].tolist(), columns[name])
                counts.add(partition, fields, produced)
    return counts


def _are_small(segments: Sequence[SegmentReader]) -> bool:
    """Whether cells are small, and a read does not wait for a network."""
    cells = sum(item.document.rows * len(item.names) for item in segments)
    size = sum(item.document.logical_bytes for item in segments)
    remote = any(item.source.store.read_size for item in segments)
    return size < _SMALL * cells and not remote


def _put(data: Any, name: str, indexes: list[int], values: list[Any]) -> None:
    kept = [value for value in values if value is not MISSING]
    if not kept:
        return
    try:
        data.put_data({name: kept}, indexes)
    except ValueError as error:
        raise RestoreRefused(
            f"a storage unit does not take the rows: {error}",
            hint="give the queue the capacity of the saved one",
        ) from error


def _read(
    segment: SegmentReader,
    group: Sequence[tuple[int, Rows]],
    position: int,
    request: LoadRequest,
    blocks: Blocks,
) -> list[tuple[Any, dict[str, list[Any]]]]:
    """Indexes and values of this unit's rows of some batches; reads the others' indexes only."""
    from snapfmt.adapters.torch_values import column_to_values

    if request.saved_units % request.units:
        group = list(_ours(segment, group, position, request.units))
    result = []
    for columns in segment.read_group(group):
        indexes = _indexes(columns.pop(names.INDEX_COLUMN, None))
        if (indexes % request.units != position).any():
            raise FormatError("a row of another unit", what=names.INDEX_COLUMN)
        values = {name: column_to_values(column, blocks) for name, column in columns.items()}
        result.append((indexes, values))
    return result


def _ours(
    segment: SegmentReader, group: Sequence[tuple[int, Rows]], position: int, units: int
) -> Iterator[tuple[int, Rows]]:
    """Of these batches, this unit's rows."""
    found = segment.read_group(group, [names.INDEX_COLUMN])
    for (number, chosen), columns in zip(group, found, strict=True):
        wanted = _indexes(columns.get(names.INDEX_COLUMN)) % units == position
        if wanted.all():
            yield number, chosen
        elif wanted.any():
            rows = np.flatnonzero(wanted)
            yield number, rows + chosen.start if isinstance(chosen, slice) else chosen[rows]


def _indexes(column: Column | None) -> Any:
    if column is None or column.signature.dtype != "int64" or column.present is not None:
        raise FormatError("rows without a global index", what=names.INDEX_COLUMN)
    return column.widened().values.view(np.int64)
