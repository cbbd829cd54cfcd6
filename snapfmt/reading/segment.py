"""One stored segment: its keys, its batches, single columns of single batches."""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from snapfmt.errors import CorruptObject, FormatError
from snapfmt.format import arrow_stream, batch_index, chunks, digest
from snapfmt.format.columns import Column
from snapfmt.reading.ahead import COALESCE
from snapfmt.reading.batch_checks import Described, Keys, check_batch
from snapfmt.reading.lazy import lazy
from snapfmt.reading.source import Source
from snapfmt.threads import in_order
from snapfmt_schemas.part import Location, Segment

Rows = npt.NDArray[np.int64] | slice
"""Which rows of a batch: a run of them, or their numbers, ascending."""
GROUP_BYTES = 2 * 2**20
"""Stored bytes of batches that are fetched at once: fewer times that threads take turns."""


@dataclass(frozen=True, slots=True)
class RowBatch:
    """Consecutive rows of a table: their keys, and the columns that were asked for.

    A column that no row of the segment has is not in `columns`.
    """

    keys: list[str]
    columns: dict[str, Column]


class SegmentReader:
    """Reads rows of one segment; indexes are loaded on first use and kept."""

    def __init__(self, source: Source, document: Segment, *, what: str) -> None:
        self._source = source
        self._document = document
        self._what = what
        self.names = [column.name for column in document.columns]
        self._signatures = [chunks.signature_from(column) for column in document.columns]

    @property
    def rows(self) -> int:
        """Live rows."""
        return self._document.live_rows

    @property
    def source(self) -> Source:
        """Where its bytes come from."""
        return self._source

    @property
    def document(self) -> Segment:
        """The segment's entry in the part index."""
        return self._document

    @lazy
    def live(self) -> npt.NDArray[np.int64] | None:
        """Numbers of the live rows, ascending, or None when all are live."""
        document = self._document
        if document.live is None or document.live_digest is None:
            return None
        data = self._source.entry(document.live, document.live_digest, what=self._what)
        if len(data) != (document.rows + 7) // 8:
            raise FormatError("live bitmap does not fit the rows", what=self._what)
        bits = np.unpackbits(np.frombuffer(data, np.uint8), count=document.rows, bitorder="little")
        rows = np.flatnonzero(bits).astype(np.int64)
        if len(rows) != document.live_rows:
            raise FormatError("live bitmap does not fit live_rows", what=self._what)
        return rows

    @lazy
    def _keys_entry(self) -> pa.Array:
        """The keys entry: of all rows, dead ones too."""
        document = self._document
        data = self._source.entry(document.keys, document.keys_digest, what=f"{self._what} keys")
        batch = batch_index.read_stream(
            data,
            batch_index.KEYS_SCHEMA,
            what=f"{self._what} keys",
            limits=self._source.limits,
        )
        if batch.num_rows != document.rows:
            raise FormatError("keys do not fit the rows", what=self._what)
        return batch.column(0)

    @lazy
    def key_column(self) -> pa.Array:
        """Keys of the live rows as Arrow text, in order."""
        column = self._keys_entry
        return column if self.live is None else column.take(pa.array(self.live))

    @lazy
    def keys(self) -> list[str]:
        """Keys of the live rows, in order."""
        found: list[str] = self.key_column.to_pylist()
        return found

    def find(self, key: str) -> list[int]:
        """Positions of a key among the live rows; at most one in a table that keeps the rules."""
        same = pc.equal(self.key_column, pa.scalar(key, pa.large_string()))
        found: list[int] = pc.indices_nonzero(same).to_pylist()
        return found

    @lazy
    def index(self) -> batch_index.BatchIndex:
        """Where every batch and chunk lies."""
        document = self._document
        what = f"{self._what} batch index"
        data = self._source.entry(document.batches, document.batches_digest, what=what)
        return batch_index.BatchIndex(
            data,
            document.columns,
            rows=document.rows,
            head_size=document.head_size,
            stream_size=document.data.size,
            what=what,
            limits=self._source.limits,
        )

    def key_places(self) -> list[Location]:
        """Where keys and live rows lie that were not read yet, for `Source.gather`."""
        document, known = self._document, self.__dict__
        keys = [] if "_keys_entry" in known else [document.keys]
        return keys if document.live is None or "live" in known else [*keys, document.live]

    def index_places(self) -> list[Location]:
        """The same of keys, live rows and batch index."""
        batches = [] if "index" in self.__dict__ else [self._document.batches]
        return [*batches, *self.key_places()]

    def spans(
        self, start: int, stop: int, columns: Sequence[str] | None = None
    ) -> list[tuple[Location, int, int]]:
        """The bytes that live rows start to stop are read from, in order, for `Source.ahead`."""
        numbers = [number for number, _ in self.plan(start, stop)]
        wanted = self._wanted(columns)
        if not numbers or not wanted:
            return []
        data, index = self._document.data, self.index
        if len(wanted) == len(self.names):
            return [(data, index.place(numbers[0]).offset, index.place(numbers[-1]).end)]
        rows = [index.place(number).chunks for number in numbers]
        cells = [row[position + 1] for row in rows for position in wanted]
        return [(data, cell.offset, cell.offset + cell.size) for cell in cells]

    def _wanted(self, columns: Sequence[str] | None) -> list[int]:
        """Positions of the columns that are asked for."""
        return [n for n, name in enumerate(self.names) if columns is None or name in columns]

    def plan(self, start: int, stop: int) -> Iterator[tuple[int, Rows]]:
        """Batches that hold live rows start to stop, and which of their rows."""
        index = self.index
        if start >= stop or not len(index):
            return
        if self.live is None:
            for number in range(index.batch_of(start), index.batch_of(stop - 1) + 1):
                first = int(index.starts[number])
                last = first + int(index.counts[number])
                yield number, slice(max(start, first) - first, min(stop, last) - first)
            return
        yield from self._batches_of(self.live[start:stop])

    def select(self, positions: npt.NDArray[np.int64] | None) -> Iterator[tuple[int, Rows]]:
        """As `plan`, for the live rows at these ascending positions; None for all."""
        if positions is None:
            yield from self.plan(0, self.rows)
        else:
            yield from self._batches_of(positions if self.live is None else self.live[positions])

    def _batches_of(
        self, rows: npt.NDArray[np.int64]
    ) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
        starts = self.index.starts
        numbers = np.searchsorted(starts, rows, side="right") - 1
        for number in np.unique(numbers).tolist():
            yield number, rows[numbers == number] - int(starts[number])

    @contextlib.contextmanager
    def reading(self, start: int, stop: int) -> Iterator[None]:
        """Within the context, the batches of live rows start to stop are read ahead."""
        spans = self.spans(start, stop) if self._source.store.read_size else []
        with self._source.ahead(spans):
            yield

    def read(
        self, number: int, chosen: Rows, columns: Sequence[str] | None = None
    ) -> dict[str, Column]:
        """The chosen rows of one batch, only the named columns' bytes are read.

        Raises:
            CorruptObject: If a byte that was read differs from its digest.
        """
        (found,) = self.read_group([(number, chosen)], columns)
        return {name: column.widened() for name, column in found.items()}

    def read_group(
        self, chosen: Sequence[tuple[int, Rows]], columns: Sequence[str] | None = None
    ) -> Iterator[dict[str, Column]]:
        """As `read`, of several batches, whose bytes are fetched together.

        Values are as narrow as they are stored: see `Column.widened`.
        """
        wanted = self._wanted(columns)
        batches = [self.index.place(number) for number, _ in chosen]
        data = iter(self._fetch([batch.chunks[at + 1] for batch in batches for at in wanted]))
        for (number, rows), batch in zip(chosen, batches, strict=True):
            stored = [
                chunks.StoredChunk(
                    next(data),
                    batch.chunks[at + 1],
                    self._signatures[at],
                    self._document.columns[at].physical,
                    f"{self._what} batch {number} column {self.names[at]}",
                )
                for at in wanted
            ]
            decoded = chunks.decode_chunks(stored, batch.rows, limits=self._source.limits)
            whole = isinstance(rows, slice) and rows == slice(0, batch.rows)
            yield {
                self.names[at]: column if whole else _chosen(column, rows)
                for at, column in zip(wanted, decoded, strict=True)
            }

    def groups(self, start: int, stop: int) -> Iterator[list[tuple[int, Rows]]]:
        """What `plan` gives, as many batches together as are worth one `read_group`.

        The first ones are small: who wants few rows has them soon.
        """
        return self._together(self.plan(start, stop))

    def _together(self, planned: Iterable[tuple[int, Rows]]) -> Iterator[list[tuple[int, Rows]]]:
        group: list[tuple[int, Rows]] = []
        size = limit = 0
        for number, rows in planned:
            more = int(self.index.sizes[number])
            if group and size + more > limit:
                yield group
                limit = min(2 * size, GROUP_BYTES)
                group, size = [], 0
            group.append((number, rows))
            size += more
        if group:
            yield group

    def stored_keys(self, number: int) -> list[str]:
        """Keys of all rows of one batch, dead ones too, as they lie beside its cells.

        Raises:
            CorruptError: If a byte that was read is damaged.
        """
        place = self.index.place(number)
        (data,) = self._fetch(place.chunks[:1])
        keys = chunks.StoredChunk(
            data,
            place.chunks[0],
            arrow_stream.KEY_SIGNATURE,
            "large_string",
            f"{self._what} batch {number} keys",
        )
        (column,) = chunks.decode_chunks([keys], place.rows, limits=self._source.limits)
        return [column.value(row) for row in range(place.rows)]

    def _fetch(self, places: Sequence[chunks.ChunkPlace]) -> list[memoryview]:
        """Bytes of places in stream order; close ones in one read."""
        result: list[memoryview] = []
        start = 0
        while start < len(places):
            stop = start + 1
            while (
                stop < len(places)
                and places[stop].offset - (places[stop - 1].offset + places[stop - 1].size)
                <= COALESCE
            ):
                stop += 1
            first, last = places[start].offset, places[stop - 1]
            size = last.offset + last.size - first
            data = memoryview(self._source.unchecked(self._document.data, first, size))
            result += [
                data[chunk.offset - first : chunk.offset - first + chunk.size]
                for chunk in places[start:stop]
            ]
            start = stop
        return result

    def check(self) -> Iterator[tuple[int, str]]:
        """Every byte of the segment, deep: yields (bytes checked, what) as it goes.

        Raises:
            CorruptError: At the first damage.
        """
        with self._source.ahead([(self._document.data, 0, self._document.data.size)]):
            yield from self._check()

    def _check(self) -> Iterator[tuple[int, str]]:
        document, source, what = self._document, self._source, self._what
        head = source.unchecked(document.data, 0, document.head_size)
        digest.check(head, document.head_digest, what=f"{what} head")
        names = [arrow_stream.KEY_COLUMN, *self.names]
        signatures = [arrow_stream.KEY_SIGNATURE, *self._signatures]
        physicals = ["large_string", *(column.physical for column in document.columns)]
        expected = arrow_stream.head(list(zip(names, signatures, physicals, strict=True)))
        if not arrow_stream.same_schema(head, expected):
            raise FormatError("schema message does not fit the part index", what=what)
        keys = Keys(self._keys_entry)
        kinds = list(zip(names, signatures, physicals, strict=True))
        whole = ((number, slice(0, int(rows))) for number, rows in enumerate(self.index.counts))
        for checked in in_order(
            partial(self._check_group, [number for number, _ in group], kinds, keys)
            for group in self._together(whole)
        ):
            yield from checked
        end = source.unchecked(
            document.data,
            document.data.size - len(arrow_stream.END_OF_STREAM),
            len(arrow_stream.END_OF_STREAM),
        )
        if end != arrow_stream.END_OF_STREAM:
            raise CorruptObject("end of the stream is damaged", what=what)

    def _check_group(
        self, numbers: Sequence[int], kinds: Sequence[Described], keys: Keys
    ) -> list[tuple[int, str]]:
        """Batches that follow one another, read together."""
        places = [self.index.place(number) for number in numbers]
        first, size = places[0].offset, places[-1].end - places[0].offset
        data = memoryview(self._source.unchecked(self._document.data, first, size))
        found = []
        for number, place in zip(numbers, places, strict=True):
            label, begin, end = f"{self._what} batch {number}", place.offset - first, place.end
            check_batch(
                data[begin : end - first],
                place,
                kinds,
                keys,
                what=label,
                limits=self._source.limits,
            )
            found.append((end - place.offset, label))
        return found


def _chosen(column: Column, rows: Rows) -> Column:
    if isinstance(rows, slice):
        return column.slice(rows.start, rows.stop)
    return column.take(rows)
