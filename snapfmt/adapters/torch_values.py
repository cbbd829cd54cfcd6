"""torch tensors as columns and back, bit for bit; torch is imported when this module is."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from snapfmt.errors import UnsupportedValue
from snapfmt.format.columns import MISSING, Column, Signature, offsets_of
from snapfmt.format.dtypes import LOGICAL, storage_dtype

_SIGNED = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""dtypes that every torch kernel handles, by element size."""


def _table() -> dict[torch.dtype, str]:
    return {getattr(torch, name): name for name in LOGICAL if hasattr(torch, name)}


_NAMES = _table()
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}
_SIGNATURES = {
    (dtype, ndim): Signature("tensor", name, ndim)
    for dtype, name in _NAMES.items()
    for ndim in range(5)
}
"""Ready-made signatures: small rows come by the million."""


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
    return Signature("tensor", name, value.dim())


def from_tensors(signature: Signature, values: Sequence[Any]) -> Column:
    """A column from tensors of one signature, or MISSING; copies the bits out of any view."""
    rows = len(values)
    present = None
    tensors = values
    if any(value is MISSING for value in values):
        present = np.fromiter((value is not MISSING for value in values), np.bool_, rows)
        tensors = [value for value in values if value is not MISSING]
    plain = _SIGNED[storage_dtype(signature.dtype).itemsize]
    pieces = [_plain(tensor, plain) for tensor in tensors]
    lengths = np.zeros(rows, np.int64)
    sizes = np.fromiter(map(len, pieces), np.int64, len(pieces))
    lengths[slice(None) if present is None else present] = sizes
    shapes = None
    if signature.ndim > 1:
        shapes = np.zeros((rows, signature.ndim), np.int64)
        shapes[slice(None) if present is None else present] = [tuple(t.shape) for t in tensors]
    joined = torch.cat(pieces) if pieces else torch.empty(0, dtype=plain)
    bits = joined.numpy().view(storage_dtype(signature.dtype))
    return Column(signature, bits, offsets_of(lengths), present, shapes)


def _plain(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """One-dimensional CPU tensor of the same bits in a dtype that can be concatenated."""
    if tensor.requires_grad or tensor.is_conj() or tensor.is_neg():
        tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.device.type != "cpu":
        tensor = tensor.cpu()
    if tensor.dim() != 1:
        tensor = tensor.reshape(-1)
    if tensor.dtype == dtype:
        return tensor
    # A view in another dtype needs dense elements; a strided slice is copied here.
    return tensor.contiguous().view(dtype)


def size_of(tensor: torch.Tensor) -> int:
    """Logical bytes of one row's tensor."""
    return int(tensor.numel() * tensor.element_size())


def column_to_values(column: Column, *, copy: bool = True) -> list[Any]:
    """Every row's value: tensor, numpy array, str, bytes or Python value; MISSING where absent.

    With `copy` each tensor has storage of its own; without, rows share the column's storage.
    """
    signature = column.signature
    if signature.kind != "tensor":
        return [column.value(row) for row in range(column.rows)]
    dtype = dtype_of(signature.dtype)
    if len(column.values) == 0:
        flat = torch.empty(0, dtype=dtype)
    else:
        bits = column.values if column.values.flags.writeable else column.values.copy()
        plain = bits.view(f"i{bits.itemsize}" if bits.itemsize > 1 else "u1")
        flat = torch.from_numpy(plain).view(dtype)
    lengths = np.diff(column.offsets).tolist()
    pieces = flat.split(lengths) if lengths else ()
    rows = []
    for row, piece in enumerate(pieces):
        if column.present is not None and not column.present[row]:
            rows.append(MISSING)
            continue
        value = piece.clone() if copy else piece
        rows.append(value if signature.ndim == 1 else value.reshape(column.shape(row)))
    return rows


def rows_of(batch: torch.Tensor) -> list[torch.Tensor]:
    """The rows of a batched tensor: dense, jagged or strided nested."""
    return list(batch.unbind(0))
