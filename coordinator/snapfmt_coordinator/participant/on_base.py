"""Tables of a part that are saved on a base: rows that it holds are referenced, not written.

Every row has a mark: a number that its owner gave to this row as it is, and never gives to
another or to a changed one. What was sealed is remembered as the marks of its rows in their
order, 8 bytes a row, and nothing is compared by its bytes. A save goes on with what is remembered
only where its base holds the very part that was sealed then, which is what proves that it was
published. Everything here blocks.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from snapfmt import PartWriter
from snapfmt.errors import CorruptError, MissingObject
from snapfmt.writing.table import TableWriter
from snapfmt_coordinator.participant import parts
from snapfmt_schemas.attempt import Receipt, Ticket

T = TypeVar("T")
Marks = npt.NDArray[np.int64]

UNMARKED: Final = -1
"""Mark of a row that every save writes anew."""
_KEPT: Final = 2
"""Sealed parts that are remembered beside the last one that is known to be published."""
_CHUNK_ROWS: Final = 2048


@dataclass(frozen=True, slots=True, eq=False)
class _Sealed:
    """A part that was sealed: the marks of its table's rows, segment by segment."""

    index_digest: str
    segments: tuple[Marks, ...]


class SaveMemory:
    """The parts that a participant sealed lately. Used by the threads that write its parts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sealed: list[_Sealed] = []
        self._proven: _Sealed | None = None

    def write(
        self, ticket: Ticket, body: Callable[[PartWriter, "TableOnBase"], T]
    ) -> tuple[T, Receipt]:
        """Write and seal a part; `body` writes all of it, and does so anew if the base is damaged.

        A base that turns out damaged is not built on, and is forgotten.

        Raises:
            SnapfmtError: If it cannot be written.
        """
        with parts.open_part(ticket) as part:
            base = self._find(part)
            try:
                return self._write(part, base, body)
            except (CorruptError, MissingObject):
                if base is None:
                    raise
                with self._lock:
                    self._sealed = [item for item in self._sealed if item is not base]
        with parts.open_part(ticket) as part:
            return self._write(part, None, body)

    def _write(
        self,
        part: PartWriter,
        base: _Sealed | None,
        body: Callable[[PartWriter, "TableOnBase"], T],
    ) -> tuple[T, Receipt]:
        table = TableOnBase(part, () if base is None else base.segments)
        found = body(part, table)
        receipt = part.seal()
        self._keep(_Sealed(receipt.index_digest, table.segments), base)
        return found, receipt

    def _find(self, part: PartWriter) -> _Sealed | None:
        """What is remembered of the base's part of this name."""
        with self._lock:
            sealed = {item.index_digest: item for item in self._sealed}
        # Without anything to go on with, the base is not even looked at.
        base = part.base if sealed else None
        if base is None or part.name not in base.part_names():
            return None
        return sealed.get(base.part(part.name).receipt.index_digest)

    def _keep(self, sealed: _Sealed, base: _Sealed | None) -> None:
        with self._lock:
            if base is not None:
                # A save may only build on one that is published.
                self._proven = base
            others = [item for item in self._sealed if item is not self._proven]
            kept = [*others, sealed][-_KEPT:]
            self._sealed = [item for item in self._sealed if item is self._proven] + kept


class TableOnBase:
    """The one table of a part that is written on a base."""

    def __init__(self, part: PartWriter, known: Sequence[Marks]) -> None:
        self._part = part
        self._known = known
        self.segments: tuple[Marks, ...] = ()
        """Marks of the rows of each segment; after it was written."""

    def write(
        self,
        name: str,
        keys: Sequence[str],
        marks: Marks,
        columns: Callable[[list[int]], Mapping[str, Sequence[Any]]],
    ) -> None:
        """Write the table: rows whose marks the base has are carried, the others appended.

        `columns` makes the columns of the rows at these positions; it may take a row's mark
        away. A mark that is not `UNMARKED` comes once.

        Raises:
            SnapfmtError: If it cannot be written.
        """
        with self._part.table(name) as table:
            new = self._carry(table, marks)
            for start in range(0, len(new), _CHUNK_ROWS):
                some = new[start : start + _CHUNK_ROWS]
                table.append([keys[row] for row in some], columns(some))
        self.segments = tuple(self._placed(table, keys, marks))

    def _carry(self, table: TableWriter, marks: Marks) -> list[int]:
        """Carry what the base has; positions of the other rows."""
        wanted = np.sort(marks)
        carried: list[Marks] = []
        for number, known in enumerate(self._known if len(marks) else ()):
            places = np.searchsorted(wanted, known)
            places[places == len(wanted)] = 0
            stays = (wanted[places] == known) & (known != UNMARKED)
            if stays.any():
                table.carry(number, stays)
                carried.append(known[stays])
        new = np.ones(len(marks), np.bool_)
        if carried:
            new = ~np.isin(marks, np.concatenate(carried))
        found: list[int] = np.flatnonzero(new).tolist()
        return found

    def _placed(self, table: TableWriter, keys: Sequence[str], marks: Marks) -> list[Marks]:
        found = []
        names = None
        for item in table.placed():
            if item.base is not None:
                before = self._known[item.base.number]
                found.append(before if item.base.kept is None else before[item.base.kept])
                continue
            if names is None:
                names = pa.array(keys, pa.large_string())
            # Also rows of the base that were joined or compacted.
            found.append(marks[pc.index_in(item.keys, value_set=names).to_numpy()])
        return found
