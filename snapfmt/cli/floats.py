"""bfloat16 and float8 as numbers, from their stored bits, with numpy alone.

Every such value is exactly a float32, so the numbers shown are the stored ones.
"""

from functools import cache

import numpy as np
import numpy.typing as npt

_EXPONENT_BITS = {
    "float8_e4m3fn": (4, 7),
    "float8_e4m3fnuz": (4, 8),
    "float8_e5m2": (5, 15),
    "float8_e5m2fnuz": (5, 16),
}
"""Logical dtype -> bits of the exponent, and its bias."""

DECODED = frozenset({"bfloat16", "float8_e8m0fnu", *_EXPONENT_BITS})
"""Logical dtypes that numpy lacks."""


def decode(bits: npt.NDArray[np.generic], dtype: str) -> npt.NDArray[np.float32]:
    """The numbers that the stored bits of a dtype in `DECODED` stand for."""
    if dtype == "bfloat16":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return np.asarray(_table(dtype)[bits.astype(np.intp)], dtype=np.float32)


@cache
def _table(dtype: str) -> npt.NDArray[np.float32]:
    """The value of each of the 256 bit patterns."""
    return np.array([_value(bits, dtype) for bits in range(256)], np.float32)


def _value(bits: int, dtype: str) -> float:
    if dtype == "float8_e8m0fnu":
        return float("nan") if bits == 0xFF else 2.0 ** (bits - 127)
    exponent_bits, bias = _EXPONENT_BITS[dtype]
    mantissa_bits = 7 - exponent_bits
    sign = -1.0 if bits & 0x80 else 1.0
    exponent = (bits & 0x7F) >> mantissa_bits
    mantissa = bits & ((1 << mantissa_bits) - 1)
    if dtype.endswith("uz"):
        # "uz": no negative zero, its pattern is the only NaN; no infinity.
        if bits == 0x80:
            return float("nan")
    elif dtype == "float8_e4m3fn":
        # "fn": finite, only the pattern of all ones is NaN.
        if bits & 0x7F == 0x7F:
            return float("nan")
    elif exponent == (1 << exponent_bits) - 1:
        return float("nan") if mantissa else sign * float("inf")
    if exponent == 0:
        return sign * mantissa * 2.0 ** (1 - bias - mantissa_bits)
    return sign * (1 + mantissa / (1 << mantissa_bits)) * 2.0 ** (exponent - bias)
