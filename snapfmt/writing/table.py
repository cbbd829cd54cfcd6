"""A table while it is written: rows in, segments out (spec/v1/06-tables.md, Writing).

Rows of one segment share the types of every column. Rows are split by their types, cut into
batches of about one MiB, encoded on worker threads and written in the order they came.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from snapfmt.errors import AttemptClosed, InputError, UnsupportedValue
from snapfmt.format import arrow_stream, batch_index, chunks, segment
from snapfmt.format.columns import WHOLE, concat
from snapfmt.format.digest import digest_of
from snapfmt.limits import DEFAULT_LIMITS, MIB
from snapfmt.writing.pack import Extent, PackWriter
from snapfmt.writing.rows import Converter, RowConverter, Rows, Types, Values
from snapfmt_schemas.part import Segment, Table

BATCH_BYTES = MIB
"""Logical bytes after which a batch is closed."""
BATCH_ROWS = 4096
"""Rows after which a batch is closed."""
SEGMENT_BYTES = 64 * MIB
"""Stored bytes after which a segment is closed."""
WAITING_BYTES = 64 * MIB
"""Logical bytes of rows of rare types that may wait for more of their kind."""
IN_FLIGHT = 4
"""Batches that are encoded at the same time or wait to be written."""


@dataclass(slots=True)
class _OpenSegment:
    plans: tuple[segment.ColumnPlan, ...]
    begin: int
    head: bytes
    index: batch_index.BatchIndexBuilder
    keys: list[pa.Array]
    logical: int = 0
    position: int = 0


@dataclass(frozen=True, slots=True)
class _Closed:
    """A segment whose rows are written; its keys and its batch index are not."""

    plans: tuple[segment.ColumnPlan, ...]
    rows: int
    data: Extent
    head: bytes
    batches: bytes
    keys: bytes
    logical: int


@dataclass(frozen=True, slots=True)
class _Sealed:
    """A segment that is written."""

    segment: _Closed
    batches: Extent
    keys: Extent


class TableWriter:
    """Appends rows of one table to a part. A context manager; leaving it closes the table."""

    def __init__(
        self,
        name: str,
        *,
        schema_id: str,
        packs: PackWriter,
        executor: Executor,
        converter: Callable[[type], Converter | None],
    ) -> None:
        self.name = name
        self.rows = 0
        self.logical_bytes = 0
        self._schema_id = schema_id
        self._packs = packs
        self._executor = executor
        self._converter = RowConverter(name, converter)
        self._floors: segment.Floors = {}
        self._waiting: dict[Types, list[Rows]] = {}
        self._waiting_bytes: dict[Types, int] = {}
        self._current: Types | None = None
        self._open: _OpenSegment | None = None
        self._flight: deque[
            tuple[Rows, tuple[segment.ColumnPlan, ...], Future[segment.EncodedBatch]]
        ]
        self._flight = deque()
        self._ended: list[_Closed] = []
        self._sealed: list[_Sealed] = []
        self._seen: set[str] = set()
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()

    def append(self, keys: Sequence[str], columns: Mapping[str, Sequence[Any]]) -> None:
        """Add rows: `columns[name][i]` is the value of row i, or MISSING.

        A column may also be one batched array or tensor, dense or nested (jagged or strided).

        Values are torch tensors, numpy arrays, str, bytes or plain Python values; their bits
        have been copied when this returns. A call costs about half a millisecond: append many
        rows at a time. Plain Python numbers are stored as JSON; arrays and tensors as columns.

        Raises:
            UnsupportedValue: If a value has no exact form; names the row and the field, and no
                row of this call was added.
            InputError: If lengths differ or a key repeats.
        """
        if self._closed:
            raise AttemptClosed("the table is closed", what=self.name)
        self._packs.check()
        if isinstance(keys, (str, bytes)) or not isinstance(keys, Iterable):
            raise InputError("keys are a sequence of texts", what=repr(keys)[:80])
        if not isinstance(columns, Mapping):
            raise InputError("columns are a mapping of name to values", what=repr(columns)[:80])
        keys = list(keys)
        given = {name: self._converter.listed(values) for name, values in columns.items()}
        self._converter.check(keys, given, self._seen)
        taken = {name: self._converter.prepared(name, keys, given[name]) for name in given}
        groups = self._converter.group(keys, taken)
        try:
            for signature, rows in groups:
                self._take(signature, keys, taken, rows)
            self._drain(0)
        except BaseException as error:
            # Some rows were taken and some were not: what follows cannot be sealed.
            self._packs.fail(error)
            raise
        self._seen.update(keys)
        self.rows += len(keys)

    def _take(
        self,
        cells: Types,
        keys: list[str],
        columns: Mapping[str, Values],
        rows: npt.NDArray[np.int64] | None,
    ) -> None:
        """Cut the rows into batches and hand the full ones over."""
        chosen: Iterable[int] = range(len(keys)) if rows is None else rows.tolist()
        order = list(chosen)
        picked = {
            name: columns[name] if rows is None else _chosen(columns[name], order)
            for name, _ in cells
        }
        names = keys if rows is None else [keys[i] for i in order]
        sizes = self._converter.sizes(picked, len(order))
        largest = int(sizes.argmax()) if order else 0
        if order and int(sizes[largest]) + 2 * BATCH_BYTES > DEFAULT_LIMITS.chunk_size:
            # A reader refuses such a chunk: better that the save fails than the restore.
            raise UnsupportedValue(
                f"row {names[largest]!r} of {int(sizes[largest])} bytes is too large",
                what=self.name,
                hint="split the value over several rows or columns",
            )
        start = 0
        limits = np.cumsum(sizes)
        while start < len(order):
            held = self._waiting_bytes.get(cells, 0)
            base = int(limits[start - 1]) if start else 0
            stop = int(np.searchsorted(limits, base + BATCH_BYTES - held, side="left")) + 1
            stop = min(max(stop, start + 1), start + BATCH_ROWS, len(order))
            piece = self._converter.convert(cells, names[start:stop], picked, start, stop)
            size = int(limits[stop - 1]) - base
            self._waiting.setdefault(cells, []).append(piece)
            self._waiting_bytes[cells] = held + size
            waiting_rows = sum(rows_[0][1].rows for rows_ in self._waiting[cells])
            if held + size >= BATCH_BYTES or waiting_rows >= BATCH_ROWS:
                self._flush(cells)
            elif sum(self._waiting_bytes.values()) > WAITING_BYTES:
                self._flush(max(self._waiting_bytes, key=self._waiting_bytes.__getitem__))
            start = stop

    def _flush(self, cells: Types) -> None:
        """Encode what waits for these types as one batch."""
        pieces = self._waiting.pop(cells, [])
        self._waiting_bytes.pop(cells, None)
        if not pieces:
            return
        batch: Rows = [
            (name, concat([piece[position][1] for piece in pieces]))
            for position, (name, _) in enumerate(pieces[0])
        ]
        if self._current != cells:
            self._drain(0)
            self._close_segment()
            self._current = cells
        self._submit(batch)
        self._drain(IN_FLIGHT)

    def _submit(self, batch: Rows) -> None:
        if self._flight:
            plans = self._flight[-1][1]
        elif self._open is not None:
            plans = self._open.plans
        else:
            plans = segment.plan(batch, self._floors)
        future = self._executor.submit(segment.encode_batch, batch, plans)
        self._flight.append((batch, plans, future))

    def _drain(self, leave: int) -> None:
        while len(self._flight) > leave:
            batch, plans, future = self._flight.popleft()
            try:
                encoded = future.result()
            except segment.NeedsWider:
                self._widen(batch, plans)
                continue
            self._write(self._open or self._open_segment(plans), batch, encoded)
            if self._open is not None and self._open.position >= SEGMENT_BYTES:
                self._close_segment()

    def _widen(self, batch: Rows, plans: tuple[segment.ColumnPlan, ...]) -> None:
        """A new segment with wider types, from this batch on."""
        later = [batch, *(item[0] for item in self._flight)]
        for item in self._flight:
            item[2].cancel()
        self._flight.clear()
        self._close_segment()
        segment.widen(batch, plans, self._floors)
        for rows in later:
            self._submit(rows)

    def _open_segment(self, plans: tuple[segment.ColumnPlan, ...]) -> _OpenSegment:
        head = arrow_stream.head([(how.name, how.signature, how.physical) for how in plans])
        begin = self._packs.begin(self._close_segment)
        self._packs.write(head)
        opened = _OpenSegment(
            plans, begin, head, batch_index.BatchIndexBuilder(), [], position=len(head)
        )
        self._open = opened
        return opened

    def _write(self, current: _OpenSegment, batch: Rows, encoded: segment.EncodedBatch) -> None:
        current.index.add(encoded, current.position)
        self._packs.write(encoded.header)
        current.position += len(encoded.header)
        for chunk in encoded.chunks:
            for piece in chunk.pieces:
                self._packs.write(piece)
            current.position += chunk.size
        current.keys.append(
            chunks.to_arrow("key", batch[0][1], chunks.physical_full(batch[0][1].signature))[0]
        )
        current.logical += encoded.logical_bytes - batch[0][1].logical_bytes

    def _close_segment(self) -> None:
        current, self._open = self._open, None
        if current is None:
            return
        self._packs.write(arrow_stream.END_OF_STREAM)
        data = self._packs.end(current.begin)
        self._ended.append(
            _Closed(
                plans=current.plans,
                rows=current.index.rows,
                data=data,
                head=current.head,
                batches=current.index.to_bytes(),
                keys=batch_index.keys_to_bytes(current.keys),
                logical=current.logical,
            )
        )
        self.logical_bytes += current.logical

    def close(self) -> None:
        """Write what is left; after this the table takes no rows."""
        if self._closed:
            return
        try:
            for cells in list(self._waiting):
                self._flush(cells)
            self._drain(0)
            self._close_segment()
            # Next to one another, so that a reader gets them all at once.
            self._sealed = [
                _Sealed(
                    item,
                    batches=self._packs.entry(item.batches),
                    keys=self._packs.entry(item.keys),
                )
                for item in self._ended
            ]
            self._ended = []
        except BaseException as error:
            self._packs.fail(error)
            raise
        self._closed = True

    def table(self) -> Table:
        """The table's entry in the part index; after the packs were closed."""
        segments = tuple(_document(item) for item in self._sealed)
        return Table(
            name=self.name,
            schema_id=self._schema_id,
            rows=sum(item.live_rows for item in segments),
            segments=segments,
        )


def _chosen(values: Values, rows: list[int]) -> Values:
    return values[rows] if isinstance(values, WHOLE) else [values[row] for row in rows]


def _document(sealed: _Sealed) -> Segment:
    item = sealed.segment
    return Segment(
        rows=item.rows,
        columns=tuple(how.spec() for how in item.plans[1:]),
        data=item.data.location(),
        head_size=len(item.head),
        head_digest=digest_of(item.head),
        batches=sealed.batches.location(),
        batches_digest=digest_of(item.batches),
        keys=sealed.keys.location(),
        keys_digest=digest_of(item.keys),
        live_rows=item.rows,
        logical_bytes=item.logical,
    )
