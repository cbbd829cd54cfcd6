"""Bytes of a dense array: `zarr.json`, shards and their index (decision 0011), without any I/O.

A shard is the chunks of one box of the array, back to back, then an index of (offset, size) per
chunk as little-endian u64, then the index's crc32c. A chunk is its elements, little-endian and
in C order, perhaps zstd, then a crc32c.
"""

import itertools
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from snapfmt.errors import (
    CorruptObject,
    FormatError,
    InputError,
    LimitExceeded,
    UnsupportedFeature,
)
from snapfmt.format import canonical, zframes
from snapfmt.format.dtypes import storage_dtype
from snapfmt.limits import DEFAULT_LIMITS, Limits

DTYPE_ATTRIBUTE = "snapfmt.dtype"
"""Attribute that names the logical dtype of an array stored as the bits of another."""
WORTH = 0.9
"""A first chunk that does not shrink to this share of its size leaves the array uncompressed."""

_ABSENT = 2**64 - 1
"""Offset and size, in an index, of a chunk that is not there."""
_BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
_CRC32C = {"name": "crc32c"}
_ZSTD = {"name": "zstd", "configuration": {"level": zframes.LEVEL, "checksum": True}}

Array = npt.NDArray[Any]
Origin = tuple[int, ...]


class Place(NamedTuple):
    """Where a chunk begins in the array, and where its bytes lie in its shard."""

    origin: Origin
    offset: int
    size: int


class Layout(NamedTuple):
    """Everything that `zarr.json` says; a shard is a whole number of chunks along every axis."""

    shape: tuple[int, ...]
    dtype: str
    chunk: tuple[int, ...]
    shard: tuple[int, ...]
    compression: tuple[dict[str, Any], ...]
    attributes: dict[str, Any]

    @property
    def stored(self) -> np.dtype[Any]:
        """numpy dtype of one stored element, little-endian."""
        native = np.dtype("bool") if self.dtype == "bool" else storage_dtype(self.dtype)
        return native.newbyteorder("<")

    @property
    def chunk_size(self) -> int:
        """Bytes of a chunk before compression; one at the array's edge is padded to it."""
        return math.prod(self.chunk) * self.stored.itemsize

    def shards(self) -> Iterator[tuple[str, Origin]]:
        """Key and first element of every shard, one at a time: a shape may name any number."""
        counts = [-(-n // step) for n, step in zip(self.shape, self.shard, strict=True)]
        # Not `itertools.product`, which makes a tuple of every side first.
        for number in range(math.prod(counts)):
            numbers: list[int] = []
            for count in reversed(counts):
                number, place = divmod(number, count)
                numbers.insert(0, place)
            start = tuple(at * step for at, step in zip(numbers, self.shard, strict=True))
            yield "/".join(["c", *map(str, numbers)]), start

    def chunks(self, start: Origin) -> list[Origin]:
        """First element of every chunk of a shard in C order, also of those past the edge."""
        sides = zip(start, self.shard, self.chunk, strict=True)
        return list(itertools.product(*(range(at, at + size, step) for at, size, step in sides)))

    def inside(self, origin: Origin) -> bool:
        """Whether a chunk holds any element of the array."""
        return all(at < n for at, n in zip(origin, self.shape, strict=True))

    def region(self, origin: Origin) -> tuple[slice, ...]:
        """The elements of the array that a chunk holds."""
        sides = zip(origin, self.chunk, self.shape, strict=True)
        return tuple(slice(at, min(at + step, n)) for at, step, n in sides)

    def document(self) -> dict[str, Any]:
        """The content of `zarr.json`."""
        data_type = self.stored.name
        attributes = dict(self.attributes)
        if data_type != self.dtype:
            attributes[DTYPE_ATTRIBUTE] = self.dtype
        sharding = {
            "chunk_shape": list(self.chunk),
            "codecs": [_BYTES, *self.compression, _CRC32C],
            "index_codecs": [_BYTES, _CRC32C],
            "index_location": "end",
        }
        return {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(self.shape),
            "data_type": data_type,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(self.shard)}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": False if data_type == "bool" else 0,
            "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
            "attributes": attributes,
        }


def plan(
    bits: Array, dtype: str, *, chunk_bytes: int, shard_bytes: int, attributes: dict[str, Any]
) -> Layout:
    """The layout of an array; its first chunk decides whether the array is compressed."""
    chunk = _box(bits.shape, bits.itemsize, chunk_bytes)
    counts = [-(-n // step) for n, step in zip(bits.shape, chunk, strict=True)]
    shard_counts = _box(counts, math.prod(chunk) * bits.itemsize, shard_bytes)
    shard = tuple(n * step for n, step in zip(shard_counts, chunk, strict=True))
    layout = Layout(bits.shape, dtype, chunk, shard, (), attributes)
    if bits.size:
        first = _raw(layout, bits, (0,) * bits.ndim)
        if len(zframes.compressor(checksum=True).compress(first)) <= WORTH * len(first):
            return layout._replace(compression=(_ZSTD,))
    return layout


def _box(shape: Iterable[int], item: int, limit: int) -> tuple[int, ...]:
    """Largest box that is contiguous in C order and has at most `limit` bytes, or one item."""
    box = [max(1, n) for n in shape]
    for axis in reversed(range(len(box))):
        room = max(1, limit // item)
        if box[axis] > room:
            return (*[1] * axis, room, *box[axis + 1 :])
        item *= box[axis]
    return tuple(box)


def exact_json(attributes: dict[str, Any], *, what: str) -> dict[str, Any]:
    """Attributes as they will be read back.

    Raises:
        InputError: If that is not what was given.
    """
    try:
        data = json.dumps(attributes, allow_nan=False).encode()
        # One level less than a reader takes: they lie within the document.
        limits = replace(DEFAULT_LIMITS, json_depth=DEFAULT_LIMITS.json_depth - 1)
        value: Any = _parse(data, what, limits)
    except (TypeError, ValueError, RecursionError, FormatError, LimitExceeded) as error:
        raise InputError(f"attributes are not JSON: {error}", what=what) from error
    if not isinstance(value, dict) or value != attributes:
        raise InputError("attributes do not survive JSON; use lists and text keys", what=what)
    return dict(value)


def write_document(layout: Layout) -> bytes:
    """The bytes of `zarr.json`."""
    return json.dumps(layout.document(), sort_keys=True, indent=2, allow_nan=False).encode()


def read_document(data: bytes, *, what: str, limits: Limits) -> Layout:
    """The layout that `zarr.json` describes; any other Zarr array is refused.

    Raises:
        FormatError: If it is not the metadata of an array of this layout.
        LimitExceeded: If its sizes pass a limit.
    """
    value = _parse(data, what, limits)
    try:
        sharding = value["codecs"][0]["configuration"]
        attributes = dict(value["attributes"])
        layout = Layout(
            shape=_sizes(value["shape"], 0),
            dtype=str(attributes.pop(DTYPE_ATTRIBUTE, value["data_type"])),
            chunk=_sizes(sharding["chunk_shape"], 1),
            shard=_sizes(value["chunk_grid"]["configuration"]["chunk_shape"], 1),
            compression=tuple(sharding["codecs"][1:-1]),
            attributes=attributes,
        )
        # The level is the writer's choice; everything else has one form.
        same = layout.document() == value and len(layout.compression) <= 1
        known = all(codec["name"] == "zstd" for codec in layout.compression)
        sides = zip(layout.shape, layout.shard, layout.chunk, strict=True)
        whole = all(shard % chunk == 0 for _, shard, chunk in sides)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise FormatError(f"not the metadata of a dense array: {error!r}", what=what) from error
    if not (same and known and whole):
        raise FormatError("not the metadata of a dense array", what=what)
    if layout.chunk_size > limits.chunk_size:
        raise LimitExceeded(f"chunk of {layout.chunk_size} bytes", what=what)
    elements = math.prod(max(1, n) for n in layout.shape)
    if elements * layout.stored.itemsize >= 2**63:
        raise LimitExceeded(f"array of shape {layout.shape}", what=what)
    return layout


def _parse(data: bytes, what: str, limits: Limits) -> Any:
    return canonical.parse(data, what=what, size_limit=limits.manifest_size, limits=limits)


def _sizes(value: Any, least: int) -> tuple[int, ...]:
    if not isinstance(value, list) or any(type(n) is not int or n < least for n in value):
        raise ValueError(f"not a shape: {value!r}")
    return tuple(value)


def encode_chunk(layout: Layout, bits: Array, origin: Origin) -> tuple[bytes, bytes]:
    """A chunk as it is stored, and its checksum."""
    data = _raw(layout, bits, origin)
    if layout.compression:
        data = zframes.compressor(checksum=True).compress(data)
    return data, checksum(data)


def _raw(layout: Layout, bits: Array, origin: Origin) -> bytes:
    # The ellipsis keeps an array without axes an array.
    region: Any = (*layout.region(origin), ...)
    part: Array = bits[region]
    if part.shape != layout.chunk:
        whole = np.zeros(layout.chunk, bits.dtype)
        whole[tuple(slice(0, n) for n in part.shape)] = part
        part = whole
    return part.astype(layout.stored, copy=False).tobytes()


def shard_pieces(
    layout: Layout, origins: list[Origin], chunks: Iterable[tuple[bytes, bytes]]
) -> Iterator[bytes]:
    """A shard piece by piece; `chunks` are those of `origins` that are inside the array."""
    index = np.full((len(origins), 2), _ABSENT, "<u8")
    inside = [number for number, origin in enumerate(origins) if layout.inside(origin)]
    position = 0
    for number, (data, mark) in zip(inside, chunks, strict=True):
        size = len(data) + len(mark)
        index[number] = position, size
        position += size
        yield data
        yield mark
    table = index.tobytes()
    yield table
    yield checksum(table)


def places(layout: Layout, start: Origin, shard: memoryview, *, what: str) -> list[Place]:
    """Where the chunks of a shard lie, without their checksums, which are checked here.

    Raises:
        CorruptObject: If the index or a chunk is damaged, is missing or leaves the shard.
    """
    count = math.prod(n // step for n, step in zip(layout.shard, layout.chunk, strict=True))
    end = len(shard) - 16 * count - 4
    if end < 0:
        raise CorruptObject("a shard is shorter than its index", what=what)
    index = np.frombuffer(_checked(shard[end:], what), "<u8").reshape(count, 2).tolist()
    found = []
    for origin, (offset, size) in zip(layout.chunks(start), index, strict=True):
        if not layout.inside(origin):
            continue
        if offset == size == _ABSENT:
            raise CorruptObject(f"the chunk at {origin} is missing", what=what)
        if offset + size > end:
            raise CorruptObject(f"the chunk at {origin} leaves its shard", what=what)
        found.append(Place(origin, offset, len(_checked(shard[offset : offset + size], what))))
    return found


def decode_chunk(
    layout: Layout, shard: memoryview, place: Place, *, what: str, limits: Limits
) -> Array:
    """The elements of a chunk that are inside the array.

    Raises:
        CorruptObject: If its bytes are not those of a chunk.
        LimitExceeded: If it decompresses to more than a limit allows.
    """
    data: zframes.Buffer = shard[place.offset : place.offset + place.size]
    if layout.compression:
        data = zframes.decompress(data, content_size=layout.chunk_size, what=what, limits=limits)
    elif len(data) != layout.chunk_size:
        raise CorruptObject("a chunk has another size", what=what)
    whole = np.frombuffer(data, layout.stored).reshape(layout.chunk)
    region = layout.region(place.origin)
    used: Any = (*(slice(0, side.stop - side.start) for side in region), ...)
    part: Array = whole[used]
    return part


def _checked(data: memoryview, what: str) -> memoryview:
    """Bytes without the checksum that ends them."""
    if len(data) < 4 or checksum(data[:-4]) != data[-4:]:
        raise CorruptObject("a chunk or an index of a shard differs from its crc32c", what=what)
    return data[:-4]


def checksum(data: zframes.Buffer) -> bytes:
    """The crc32c of bytes, as Zarr's codec of that name stores it."""
    # numpy: the C extension refuses a memoryview.
    value: int = _crc32c().value(np.frombuffer(data, np.uint8))
    return value.to_bytes(4, "little")


@cache
def _crc32c() -> Any:
    return load_extra("google_crc32c", "zarr")


def require() -> None:
    """Find out that the extra is missing before anything is written.

    Raises:
        UnsupportedFeature: If it is.
    """
    _crc32c()


def load_extra(module: str, name: str) -> Any:
    """A module that an optional extra installs.

    Raises:
        UnsupportedFeature: If it is not there.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise UnsupportedFeature(
            f"dense arrays need {module}", hint=f"install snapfmt[{name}]"
        ) from error
