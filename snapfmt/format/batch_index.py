"""The batch index and the keys of a segment (spec/v1/06-tables.md, Indexes)."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from snapfmt.errors import FormatError, LimitExceeded
from snapfmt.format import arrow_bounds, arrow_stream, digest
from snapfmt.format.chunks import ChunkPlace, signature_from
from snapfmt.format.columns import offsets_of
from snapfmt.format.segment import EncodedBatch
from snapfmt.limits import DEFAULT_LIMITS, Limits
from snapfmt_schemas.part import ColumnSpec

_Numbers = npt.NDArray[np.int64]
_Digests = npt.NDArray[np.void]
_DIGEST = np.dtype("V32")


class BatchIndexBuilder:
    """Collects where every batch and chunk of a segment lies; offsets within the stream."""

    def __init__(self) -> None:
        self._columns: dict[str, list[object]] = {name: [] for name in INDEX_SCHEMA.names}
        self.rows = 0

    def add(self, batch: EncodedBatch, offset: int) -> None:
        """A batch whose header starts at `offset`."""
        add = self._columns
        add["row_start"].append(self.rows)
        add["rows"].append(batch.rows)
        add["header_offset"].append(offset)
        add["header_size"].append(batch.header_size)
        add["header_digest"].append(batch.header_digest)
        position = offset + batch.header_size
        offsets = []
        for chunk in batch.chunks:
            offsets.append(position)
            position += chunk.size
        add["chunk_offset"].append(offsets)
        add["chunk_size"].append([chunk.size for chunk in batch.chunks])
        add["chunk_digest"].append([chunk.digest for chunk in batch.chunks])
        add["buffer_size"].append([size for chunk in batch.chunks for size in chunk.buffer_sizes])
        self.rows += batch.rows

    def to_bytes(self) -> bytes:
        """The batch index: one Arrow IPC stream of one record batch."""
        return to_stream(pa.record_batch(list(self._columns.values()), schema=INDEX_SCHEMA))


INDEX_SCHEMA = pa.schema(
    [
        ("row_start", pa.int64()),
        ("rows", pa.int64()),
        ("header_offset", pa.int64()),
        ("header_size", pa.int64()),
        ("header_digest", pa.binary(32)),
        ("chunk_offset", pa.list_(pa.int64())),
        ("chunk_size", pa.list_(pa.int64())),
        ("chunk_digest", pa.list_(pa.binary(32))),
        ("buffer_size", pa.list_(pa.int64())),
    ]
)
"""Columns of a batch index; one row per record batch, lists run over the stream's columns."""

KEYS_SCHEMA = pa.schema([("key", pa.large_string())])
"""The keys entry: one row per row of the segment, in order."""


def keys_to_bytes(keys: Sequence[pa.Array]) -> bytes:
    """The keys entry from pieces of keys."""
    joined = pa.concat_arrays([piece.cast(pa.large_string()) for piece in keys])
    return to_stream(pa.record_batch([joined], schema=KEYS_SCHEMA))


def to_stream(batch: pa.RecordBatch) -> bytes:
    """One record batch as an Arrow IPC stream with zstd buffers."""
    sink = pa.BufferOutputStream()
    codec = pa.Codec("zstd", compression_level=1)
    # Threads of Arrow's own pool cost more than so small a batch.
    options = pa.ipc.IpcWriteOptions(compression=codec, use_threads=False)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def read_stream(
    data: digest.Buffer, schema: pa.Schema, *, what: str, limits: Limits = DEFAULT_LIMITS
) -> pa.RecordBatch:
    """The one record batch of an index stream, fully validated.

    Raises:
        LimitExceeded: If it grows too large when it is decompressed.
        FormatError: If it is not one valid batch of that schema.
    """
    arrow_bounds.check(data, what=what, limits=limits)
    try:
        options = pa.ipc.IpcReadOptions(use_threads=False)
        with pa.ipc.open_stream(pa.py_buffer(data), options=options) as reader:
            if not reader.schema.equals(schema):
                raise FormatError("index has another schema", what=what)
            batches = list(reader)
        if len(batches) != 1:
            raise FormatError(f"index has {len(batches)} batches, expected 1", what=what)
        batch = batches[0]
        batch.validate(full=True)
    except (pa.ArrowException, OSError, MemoryError) as error:
        raise FormatError(f"index is not valid Arrow: {error}", what=what) from error
    lists = [column for column in batch.columns if pa.types.is_list(column.type)]
    if any(column.null_count for column in batch.columns + [item.values for item in lists]):
        raise FormatError("index has nulls", what=what)
    return batch


def _raw_digests(column: pa.Array) -> _Digests:
    """Digests as an array whose items are bytes; unlike text, they keep their last zeros."""
    data = column.buffers()[1]
    if data is None:
        return np.empty(0, _DIGEST)
    return np.frombuffer(data, _DIGEST, len(column), column.offset * _DIGEST.itemsize)


class BatchPlace(NamedTuple):
    """Where one batch lies in the segment's stream."""

    row_start: int
    rows: int
    offset: int
    header_size: int
    header_digest: bytes
    chunks: tuple[ChunkPlace, ...]

    @property
    def end(self) -> int:
        """First byte after the batch."""
        return self.offset + self.header_size + sum(chunk.size for chunk in self.chunks)


class BatchIndex:
    """A decoded batch index, checked against the segment it belongs to."""

    def __init__(
        self,
        data: digest.Buffer,
        columns: Sequence[ColumnSpec],
        *,
        rows: int,
        head_size: int,
        stream_size: int,
        what: str,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        batch = read_stream(data, INDEX_SCHEMA, what=what, limits=limits)
        self._what = what
        self._counts = [
            arrow_stream.buffer_count(signature)
            for signature in (arrow_stream.KEY_SIGNATURE, *map(signature_from, columns))
        ]
        self.starts: npt.NDArray[np.int64] = batch.column("row_start").to_numpy()
        self.counts: npt.NDArray[np.int64] = batch.column("rows").to_numpy()
        self._header_digests = _raw_digests(batch.column("header_digest"))
        # First and last buffer of each column.
        self._cuts = list(pairwise(accumulate(self._counts, initial=0)))
        self._headers, self._offsets, self._sizes, self._buffers, self._digests = self._check(
            batch, rows, head_size, stream_size, limits
        )
        self.sizes: npt.NDArray[np.int64] = self._headers + self._sizes.sum(axis=1)

    def _check(
        self, table: pa.RecordBatch, rows: int, head_size: int, stream_size: int, limits: Limits
    ) -> tuple[_Numbers, _Numbers, _Numbers, _Numbers, _Digests]:
        """Batches tile the rows and, with head and end, every byte of the stream.

        Returns the sizes of headers; of chunks the offsets and sizes, batch by batch; the sizes of
        buffers; and the digests of chunks.
        """
        what = self._what
        if not 0 <= head_size <= stream_size:
            raise FormatError("the schema message is larger than the stream", what=what)
        if len(self.counts) and int(self.counts.min()) < 1:
            raise FormatError("a batch has no rows", what=what)
        if len(self.counts) and int(self.counts.max()) > limits.batch_rows:
            raise LimitExceeded(f"batch of {self.counts.max()} rows", what=what)
        if not np.array_equal(self.starts, offsets_of(self.counts)[:-1]) or rows != int(
            self.counts.sum()
        ):
            raise FormatError("batches do not cover the segment's rows", what=what)
        width, buffers = len(self._counts), sum(self._counts)
        for name, expected in (
            ("chunk_offset", width),
            ("chunk_size", width),
            ("chunk_digest", width),
            ("buffer_size", buffers),
        ):
            lengths = np.diff(table.column(name).offsets.to_numpy())
            if not (lengths == expected).all():
                raise FormatError(f"{name} does not fit the columns", what=what)
        sizes = table.column("chunk_size").flatten().to_numpy()
        if sizes.size and (int(sizes.min()) < 0 or int(sizes.max()) > limits.chunk_size):
            raise LimitExceeded("chunk size out of bounds", what=what)
        sizes = sizes.reshape(-1, width)
        headers = table.column("header_size").to_numpy()
        if headers.size and (int(headers.min()) < 0 or int(headers.max()) > limits.chunk_size):
            raise LimitExceeded("header size out of bounds", what=what)
        chunks = table.column("chunk_offset").flatten().to_numpy().reshape(-1, width)
        begins = offsets_of(headers + sizes.sum(axis=1)) + head_size
        inner = np.zeros_like(sizes)
        np.cumsum(sizes[:, :-1], axis=1, out=inner[:, 1:])
        ok = (
            np.array_equal(begins[:-1], table.column("header_offset").to_numpy())
            and np.array_equal(chunks, (begins[:-1] + headers)[:, None] + inner)
            and int(begins[-1]) + len(arrow_stream.END_OF_STREAM) == stream_size
        )
        if not ok:
            raise FormatError("batches do not cover the segment's bytes", what=what)
        lengths = table.column("buffer_size").flatten().to_numpy().reshape(-1, buffers)
        digests = _raw_digests(table.column("chunk_digest").flatten()).reshape(-1, width)
        return headers, chunks, sizes, lengths, digests

    def __len__(self) -> int:
        return len(self.starts)

    def batch_of(self, row: int) -> int:
        """Number of the batch that holds a row."""
        return int(np.searchsorted(self.starts, row, side="right")) - 1

    def place(self, number: int) -> BatchPlace:
        """Where batch `number` lies."""
        buffers = self._buffers[number].tolist()
        offsets, sizes = self._offsets[number].tolist(), self._sizes[number].tolist()
        header = int(self._headers[number])
        digests = self._digests[number].tolist()
        chunks = tuple(
            ChunkPlace(offset, size, digest, tuple(buffers[first:last]))
            for offset, size, digest, (first, last) in zip(
                offsets, sizes, digests, self._cuts, strict=True
            )
        )
        return BatchPlace(
            int(self.starts[number]),
            int(self.counts[number]),
            offsets[0] - header,
            header,
            self._header_digests[number].item(),
            chunks,
        )
