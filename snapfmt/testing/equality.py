"""Exact comparison of cell values: types, dtypes, shapes and bits, never `==` on floats."""

import struct
from importlib import import_module
from typing import Any

import numpy as np

from snapfmt.format.columns import MISSING


def same(left: Any, right: Any) -> bool:
    """Whether two values are the same to the last bit; a set has no order, a dict has."""
    if left is MISSING or right is MISSING:
        return left is right
    if _is_tensor(left) or _is_tensor(right):
        return _is_tensor(left) and _is_tensor(right) and tensor_bits(left) == tensor_bits(right)
    if type(left) is not type(right):
        return False
    if isinstance(left, np.ndarray):
        return array_bits(left) == array_bits(right)
    if isinstance(left, np.generic):
        return array_bits(np.asarray(left)) == array_bits(np.asarray(right))
    if isinstance(left, float):
        return struct.pack("<d", left) == struct.pack("<d", right)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return len(left) == len(right) and all(
            same(one, other) for one, other in zip(left.items(), right.items(), strict=True)
        )
    if isinstance(left, (set, frozenset)):
        rest = list(right)
        for item in left:
            match = next((other for other in rest if same(item, other)), None)
            if match is None and not any(same(item, other) for other in rest):
                return False
            rest = [other for other in rest if other is not match]
        return not rest
    return bool(left == right)


def array_bits(array: np.ndarray[Any, Any]) -> tuple[str, tuple[int, ...], bytes]:
    """dtype in native byte order, shape and bits of an array."""
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    return native.dtype.name, native.shape, native.tobytes()


def tensor_bits(tensor: Any) -> tuple[str, tuple[int, ...], bytes]:
    """dtype, shape and bits of a torch tensor of any dtype."""
    torch = import_module("torch")
    flat = tensor.detach().resolve_conj().resolve_neg().reshape(-1)
    # A clone is dense also where one element has a stride of two.
    data = (
        flat.clone(memory_format=torch.contiguous_format).view(torch.uint8).numpy().tobytes()
        if flat.numel()
        else b""
    )
    return str(tensor.dtype), tuple(tensor.shape), data


def _is_tensor(value: Any) -> bool:
    return any(
        base.__module__ == "torch" and base.__name__ == "Tensor" for base in type(value).__mro__
    )
