"""One segment while it is written: physical types, compression, batches (spec/v1/06-tables.md)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import zstandard

from snapfmt.format import arrow_stream, digest, zframes
from snapfmt.format.columns import Column, Signature
from snapfmt.format.dtypes import fits, narrowest, widenings
from snapfmt.limits import DEFAULT_LIMITS
from snapfmt_schemas.part import ColumnSpec

MIN_SAVING = 0.05
"""A column is compressed only where its segment's first batch shrinks at least this much."""


_LEVELS = (zframes.LEVEL, zframes.FAST_LEVEL)
Floors = dict[tuple[str, str], str]
"""(column, logical dtype) -> the widest physical type that a table needed so far."""


class NeedsWider(Exception):
    """A batch has values outside the segment's physical types; a new segment takes it."""


@dataclass(frozen=True, slots=True)
class ColumnPlan:
    """How one column of a segment is stored; fixed for the segment."""

    name: str
    signature: Signature
    physical: str
    compress: bool

    def spec(self) -> ColumnSpec:
        """The column's entry in the part index."""
        signature = self.signature
        return ColumnSpec(
            name=self.name,
            kind=signature.kind,
            dtype=signature.dtype,
            ndim=signature.ndim,
            physical=self.physical,
        )


@dataclass(frozen=True, slots=True)
class Chunk:
    """What the index says of one column of one batch."""

    size: int
    digest: bytes
    buffer_sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """One record batch, ready to be written: `data` is its metadata and its chunks.

    Shares no memory with the columns it was made of.
    """

    rows: int
    data: bytes
    header_size: int
    header_digest: bytes
    chunks: tuple[Chunk, ...]
    logical_bytes: int


def plan(columns: Sequence[tuple[str, Column]], floors: Floors) -> tuple[ColumnPlan, ...]:
    """Physical types and compression for a segment, from its first batch.

    `floors` holds the widest type each column needed so far, so that a table settles quickly.
    """
    plans = []
    for name, column in columns:
        signature = column.signature
        physical = ""
        if signature.is_array:
            physical = narrowest(
                column.values, signature.dtype, floors.get((name, signature.dtype))
            )
            floors[name, signature.dtype] = physical
        else:
            physical = "large_binary" if signature.kind == "bytes" else "large_string"
        plans.append(ColumnPlan(name, signature, physical, _pays(column, physical)))
    return tuple(plans)


def widen(
    columns: Sequence[tuple[str, Column]], plans: Sequence[ColumnPlan], floors: Floors
) -> None:
    """Raise the floors to what this batch needs, on top of what the segment had."""
    for (name, column), current in zip(columns, plans, strict=True):
        if column.signature.is_array:
            order = widenings(column.signature.dtype)
            needed = narrowest(column.values, column.signature.dtype, None)
            floors[name, column.signature.dtype] = max(needed, current.physical, key=order.index)


def keep_floors(columns: Sequence[ColumnSpec], floors: Floors) -> None:
    """Raise the floors to the physical types of a segment that is there already."""
    for spec in columns:
        if spec.dtype:
            order = widenings(spec.dtype)
            known = floors.get((spec.name, spec.dtype), spec.physical)
            floors[spec.name, spec.dtype] = max(known, spec.physical, key=order.index)


def compressors() -> dict[int, zstandard.ZstdCompressor]:
    """By level; costly to make, and each for one thread at a time."""
    return {level: zframes.compressor(level=level) for level in _LEVELS}


def encode_batch(
    columns: Sequence[tuple[str, Column]],
    plans: Sequence[ColumnPlan],
    compressors: Mapping[int, zstandard.ZstdCompressor],
) -> EncodedBatch:
    """Compress, hash and lay out one batch. Runs on a worker thread.

    Raises:
        NeedsWider: If a value does not fit the plan.
    """
    for (_, column), how in zip(columns, plans, strict=True):
        if how.signature.is_array and not fits(column.values, how.signature.dtype, how.physical):
            raise NeedsWider
    packed = _pack(columns, plans, compressors)
    places: list[tuple[int, int]] = []
    position = 0
    for _, sizes in packed:
        for size in sizes:
            places.append((position, size))
            position += size + arrow_stream.padding(size)
    field_nodes = [node for _, column in columns for node in arrow_stream.nodes(column)]
    rows = columns[0][1].rows
    header = arrow_stream.batch_header(rows, field_nodes, places, position)
    # In one piece, so that who hashes and writes it need not take turns with the encoders.
    data = b"".join([header, *(piece for pieces, _ in packed for piece in pieces)])
    chunks = []
    view, begin = memoryview(data), len(header)
    for _, sizes in packed:
        end = begin + sum(size + arrow_stream.padding(size) for size in sizes)
        chunks.append(Chunk(end - begin, digest.raw_digest([view[begin:end]]), sizes))
        begin = end
    logical = sum(column.logical_bytes for _, column in columns)
    return EncodedBatch(
        rows, data, len(header), digest.raw_digest([header]), tuple(chunks), logical
    )


def _level(signature: Signature) -> int:
    floating = signature.dtype.startswith(("float", "bfloat"))
    return zframes.FAST_LEVEL if floating else zframes.LEVEL


def _pays(column: Column, physical: str) -> bool:
    raw = packed = 0
    compressor = zframes.compressor(level=_level(column.signature))
    for buffer in arrow_stream.buffers(column, physical):
        raw += len(buffer)
        packed += len(compressor.compress(buffer)) if buffer else 0
    return packed <= raw * (1 - MIN_SAVING)


def _pack(
    columns: Sequence[tuple[str, Column]],
    plans: Sequence[ColumnPlan],
    compressors: Mapping[int, zstandard.ZstdCompressor],
) -> list[tuple[list[digest.Buffer], tuple[int, ...]]]:
    """Of each chunk the bytes in pieces, and the sizes of its buffers."""
    found = [
        arrow_stream.buffers(column, how.physical)
        for (_, column), how in zip(columns, plans, strict=True)
    ]
    wanted: dict[int, list[memoryview]] = {level: [] for level in _LEVELS}
    for buffers, how in zip(found, plans, strict=True):
        wanted[_level(how.signature)] += [item for item in buffers if _packs(item, how)]
    frames = {
        level: iter(zframes.compress_all(compressors[level], items))
        for level, items in wanted.items()
    }
    return [
        _chunk(buffers, how, frames[_level(how.signature)])
        for buffers, how in zip(found, plans, strict=True)
    ]


def _packs(buffer: memoryview, how: ColumnPlan) -> bool:
    """A reader refuses to inflate more than the limit at once; such a buffer is stored as it is."""
    return how.compress and 0 < len(buffer) <= DEFAULT_LIMITS.frame_content


def _chunk(
    buffers: Sequence[memoryview], how: ColumnPlan, frames: Iterator[digest.Buffer]
) -> tuple[list[digest.Buffer], tuple[int, ...]]:
    pieces: list[digest.Buffer] = []
    sizes: list[int] = []
    for buffer in buffers:
        if not buffer:
            sizes.append(0)
            continue
        body: digest.Buffer = buffer
        prefix = arrow_stream.raw_prefix()
        if _packs(buffer, how) and len(packed := next(frames)) < len(buffer):
            body, prefix = packed, arrow_stream.size_prefix(len(buffer))
        size = len(prefix) + len(body)
        sizes.append(size)
        pieces += [prefix, body, bytes(arrow_stream.padding(size))]
    return pieces, tuple(sizes)
