"""Fuzz targets: Arrow streams, chunks, zstd frames, record files and packs."""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import zstandard

from snapfmt.format import (
    arrow_bounds,
    arrow_stream,
    batch_index,
    chunks,
    digest,
    jsonl,
    pack,
    segment,
    zframes,
)
from snapfmt.format.columns import Column
from snapfmt.format.dtypes import LOGICAL, widenings
from snapfmt.reading.batch_checks import check_text
from snapfmt.testing.fuzz_documents import WHAT, same
from snapfmt.testing.fuzzing import LIMITS, Ground, Prepared, Target, Wrong
from snapfmt.testing.golden import Golden
from snapfmt.testing.hostile import Choices
from snapfmt.testing.samples import plain
from snapfmt_schemas.part import ColumnSpec, Segment

_PLACES = struct.Struct("<6q")
_NUMBERS = ("row_start", "rows", "header_offset", "header_size")
_LISTS = ("chunk_offset", "chunk_size", "buffer_size")
_BOMB = 256 * 1024 * 1024


def targets() -> Iterator[Target]:
    """Every target of this module."""
    yield Target(name="pack-header", prepare=_pack_header)
    yield Target(name="zstd", prepare=_zstd, longest=16 * 1024)
    yield Target(name="arrow-bounds", prepare=_arrow_bounds, longest=16 * 1024)
    yield Target(name="arrow-schema", prepare=_arrow_schema, cost=2)
    yield Target(name="keys", prepare=_keys, longest=16 * 1024)
    yield Target(name="batch-index", prepare=_batch_index, cost=2)
    yield Target(name="batch-index-numbers", prepare=_batch_index_numbers, cost=2)
    yield Target(name="record-index", prepare=_record_index, longest=16 * 1024)
    yield Target(name="record-file", prepare=_record_file, cost=0.5)
    yield Target(name="chunk", prepare=_chunk, cost=0.25)


def _pack_header(ground: Ground) -> Prepared:
    def run(data: bytes) -> None:
        attempt = pack.check_header(data, what=WHAT)
        made = pack.header(attempt, data[32:48].hex())
        same(attempt, pack.check_header(made, what=WHAT))

    return Prepared(run, [pack.header("ab" * 16, "cd" * 16), b"SNAPPACK"])


def _bomb(size: int = _BOMB) -> bytes:
    """A small frame of a large content."""
    return zstandard.ZstdCompressor(level=19).compress(bytes(size))


def _zstd(ground: Ground) -> Prepared:
    """The content size that an index would declare, then a frame."""

    def run(data: bytes) -> None:
        declared = int.from_bytes(data[:8], "little", signed=True)
        found = zframes.decompress(
            memoryview(data[8:]), content_size=declared, what=WHAT, limits=LIMITS
        )
        again = zframes.compressor(checksum=True).compress(found)
        same(found, zframes.decompress(again, content_size=declared, what=WHAT, limits=LIMITS))

    contents = (b"", b"a", b"abc" * 999, bytes(range(256)) * 40)
    seeds = [
        len(content).to_bytes(8, "little") + zframes.compressor(checksum=check).compress(content)
        for content in contents
        for check in (False, True)
    ]
    streamed = zstandard.ZstdCompressor(write_content_size=False).compress(b"ab" * 99)
    seeds += [(198).to_bytes(8, "little") + streamed]
    seeds += [size.to_bytes(8, "little") + _bomb() for size in (_BOMB, 1000)]
    return Prepared(run, seeds)


def _streams(golden: Golden) -> list[bytes]:
    """Index streams of the golden repository, each also with its buffers as they are."""
    found = [golden.extent(item.batches) for item in golden.segments[:6]]
    found += [golden.extent(item.keys) for item in golden.segments[:4]]
    found += [index for _, index in golden.records()]
    return found + [_uncompressed(data) for data in found]


def _uncompressed(data: bytes) -> bytes:
    reader = pa.ipc.open_stream(data)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, reader.schema) as writer:
        for batch in reader:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


def _stream_bomb() -> bytes:
    return batch_index.to_stream(
        pa.record_batch([pa.array(["\0" * (_BOMB // 2)], pa.large_string())], ["key"])
    )


def _arrow_bounds(ground: Ground) -> Prepared:
    def run(data: bytes) -> None:
        arrow_bounds.check(data, what=WHAT, limits=LIMITS)

    return Prepared(run, [*_streams(Golden(ground.vectors)), _stream_bomb()])


def _arrow_schema(ground: Ground) -> Prepared:
    golden = Golden(ground.vectors)
    heads = [golden.extent(item.data)[: item.head_size] for item in golden.segments]

    def run(data: bytes) -> None:
        for head in heads[:2]:
            if arrow_stream.same_schema(data, head):
                same(pa.ipc.read_schema(pa.py_buffer(data)), pa.ipc.read_schema(pa.py_buffer(head)))

    return Prepared(run, [head for head in heads if len(head) < 3000])


def _keys(ground: Ground) -> Prepared:
    def run(data: bytes) -> None:
        found = batch_index.read_stream(
            data, batch_index.KEYS_SCHEMA, what=WHAT, limits=LIMITS
        ).column(0)
        again = batch_index.read_stream(
            batch_index.keys_to_bytes([found]), batch_index.KEYS_SCHEMA, what=WHAT
        ).column(0)
        same(found.to_pylist(), again.to_pylist())

    golden = Golden(ground.vectors)
    seeds = [golden.extent(item.keys) for item in golden.segments]
    return Prepared(run, [*seeds, *map(_uncompressed, seeds[:5]), _stream_bomb()])


def _index_of(item: Segment, data: bytes, rows: int, head: int, stream: int) -> None:
    found = batch_index.BatchIndex(
        data, item.columns, rows=rows, head_size=head, stream_size=stream, what=WHAT, limits=LIMITS
    )
    end = head
    for number in range(len(found)):
        place = found.place(number)
        same((place.row_start, place.offset), (int(found.starts[number]), end))
        same(found.batch_of(place.row_start), number)
        end = place.end
    same(end + len(arrow_stream.END_OF_STREAM), stream)


def _batch_index(ground: Ground) -> Prepared:
    """Which segment it is said to be of, then the stream."""
    golden = Golden(ground.vectors)
    items = [item for item in golden.segments if item.batches.size < 3000][:8]

    def run(data: bytes) -> None:
        item = items[data[0] % len(items)] if data else items[0]
        _index_of(item, data[1:], item.rows, item.head_size, item.data.size)

    streams = [(number, golden.extent(item.batches)) for number, item in enumerate(items)]
    seeds = [bytes([number]) + data for number, data in streams]
    return Prepared(run, seeds + [bytes([n]) + _uncompressed(data) for n, data in streams])


def _batch_index_numbers(ground: Ground) -> Prepared:
    """Other numbers in an index that is valid Arrow: few bytes reach the checks behind it."""
    golden = Golden(ground.vectors)
    items = [item for item in golden.segments if item.batches.size < 3000][:8]
    tables = [pa.ipc.open_stream(golden.extent(item.batches)).read_all() for item in items]

    def run(data: bytes) -> None:
        choose = Choices(data)
        number = choose.randrange(len(items))
        item, columns = items[number], tables[number].to_pydict()
        rows, head, stream = item.rows, item.head_size, item.data.size
        while choose.left:
            action = choose.randrange(6)
            if action == 0:
                rows, head, stream = (_near(value, choose) for value in (rows, head, stream))
            elif action == 1:
                name = choose.choice([*columns])
                for column in columns.values():
                    column += column[-1:]
                columns[name] = columns[name][:-1] + columns[name][:1]
            else:
                name = choose.choice([*_NUMBERS, *_LISTS])
                holder: list[Any] = columns[name]
                if holder and name in _LISTS:
                    holder = choose.choice(holder)
                    if action == 2:
                        holder.append(_near(0, choose))
                if holder:
                    place = choose.randrange(len(holder))
                    holder[place] = _near(holder[place], choose)
        batch = pa.record_batch(list(columns.values()), schema=batch_index.INDEX_SCHEMA)
        _index_of(item, batch_index.to_stream(batch), rows, head, stream)

    seeds = [bytes([number, 5, 1, 0, 0, 0, 0]) for number in range(len(items))]
    return Prepared(run, [*seeds, bytes(range(1, 40)), bytes(8), *_mixed()])


def _mixed() -> Iterator[bytes]:
    """Choices of every kind."""
    for number in range(1, 33):
        yield bytes((number * at * at + number) % 256 for at in range(1, 9))


def _near(value: int, choose: Choices) -> int:
    """Another number that 64 bits hold."""
    found = choose.choice(
        (value + 1, value - 1, value + 64, -value, 0, 2**62, 2**63 - 1, -(2**63), 2**32, value)
    )
    return min(max(found, -(2**63)), 2**63 - 1)


def _record_index(ground: Ground) -> Prepared:
    def run(data: bytes) -> None:
        found = jsonl.LineIndex(data, what=WHAT, limits=LIMITS).places()
        names = jsonl.INDEX_SCHEMA.names
        columns = [[getattr(item, name) for item in found] for name in names]
        again = batch_index.to_stream(pa.record_batch(columns, schema=jsonl.INDEX_SCHEMA))
        same(found, jsonl.LineIndex(again, what=WHAT).places())

    indexes = [index for _, index in Golden(ground.vectors).records()]
    return Prepared(run, [*indexes, *map(_uncompressed, indexes)])


def _record_file(ground: Ground) -> Prepared:
    """Places as an index would say them, then a frame, which is named after what it holds."""

    def run(data: bytes) -> None:
        if len(data) < _PLACES.size:
            return
        offset, size, content, line, length, _ = _PLACES.unpack_from(data)
        frame = data[_PLACES.size :]
        place = jsonl.LinePlace("k", offset, size, content, b"", line, length)
        place = replace(place, frame_digest=digest.raw_digest([frame]))
        text = jsonl.frame_content(frame, place, what=WHAT, limits=LIMITS)
        found = list(jsonl.split(text, what=WHAT))
        same(text, b"".join(item + b"\n" for item in found))
        line_text = jsonl.line_of(text, place, what=WHAT)
        if b"\n" not in line_text and line_text not in found:
            raise Wrong(f"{line_text!r:.99} is no line of the frame")

    seeds = []
    for entry, index in Golden(ground.vectors).records():
        for item in jsonl.LineIndex(index, what=WHAT).places()[:3]:
            head = (item.frame_offset, item.frame_size, item.frame_content)
            frame = entry[item.frame_offset : item.frame_offset + item.frame_size]
            line, length = item.line_offset, item.line_size
            places = ((line, length), (line + 1, length), (line, length - 1), (line, 2**62))
            seeds += [_PLACES.pack(*head, *place, 0) + frame for place in places]
    return Prepared(run, seeds)


_KINDS = ("tensor", "ndarray", "text", "bytes", "value")


def _chunk(ground: Ground) -> Prepared:
    """What a part index and a batch index say of a chunk, then its bytes."""
    dtypes = tuple(LOGICAL)

    def run(data: bytes) -> None:
        if len(data) < 16:
            return
        kind, dtype, ndim, physical, rows = struct.unpack_from("<BBBBi", data)
        name = _KINDS[kind % len(_KINDS)]
        logical = dtypes[dtype % len(dtypes)] if kind % len(_KINDS) < 2 else ""
        stored = widenings(logical)[physical % len(widenings(logical))] if logical else "large"
        spec = ColumnSpec.model_validate(
            {"name": "c", "kind": name, "dtype": logical, "ndim": ndim, "physical": stored}
        )
        signature = chunks.signature_from(spec)
        count = arrow_stream.buffer_count(signature)
        sizes = struct.unpack_from(f"<{count}i", data.ljust(8 + 4 * count, b"\0"), 8)
        body = data[8 + 4 * count :]
        place = chunks.ChunkPlace(0, len(body), digest.raw_digest([body]), sizes)
        chunk = chunks.StoredChunk(memoryview(body), place, signature, stored, WHAT)
        (column,) = chunks.decode_chunks([chunk], rows, limits=LIMITS)
        same(column.rows, rows)
        _read_column(column.widened())

    return Prepared(run, list(_chunk_seeds(Golden(ground.vectors), dtypes)))


def _read_column(column: Column) -> None:
    check_text(column, what=WHAT)
    values = [column.value(row) for row in range(min(column.rows, 64))]
    for low, high in ((0, column.rows), (column.rows // 2, column.rows)):
        column.slice(low, high)
    physical = chunks.physical_full(column.signature)
    for array in chunks.to_arrow("c", column, physical):
        array.validate(full=True)
    stored = physical or "large"
    plans = [segment.ColumnPlan("c", column.signature, stored, compress=True)]
    encoded = segment.encode_batch([("c", column)], plans, segment.compressors())
    made = encoded.chunks[0]
    chunk = chunks.StoredChunk(
        memoryview(encoded.data)[encoded.header_size :],
        chunks.ChunkPlace(0, made.size, made.digest, made.buffer_sizes),
        column.signature,
        stored,
        WHAT,
    )
    (again,) = chunks.decode_chunks([chunk], column.rows)
    same(
        [plain(value) for value in values],
        [plain(again.widened().value(row)) for row in range(len(values))],
    )


def _chunk_seeds(golden: Golden, dtypes: Sequence[str]) -> Iterator[bytes]:
    for item in golden.segments:
        for place, stream in golden.batches(item):
            for spec, chunk in zip(item.columns, place.chunks[1:], strict=True):
                signature = chunks.signature_from(spec)
                order = widenings(spec.dtype).index(spec.physical) if signature.is_array else 0
                head = struct.pack(
                    "<BBBBi",
                    _KINDS.index(spec.kind),
                    dtypes.index(spec.dtype) if spec.dtype else 0,
                    spec.ndim,
                    order,
                    place.rows,
                )
                sizes = struct.pack(f"<{len(chunk.buffer_sizes)}i", *chunk.buffer_sizes)
                data = head + sizes + stream[chunk.offset : chunk.offset + chunk.size]
                if len(data) < 2500:
                    yield data
