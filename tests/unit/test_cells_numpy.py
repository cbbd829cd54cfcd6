"""numpy arrays in cells: every dtype, every bit pattern, every way to lie in memory."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from snapfmt import MISSING, Repository
from snapfmt.errors import UnsupportedValue
from snapfmt.reading.table import TableReader
from snapfmt.testing.equality import same
from snapfmt.testing.strategies import NUMPY_DTYPES

Stored = Callable[[Mapping[str, Sequence[Any]]], TableReader]


def assert_kept(stored: Stored, rows: Sequence[Any]) -> None:
    rows = list(rows)
    reader = stored({"x": rows})
    for number, row in enumerate(rows):
        back = reader.row(f"k{number}").get("x", MISSING)
        assert same(back, row), number
        if isinstance(back, np.ndarray):
            assert back.flags.writeable
            assert back.dtype.isnative


def patterns(name: str) -> Any:
    dtype = np.dtype(name)
    if name == "bool":
        return np.array([True, False])
    if dtype.itemsize <= 2:
        every = np.arange(2 ** (8 * dtype.itemsize), dtype=np.uint64)
        return every.astype(f"u{dtype.itemsize}").view(dtype)
    raw = np.random.default_rng(1).integers(0, 2**64, 200, np.uint64, endpoint=False)
    top = 1 << (8 * dtype.itemsize - 1)
    edges = np.array([0, 1, top, top - 1, top + 1, 2 * top - 1], np.uint64)
    return np.concatenate([edges, raw]).astype(f"u{dtype.itemsize}").view(dtype)


def test_the_list_of_dtypes_is_whole() -> None:
    assert set(NUMPY_DTYPES) == {
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64"),
    }


@pytest.mark.parametrize("name", NUMPY_DTYPES)
def test_every_bit_pattern_of_every_dtype(stored: Stored, name: str) -> None:
    whole = patterns(name)
    assert_kept(stored, [whole, whole[:1], whole[:0]])
    assert_kept(stored, [np.array(item) for item in whole[:200]])


@pytest.mark.parametrize("name", NUMPY_DTYPES)
def test_big_endian_arrays_come_back_native(stored: Stored, name: str) -> None:
    whole = patterns(name)
    swapped = whole.astype(whole.dtype.newbyteorder(">"))
    assert_kept(stored, [swapped, swapped[::2]])
    assert_kept(stored, [swapped[:12].reshape(3, 4)] if len(whole) >= 12 else [swapped])


@pytest.mark.parametrize("name", NUMPY_DTYPES)
def test_views_that_are_not_dense(stored: Stored, name: str) -> None:
    flat = np.resize(patterns(name), 40)
    grid = flat.reshape(5, 8)
    assert_kept(stored, [grid.T, grid[:, ::2], grid[::-1], np.asfortranarray(grid)])
    assert_kept(stored, [flat[::3], flat[::-1], np.broadcast_to(flat[:1], 6)])
    frozen = flat.copy()
    frozen.flags.writeable = False
    assert_kept(stored, [frozen])


def test_shapes_without_elements(stored: Stored) -> None:
    assert_kept(stored, [np.empty(shape) for shape in [(0, 3), (3, 0), (0, 0)]])
    assert_kept(stored, [np.empty((2, 0, 5), np.int8), np.empty((0, 0, 0), np.int8)])


def test_a_memory_map_is_an_array(stored: Stored, tmp_path: Path) -> None:
    np.arange(10).tofile(tmp_path / "data")
    mapped = np.memmap(tmp_path / "data", dtype=np.int64, mode="r")
    (back,) = [stored({"x": [mapped]}).row("k0")["x"]]
    assert back.tolist() == list(range(10))


CYCLE: list[Any] = []
CYCLE.append(CYCLE)
REFUSED = {
    "complex": np.zeros(2, np.complex64),
    "object": np.array([1, "a"], object),
    "structured": np.zeros(2, [("a", "i4"), ("b", "f4")]),
    "dates": np.zeros(2, "datetime64[ns]"),
    "durations": np.zeros(2, "timedelta64[s]"),
    "text": np.array(["a"]),
    "bytes": np.array([b"a"]),
    "longdouble": np.zeros(2, np.longdouble),
    "masked": np.ma.masked_array([1, 2], [True, False]),
    "object inside": {"a": [np.zeros(2)]},
    "class": type("Local", (), {})(),
    "function": len,
    "subclass": type("Text", (str,), {})("a"),
    "complex number": 1j,
    "cyclic": CYCLE,
    "huge integer": {"x": 10**5000},
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_value_without_an_exact_form_is_refused_by_row_and_field(
    repository: Repository, kind: str
) -> None:
    part = repository.begin().part("p")
    table = part.table("rows/t")
    with pytest.raises(UnsupportedValue) as caught:
        table.append(["a", "b"], {"fine": [1, 2], "bad": [np.zeros(2), REFUSED[kind]]})
    assert "row 'b'" in str(caught.value)
    assert "field 'bad'" in str(caught.value)
    assert table.rows == 0
    table.append(["a", "b"], {"fine": [1, 2]})
    assert part.seal().tables[0].rows == 2


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("name", NUMPY_DTYPES)
def test_a_whole_batch_may_be_given_as_a_column(stored: Stored, name: str, order: str) -> None:
    whole = np.resize(patterns(name), 24)
    batch = whole.astype(whole.dtype.newbyteorder(order)).reshape(4, 3, 2)[:, ::-1]
    mixed = [1, "two", np.ones(1), 3]
    reader = stored({"x": batch, "y": mixed})
    for row in range(4):
        back = reader.row(f"k{row}")
        assert same(back["x"], batch[row].astype(whole.dtype))
        assert same(back["y"], mixed[row])
