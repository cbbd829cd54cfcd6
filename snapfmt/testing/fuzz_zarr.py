"""Fuzz targets: the metadata and the shards of dense arrays."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from snapfmt.adapters import zarr_layout
from snapfmt.format.dtypes import LOGICAL
from snapfmt.testing.fuzz_documents import WHAT, same
from snapfmt.testing.fuzzing import LIMITS, Ground, Prepared, Target
from snapfmt.testing.hostile import Choices


def targets() -> Iterator[Target]:
    """Every target of this module."""
    yield Target(name="zarr-json", prepare=_zarr_json, json=True)
    yield Target(name="zarr-shard", prepare=_zarr_shard)


def _layouts() -> list[tuple[zarr_layout.Layout, np.ndarray[Any, Any]]]:
    found = []
    for dtype, shape in (
        ("int64", (4, 3)), ("bool", (5,)), ("bfloat16", (2, 2, 2)), ("float32", ()),
        ("uint8", (64, 9)), ("float8_e5m2", (3, 0)),
    ):  # fmt: skip
        stored = np.dtype("bool") if dtype == "bool" else np.dtype(LOGICAL[dtype])
        bits = (np.arange(math.prod(shape)) % 2).astype(stored).reshape(shape)
        layout = zarr_layout.plan(
            bits, dtype, chunk_bytes=24, shard_bytes=64, attributes={"unit": "px"}
        )
        found.append((layout, bits))
        found.append((layout._replace(compression=(zarr_layout._ZSTD,)), bits))
    return found


def _zarr_json(ground: Ground) -> Prepared:
    def run(data: bytes) -> None:
        layout = zarr_layout.read_document(data, what=WHAT, limits=LIMITS)
        again = zarr_layout.read_document(
            zarr_layout.write_document(layout), what=WHAT, limits=LIMITS
        )
        same(layout, again)
        for number, (_, start) in enumerate(layout.shards()):
            if number > 4:
                break
            layout.region(start)

    return Prepared(run, [zarr_layout.write_document(layout) for layout, _ in _layouts()])


def _zarr_shard(ground: Ground) -> Prepared:
    """Which array, how its checksums are mended, then a shard."""
    layouts = [(layout, bits) for layout, bits in _layouts() if bits.size]

    def run(data: bytes) -> None:
        choose = Choices(data[:2])
        layout, _ = choose.choice(layouts)
        (_, start), *_ = layout.shards()
        shard = _mended(layout, start, bytearray(data[2:]), choose.randrange(256))
        view = memoryview(shard)
        for place in zarr_layout.places(layout, start, view, what=WHAT):
            part = zarr_layout.decode_chunk(layout, view, place, what=WHAT, limits=LIMITS)
            same(part.shape, tuple(s.stop - s.start for s in layout.region(place.origin)))

    seeds = []
    for number, (layout, bits) in enumerate(layouts):
        (_, start), *_ = layout.shards()
        origins = layout.chunks(start)
        inside = [item for item in origins if layout.inside(item)]
        made = (zarr_layout.encode_chunk(layout, bits, item) for item in inside)
        shard = b"".join(map(bytes, zarr_layout.shard_pieces(layout, origins, made)))
        seeds.append(bytes([number, 0]) + shard)
    return Prepared(run, seeds)


def _mended(layout: zarr_layout.Layout, start: Any, shard: bytearray, how: int) -> bytes:
    """With the checksum of the index, and of the chunks that it names, made right again."""
    size = 16 * len(layout.chunks(start)) + 4
    if how == 0xFF or len(shard) < 4:
        return bytes(shard)
    if len(shard) < size:
        return bytes(shard[:-4]) + zarr_layout.checksum(bytes(shard[:-4]))
    index = np.frombuffer(bytes(shard[-size:-4]), "<u8").reshape(-1, 2).tolist()
    for offset, length in index:
        end = offset + length
        if length >= 4 and end <= len(shard) - size:
            shard[end - 4 : end] = zarr_layout.checksum(bytes(shard[offset : end - 4]))
    shard[-4:] = zarr_layout.checksum(bytes(shard[-size:-4]))
    return bytes(shard)
