"""Text, bytes and plain Python values in cells, and cells that were never produced."""

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from snapfmt import MISSING
from snapfmt.errors import UnsupportedValue
from snapfmt.format.tagged import MAX_DEPTH
from snapfmt.reading.table import TableReader
from snapfmt.testing.equality import same
from snapfmt.testing.samples import save_table

Stored = Callable[[Mapping[str, Sequence[Any]]], TableReader]
NAN = struct.unpack("<d", struct.pack("<Q", 0x7FF8000000012345))[0]


def nested(depth: int, kind: type = list) -> Any:
    value: Any = "bottom"
    for _ in range(depth):
        value = {"x": value} if kind is dict else kind([value])
    return value


VALUES = [
    "",
    "plain",
    "naïve — ключ 😀",
    "line\nbreak\0null",
    "\ud83d",
    "\ud83d\ude00",
    "a\udfff\ud800b",
    b"",
    b"\0\xff" * 10,
    bytearray(b"xyz"),
    None,
    True,
    False,
    0,
    -1,
    2**63,
    -(2**64),
    10**100,
    0.0,
    -0.0,
    1.5,
    5e-324,
    1.7976931348623157e308,
    math.inf,
    -math.inf,
    math.nan,
    NAN,
    (),
    (1, 2),
    [1, [2, [3]]],
    [(1,), [1]],
    {},
    {"b": 1, "a": 2},
    {1: "int", "1": "text"},
    {(1, 2): {3: 4}},
    {None: 1, True: 2},
    {"$tuple": [1]},
    {"$x": 1, "y": 2},
    {"$": {"$set": []}},
    {"\ud83d\ude00": "\ud83d\ude00"},
    set(),
    {1, "a", (2, 3), None},
    frozenset({frozenset({1}), b"x"}),
    nested(100),
    nested(100, tuple),
    nested(60, dict),
    np.float32(1.5),
    np.int8(-1),
    np.bool_(True),
    np.float16("nan"),
    np.uint64(2**64 - 1),
]


def test_values_come_back_exactly(stored: Stored) -> None:
    reader = stored({"x": VALUES})
    for number, value in enumerate(VALUES):
        assert same(reader.row(f"k{number}")["x"], value), value
    assert sorted(reader.keys()) == sorted(f"k{i}" for i in range(len(VALUES)))


def test_values_come_back_exactly_beside_tensors(stored: Stored) -> None:
    torch = pytest.importorskip("torch")
    cells = [*VALUES, torch.ones(2)]
    keys, columns = stored({"x": cells}).to_torch()
    for key, value in zip(keys, columns["x"], strict=True):
        assert same(value, cells[int(key[1:])]), value


def named(value: Any) -> str:
    """The same name in every process: the order of a set is not."""
    return type(value).__name__ if isinstance(value, (set, frozenset)) else repr(value)[:30]


@pytest.mark.parametrize("value", VALUES, ids=named)
def test_a_value_alone_in_its_table_comes_back(stored: Stored, value: Any) -> None:
    assert same(stored({"x": [value]}).row("k0")["x"], value)


@pytest.mark.parametrize("kind", [list, tuple, dict])
def test_nesting_is_kept_up_to_the_limit_and_refused_past_it(stored: Stored, kind: type) -> None:
    deepest = nested(MAX_DEPTH, kind)
    assert stored({"x": [deepest]}).row("k0")["x"] == deepest
    with pytest.raises(UnsupportedValue, match="deeper than"):
        stored({"x": [nested(MAX_DEPTH + 1, kind)]})


def test_missing_is_neither_none_nor_empty(stored: Stored) -> None:
    cells = [None, MISSING, "", b"", np.empty(0), MISSING, 0, [], {}]
    reader = stored({"x": cells, "always": list(range(len(cells)))})
    for number, cell in enumerate(cells):
        row = reader.row(f"k{number}")
        assert row["always"] == number
        assert ("x" in row) == (cell is not MISSING)
        if cell is not MISSING:
            assert same(row["x"], cell)


@pytest.mark.parametrize(
    "cell",
    [1, "text", b"b", np.arange(3), np.array(2.5), np.ones((2, 2)), np.zeros(0), {"a": (1,)}],
    ids=repr,
)
def test_missing_cells_among_others_of_one_type(stored: Stored, cell: Any) -> None:
    cells = [MISSING, cell, MISSING, MISSING, cell, cell, MISSING]
    reader = stored({"x": cells})
    for number, value in enumerate(cells):
        assert same(reader.row(f"k{number}").get("x", MISSING), value)
    batches = list(reader.batches())
    found = [batch.columns["x"].value(i) for batch in batches for i in range(len(batch.keys))]
    assert [value is MISSING for value in found] == [value is MISSING for value in cells]


def test_a_column_of_which_every_cell_is_missing_leaves_rows_without_it(stored: Stored) -> None:
    reader = stored({"x": [MISSING, MISSING], "y": [1, MISSING]})
    assert reader.row("k0") == {"y": 1}
    assert reader.row("k1") == {}
    assert sorted(reader.keys()) == ["k0", "k1"]


def test_rows_without_any_column(tmp_path: Path) -> None:
    reader = save_table(tmp_path / "none", ["a", "b"], {})
    assert reader.keys() == ["a", "b"]
    assert reader.row("b") == {}
    assert reader.column_names == []
    assert sum(len(batch.keys) for batch in reader.batches()) == 2
