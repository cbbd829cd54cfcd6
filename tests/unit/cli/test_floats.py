"""Bits of dtypes that numpy lacks, as numbers: every pattern of every dtype."""

import importlib.util

import numpy as np
import pytest

from snapfmt.cli.floats import DECODED, decode
from snapfmt.format.dtypes import LOGICAL, storage_dtype


def test_every_dtype_that_numpy_lacks_is_decoded() -> None:
    lacking = {name for name in LOGICAL if not hasattr(np, name) and name != "bool"}
    assert lacking == DECODED


@pytest.mark.parametrize(
    ("dtype", "bits", "value"),
    [
        ("bfloat16", 0x3F80, 1.0),
        ("bfloat16", 0xC000, -2.0),
        ("bfloat16", 0x7F80, np.inf),
        ("bfloat16", 0x0001, 2.0**-133),
        ("float8_e4m3fn", 0x38, 1.0),
        ("float8_e4m3fn", 0x7E, 448.0),
        ("float8_e4m3fn", 0xFF, np.nan),
        ("float8_e4m3fn", 0x01, 2.0**-9),
        ("float8_e4m3fnuz", 0x7F, 240.0),
        ("float8_e4m3fnuz", 0x80, np.nan),
        ("float8_e5m2", 0x3C, 1.0),
        ("float8_e5m2", 0xFC, -np.inf),
        ("float8_e5m2", 0x7B, 57344.0),
        ("float8_e5m2fnuz", 0x80, np.nan),
        ("float8_e5m2fnuz", 0x7F, 57344.0),
        ("float8_e8m0fnu", 127, 1.0),
        ("float8_e8m0fnu", 255, np.nan),
    ],
)
def test_known_values(dtype: str, bits: int, value: float) -> None:
    found = decode(np.array([bits], storage_dtype(dtype)), dtype)
    np.testing.assert_array_equal(found, np.array([value], np.float32))


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize("dtype", sorted(DECODED))
def test_every_pattern_agrees_with_torch(dtype: str) -> None:
    import torch

    if not hasattr(torch, dtype):
        pytest.skip(f"this torch has no {dtype}")
    storage = storage_dtype(dtype)
    bits = np.arange(2 ** (8 * storage.itemsize)).astype(storage)
    signed = torch.from_numpy(bits.view(f"i{storage.itemsize}").copy())
    expected = signed.view(getattr(torch, dtype)).float().numpy()
    found = decode(bits, dtype)
    np.testing.assert_array_equal(found, expected)
    number = ~np.isnan(expected)
    assert (np.signbit(found) == np.signbit(expected))[number].all()


def test_shape_is_kept() -> None:
    assert decode(np.zeros((2, 3), np.uint8), "float8_e5m2").shape == (2, 3)
    assert decode(np.zeros((), np.uint16), "bfloat16").shape == ()
