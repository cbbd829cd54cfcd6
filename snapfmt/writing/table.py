"""A table while it is written: rows in, segments out (spec/v1/06-tables.md, Writing).

Rows of one segment share the types of every column. Rows are split by their types, cut into
batches of about one MiB, encoded on worker threads and written in the order they came.
"""

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from snapfmt.errors import AttemptClosed, InputError, UnsupportedValue
from snapfmt.format import arrow_stream, batch_index, segment
from snapfmt.format.columns import WHOLE, concat
from snapfmt.format.digest import digest_of
from snapfmt.limits import DEFAULT_LIMITS, KIB, MIB
from snapfmt.reading.segment import SegmentReader
from snapfmt.threads import here
from snapfmt.writing.carry import Carried, Carrier, gather_rows
from snapfmt.writing.pack import Extent, PackWriter
from snapfmt.writing.rows import Converter, RowConverter, Rows, Types, Values
from snapfmt.writing.sealed import (
    Closed,
    OpenSegment,
    Placed,
    Sealed,
    carried_document,
    key_array,
    seal,
    written_document,
)
from snapfmt_schemas.part import Table

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
LARGE_BATCH = 32 * MIB
"""Logical bytes of a batch that nothing else is encoded beside: one row may have gigabytes."""
THREAD_BYTES = 64 * KIB
"""Logical bytes of a batch for each of its columns from which on another thread encodes it.

With less, two threads hand the interpreter's lock to one another most of the time.
"""
_Flight = tuple[Rows, tuple[segment.ColumnPlan, ...], Future[segment.EncodedBatch]]


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
        base: Callable[[], Sequence[SegmentReader]] = list,
    ) -> None:
        self.name = name
        self.rows = 0
        self.logical_bytes = 0
        self._schema_id = schema_id
        self._what = f"table {name}"
        self._packs = packs
        self._executor = executor
        self._converter = RowConverter(name, converter)
        self._of_thread = threading.local()
        self._floors: segment.Floors = {}
        self._waiting: dict[Types, list[Rows]] = {}
        self._waiting_bytes: dict[Types, int] = {}
        self._current: Types | None = None
        self._open: OpenSegment | None = None
        self._flight: deque[_Flight] = deque()
        self._ended: list[Closed] = []
        self._sealed: list[Sealed] = []
        self._seen: set[str] = set()
        self._base = base
        self._carrier: Carrier | None = None
        self._carried: list[tuple[Carried, Extent | None, str]] = []
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
        self._check_open()
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

    def append_stored(self, pieces: Iterable[Rows]) -> None:
        """Add rows as a reader gave them: keys, then columns by name; keys are not compared.

        Raises whatever the pieces raise, and then the part cannot be sealed.
        """
        self._check_open()
        try:
            self._rewrite(pieces)
        except BaseException as error:
            self._packs.fail(error)
            raise

    def base_segments(self) -> list[SegmentReader]:
        """Segments of this table in the base's part of the same name; none without a base."""
        return list(self._from_base().segments)

    def carry(self, segment: int, rows: Any = None) -> None:
        """Take rows of the base over, without reading or writing their bytes.

        `segment` is its number among `base_segments`; `rows` says which of its live rows stay: a
        boolean for each, or positions; all without it. Carried rows come before appended ones.
        A segment of which few rows stay, and small ones of which there are many, are read and
        rewritten when the table is closed.

        Raises:
            InputError: If there is no such segment, it was carried already, or rows do not fit.
        """
        self._check_open()
        self._from_base().take(segment, rows)

    def carry_all(self, without: Collection[str] = ()) -> None:
        """Take all rows of the base's table over but those of these keys. Raises as `carry`."""
        self._check_open()
        self._from_base().take_all(set(without))

    def _from_base(self) -> Carrier:
        if self._carrier is None:
            self._carrier = Carrier(self.name, self._base())
        return self._carrier

    def _check_open(self) -> None:
        if self._closed:
            raise AttemptClosed("the table is closed", what=self.name)
        self._packs.check()

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
            self._wait(cells, piece, size)
            start = stop
        if (waiting := self._waiting.get(cells)) and order:
            # What was handed over will be encoded before `append` returns; this will not.
            waiting[-1] = [
                (name, column.copy() if isinstance(picked.get(name), WHOLE) else column)
                for name, column in waiting[-1]
            ]

    def _wait(self, cells: Types, piece: Rows, size: int) -> None:
        held = self._waiting_bytes.get(cells, 0) + size
        self._waiting.setdefault(cells, []).append(piece)
        self._waiting_bytes[cells] = held
        waiting_rows = sum(rows[0][1].rows for rows in self._waiting[cells])
        if held >= BATCH_BYTES or waiting_rows >= BATCH_ROWS:
            self._flush(cells)
        elif sum(self._waiting_bytes.values()) > WAITING_BYTES:
            self._flush(max(self._waiting_bytes, key=self._waiting_bytes.__getitem__))

    def _rewrite(self, pieces: Iterable[Rows]) -> None:
        """Stored rows as rows of this table, in batches of at most about two MiB."""
        for piece in pieces:
            cells = tuple((name, column.signature) for name, column in piece[1:])
            size = sum(column.logical_bytes for _, column in piece) + 32 * piece[0][1].rows
            if self._waiting_bytes.get(cells, 0) + size > 2 * BATCH_BYTES:
                self._flush(cells)
            self._wait(cells, piece, size)

    def _go_on(self) -> None:
        """Decide what becomes of the carried segments, and rewrite those that do not stay."""
        if self._carrier is None:
            return
        self._carrier.check_keys(self._seen)
        stay, rewrite = self._carrier.plan()
        for item in stay:
            segment.keep_floors(item.segment.document.columns, self._floors)
        gather_rows(rewrite)
        for item in rewrite:
            self._rewrite(item.read())
        self._carried = [(item, None, "") for item in stay]

    def _flush(self, cells: Types) -> None:
        """Encode what waits for these types as one batch."""
        pieces = self._waiting.pop(cells, [])
        size = self._waiting_bytes.pop(cells, 0)
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
        self._drain(0 if size > LARGE_BATCH else IN_FLIGHT)

    def _submit(self, batch: Rows) -> None:
        if self._flight:
            plans = self._flight[-1][1]
        elif self._open is not None:
            plans = self._open.plans
        else:
            plans = segment.plan(batch, self._floors)
        size = sum(column.logical_bytes for _, column in batch)
        submit = self._executor.submit if size >= THREAD_BYTES * len(batch) else here
        self._flight.append((batch, plans, submit(self._encode, batch, plans)))

    def _encode(self, batch: Rows, plans: tuple[segment.ColumnPlan, ...]) -> segment.EncodedBatch:
        own = self._of_thread
        if not hasattr(own, "compressors"):
            own.compressors = segment.compressors()
        return segment.encode_batch(batch, plans, own.compressors)

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

    def _open_segment(self, plans: tuple[segment.ColumnPlan, ...]) -> OpenSegment:
        head = arrow_stream.head([(how.name, how.signature, how.physical) for how in plans])
        begin = self._packs.begin(self._close_segment, what=self._what)
        self._packs.write(head)
        opened = OpenSegment(
            plans, begin, head, batch_index.BatchIndexBuilder(), [], position=len(head)
        )
        self._open = opened
        return opened

    def _write(self, current: OpenSegment, batch: Rows, encoded: segment.EncodedBatch) -> None:
        current.index.add(encoded, current.position)
        self._packs.write(encoded.data)
        current.position += len(encoded.data)
        current.keys.append(batch[0][1])
        current.logical += encoded.logical_bytes - batch[0][1].logical_bytes

    def _close_segment(self) -> None:
        current, self._open = self._open, None
        if current is None:
            return
        self._packs.write(arrow_stream.END_OF_STREAM)
        self._ended.append(
            Closed(
                plans=current.plans,
                rows=current.index.rows,
                data=self._packs.end(current.begin),
                head=current.head,
                batches=current.index.to_bytes(),
                keys=key_array(current.keys),
                logical=current.logical,
            )
        )
        self.logical_bytes += current.logical

    def close(self) -> None:
        """Write what is left; after this the table takes no rows."""
        if self._closed:
            return
        self._packs.check_owner()
        try:
            self._go_on()
            for cells in list(self._waiting):
                self._flush(cells)
            self._drain(0)
            self._close_segment()
            self._sealed = seal(self._ended, self._packs, self._what)
            self._carried = [(item, *self._bitmap(item)) for item, _, _ in self._carried]
            self._ended = []
        except BaseException as error:
            self._packs.fail(error)
            raise
        self._closed = True

    def _bitmap(self, item: Carried) -> tuple[Extent | None, str]:
        if (bitmap := item.bitmap()) is None:
            return None, ""
        return self._packs.entry(bitmap, self._what), digest_of(bitmap)

    def placed(self) -> list[Placed]:
        """Which rows every segment of the table has; after it was closed, in their order."""
        return [
            *(Placed(None, item) for item, _, _ in self._carried),
            *(Placed(item.segment.keys) for item in self._sealed),
        ]

    def table(self) -> Table:
        """The table's entry in the part index; after the packs were closed."""
        segments = (
            *(carried_document(*item) for item in self._carried),
            *(written_document(item) for item in self._sealed),
        )
        return Table(
            name=self.name,
            schema_id=self._schema_id,
            rows=sum(item.live_rows for item in segments),
            segments=segments,
        )


def _chosen(values: Values, rows: list[int]) -> Values:
    return values[rows] if isinstance(values, WHOLE) else [values[row] for row in rows]
