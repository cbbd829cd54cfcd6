"""Chunks read back: one column of one batch, verified and decoded (spec/v1/06-tables.md)."""

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from snapfmt.errors import CorruptObject, FormatError
from snapfmt.format import arrow_stream, digest, zframes
from snapfmt.format.columns import MAX_AXES, Column, Signature, offsets_of
from snapfmt.format.dtypes import LOGICAL, widenings
from snapfmt.limits import DEFAULT_LIMITS, Limits
from snapfmt_schemas.part import ColumnSpec

_MAX_ELEMENTS = 2.0**60
"""Products of shapes stay below this, so that no count wraps around."""
_EMPTY = memoryview(b"")
_PREFIX = struct.Struct("<q")


class ChunkPlace(NamedTuple):
    """Where one column of one batch lies in the segment's stream."""

    offset: int
    size: int
    digest: bytes
    buffer_sizes: tuple[int, ...]


class StoredChunk(NamedTuple):
    """Bytes of one column of one batch, and what they should be."""

    data: memoryview
    place: ChunkPlace
    signature: Signature
    physical: str
    what: str


def signature_from(spec: ColumnSpec) -> Signature:
    """Signature of a stored column.

    Raises:
        FormatError: If the part index names a dtype that the format does not have.
    """
    signature = Signature(spec.kind, spec.dtype, spec.ndim)
    if signature.is_array:
        if spec.dtype not in LOGICAL or spec.physical not in widenings(spec.dtype):
            raise FormatError(f"column stores {spec.dtype!r} as {spec.physical!r}", what=spec.name)
        if spec.ndim > MAX_AXES:
            raise FormatError(f"column has {spec.ndim} axes", what=spec.name)
    elif spec.dtype or spec.ndim:
        raise FormatError("a column without elements has no dtype and no axes", what=spec.name)
    return signature


def decode_chunks(
    stored: Sequence[StoredChunk], rows: int, *, limits: Limits = DEFAULT_LIMITS
) -> list[Column]:
    """Columns of one batch from their bytes, after every digest was checked.

    All are decompressed at once; their values may share memory, and so may their offsets. Values
    are as narrow as they are stored: see `Column.widened`.

    Raises:
        CorruptObject: If bytes differ from their digest.
        FormatError: If they do not describe `rows` rows of that type.
    """
    for chunk in stored:
        _check(chunk)
    frames: list[zframes.Frame] = []
    parts = [_buffers(chunk, frames) for chunk in stored]
    contents = iter(zframes.decompress_all(frames, limits=limits))
    offsets = _Offsets(rows)
    return [
        _column(
            [next(contents) if part is None else part for part in found],
            chunk,
            offsets,
        )
        for chunk, found in zip(stored, parts, strict=True)
    ]


def _check(chunk: StoredChunk) -> None:
    got = digest.raw_digest([chunk.data])
    if len(chunk.data) != chunk.place.size or got != chunk.place.digest:
        raise CorruptObject(
            "stored bytes differ from their digest",
            what=chunk.what,
            expected=chunk.place.digest.hex(),
            got=got.hex(),
            hint="run `snapfmt verify`; restore an older snapshot",
        )


def _buffers(chunk: StoredChunk, frames: list[zframes.Frame]) -> list[memoryview | None]:
    """The buffers of a chunk; those that are None are the frames that are added."""
    data, place, _, _, what = chunk
    length = len(data)
    parts: list[memoryview | None] = []
    position = 0
    for size in place.buffer_sizes:
        end = position + size
        if end > length or (size < 8 and size != 0):
            raise FormatError("a buffer reaches past its chunk", what=what)
        if size == 0:
            parts.append(_EMPTY)
            continue
        (raw,) = _PREFIX.unpack_from(data, position)
        body = data[position + 8 : end]
        if raw == -1:
            parts.append(body)
        elif raw < 0:
            raise FormatError("a buffer has a negative size", what=what)
        else:
            frames.append(zframes.Frame(body, raw, what))
            parts.append(None)
        position = end + -size % arrow_stream.ALIGNMENT
    if position != length:
        raise FormatError("a chunk is longer than its buffers", what=what)
    return parts


def _column(parts: list[memoryview], chunk: StoredChunk, known: "_Offsets") -> Column:
    _, _, signature, physical, what = chunk
    rows = known.rows
    present = _validity(parts[0], rows, what=what)
    if not signature.is_array:
        text = np.frombuffer(parts[2], np.uint8)
        return Column(signature, text, known.of(parts[1], len(text), what), present)
    values = _array(parts[-1 if signature.ndim <= 1 else 3], np.dtype(physical), what=what)
    if signature.ndim == 0:
        if len(values) != rows:
            raise FormatError(f"column has {len(values)} values for {rows} rows", what=what)
        if present is None:
            return Column(signature, values, np.arange(rows + 1, dtype=np.int64))
        return Column(signature, values[present], offsets_of(present.astype(np.int64)), present)
    offsets = known.of(parts[1], len(values), what)
    shapes = None
    if signature.ndim > 1:
        flat = _integers(parts[6], what=what)
        if flat.size != rows * signature.ndim:
            raise FormatError("shapes do not fit the rows", what=what)
        shapes = flat.reshape(rows, signature.ndim)
        counts = np.ones(rows, np.int64)
        sizes = np.ones(rows, np.float64)
        for axis in range(signature.ndim):
            counts *= shapes[:, axis]
            sizes *= np.maximum(shapes[:, axis], 1)
        absent = np.zeros(rows, np.bool_) if present is None else ~present
        if (
            (shapes < 0).any()
            or (sizes >= _MAX_ELEMENTS).any()
            or not ((counts == np.diff(offsets)) | absent).all()
        ):
            raise FormatError("shapes do not fit the values", what=what)
    return Column(signature, values, offsets, present, shapes)


def _validity(part: memoryview, rows: int, *, what: str) -> npt.NDArray[np.bool_] | None:
    if not part:
        return None
    if len(part) != (rows + 7) // 8:
        raise FormatError("validity bitmap does not fit the rows", what=what)
    bits = np.unpackbits(np.frombuffer(part, np.uint8), count=rows, bitorder="little")
    return bits.view(np.bool_)


def _array(part: memoryview, dtype: np.dtype[np.generic], *, what: str) -> npt.NDArray[np.generic]:
    if len(part) % dtype.itemsize:
        raise FormatError(f"buffer is not a run of {dtype}", what=what)
    return np.frombuffer(part, dtype)


def _integers(part: memoryview, *, what: str) -> npt.NDArray[np.int64]:
    if len(part) % 8:
        raise FormatError("buffer is not a run of int64", what=what)
    return np.frombuffer(part, np.int64)


class _Offsets:
    """Row offsets of the columns of a batch, most of which are the same: checked once."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self._data = _EMPTY
        self._last: npt.NDArray[np.int64] | None = None

    def of(self, part: memoryview, values: int, what: str) -> npt.NDArray[np.int64]:
        """The offsets that a buffer holds, of so many values."""
        last = self._last
        if last is not None and int(last[-1]) == values and part == self._data:
            return last
        self._last = _offsets(_integers(part, what=what), self.rows, values, what)
        self._data = part
        return self._last


def _offsets(
    offsets: npt.NDArray[np.int64], rows: int, values: int, what: str
) -> npt.NDArray[np.int64]:
    if rows == 0 and len(offsets) == 0:
        return np.zeros(1, np.int64)
    if (
        len(offsets) != rows + 1
        or offsets[0] != 0
        or int(offsets[-1]) != values
        or (offsets[1:] < offsets[:-1]).any()
    ):
        raise FormatError("row offsets do not fit the values", what=what)
    return offsets


def to_arrow(name: str, column: Column, physical: str) -> list[pa.Array]:
    """A column as Arrow arrays (values, and shapes for 2 or more axes), without a copy."""
    signature = column.signature
    fields = arrow_stream.field(name, signature, physical)
    if signature.is_array and physical != LOGICAL[signature.dtype]:
        raise FormatError("narrowed columns are widened before export", what=name)
    raw = [pa.py_buffer(part) if part else None for part in arrow_stream.buffers(column, physical)]
    return list(_arrow_arrays(fields, column, raw))


def _arrow_arrays(
    fields: Sequence[pa.Field], column: Column, raw: Sequence[pa.Buffer | None]
) -> Iterator[pa.Array]:
    signature, rows = column.signature, column.rows
    filled = [pa.py_buffer(b"") if part is None else part for part in raw]
    kind = fields[0].type
    if not signature.is_array:
        offsets = raw[1] or pa.py_buffer(bytes(8))
        yield pa.Array.from_buffers(kind, rows, [raw[0], offsets, filled[2]])
    elif signature.ndim == 0:
        yield pa.Array.from_buffers(kind, rows, [raw[0], filled[1]])
    else:
        child = pa.Array.from_buffers(kind.value_type, len(column.values), [None, filled[3]])
        yield pa.Array.from_buffers(
            kind, rows, [raw[0], raw[1] or pa.py_buffer(bytes(8))], children=[child]
        )
    if column.shapes is not None:
        axes = pa.Array.from_buffers(pa.int64(), column.shapes.size, [None, filled[6]])
        yield pa.Array.from_buffers(fields[1].type, rows, [None], children=[axes])


def physical_full(signature: Signature) -> str:
    """Physical type of a column that is not narrowed."""
    return LOGICAL[signature.dtype] if signature.is_array else ""
