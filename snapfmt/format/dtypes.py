"""Logical dtypes, what stores them, and lossless narrowing (spec/v1/06-tables.md, Types)."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

LOGICAL: dict[str, str] = {
    "bool": "uint8",
    "int8": "int8",
    "int16": "int16",
    "int32": "int32",
    "int64": "int64",
    "uint8": "uint8",
    "uint16": "uint16",
    "uint32": "uint32",
    "uint64": "uint64",
    "float16": "float16",
    "float32": "float32",
    "float64": "float64",
    "bfloat16": "uint16",
    "float8_e4m3fn": "uint8",
    "float8_e4m3fnuz": "uint8",
    "float8_e5m2": "uint8",
    "float8_e5m2fnuz": "uint8",
    "float8_e8m0fnu": "uint8",
}
"""Logical dtype -> numpy dtype of its stored bits, little-endian."""

_NARROW = {"int64": ("uint8", "int32"), "int32": ("uint8",), "uint64": ("uint8", "uint32")}

ARROW_TYPES: dict[str, pa.DataType] = {
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint8": pa.uint8(),
    "uint16": pa.uint16(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "float16": pa.float16(),
    "float32": pa.float32(),
    "float64": pa.float64(),
}
"""Physical type name -> Arrow type."""


def storage_dtype(logical: str) -> np.dtype[np.generic]:
    """numpy dtype that holds the bits of one element of a logical dtype."""
    return np.dtype(LOGICAL[logical])


def fits(values: npt.NDArray[np.generic], logical: str, physical: str) -> bool:
    """Whether every value survives the trip through `physical` bit for bit."""
    if physical == LOGICAL[logical] or values.size == 0:
        return True
    info = np.iinfo(physical)
    return int(values.min()) >= info.min and int(values.max()) <= info.max


def narrowest(values: npt.NDArray[np.generic], logical: str, floor: str | None) -> str:
    """Smallest physical type that keeps `values`, no smaller than `floor`."""
    stored = LOGICAL[logical]
    # A bool and the float bit patterns are opaque bits; only counted integers are narrowed.
    candidates = (*_NARROW.get(logical, ()), stored)
    if floor is not None:
        candidates = candidates[candidates.index(floor) :]
    if values.size == 0:
        return candidates[0]
    low, high = (int(values.min()), int(values.max())) if len(candidates) > 1 else (0, 0)
    for physical in candidates[:-1]:
        info = np.iinfo(physical)
        if low >= info.min and high <= info.max:
            return physical
    return stored


def widenings(logical: str) -> tuple[str, ...]:
    """Physical types that may store a logical dtype, narrowest first."""
    return (*_NARROW.get(logical, ()), LOGICAL[logical])
