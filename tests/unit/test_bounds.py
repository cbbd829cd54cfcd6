"""Sizes that lie: zstd frames, Arrow streams, chunks, record frames."""

import resource
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import zstandard

from snapfmt.errors import CorruptError, CorruptObject, FormatError, LimitExceeded, SnapfmtError
from snapfmt.format import (
    arrow_bounds,
    arrow_stream,
    batch_index,
    chunks,
    digest,
    jsonl,
    segment,
    zframes,
)
from snapfmt.format.columns import Column, Signature, from_values, missing_column
from snapfmt.format.segment import compressors, encode_batch, plan
from snapfmt.limits import DEFAULT_LIMITS, Limits
from snapfmt_schemas.part import ColumnSpec

SMALL = Limits(frame_content=1000)


def bomb(size: int) -> bytes:
    """A zstd frame of run-length blocks that says its size: about size / 32768 bytes."""
    header = struct.pack("<IB", 0xFD2FB528, 0b1110_0000) + struct.pack("<Q", size)
    blocks = []
    left = size
    while left:
        run = min(left, 128 * 1024)
        left -= run
        blocks.append(((run << 3) | (1 << 1) | (left == 0)).to_bytes(3, "little") + b"a")
    return header + b"".join(blocks)


def lying(size: int, content: bytes) -> bytes:
    """A frame whose header promises more than it holds."""
    frame = bytearray(bomb(len(content)))
    frame[5:13] = struct.pack("<Q", size)
    return bytes(frame)


def peak() -> int:
    """Largest resident size of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_a_bomb_is_a_real_frame() -> None:
    frame = bomb(1 << 20)
    assert len(frame) < 100
    assert zframes.decompress(frame, content_size=1 << 20, what="x") == b"a" * (1 << 20)


def test_a_bomb_is_refused_before_it_goes_off() -> None:
    before = peak()
    frame = bomb(8 << 30)
    with pytest.raises(LimitExceeded):
        zframes.decompress(frame, content_size=8 << 30, what="x")
    with pytest.raises(CorruptObject, match="another size"):
        zframes.decompress(frame, content_size=100, what="x")
    assert peak() - before < 200 << 20


def test_frames_are_bounded_by_size_and_ratio() -> None:
    data = zframes.compressor().compress(b"a" * 1000)
    assert zframes.decompress(data, content_size=1000, what="x", limits=SMALL) == b"a" * 1000
    with pytest.raises(LimitExceeded):
        zframes.decompress(data, content_size=1000, what="x", limits=Limits(frame_content=999))
    with pytest.raises(LimitExceeded):
        zframes.decompress(data, content_size=1000, what="x", limits=Limits(expansion=10))


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"x" * 100,
        zframes.compressor().compress(b"data")[:-1],
        zframes.compressor().compress(b"data") + b"x",
        zframes.compressor().compress(b"data") * 2,
        zstandard.ZstdCompressor(write_content_size=False).compress(b"data"),
        lying(1 << 20, b"data"),
        struct.pack("<II", 0x184D2A50, 4) + b"skip",
    ],
    ids=["empty", "noise", "cut", "longer", "two", "without size", "lies", "skippable"],
)
def test_what_is_not_one_whole_frame_is_refused(frame: bytes) -> None:
    for size in (4, 1 << 20):
        with pytest.raises((CorruptObject, LimitExceeded)):
            zframes.decompress(frame, content_size=size, what="x")


def test_a_window_past_the_limit_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=27, write_content_size=True)
    data = np.random.default_rng(0).bytes(1 << 16)
    writer = zstandard.ZstdCompressor(compression_params=parameters).compressobj(size=len(data))
    frame = writer.compress(data) + writer.flush()
    if zstandard.get_frame_parameters(frame).window_size <= 1 << 20:
        header = bytearray(struct.pack("<IBB", 0xFD2FB528, 0b1000_0000, (27 - 10) << 3))
        frame = bytes(header) + struct.pack("<I", 4) + b"\x21\x00\x00data"
    size = zstandard.get_frame_parameters(frame).content_size
    with pytest.raises(LimitExceeded, match="window"):
        zframes.decompress(frame, content_size=size, what="x", limits=Limits(frame_window_log=20))


def keys_stream(count: int = 3) -> bytes:
    keys = pa.array([f"key number {i} " + "x" * 100 for i in range(count)], pa.large_string())
    return batch_index.keys_to_bytes([keys])


def test_an_index_stream_is_bounded_before_it_is_read() -> None:
    data = keys_stream(1000)
    arrow_bounds.check(data, what="x")
    assert batch_index.read_stream(data, batch_index.KEYS_SCHEMA, what="x").num_rows == 1000
    assert len(data) < 50_000
    with pytest.raises(LimitExceeded, match="grows to"):
        arrow_bounds.check(data, what="x", limits=Limits(frame_content=50_000))
    with pytest.raises(LimitExceeded):
        batch_index.read_stream(
            data, batch_index.KEYS_SCHEMA, what="x", limits=Limits(frame_content=50_000)
        )


def test_a_bomb_inside_an_index_stream_is_refused_before_it_goes_off() -> None:
    """The size before a compressed buffer is what Arrow's reader would allocate."""
    data = bytearray(keys_stream())
    magic = struct.pack("<I", 0xFD2FB528)
    starts = [at for at in range(8, len(data)) if data[at : at + 4] == magic]
    assert starts
    before = peak()
    for at in starts:
        for size in (1 << 33, 1 << 40, 1 << 62):
            forged = bytearray(data)
            forged[at - 8 : at] = struct.pack("<q", size)
            with pytest.raises(LimitExceeded):
                batch_index.read_stream(bytes(forged), batch_index.KEYS_SCHEMA, what="x")
    assert peak() - before < 200 << 20


def test_uncompressed_streams_are_read_as_well() -> None:
    batch = pa.record_batch([pa.array(["a", "b"], pa.large_string())], batch_index.KEYS_SCHEMA)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    data = sink.getvalue().to_pybytes()
    assert batch_index.read_stream(data, batch_index.KEYS_SCHEMA, what="x").num_rows == 2


def stream_of(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def test_an_index_is_one_batch_without_nulls_of_the_right_schema() -> None:
    schema = batch_index.KEYS_SCHEMA
    good = pa.record_batch([pa.array(["a"], pa.large_string())], schema)
    nulls = pa.record_batch([pa.array(["a", None], pa.large_string())], schema)
    other = pa.schema([("key", pa.string())])
    for data in (
        stream_of([], schema),
        stream_of([good, good], schema),
        stream_of([good] * 40, schema),
        stream_of([nulls], schema),
        stream_of([pa.record_batch([pa.array(["a"])], other)], other),
        b"",
        b"\xff" * 100,
        keys_stream()[:-20],
        keys_stream()[:100],
    ):
        with pytest.raises(SnapfmtError):
            batch_index.read_stream(data, schema, what="x")


COLUMNS = [
    ("__key__", from_values(arrow_stream.KEY_SIGNATURE, ["a", "b", "c"])),
    ("x", from_values(Signature("ndarray", "float32", 1), [np.ones(3, np.float32)] * 3)),
]
SPECS = [ColumnSpec(name="x", kind="ndarray", dtype="float32", ndim=1, physical="float32")]


def index_of(**changes: Any) -> tuple[bytes, int]:
    """A batch index of two batches, with columns replaced; and the stream's size."""
    encoded = encode_batch(COLUMNS, plan(COLUMNS, {}), compressors())
    builder = batch_index.BatchIndexBuilder()
    size = len(encoded.data)
    builder.add(encoded, 64)
    builder.add(encoded, 64 + size)
    columns = dict(builder._columns)
    for name, change in changes.items():
        columns[name] = change(list(columns[name]))
    batch = pa.record_batch(list(columns.values()), schema=batch_index.INDEX_SCHEMA)
    return batch_index.to_stream(batch), 64 + 2 * size + 8


def open_index(data: bytes, size: int, **kwargs: Any) -> batch_index.BatchIndex:
    options: dict[str, Any] = {"rows": 6, "head_size": 64, "what": "x"} | kwargs
    return batch_index.BatchIndex(data, SPECS, stream_size=size, **options)


def test_a_batch_index_tiles_rows_and_bytes() -> None:
    data, size = index_of()
    index = open_index(data, size)
    assert len(index) == 2
    assert [index.batch_of(row) for row in range(6)] == [0, 0, 0, 1, 1, 1]
    assert index.place(1).end == size - 8
    assert index.place(0).end == index.place(1).offset


def nudge(by: int, inner: int | None = None) -> Any:
    def change(values: list[Any]) -> list[Any]:
        if inner is None:
            return [values[0] + by, *values[1:]]
        first = list(values[0])
        first[inner] += by
        return [first, *values[1:]]

    return change


LIES: dict[str, dict[str, Any]] = {
    "row_start off": {"row_start": nudge(1)},
    "rows more": {"rows": nudge(1)},
    "rows none": {"rows": lambda values: [0, 6]},
    "rows negative": {"rows": lambda values: [-3, 9]},
    "rows huge": {"rows": lambda values: [2**62, 2**62]},
    "header moved": {"header_offset": nudge(8)},
    "header negative": {"header_offset": nudge(-(2**60))},
    "header grows": {"header_size": nudge(64)},
    "header size negative": {"header_size": lambda values: [-64, values[1]]},
    "header size huge": {"header_size": lambda values: [2**62, 2**62]},
    "chunk moved": {"chunk_offset": nudge(64, 0)},
    "chunk negative": {"chunk_offset": nudge(-(10**6), 1)},
    "chunk grows": {"chunk_size": nudge(64, 0)},
    "chunk size negative": {"chunk_size": nudge(-(10**6), 1)},
    "chunk size huge": {"chunk_size": nudge(2**62, 1)},
    "one chunk missing": {"chunk_size": lambda values: [values[0][:-1], values[1]]},
    "one chunk more": {"chunk_offset": lambda values: [[*values[0], 0], values[1]]},
    "one digest missing": {"chunk_digest": lambda values: [values[0][:1], values[1]]},
    "one buffer missing": {"buffer_size": lambda values: [values[0][:-1], values[1]]},
    "null inside": {"chunk_size": lambda values: [[None, values[0][1]], values[1]]},
    "null buffer": {"buffer_size": lambda values: [[None, *values[0][1:]], values[1]]},
    "null digest": {"chunk_digest": lambda values: [[None, values[0][1]], values[1]]},
}


@pytest.mark.parametrize("lie", LIES)
def test_a_batch_index_that_lies_is_refused(lie: str) -> None:
    data, size = index_of(**LIES[lie])
    with pytest.raises((FormatError, LimitExceeded)):
        open_index(data, size)


@pytest.mark.parametrize(
    "kwargs", [{"rows": 5}, {"rows": 7}, {"rows": 2**80}, {"head_size": 0}, {"head_size": 2**70}]
)
def test_a_batch_index_must_fit_its_segment(kwargs: dict[str, int]) -> None:
    data, size = index_of()
    with pytest.raises((FormatError, LimitExceeded)):
        open_index(data, size, **kwargs)
    with pytest.raises((FormatError, LimitExceeded)):
        open_index(data, size + 1)
    with pytest.raises(LimitExceeded):
        open_index(data, size, limits=Limits(batch_rows=2))
    with pytest.raises(LimitExceeded):
        open_index(data, size, limits=Limits(chunk_size=10))


def chunk_of(buffers: Sequence[bytes], sizes: Sequence[int] | None = None) -> Any:
    """A chunk of raw buffers with a good digest, and its place."""
    data = b""
    real = []
    for buffer in buffers:
        if not buffer:
            real.append(0)
            continue
        piece = struct.pack("<q", -1) + buffer
        real.append(len(piece))
        data += piece + bytes(-len(piece) % 64)
    place = chunks.ChunkPlace(0, len(data), digest.raw_digest([data]), tuple(sizes or real))
    return memoryview(data), place


def i64(*values: int) -> bytes:
    return np.array(values, np.int64).tobytes()


def decode(buffers: Sequence[bytes], signature: Signature, rows: int, **kwargs: Any) -> Column:
    data, place = chunk_of(buffers, kwargs.pop("sizes", None))
    physical = kwargs.pop("physical", signature.dtype or "large_string")
    return decoded(data, place, signature, physical, rows, **kwargs)


def decoded(
    data: memoryview,
    place: chunks.ChunkPlace,
    signature: Signature,
    physical: str,
    rows: int,
    **kwargs: Any,
) -> Column:
    stored = chunks.StoredChunk(data, place, signature, physical, "x")
    return chunks.decode_chunks([stored], rows, **kwargs)[0].widened()


VECTOR = Signature("ndarray", "int64", 1)
GRID = Signature("ndarray", "int64", 2)
SCALAR = Signature("ndarray", "int64", 0)
TEXT = Signature("text")


def test_a_good_chunk_is_read() -> None:
    column = decode([b"", i64(0, 2, 3), b"", i64(7, 8, 9)], VECTOR, 2)
    assert [column.value(row).tolist() for row in range(2)] == [[7, 8], [9]]
    grid = decode([b"", i64(0, 2, 2), b"", i64(7, 8), b"", b"", i64(1, 2, 0, 5)], GRID, 2)
    assert [grid.value(row).shape for row in range(2)] == [(1, 2), (0, 5)]


BAD_CHUNKS: dict[str, tuple[Sequence[bytes], Signature, int]] = {
    "offsets decrease": ([b"", i64(0, 3, 2), b"", i64(1, 2)], VECTOR, 2),
    "offsets start late": ([b"", i64(1, 2, 3), b"", i64(1, 2, 3)], VECTOR, 2),
    "offsets negative": ([b"", i64(0, -1, 2), b"", i64(1, 2)], VECTOR, 2),
    "offsets past the end": ([b"", i64(0, 2, 9), b"", i64(1, 2)], VECTOR, 2),
    "offsets before the end": ([b"", i64(0, 1, 1), b"", i64(1, 2)], VECTOR, 2),
    "too few offsets": ([b"", i64(0, 2), b"", i64(1, 2)], VECTOR, 2),
    "no offsets": ([b"", b"", b"", i64(1, 2)], VECTOR, 2),
    "odd offsets": ([b"", i64(0, 1, 2)[:-1], b"", i64(1, 2)], VECTOR, 2),
    "odd values": ([b"", i64(0, 1, 2), b"", i64(1, 2)[:-1]], VECTOR, 2),
    "too few scalars": ([b"", i64(1)], SCALAR, 2),
    "too many scalars": ([b"", i64(1, 2, 3)], SCALAR, 2),
    "long validity": ([b"\1\1", i64(1, 2)], SCALAR, 2),
    "shape too large": ([b"", i64(0, 2), b"", i64(7, 8), b"", b"", i64(2, 2)], GRID, 1),
    "shape negative": ([b"", i64(0, 2), b"", i64(7, 8), b"", b"", i64(-1, -2)], GRID, 1),
    "shape wraps": ([b"", i64(0, 0), b"", b"", b"", b"", i64(2**32, 2**32)], GRID, 1),
    "shape wraps to two": (
        [b"", i64(0, 2), b"", i64(7, 8), b"", b"", i64(2**63 - 1, -2)],
        GRID,
        1,
    ),
    "shape empty and huge": ([b"", i64(0, 0), b"", b"", b"", b"", i64(0, 2**62)], GRID, 1),
    "shapes missing": ([b"", i64(0, 2), b"", i64(7, 8), b"", b"", b""], GRID, 1),
    "text past the end": ([b"", i64(0, 9), b"abc"], TEXT, 1),
}


@pytest.mark.parametrize("name", BAD_CHUNKS)
def test_a_chunk_that_lies_is_refused(name: str) -> None:
    buffers, signature, rows = BAD_CHUNKS[name]
    with pytest.raises(CorruptError):
        decode(buffers, signature, rows)


def test_columns_of_a_batch_with_the_same_offsets_have_as_many_values() -> None:
    offsets = i64(0, 1, 2)
    good, short = (
        chunks.StoredChunk(data, place, VECTOR, "int64", "x")
        for data, place in (chunk_of([b"", offsets, b"", i64(*some)]) for some in ((7, 8), (7,)))
    )
    first, second = chunks.decode_chunks([good, good], 2)
    assert first.value(1) == second.value(1) == [8]
    with pytest.raises(FormatError, match="offsets do not fit"):
        chunks.decode_chunks([good, short], 2)


@pytest.mark.parametrize("sizes", [(0, 10**9, 0, 0), (0, -8, 0, 24), (0, 7, 0, 24), (0, 0, 0, 0)])
def test_buffer_sizes_that_leave_their_chunk_are_refused(sizes: tuple[int, ...]) -> None:
    with pytest.raises(CorruptError):
        decode([b"", i64(0, 1, 2), b"", i64(1, 2)], VECTOR, 2, sizes=sizes)


def test_a_chunk_with_a_bomb_is_refused_before_it_goes_off() -> None:
    frame = bomb(8 << 30)
    piece = struct.pack("<q", 8 << 30) + frame
    data = piece + bytes(-len(piece) % 64)
    place = chunks.ChunkPlace(0, len(data), digest.raw_digest([data]), (0, len(piece)))
    before = peak()
    with pytest.raises(LimitExceeded):
        decoded(memoryview(data), place, Signature("ndarray", "uint8", 0), "uint8", 8 << 30)
    assert peak() - before < 200 << 20


def test_a_chunk_is_checked_before_it_is_believed() -> None:
    data, place = chunk_of([b"", i64(1, 2)])
    wrong = chunks.ChunkPlace(0, place.size, bytes(32), place.buffer_sizes)
    with pytest.raises(CorruptObject, match="digest"):
        decoded(data, wrong, SCALAR, "int64", 2)
    short = chunks.ChunkPlace(0, place.size + 1, place.digest, place.buffer_sizes)
    with pytest.raises(CorruptObject):
        decoded(data, short, SCALAR, "int64", 2)


def test_text_that_is_not_utf_8_is_damage_where_it_is_read() -> None:
    column = decode([b"", i64(0, 1, 2), b"a\xff"], TEXT, 2)
    assert column.value(0) == "a"
    with pytest.raises(FormatError):
        column.value(1)
    value = decode([b"", i64(0, 1, 2), b"1{"], Signature("value"), 2)
    assert value.value(0) == 1
    with pytest.raises(FormatError):
        value.value(1)


@pytest.mark.parametrize(
    ("dtype", "physical"),
    [("int64", "int8"), ("float32", "uint8"), ("bool", "int8"), ("none", "int64"), ("", "uint8")],
)
def test_types_that_the_format_lacks_are_refused(dtype: str, physical: str) -> None:
    spec = ColumnSpec(name="x", kind="tensor", dtype=dtype, physical=physical)
    with pytest.raises(FormatError):
        chunks.signature_from(spec)


def test_axes_are_bounded() -> None:
    for ndim in (65, 2**31, 2**63 - 1):
        spec = ColumnSpec(name="x", kind="tensor", dtype="int64", ndim=ndim, physical="int64")
        with pytest.raises(FormatError, match="axes"):
            chunks.signature_from(spec)


def test_buffers_too_large_to_inflate_are_stored_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    column = from_values(Signature("bytes"), [b"a" * 5000])
    columns = [("__key__", from_values(arrow_stream.KEY_SIGNATURE, ["k"])), ("x", column)]
    plans = plan(columns, {})
    assert plans[1].compress
    packed = encode_batch(columns, plans, compressors()).chunks[1]
    assert packed.size < 1000
    monkeypatch.setattr(segment, "DEFAULT_LIMITS", Limits(frame_content=4999))
    encoded = encode_batch(columns, plans, compressors())
    plain = encoded.chunks[1]
    assert plain.size > 5000
    data = memoryview(encoded.data)[-plain.size :]
    place = chunks.ChunkPlace(0, plain.size, plain.digest, plain.buffer_sizes)
    back = decoded(data, place, Signature("bytes"), "large_binary", 1, limits=SMALL)
    assert back.value(0) == b"a" * 5000


def test_a_record_index_that_lies_is_refused() -> None:
    encoder = jsonl.LinesEncoder()
    encoder.add("a", b'{"x":1}')
    encoder.add("b", b'{"x":2}')
    frame = encoder.flush()
    first, second = jsonl.LineIndex(encoder.index(), what="x").places()
    content = jsonl.frame_content(frame, first, what="x")
    assert jsonl.line_of(content, second, what="x") == b'{"x":2}'
    for offset, size in [(0, 6), (1, 6), (0, 8), (8, 8), (-1, 7), (0, -1), (16, 0), (8, 2**62)]:
        place = jsonl.LinePlace("a", 0, len(frame), len(content), first.frame_digest, offset, size)
        with pytest.raises(FormatError):
            jsonl.line_of(content, place, what="x")
    with pytest.raises(CorruptObject):
        jsonl.frame_content(frame[:-1], first, what="x")
    with pytest.raises(FormatError):
        list(jsonl.split(b'{"x":1}', what="x"))


def test_limits_name_what_was_exceeded() -> None:
    DEFAULT_LIMITS.check("parts", DEFAULT_LIMITS.parts, what="x")
    with pytest.raises(LimitExceeded, match="65537 parts, limit 65536: 'manifest'"):
        DEFAULT_LIMITS.check("parts", DEFAULT_LIMITS.parts + 1, what="manifest")


def test_a_missing_column_has_no_bytes() -> None:
    for signature in (SCALAR, VECTOR, GRID, TEXT):
        assert missing_column(signature, 3).logical_bytes == 0
