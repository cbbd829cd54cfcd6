"""torch tensors as columns and back, bit for bit; torch is imported when this module is."""

from collections.abc import Sequence
from itertools import pairwise
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from snapfmt.adapters.blocks import Blocks
from snapfmt.errors import InputError, UnsupportedValue
from snapfmt.format.columns import (
    MAX_AXES,
    MISSING,
    Batch,
    Column,
    Ragged,
    Signature,
    offsets_of,
    presence,
)
from snapfmt.format.dtypes import LOGICAL, storage_dtype

_SIGNED = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""dtypes that every torch kernel handles, by element size."""
_JOINED_AS_THEY_ARE = frozenset(
    [
        "bool",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "float16",
        "float32",
        "float64",
        "bfloat16",
    ]
)
"""Logical dtypes that torch concatenates itself, bit for bit."""


def _table() -> dict[torch.dtype, str]:
    return {getattr(torch, name): name for name in LOGICAL if hasattr(torch, name)}


_NAMES = _table()
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}
_FROM_NUMPY = frozenset(
    dtype for dtype, name in _NAMES.items() if not name.startswith(("bfloat", "float8"))
)
"""dtypes that come from numpy arrays of the same."""
_SIGNATURES = {
    (dtype, ndim): Signature("tensor", name, ndim)
    for dtype, name in _NAMES.items()
    for ndim in range(5)
}
"""Ready-made signatures: small rows come by the million."""


_SMALL = 2048
"""Bytes of a row on average up to which the rows of a call are copied together."""
_RUN = 8
"""Rows that lie back to back, on average, from which on they are copied a run at a time."""
_FACTS = attrgetter("dtype", "ndim", "layout", "is_nested", "is_meta")
_IS_CPU = attrgetter("is_cpu")
_SIZE = attrgetter("size")


def dtype_of(name: str) -> torch.dtype:
    """torch dtype of a logical dtype."""
    return _DTYPES[name]


def signature_of(value: torch.Tensor) -> Signature:
    """Signature of one row's tensor.

    Raises:
        UnsupportedValue: If the tensor has no exact stored form.
    """
    known = _SIGNATURES.get((value.dtype, value.dim()))
    plain = value.layout is torch.strided and not value.is_nested and not value.is_meta
    if known is not None and plain:
        return known
    name = _NAMES.get(value.dtype)
    if name is None:
        hint = "store torch.view_as_real of it" if value.dtype.is_complex else ""
        raise UnsupportedValue(f"torch dtype {value.dtype} cannot be stored", hint=hint)
    if value.is_nested or value.layout != torch.strided:
        what = "a nested" if value.is_nested else f"a {value.layout}"
        raise UnsupportedValue(f"{what} tensor cannot be one row", hint="unbind it into rows")
    if value.device.type == "meta":
        raise UnsupportedValue("a meta tensor has no bytes")
    if value.dim() > MAX_AXES:
        raise UnsupportedValue(f"a tensor of {value.dim()} axes cannot be stored")
    return Signature("tensor", name, value.dim())


def uniform_of(values: Sequence[torch.Tensor]) -> Signature | None:
    """The one signature of tensors that are all alike and plain, or None; cheap for millions."""
    facts = set(map(_FACTS, values))
    if len(facts) != 1:
        return None
    dtype, ndim, layout, is_nested, is_meta = facts.pop()
    if layout != torch.strided or is_nested or is_meta:
        return None
    return _SIGNATURES.get((dtype, ndim))


def sizes_of(values: Sequence[torch.Tensor]) -> npt.NDArray[np.int64]:
    """Logical bytes of every row's tensor."""
    counts = np.fromiter(map(torch.Tensor.numel, values), np.int64, len(values))
    sizes = np.fromiter(map(torch.Tensor.element_size, values), np.int64, len(values))
    return counts * sizes


def together_of(values: Sequence[torch.Tensor]) -> Ragged | None:
    """Small rows that are all alike, copied into one piece; None where they are not.

    What a row of a few bytes costs is every look at it, so there are few.
    """
    first = values[0]
    if first.numel() * first.element_size() > _SMALL or (signature := uniform_of(values)) is None:
        return None
    counts = _counts(signature, values)
    size = storage_dtype(signature.dtype).itemsize
    if int(counts.sum()) * size > len(values) * _SMALL:
        return None
    shapes = None
    if signature.ndim > 1:
        shapes = np.array([tuple(tensor.shape) for tensor in values], np.int64)
    with torch.no_grad():
        runs = _runs(signature, values, counts)
        joined = _join(signature, values) if runs is None else torch.cat(runs)
    bits = _bits(joined, signature.dtype)
    return Ragged(Column(signature, bits, offsets_of(counts), None, shapes))


def from_tensors(signature: Signature, values: Sequence[Any]) -> Column:
    """A column from tensors of one signature, or MISSING; copies the bits out of any view."""
    rows = len(values)
    present = presence(values)
    tensors = values
    if present is not None:
        tensors = [value for value in values if value is not MISSING]
    where = slice(None) if present is None else present
    lengths = np.zeros(rows, np.int64)
    lengths[where] = _counts(signature, tensors)
    shapes = None
    if signature.ndim > 1:
        shapes = np.zeros((rows, signature.ndim), np.int64)
        shapes[where] = [tuple(tensor.shape) for tensor in tensors]
    with torch.no_grad():
        joined = _join(signature, tensors)
    bits = joined.numpy().view(storage_dtype(signature.dtype))
    return Column(signature, bits, offsets_of(lengths), present, shapes)


def _counts(signature: Signature, tensors: Sequence[torch.Tensor]) -> npt.NDArray[np.int64]:
    """Elements of every tensor."""
    if signature.ndim == 0:
        return np.ones(len(tensors), np.int64)
    return np.fromiter(map(torch.Tensor.numel, tensors), np.int64, len(tensors))


def _runs(
    signature: Signature, tensors: Sequence[torch.Tensor], counts: npt.NDArray[np.int64]
) -> list[torch.Tensor] | None:
    """The same elements in few tensors, where most rows lie behind one another; else None.

    Rows that came in one batch are views of it. To look where a row lies costs less than to
    have torch copy it alone.
    """
    if signature.dtype not in _JOINED_AS_THEY_ARE or set(map(type, tensors)) != {torch.Tensor}:
        return None
    rows, size = len(tensors), storage_dtype(signature.dtype).itemsize
    begins = np.fromiter(map(torch.Tensor.data_ptr, tensors), np.int64, rows)
    breaks = np.flatnonzero(begins[1:] != (begins + counts * size)[:-1]) + 1
    bounds = [0, *breaks.tolist(), rows]
    if len(bounds) * _RUN > rows or any(map(torch.Tensor.is_neg, tensors)):
        return None
    if signature.ndim and not all(map(torch.Tensor.is_contiguous, tensors)):
        return None
    if not all(tensors[low].is_cpu for low in bounds[:-1]):
        return None
    try:
        # What would reach past the first row's storage is refused, so that all of it is memory
        # of the host, and each of the other rows is what lies at its place.
        return [
            tensors[low].as_strided((int(counts[low:high].sum()),), (1,))
            for low, high in pairwise(bounds)
        ]
    except RuntimeError:
        # Neighbours by chance, each in a storage of its own.
        return None


def _join(signature: Signature, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """All elements back to back, in a dtype that numpy has."""
    dtype = _SIGNED[storage_dtype(signature.dtype).itemsize]
    if not tensors:
        return torch.empty(0, dtype=dtype)
    local = all(map(_IS_CPU, tensors))
    if local and signature.ndim <= 1 and signature.dtype in _JOINED_AS_THEY_ARE:
        # One call for all rows; it also resolves lazy negation.
        whole = torch.stack(tensors) if signature.ndim == 0 else torch.cat(tensors)
        return whole.view(dtype)
    return torch.cat([_plain(tensor, dtype) for tensor in tensors])


def _plain(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """One-dimensional CPU tensor of the same bits in a dtype that can be concatenated."""
    tensor = tensor.detach().resolve_conj().resolve_neg().cpu().reshape(-1)
    # A view in another dtype needs dense elements; a strided slice is copied here.
    return tensor if tensor.dtype == dtype else tensor.contiguous().view(dtype)


def column_to_values(column: Column, blocks: Blocks) -> list[Any]:
    """Every row's value: tensor, numpy array, str, bytes or Python value; MISSING where absent.

    The column's values may be as narrow as they are stored.

    Each tensor has a storage of its own: one that is pickled does not take its neighbours with
    it. Memory is freed a block at a time.
    """
    signature = column.signature
    if signature.kind != "tensor":
        wide = column.widened()
        return [wide.value(row) for row in range(wide.rows)]
    dtype = dtype_of(signature.dtype)
    # Numbers that are stored narrow are widened here: one pass over the memory, not two.
    bits: npt.NDArray[Any] = blocks.copy(column.values, storage_dtype(signature.dtype))
    if signature.dtype == "bool":
        bits = bits.view(np.bool_)
    elif dtype not in _FROM_NUMPY:
        bits = bits.view(f"i{bits.itemsize}" if bits.itemsize > 1 else "u1")
    # Rows are cut by numpy: calls of torch take twice as long, and give up the interpreter's lock
    # each time. But what comes from an empty array has not the strides of a new tensor.
    pieces = _pieces(column, bits)
    if all(map(_SIZE, pieces)):
        rows = list(map(torch.from_numpy, pieces))
    else:
        rows = [
            torch.from_numpy(piece) if piece.size else torch.empty(piece.shape, dtype=dtype)
            for piece in pieces
        ]
    if dtype not in _FROM_NUMPY:
        rows = [row.view(dtype) if row.numel() else row for row in rows]
    if column.present is None:
        return rows
    return [row if there else MISSING for row, there in zip(rows, column.present, strict=True)]


def _pieces(column: Column, bits: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
    """Every row's elements in its shape; what stands for a missing row is empty."""
    ndim, present = column.signature.ndim, column.present
    if ndim == 0 and present is None:
        return [bits[row, ...] for row in range(len(bits))]
    pieces = [bits[low:high] for low, high in pairwise(column.offsets.tolist())]
    if ndim == 0:
        return [piece.reshape(()) if piece.size else piece for piece in pieces]
    if column.shapes is not None:
        shapes = column.shapes.tolist()
        there = [True] * len(pieces) if present is None else present.tolist()
        pieces = [
            piece.reshape(shape) if known else piece
            for piece, shape, known in zip(pieces, shapes, there, strict=True)
        ]
    return pieces


def rows_of(batch: torch.Tensor) -> list[torch.Tensor] | Batch | Ragged:
    """The rows of a batched tensor: dense, jagged or strided nested.

    Raises:
        InputError: If it has no rows.
    """
    if batch.dim() == 0:
        raise InputError("a column needs one value per row, this tensor has no rows")
    known = _NAMES.get(batch.dtype)
    if known is None or not batch.is_cpu or batch.dim() > MAX_AXES:
        return list(batch.unbind(0))
    signature = Signature("tensor", known, batch.dim() - 1)
    if batch.layout == torch.jagged:
        # Rows that differ in another axis, or with holes between them, are taken one by one.
        whole = batch.values()
        plain = batch.offsets().is_cpu and batch.lengths() is None
        if not plain or not all(type(size) is int for size in batch.shape[2:]):
            return list(batch.unbind(0))
        return Ragged(_ragged(signature, _bits(whole, known), batch.offsets().numpy()))
    if batch.is_nested or batch.layout != torch.strided:
        return list(batch.unbind(0))
    return Batch(signature, _bits(batch, known))


def _bits(tensor: torch.Tensor, name: str) -> npt.NDArray[Any]:
    """The tensor's bits as numpy's, without a copy where they are dense."""
    signed = _SIGNED[storage_dtype(name).itemsize]
    plain = tensor.detach().resolve_neg().contiguous().view(signed)
    bits: npt.NDArray[Any] = plain.numpy().view(storage_dtype(name))
    return bits


def _ragged(signature: Signature, bits: npt.NDArray[Any], starts: npt.NDArray[Any]) -> Column:
    """Rows along the first axis of `bits`, from one start to the next."""
    lengths = np.diff(starts).astype(np.int64)
    size = int(np.prod(bits.shape[1:], dtype=np.int64))
    offsets = starts.astype(np.int64) * size
    shapes = None
    if signature.ndim > 1:
        rest = np.tile(np.array(bits.shape[1:], np.int64), (len(lengths), 1))
        shapes = np.column_stack([lengths, rest])
    return Column(signature, bits.reshape(-1), offsets, None, shapes)
