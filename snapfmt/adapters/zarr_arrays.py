"""Dense N-d arrays of a part as Zarr v3 (spec/decisions/0011-dense-arrays-as-zarr.md).

    write_array(part, "routed_experts", tensor)
    read_tensor(snapshot.part("rollout"), "routed_experts")
    open_array(snapshot.part("rollout"), "routed_experts")[10:20]      # a zarr.Array

An array at `path` is the entries `<path>/zarr.json` and `<path>/c/...`, one entry per shard, and
any Zarr v3 reader opens the exported files. zarr-python is imported by `open_array` only.

Holds for every value that leaves this module: the whole shard that holds it passed its digest,
and its chunk is there. A missing chunk is an error and never the fill value.
"""

import math
import os
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from snapfmt.adapters import zarr_layout
from snapfmt.adapters.zarr_layout import DTYPE_ATTRIBUTE, Layout, Origin
from snapfmt.errors import (
    CorruptObject,
    InputError,
    LimitExceeded,
    StorageReadOnly,
    UnsupportedFeature,
    UnsupportedValue,
)
from snapfmt.format.dtypes import LOGICAL
from snapfmt.limits import DEFAULT_LIMITS, MIB, Limits
from snapfmt.reading.snapshot import Part
from snapfmt.threads import Pool
from snapfmt.writing.convert import converter_for
from snapfmt.writing.part import JSON, PartWriter
from snapfmt_schemas import redaction

if TYPE_CHECKING:
    import torch
    import zarr

CACHE_BYTES = 256 * MIB
"""Verified shards that an open array keeps, in bytes; the newest is kept whatever its size."""


def write_array(
    part: PartWriter,
    path: str,
    array: "npt.NDArray[Any] | torch.Tensor",
    *,
    chunk_bytes: int = MIB,
    shard_bytes: int = 64 * MIB,
    attributes: dict[str, Any] | None = None,
) -> None:
    """Write a numpy array or torch tensor as one Zarr v3 array at `path` of the part.

    It is cut along the first axis, and along a later one only where a single index of the axes
    before passes `chunk_bytes`. Equal arguments give equal bytes. What is secret by its name
    among the `attributes` is replaced, as in `PartWriter.json`.

    Raises:
        UnsupportedValue: If the dtype has no exact stored form.
        InputError: If the path is taken, or the sizes or attributes cannot be used.
        UnsupportedFeature: If the extra `zarr` is not installed.
        StorageError: If it cannot be written.
    """
    if not 1 <= chunk_bytes <= shard_bytes:
        raise InputError("needs 1 <= chunk_bytes <= shard_bytes", what=path)
    attributes = zarr_layout.exact_json(attributes or {}, what=path)
    if DTYPE_ATTRIBUTE in attributes:
        raise InputError(f"the attribute {DTYPE_ATTRIBUTE} is reserved", what=path)
    dtype, bits = _bits_of(array, path)
    layout = zarr_layout.plan(
        bits,
        dtype,
        chunk_bytes=chunk_bytes,
        shard_bytes=shard_bytes,
        attributes=redaction.redact(attributes)[0],
    )
    zarr_layout.require()
    encode = partial(zarr_layout.encode_chunk, layout, bits)
    part.stage(f"{path}/zarr.json", zarr_layout.write_document(layout), media_type=JSON)
    with _pool() as pool:
        for key, start in layout.shards():
            origins = layout.chunks(start)
            chunks = pool.map(encode, [origin for origin in origins if layout.inside(origin)])
            part.stage(f"{path}/{key}", zarr_layout.shard_pieces(layout, origins, chunks))


def read_array(part: Part, path: str, *, limits: Limits = DEFAULT_LIMITS) -> npt.NDArray[Any]:
    """A whole array as numpy holds it: bfloat16 and float8 as unsigned integers of their bits.

    Raises:
        NoMatch: If the part has no array of that path.
        CorruptError: If a byte of it is not what it must be, or a chunk is missing.
        LimitExceeded: If a size in it passes a limit.
        UnsupportedFeature: If the extra `zarr` is not installed.
    """
    return _read(part, path, _open(part, path, limits)[0], limits)


def read_tensor(part: Part, path: str, *, limits: Limits = DEFAULT_LIMITS) -> "torch.Tensor":
    """A whole array as a torch tensor of its logical dtype; raises what `read_array` raises.

    Raises:
        UnsupportedFeature: If torch is missing or does not have the dtype.
    """
    torch = zarr_layout.load_extra("torch", "torch")
    layout, _ = _open(part, path, limits)
    dtype = getattr(torch, layout.dtype, None)
    if dtype is None:
        raise UnsupportedFeature(f"this torch has no dtype {layout.dtype}", what=path)
    bits = _read(part, path, layout, limits)
    # numpy's unsigned integers are not all known to torch; its signed ones are.
    return torch.from_numpy(bits.view(f"i{bits.itemsize}")).view(dtype)


def open_array(part: Part, path: str, *, limits: Limits = DEFAULT_LIMITS) -> "zarr.Array":
    """The array as a read-only `zarr.Array`; every byte is verified before zarr sees it.

    A slice verifies the shards that it touches, each whole; `CACHE_BYTES` of them are kept.

    Raises:
        NoMatch: If the part has no array of that path.
        CorruptError: If its metadata are damaged or a shard is missing. A slice raises it if one
            of its shards is damaged or lacks a chunk.
        LimitExceeded: If a size in it passes a limit.
        UnsupportedFeature: If the extra `zarr` is not installed.
    """
    zarr = zarr_layout.load_extra("zarr", "zarr")
    layout, document = _open(part, path, limits)
    store = _store_class()(part, path, layout, document)
    return zarr.open_array(store, mode="r", zarr_format=3)


def _bits_of(array: Any, path: str) -> tuple[str, npt.NDArray[Any]]:
    """Logical dtype, and the values in the numpy dtype that stores them."""
    if (converter := converter_for(array.__class__)) is not None:
        torch = zarr_layout.load_extra("torch", "torch")
        name = converter.signature(array).dtype
        plain = array.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
        flat = plain.view(getattr(torch, f"int{8 * plain.element_size()}")).numpy()
        stored = np.dtype("bool") if name == "bool" else LOGICAL[name]
        return name, flat.view(stored).reshape(array.shape)
    if not isinstance(array, np.ndarray) or isinstance(array, np.ma.MaskedArray):
        raise UnsupportedValue(f"{type(array).__name__} is not a dense array", what=path)
    name = array.dtype.name
    if name not in LOGICAL:
        hint = "store real and imaginary parts along one more axis" * (array.dtype.kind == "c")
        raise UnsupportedValue(f"numpy dtype {array.dtype} cannot be stored", what=path, hint=hint)
    bits = np.asarray(array)
    # 2: a type that another library adds to numpy, as ml_dtypes does bfloat16.
    return name, bits.view(LOGICAL[name]) if bits.dtype.isbuiltin == 2 else bits


def _open(part: Part, path: str, limits: Limits) -> tuple[Layout, bytes]:
    """Metadata of an array, and that its shards are listed and can hold what they say."""
    document = part.stored(f"{path}/zarr.json")
    layout = zarr_layout.read_document(document, what=f"{path}/zarr.json", limits=limits)
    sizes = {entry.path: entry.location.size for entry in part.index.entries}
    stored = 0
    # Ends at the first that is missing: a hostile shape has no more turns than there are entries.
    for key, _ in layout.shards():
        if f"{path}/{key}" not in sizes:
            raise CorruptObject("a shard of the array is missing", what=f"{path}/{key}")
        stored += sizes[f"{path}/{key}"]
    if math.prod(layout.shape) * layout.stored.itemsize > stored * limits.expansion:
        raise LimitExceeded(f"shape {layout.shape} in {stored} stored bytes", what=path)
    return layout, document


def _read(part: Part, path: str, layout: Layout, limits: Limits) -> npt.NDArray[Any]:
    out = np.empty(layout.shape, layout.stored.newbyteorder("="))
    with _pool() as pool:
        for key, start in layout.shards():
            what = f"{path}/{key}"
            shard = memoryview(part.stored(what))
            places = zarr_layout.places(layout, start, shard, what=what)
            decode = partial(zarr_layout.decode_chunk, layout, shard, what=what, limits=limits)
            for place, values in zip(places, pool.map(decode, places), strict=True):
                out[layout.region(place.origin)] = values
    return out


def _pool() -> Pool:
    return Pool(min(4, os.cpu_count() or 1), thread_name_prefix="snapfmt-zarr")


class _EntryStore:
    """What a zarr store over the verified files of one array does; `_store_class` adds the base.

    It is read-only and keeps the shards that were used last.
    """

    supports_writes = False
    supports_deletes = False
    supports_partial_writes = False
    supports_listing = True

    def __init__(self, part: Part, path: str, layout: Layout, document: bytes) -> None:
        base: Any = super()
        base.__init__(read_only=True)
        self._path = path
        self._starts: dict[str, Origin] = dict(layout.shards())
        self._keys = ("zarr.json", *self._starts)
        self._part = part
        self._layout = layout
        self._document = document
        self._cache: OrderedDict[str, bytes] = OrderedDict()
        self._cached = 0
        # zarr may read from several threads; one of them verifies a shard.
        self._lock = threading.Lock()

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __str__(self) -> str:
        return f"snapfmt://{self._path}"

    def with_read_only(self, read_only: bool = False) -> Self:
        """This store, which is read-only already."""
        if not read_only:
            raise StorageReadOnly("a snapshot is never changed", what=self._path)
        return self

    def bytes_of(self, key: str) -> bytes | None:
        """A whole verified file, or None where the array has none of that name.

        Raises:
            CorruptObject: If it is damaged or lacks a chunk.
        """
        if key == "zarr.json":
            return self._document
        start = self._starts.get(key)
        if start is None:
            return None
        with self._lock:
            data = self._cache.pop(key, None)
            if data is None:
                what = f"{self._path}/{key}"
                data = self._part.stored(what)
                # zarr would read a chunk that the index lacks as the fill value, and its own
                # error for a checksum has no type.
                zarr_layout.places(self._layout, start, memoryview(data), what=what)
                self._cached += len(data)
            self._cache[key] = data
            while self._cached > CACHE_BYTES and len(self._cache) > 1:
                self._cached -= len(self._cache.popitem(last=False)[1])
            return data

    async def get(self, key: str, prototype: Any = None, byte_range: Any = None) -> Any:
        """Bytes of a file, as zarr's byte ranges select them.

        It holds up zarr's event loop while a shard is read and verified.
        """
        data = self.bytes_of(key)
        if data is None:
            return None
        if prototype is None:
            buffers = zarr_layout.load_extra("zarr.core.buffer", "zarr")
            prototype = buffers.default_buffer_prototype()
        return prototype.buffer.from_bytes(memoryview(data)[_span(byte_range, len(data))])

    async def get_partial_values(
        self, prototype: Any, key_ranges: Iterable[tuple[str, Any]]
    ) -> Sequence[Any]:
        """Several ranges, one after the other."""
        return [await self.get(key, prototype, span) for key, span in key_ranges]

    async def exists(self, key: str) -> bool:
        """Whether the array has this file."""
        return key in self._keys

    async def set(self, key: str, value: Any) -> None:
        """Refuses."""
        raise StorageReadOnly("a snapshot is never changed", what=key)

    async def set_partial_values(self, key_start_values: Iterable[Any]) -> None:
        """Refuses; early releases of zarr 3 ask for it."""
        raise StorageReadOnly("a snapshot is never changed", what=self._path)

    async def delete(self, key: str) -> None:
        """Refuses."""
        raise StorageReadOnly("a snapshot is never changed", what=key)

    async def list(self) -> AsyncIterator[str]:
        """Every file."""
        for key in self._keys:
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """Files whose name begins so."""
        for key in self._keys:
            if key.startswith(prefix):
                yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Files and folders within a folder."""
        root = f"{prefix.rstrip('/')}/".lstrip("/")
        below = [key[len(root) :] for key in self._keys if key.startswith(root)]
        for name in dict.fromkeys(name.split("/")[0] for name in below):
            yield name


def _span(byte_range: Any, size: int) -> slice:
    match byte_range:
        case None:
            return slice(None)
        case object(start=int(start), end=int(end)):
            return slice(start, end)
        case object(offset=int(offset)):
            return slice(offset, None)
        case object(suffix=int(suffix)):
            return slice(max(0, size - suffix), None)
        case _:
            raise TypeError(f"unknown byte range {byte_range!r}")


@cache
def _store_class() -> Any:
    # Made when it is needed: importing this module must not import zarr.
    return type(
        "EntryStore", (_EntryStore, zarr_layout.load_extra("zarr.abc.store", "zarr").Store), {}
    )
