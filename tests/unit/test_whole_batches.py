"""A batch is compressed in one call, to the bytes that single calls give."""

from typing import Any

import numpy as np
import pytest
import zstandard

from snapfmt.format import arrow_stream, zframes
from snapfmt.format.columns import Column, Signature, from_values
from snapfmt.format.segment import EncodedBatch, compressors, encode_batch, plan

ROWS = 300


def _columns() -> list[tuple[str, Column]]:
    """Columns of both levels, of many sizes, some that do not shrink and some that are empty."""
    rng = np.random.default_rng(0)
    ids = [rng.integers(0, 900, 1 + row % 700) for row in range(ROWS)]
    noise = [rng.standard_normal(40).astype(np.float32) for _ in range(ROWS)]
    mask = [np.ones(len(row), np.float32) for row in ids]
    cells: dict[str, tuple[Signature, list[Any]]] = {
        "ids": (Signature("ndarray", "int64", 1), ids),
        "mask": (Signature("ndarray", "float32", 1), mask),
        "noise": (Signature("ndarray", "float32", 1), noise),
        "nothing": (Signature("ndarray", "float32", 1), [row[:0] for row in noise]),
        "reward": (Signature("ndarray", "float64", 0), [np.array(row / 2) for row in range(ROWS)]),
        "text": (Signature("text"), [f"row {row}" for row in range(ROWS)]),
    }
    keys = from_values(arrow_stream.KEY_SIGNATURE, [f"k{row}" for row in range(ROWS)])
    found = [(name, from_values(signature, rows)) for name, (signature, rows) in cells.items()]
    return [(arrow_stream.KEY_COLUMN, keys), *found]


def _encoded() -> EncodedBatch:
    columns = _columns()
    return encode_batch(columns, plan(columns, {}), compressors())


def test_a_batch_has_columns_that_shrink_and_one_that_does_not() -> None:
    columns = _columns()
    compress = {how.name: how.compress for how in plan(columns, {})}
    assert compress["ids"]
    assert compress["mask"]
    assert compress["text"]
    assert not compress["noise"]


def test_a_batch_has_the_same_bytes_without_the_call_for_many_frames(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = _encoded()
    monkeypatch.setattr(zstandard, "backend_features", frozenset())
    assert _encoded() == whole


@pytest.mark.parametrize("level", [zframes.LEVEL, zframes.FAST_LEVEL])
@pytest.mark.parametrize("features", [zstandard.backend_features, frozenset()])
def test_frames_of_many_contents_are_those_of_each(
    monkeypatch: pytest.MonkeyPatch, level: int, features: frozenset[str]
) -> None:
    contents = [bytes([size % 251]) * size for size in (1, 7, 4096, 300_000)]
    single = zframes.compressor(level=level)
    expected = [single.compress(content) for content in contents]
    monkeypatch.setattr(zstandard, "backend_features", features)
    found = zframes.compress_all(zframes.compressor(level=level), contents)
    assert [bytes(frame) for frame in found] == expected
    assert not zframes.compress_all(single, [])
