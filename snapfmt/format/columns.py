"""Columns as numpy arrays: the common form between callers, encoder and decoder.

A column holds one field of a run of rows: flat element bits, row offsets, and for values of two
or more dimensions the shape of each row (spec/v1/06-tables.md, Columns).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, repeat
from operator import is_, is_not
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from snapfmt.errors import FormatError, UnsupportedValue
from snapfmt.format import tagged
from snapfmt.format.dtypes import storage_dtype

Bits = npt.NDArray[np.generic]
Kind = Literal["tensor", "ndarray", "text", "bytes", "value"]


_NUMPY_NAMES = frozenset(np.dtype(code).name for code in "?bhiqBHIQefd")


MAX_AXES = 64
"""Axes of one value; numpy has no more."""


class _Missing:
    """The one value of cells that were never produced."""

    def __repr__(self) -> str:
        return "MISSING"

    def __reduce__(self) -> str:
        return "MISSING"


@dataclass(frozen=True, slots=True)
class Encoded:
    """A plain Python value that is in its stored form already: tagged JSON."""

    data: bytes

    @property
    def nbytes(self) -> int:
        """Bytes of the stored form."""
        return len(self.data)


MISSING: Final = _Missing()
"""Stands in a column for a row that has no such field."""


@dataclass(frozen=True, slots=True)
class Signature:
    """What rows of one column must share to lie in one segment."""

    kind: Kind
    dtype: str = ""
    ndim: int = 0

    @property
    def is_array(self) -> bool:
        """Whether elements have a logical dtype."""
        return self.kind in ("tensor", "ndarray")


@dataclass(frozen=True, slots=True)
class Column:
    """One field of `rows` rows.

    `values` holds the stored bits of all rows back to back (uint8 for text, bytes and value);
    row i owns `values[offsets[i]:offsets[i + 1]]`. `present` is None when no row is missing.
    What was just decoded may hold integers in a narrower dtype; nothing but `widened` takes those.
    `shapes` is an int64 array of (rows, ndim) for ndim >= 2, else None.
    """

    signature: Signature
    values: Bits
    offsets: npt.NDArray[np.int64]
    present: npt.NDArray[np.bool_] | None = None
    shapes: npt.NDArray[np.int64] | None = None

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.offsets) - 1

    @property
    def logical_bytes(self) -> int:
        """Bytes of the values, uncompressed."""
        return int(self.values.nbytes)

    def slice(self, start: int, stop: int) -> "Column":
        """Rows start to stop; shares the values."""
        low, high = int(self.offsets[start]), int(self.offsets[stop])
        return Column(
            self.signature,
            self.values[low:high],
            self.offsets[start : stop + 1] - low,
            None if self.present is None else self.present[start:stop],
            None if self.shapes is None else self.shapes[start:stop],
        )

    def widened(self) -> "Column":
        """The same rows, whose values have the dtype of the signature also if they were narrow."""
        if not self.signature.is_array:
            return self
        dtype = storage_dtype(self.signature.dtype)
        if self.values.dtype == dtype:
            return self
        return replace(self, values=self.values.astype(dtype))

    def copy(self) -> "Column":
        """The same rows with values of their own."""
        return replace(self, values=self.values.copy())

    def take(self, rows: npt.NDArray[np.int64]) -> "Column":
        """The given rows, in that order; copies the values."""
        lengths = self.offsets[1:] - self.offsets[:-1]
        pieces = [self.values[self.offsets[row] : self.offsets[row + 1]] for row in rows]
        return Column(
            self.signature,
            np.concatenate(pieces) if pieces else self.values[:0],
            offsets_of(lengths[rows]),
            None if self.present is None else self.present[rows],
            None if self.shapes is None else self.shapes[rows],
        )

    def value(self, row: int) -> Any:
        """The value of one row as numpy array, str, bytes or Python value, or MISSING.

        Arrays of dtypes that numpy lacks come as their stored bits; `snapfmt.adapters` gives
        tensors.
        """
        if self.present is not None and not self.present[row]:
            return MISSING
        data = self.values[int(self.offsets[row]) : int(self.offsets[row + 1])]
        kind = self.signature.kind
        if kind == "bytes":
            return data.tobytes()
        if kind == "value":
            return tagged.decode(data.tobytes())
        if self.signature.dtype == "bool":
            data = data.view(np.bool_)
        try:
            if kind == "text":
                return data.tobytes().decode("utf-8")
            return data.reshape(self.shape(row)).copy()
        except ValueError as error:
            raise FormatError(f"row {row} is no such value: {error}") from error

    def shape(self, row: int) -> tuple[int, ...]:
        """Shape of one row's array."""
        if self.signature.ndim == 0:
            return ()
        if self.shapes is not None:
            return tuple(int(size) for size in self.shapes[row])
        return (int(self.offsets[row + 1] - self.offsets[row]),)


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows that lie in one array already: `bits[i]` is row i of the one signature."""

    signature: Signature
    bits: Bits

    def __len__(self) -> int:
        return len(self.bits)

    def __getitem__(self, rows: slice | list[int]) -> "Batch":
        return Batch(self.signature, self.bits[rows])

    @property
    def row_bytes(self) -> npt.NDArray[np.int64]:
        """Logical bytes of each row."""
        size = int(self.bits.nbytes) // max(len(self.bits), 1)
        return np.full(len(self.bits), size, np.int64)

    def column(self) -> Column:
        """The rows as a column; shares the bits where they are dense."""
        shape = self.bits.shape[1:]
        rows, size = len(self.bits), math.prod(shape)
        shapes = np.tile(np.array(shape, np.int64), (rows, 1)) if len(shape) >= 2 else None
        offsets = np.arange(rows + 1, dtype=np.int64) * size
        return Column(self.signature, self.bits.reshape(-1), offsets, None, shapes)


@dataclass(frozen=True, slots=True)
class Ragged:
    """Rows of different lengths that lie back to back in one array already."""

    rows: Column

    @property
    def signature(self) -> Signature:
        """That of every row."""
        return self.rows.signature

    def __len__(self) -> int:
        return self.rows.rows

    def __getitem__(self, rows: slice | list[int]) -> "Ragged":
        if isinstance(rows, slice):
            start, stop, _ = rows.indices(len(self))
            return Ragged(self.rows.slice(start, stop))
        return Ragged(self.rows.take(np.array(rows, np.int64)))

    @property
    def row_bytes(self) -> npt.NDArray[np.int64]:
        """Logical bytes of each row."""
        return np.diff(self.rows.offsets) * self.rows.values.itemsize

    def column(self) -> Column:
        """The rows as a column; shares the bits."""
        return self.rows


WHOLE = (Batch, Ragged)
"""Values of many rows in one piece."""


def offsets_of(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Row offsets from row lengths."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def concat(pieces: Sequence[Column]) -> Column:
    """Columns of one signature, one after the other."""
    if len(pieces) == 1:
        return pieces[0]
    lengths = np.concatenate([piece.offsets[1:] - piece.offsets[:-1] for piece in pieces])
    present = None
    if any(piece.present is not None for piece in pieces):
        present = np.concatenate(
            [
                np.ones(piece.rows, np.bool_) if piece.present is None else piece.present
                for piece in pieces
            ]
        )
    shapes = None
    if pieces[0].shapes is not None:
        shapes = np.concatenate([piece.shapes for piece in pieces if piece.shapes is not None])
    values = np.concatenate([piece.values for piece in pieces])
    return Column(pieces[0].signature, values, offsets_of(lengths), present, shapes)


def missing_column(signature: Signature, rows: int) -> Column:
    """A column in which every row is missing."""
    dtype = storage_dtype(signature.dtype) if signature.is_array else np.dtype(np.uint8)
    shapes = np.zeros((rows, signature.ndim), np.int64) if signature.ndim >= 2 else None
    return Column(
        signature,
        np.empty(0, dtype),
        np.zeros(rows + 1, np.int64),
        np.zeros(rows, np.bool_),
        shapes,
    )


def signature_of(value: object) -> Signature | None:
    """Signature of one value that is not a tensor, or None for MISSING.

    Raises:
        UnsupportedValue: If an array's dtype has no exact stored form.
    """
    if value is MISSING:
        return None
    kind = type(value)
    if isinstance(value, str) and kind is str:
        return Signature("text") if is_utf8(value) else Signature("value")
    if kind is bytes:
        return Signature("bytes")
    if isinstance(value, np.ndarray):
        name = value.dtype.name
        if isinstance(value, np.ma.MaskedArray):
            raise UnsupportedValue("a masked array cannot be stored", hint="fill it first")
        # ml_dtypes registers types under torch's names that numpy alone could not give back.
        if name not in _NUMPY_NAMES:
            hint = "split it into a real and an imaginary column" if value.dtype.kind == "c" else ""
            raise UnsupportedValue(f"numpy dtype {value.dtype} cannot be stored", hint=hint)
        return Signature("ndarray", name, value.ndim)
    return Signature("value")


def batch_of(values: npt.NDArray[Any]) -> Batch | None:
    """A whole numpy array as rows along its first axis, or None where its dtype is refused."""
    if isinstance(values, np.ma.MaskedArray) or values.dtype.name not in _NUMPY_NAMES:
        return None
    name = values.dtype.name
    native = np.asarray(values).astype(values.dtype.newbyteorder("="), copy=False)
    return Batch(Signature("ndarray", name, values.ndim - 1), native.view(storage_dtype(name)))


def from_values(signature: Signature, values: Sequence[Any]) -> Column:
    """A column from values that all have this signature, or are MISSING; copies the bits.

    Raises:
        UnsupportedValue: If a value has no exact stored form.
    """
    present = presence(values)
    if signature.is_array:
        return _from_arrays(signature, values, present)
    encoded = [b"" if value is MISSING else _encode(signature, value) for value in values]
    offsets = np.fromiter(accumulate(map(len, encoded), initial=0), np.int64, len(encoded) + 1)
    return Column(signature, np.frombuffer(b"".join(encoded), np.uint8), offsets, present)


def presence(values: Sequence[Any]) -> npt.NDArray[np.bool_] | None:
    """Which rows have a value; None when all have one."""
    if not any(map(is_, values, repeat(MISSING))):
        return None
    return np.fromiter(map(is_not, values, repeat(MISSING)), np.bool_, len(values))


def _from_arrays(
    signature: Signature, values: Sequence[Any], present: npt.NDArray[np.bool_] | None
) -> Column:
    dtype = storage_dtype(signature.dtype)
    flat = [np.empty(0, dtype) if value is MISSING else _bits(value, dtype) for value in values]
    lengths = np.fromiter((len(piece) for piece in flat), np.int64, len(flat))
    shapes = None
    if signature.ndim >= 2:
        shapes = np.zeros((len(values), signature.ndim), np.int64)
        for row, value in enumerate(values):
            if value is not MISSING:
                shapes[row] = value.shape
    bits = np.concatenate(flat) if flat else np.empty(0, dtype)
    return Column(signature, bits, offsets_of(lengths), present, shapes)


def _bits(value: npt.NDArray[Any], dtype: np.dtype[np.generic]) -> Bits:
    native = value.astype(value.dtype.newbyteorder("="), copy=False)
    return np.ascontiguousarray(native).reshape(-1).view(dtype)


def _encode(signature: Signature, value: Any) -> bytes:
    if signature.kind == "text":
        return str(value).encode("utf-8")
    if signature.kind == "bytes":
        return bytes(value)
    if isinstance(value, Encoded):
        return value.data
    return tagged.encode(value).encode("ascii")


def is_utf8(text: str) -> bool:
    """Whether text has no lone surrogate, so that UTF-8 holds it."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
