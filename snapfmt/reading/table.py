"""A table of a snapshot: keyed rows over all its segments (spec/v1/06-tables.md, Reading)."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib import import_module
from typing import Any, TypeVar

import pyarrow as pa

from snapfmt.errors import FormatError, NoMatch, RefusedError
from snapfmt.format import arrow_stream, chunks
from snapfmt.format.columns import MISSING, Column, is_utf8
from snapfmt.reading.lazy import lazy
from snapfmt.reading.segment import RowBatch, Rows, SegmentReader
from snapfmt.reading.source import Source
from snapfmt.threads import in_order
from snapfmt_schemas.collector import without_collections

T = TypeVar("T")

FEW_KEYS = 16
"""Keys that are looked for one by one before a map of all keys is made."""


class TableReader:
    """Rows of one table, over every part that holds a share of it."""

    def __init__(self, name: str, segments: Sequence[SegmentReader], *, source: Source) -> None:
        self.name = name
        self._source = source
        self._segments = list(segments)
        self._asked = 0

    @property
    def num_rows(self) -> int:
        """Rows of the table."""
        return sum(item.rows for item in self._segments)

    @property
    def column_names(self) -> list[str]:
        """Names of the columns, in order of first appearance."""
        return list(dict.fromkeys(name for item in self._segments for name in item.names))

    @property
    def logical_bytes(self) -> int:
        """Bytes of the values, uncompressed."""
        return sum(item.document.logical_bytes for item in self._segments)

    @property
    def stored_bytes(self) -> int:
        """Bytes of the rows as stored, without indexes."""
        return sum(item.document.data.size for item in self._segments)

    def dtypes(self) -> dict[str, list[str]]:
        """For each column the types its rows have, such as `tensor int64 1d`."""
        found: dict[str, dict[str, None]] = {name: {} for name in self.column_names}
        for item in self._segments:
            for spec in item.document.columns:
                text = f"{spec.kind} {spec.dtype} {spec.ndim}d" if spec.dtype else spec.kind
                found[spec.name][text] = None
        return {name: list(types) for name, types in found.items()}

    def keys(self) -> list[str]:
        """Keys of all rows, in order."""
        self._gather_keys()
        return [key for item in self._segments for key in item.keys]

    @lazy
    def _places(self) -> dict[str, tuple[int, int]]:
        self._gather(self._segments)
        places: dict[str, tuple[int, int]] = {}
        for number, item in enumerate(self._segments):
            for row, key in enumerate(item.keys):
                if key in places:
                    raise FormatError(f"key {key!r} comes twice", what=self.name)
                places[key] = (number, row)
        return places

    def _find(self, key: object) -> tuple[int, int] | None:
        """Segment and row of a key: for a few keys by looking, for many by a map of all."""
        if not isinstance(key, str) or not is_utf8(key):
            return None
        self._asked += 1
        if self._asked > FEW_KEYS:
            return self._places.get(key)
        self._gather_keys()
        found = [
            (number, row) for number, item in enumerate(self._segments) for row in item.find(key)
        ]
        if len(found) > 1:
            raise FormatError(f"key {key!r} comes twice", what=self.name)
        return found[0] if found else None

    def _gather_keys(self) -> None:
        """Keys of all segments, which lie next to one another; where little, batch indexes too."""
        keys = [place for item in self._segments for place in item.key_places()]
        if keys:
            places = [place for item in self._segments for place in item.index_places()]
            few = sum(place.size for place in places) <= self._source.near
            self._source.gather(places if few else keys)

    def _gather(self, segments: Iterable[SegmentReader]) -> None:
        """Keys and batch indexes of segments; they lie next to one another."""
        self._source.gather(place for item in segments for place in item.index_places())

    def __contains__(self, key: object) -> bool:
        return self._find(key) is not None

    def batches(
        self, columns: Sequence[str] | None = None, *, start: int = 0, stop: int | None = None
    ) -> Iterator[RowBatch]:
        """Rows start to stop in batches; only the named columns' bytes are read.

        Raises:
            NoMatch: If a named column is not in the table.
            CorruptError: If bytes that were read are damaged.
        """
        yield from self._each(_widened, columns, start, stop)

    def _each(
        self,
        form: Callable[[RowBatch], T],
        columns: Sequence[str] | None,
        start: int,
        stop: int | None,
    ) -> Iterator[T]:
        """What `form` makes of every batch, on the threads that read them."""
        self._check(columns)
        self._gather(item for item, _, _ in self._ranges(start, stop))
        spans = []
        if self._source.store.read_size:
            for item, first, last in self._ranges(start, stop):
                spans += item.spans(first, last, columns)
        with self._source.ahead(spans):
            for group in in_order(self._reads(form, columns, start, stop)):
                yield from group

    def _reads(
        self,
        form: Callable[[RowBatch], T],
        columns: Sequence[str] | None,
        start: int,
        stop: int | None,
    ) -> Iterator[Callable[[], list[T]]]:
        for item, first, last in self._ranges(start, stop):
            keys, position = item.keys, first
            for group in item.groups(first, last):
                names = []
                for _, rows in group:
                    count = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
                    names.append(keys[position : position + count])
                    position += count
                yield partial(_read, form, item, group, columns, names)

    def _ranges(self, start: int, stop: int | None) -> Iterator[tuple[SegmentReader, int, int]]:
        start, stop, _ = slice(start, stop).indices(self.num_rows)
        position = 0
        for item in self._segments:
            first, last = max(start - position, 0), min(stop - position, item.rows)
            if first < last:
                yield item, first, last
            position += item.rows

    def _check(self, columns: Sequence[str] | None) -> None:
        known = set(self.column_names)
        for name in columns or ():
            if name not in known:
                raise NoMatch(
                    f"table {self.name} has no such column",
                    what=name,
                    hint=f"it has {', '.join(sorted(known))}",
                )

    def row(self, key: str, columns: Sequence[str] | None = None) -> dict[str, Any]:
        """One row as numpy arrays and Python values; fields that it lacks are left out.

        Raises:
            NoMatch: If no row has the key.
        """
        return {
            name: value
            for name, column in self._row(key, columns).items()
            if (value := column.value(0)) is not MISSING
        }

    def row_torch(self, key: str, columns: Sequence[str] | None = None) -> dict[str, Any]:
        """One row with the types it was saved with: torch tensors come back as such."""
        bridge, blocks = _torch()
        return {
            name: value
            for name, column in self._row(key, columns).items()
            if (value := bridge.column_to_values(column, blocks)[0]) is not MISSING
        }

    def _row(self, key: str, columns: Sequence[str] | None) -> dict[str, Column]:
        self._check(columns)
        place = self._find(key)
        if place is None:
            raise NoMatch(f"table {self.name} has no such row", what=key)
        item = self._segments[place[0]]
        number, chosen = next(item.plan(place[1], place[1] + 1))
        return item.read(number, chosen, columns)

    def to_arrow(
        self, columns: Sequence[str] | None = None, *, start: int = 0, stop: int | None = None
    ) -> pa.Table:
        """Rows as an Arrow table: the key first, then the columns with their logical types.

        bfloat16 and float8 come as unsigned integers of their bits; field metadata names the
        logical dtype.

        Raises:
            RefusedError: If a column has rows of different types; use `batches` for those.
        """
        tables = []
        for batch in self.batches(columns, start=start, stop=stop):
            names, arrays = ["__key__"], [pa.array(batch.keys, pa.large_string())]
            fields = [pa.field("__key__", pa.large_string())]
            for name, column in batch.columns.items():
                physical = chunks.physical_full(column.signature)
                made = arrow_stream.field(name, column.signature, physical)
                fields += made
                names += [field.name for field in made]
                arrays += chunks.to_arrow(name, column, physical)
            tables.append(pa.Table.from_arrays(arrays, schema=pa.schema(fields)))
        if not tables:
            return pa.table({"__key__": pa.array([], pa.large_string())})
        try:
            return pa.concat_tables(tables, promote_options="default")
        except pa.ArrowException as error:
            raise RefusedError(
                f"a column has rows of different types: {error}",
                what=self.name,
                hint="read it with batches(), or choose other columns",
            ) from error

    def to_torch(
        self, columns: Sequence[str] | None = None, *, start: int = 0, stop: int | None = None
    ) -> tuple[list[str], dict[str, list[Any]]]:
        """Keys, and for each column the rows' values with the types they were saved with.

        Tensors have storages of their own, but lie in blocks of a few MiB: a block is freed when
        no row of it is left.
        """
        bridge, blocks = _torch()
        keys: list[str] = []
        names = list(columns) if columns is not None else self.column_names
        values: dict[str, list[Any]] = {name: [] for name in names}

        def form(batch: RowBatch) -> tuple[list[str], dict[str, list[Any]]]:
            found = {
                name: bridge.column_to_values(item, blocks) for name, item in batch.columns.items()
            }
            return batch.keys, found

        # What is made here is no garbage, and to look at all of it again and again takes longer.
        with without_collections():
            for some, found in self._each(form, columns, start, stop):
                keys += some
                for name in names:
                    values[name] += found.get(name) or [MISSING] * len(some)
        return keys, values

    def segments(self) -> list[SegmentReader]:
        """The table's segments, for audits."""
        return list(self._segments)


def _read(
    form: Callable[[RowBatch], T],
    item: SegmentReader,
    group: Sequence[tuple[int, Rows]],
    columns: Sequence[str] | None,
    keys: Sequence[list[str]],
) -> list[T]:
    found = item.read_group(group, columns)
    return [form(RowBatch(*batch)) for batch in zip(keys, found, strict=True)]


def _torch() -> tuple[Any, Any]:
    """The bridge to torch, which is imported only here, and memory for its tensors."""
    bridge = import_module("snapfmt.adapters.torch_values")
    return bridge, bridge.Blocks()


def _widened(batch: RowBatch) -> RowBatch:
    return RowBatch(batch.keys, {name: item.widened() for name, item in batch.columns.items()})
