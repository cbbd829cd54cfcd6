"""What a storage unit remembers of its saves, so that the next one writes only what changed.

Nothing is compared by its bytes. The unit's gate sees every put and every clear, and marks the
rows that they name; what changes a tensor in place through torch counts its version up. Not seen
is what goes past both: a numpy array, a list or a dictionary that is changed in place, a tensor
written through `.data`, `numpy()` or another library's pointer, and whoever reaches into the
storage's dictionaries. TransferQueue does none of these.
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from snapfmt.adapters.transfer_queue.state import Indexes
from snapfmt.reading.snapshot import Snapshot
from snapfmt_schemas.attempt import Ticket

_ATTRIBUTE = "_snapfmt_tracker"
_KEPT = 2
"""Written saves that are remembered beside the last one that is known to be published."""
_MOST_CHANGES = 1_000_000
"""Changed rows after which a save is forgotten: a full one is as good then, and memory ends."""
_version = attrgetter("_version")

Versions = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SegmentRows:
    """The live rows of one segment, in order; 20 bytes a row."""

    indexes: Indexes
    """Global indexes."""
    versions: Versions
    """Sums of the versions of the rows' tensors, when they were written."""
    fields: npt.NDArray[np.int32]
    """Which fields the rows had, as numbers of `Memory.patterns`."""

    def take(self, rows: Any) -> "SegmentRows":
        """Some of the rows."""
        return SegmentRows(self.indexes[rows], self.versions[rows], self.fields[rows])


@dataclass(slots=True, eq=False)
class Memory:
    """One cut, and where its rows lie once they are written."""

    changed: set[int] = field(default_factory=set)
    """Rows that were put or cleared since the cut."""
    lost: bool = False
    """Whether changes were missed: nothing may be carried."""
    repository_id: str = ""
    attempt_id: str = ""
    number: int = 0
    tables: dict[tuple[str, str], list[SegmentRows]] = field(default_factory=dict)
    """By partition and table."""
    patterns: dict[tuple[str, ...], int] = field(default_factory=dict)


class Tracker:
    """Marks changed rows for every cut that is written or remembered."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: list[Memory] = []
        self._written: list[Memory] = []
        self._proven: Memory | None = None

    def begin(self) -> Memory:
        """A new cut; to be called while the gate is held."""
        memory = Memory()
        with self._lock:
            self._pending.append(memory)
        return memory

    def changed(self, method: str, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        """Called by the gate before a method that changes rows runs."""
        with self._lock:
            memories = [*self._pending, *self._written]
            if not memories:
                return
            try:
                indexes = set(_indexes(method, arguments, named))
            except (LookupError, TypeError, ValueError):
                # Not a call that is known: it may have changed any row.
                indexes = None
            for memory in memories:
                if indexes is not None:
                    memory.changed |= indexes
                if indexes is None or len(memory.changed) > _MOST_CHANGES:
                    memory.lost = True
                    memory.changed = set()
            self._written = [memory for memory in self._written if not memory.lost]

    def written(self, memory: Memory, ticket: Ticket, base: Memory | None) -> None:
        """The part of this cut is sealed; `base` is the save that it was built on."""
        memory.repository_id = ticket.repository_id
        memory.attempt_id = ticket.attempt_id
        memory.number = ticket.number
        with self._lock:
            self._pending = [item for item in self._pending if item is not memory]
            if memory.lost:
                return
            if base is not None:
                # A save may only build on one that is published.
                self._proven = base
            others = [item for item in self._written if item is not self._proven]
            kept = [*others, memory][-_KEPT:]
            self._written = [item for item in self._written if item is self._proven] + kept

    def drop(self, memory: Memory) -> None:
        """The cut was let go; one that was written stays."""
        with self._lock:
            self._pending = [item for item in self._pending if item is not memory]

    def forget(self, memory: Memory) -> None:
        """Nothing is to be built on this save any more."""
        with self._lock:
            self._written = [item for item in self._written if item is not memory]

    def find(self, base: Snapshot | None) -> tuple[Memory, set[int]] | None:
        """What is remembered of the save that published this snapshot, and what changed since."""
        if base is None:
            return None
        said = base.manifest
        with self._lock:
            for memory in self._written:
                if (memory.repository_id, memory.attempt_id) == (
                    said.repository_id,
                    said.attempt_id,
                ):
                    return memory, memory.changed.copy()
        return None

    def known(self) -> list[tuple[str, int, str]]:
        """Repository id, number and attempt id of every save that is remembered."""
        with self._lock:
            return [(item.repository_id, item.number, item.attempt_id) for item in self._written]


def _indexes(method: str, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> Sequence[int]:
    name, position = {"put_data": ("global_indexes", 1), "clear": ("keys", 0)}[method]
    found: Sequence[int] = named[name] if name in named else arguments[position]
    return found


def tracker_of(data: Any) -> Tracker:
    """The tracker of a unit's storage; made before its gate is."""
    found: Tracker = data.__dict__.setdefault(_ATTRIBUTE, Tracker())
    return found


def versions_of(values: Sequence[Any]) -> Versions:
    """Version of each tensor; 0 for other values, -1 for a tensor that counts none."""
    try:
        return np.fromiter(map(_version, values), np.int64, len(values))
    except (AttributeError, RuntimeError):
        return np.fromiter(map(_one_version, values), np.int64, len(values))


def _one_version(value: Any) -> int:
    try:
        return int(getattr(value, "_version", 0))
    except RuntimeError:
        return -1
