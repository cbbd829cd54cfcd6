"""Small rows that are all alike are copied together, however they lie in memory."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from snapfmt import Repository
from snapfmt.format.dtypes import LOGICAL
from snapfmt.reading.table import TableReader
from snapfmt.testing.equality import same

torch = pytest.importorskip("torch")
Stored = Callable[[Mapping[str, Sequence[Any]]], TableReader]

DTYPES = [getattr(torch, name) for name in LOGICAL]
ROWS = 40


def assert_kept(stored: Stored, rows: Sequence[Any]) -> None:
    keys, columns = stored({"x": rows}).to_torch()
    back = dict(zip(keys, columns["x"], strict=True))
    assert all(same(back[f"k{number}"], row) for number, row in enumerate(rows))


def together(rows: Sequence[Any]) -> Any:
    return importlib.import_module("snapfmt.adapters.torch_values").together_of(rows)


def pieces(rows: Sequence[Any]) -> int | None:
    """In how many pieces the rows are copied; None where it is row by row."""
    module: Any = importlib.import_module("snapfmt.adapters.torch_values")
    signature = module.signature_of(rows[0])
    runs = module._runs(signature, rows, module._counts(signature, rows))
    return None if runs is None else len(runs)


def batch(dtype: Any, shape: tuple[int, ...]) -> Any:
    """Bits that differ everywhere, one and zero for bool."""
    count = ROWS * int(np.prod(shape)) * dtype.itemsize
    raw = torch.arange(count, dtype=torch.int64).mul(37).to(torch.uint8)
    bits = raw.remainder(2) if dtype is torch.bool else raw
    return bits.view(dtype).reshape(ROWS, *shape)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 1, 2)], ids=str)
def test_rows_of_one_batch(stored: Stored, dtype: Any, shape: tuple[int, ...]) -> None:
    whole = batch(dtype, shape)
    rows = list(whole.unbind())
    for some in (rows, rows[::-1], list(whole[::2].unbind()), rows[:7] + rows[30:] + rows[8:28]):
        assert together(some) is not None
        assert_kept(stored, some)


def test_views_that_follow_one_another_are_copied_at_once() -> None:
    rows = list(torch.arange(ROWS).unbind())
    assert pieces(rows) == 1
    assert pieces(rows[20:] + rows[:20]) == 2
    assert pieces(rows[::-1]) is None
    sizes = [number % 5 + 1 for number in range(ROWS)]
    assert pieces(list(torch.arange(3 * ROWS).split(sizes))) == 1


def test_rows_whose_elements_lie_in_another_order(stored: Stored) -> None:
    """Each begins where the one before it ends."""
    rows = list(torch.arange(ROWS * 12).reshape(ROWS, 3, 4).transpose(1, 2).unbind())
    assert pieces(rows) is None
    assert_kept(stored, rows)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_rows_of_a_lazily_negated_batch(stored: Stored, dtype: Any) -> None:
    whole = torch.arange(2 * ROWS, dtype=torch.float64).reshape(ROWS, 2)
    imaginary = torch.view_as_complex(whole).to(dtype).conj().imag
    assert imaginary.is_neg()
    dense = torch._neg_view(torch.arange(ROWS, dtype=torch.float32))
    for negated in (imaginary, dense):
        assert_kept(stored, list(negated.unbind()))
    plain = torch.arange(ROWS, dtype=torch.float32)
    pairs = zip(plain[::2].unbind(), torch._neg_view(plain)[1::2].unbind(), strict=True)
    assert_kept(stored, [row for pair in pairs for row in pair])


def test_neighbours_of_different_storages(stored: Stored) -> None:
    memory = np.arange(ROWS * 2)
    rows = [torch.from_numpy(memory[2 * row : 2 * row + 2]) for row in range(ROWS)]
    assert rows[0].data_ptr() + 16 == rows[1].data_ptr()
    assert pieces(rows) is None
    assert_kept(stored, rows)


def test_one_address_for_all_rows(stored: Stored) -> None:
    assert_kept(stored, list(torch.tensor(7).expand(ROWS).unbind()))
    assert_kept(stored, list(torch.empty(ROWS, 0).unbind()))


def test_rows_that_are_not_quite_alike(stored: Stored) -> None:
    rows = list(torch.arange(ROWS).unbind())
    for other in (torch.tensor(1, dtype=torch.int32), torch.tensor([1]), np.int64(3), "text"):
        assert together([*rows, torch.tensor(2.0)]) is None
        assert_kept(stored, [*rows, other])


def test_large_rows_are_left_to_their_batches() -> None:
    assert together([torch.zeros(600), torch.zeros(3)]) is None
    assert together([torch.zeros(3), torch.zeros(30_000)]) is None
    assert together([torch.zeros(3), torch.zeros(600)]) is not None


def test_parameters_and_gradients(stored: Stored) -> None:
    whole = torch.rand(ROWS, requires_grad=True)
    assert_kept(stored, list(whole.unbind()))
    assert_kept(stored, [torch.nn.Parameter(torch.tensor(float(row))) for row in range(ROWS)])


def test_what_was_appended_may_be_overwritten(repository: Repository) -> None:
    whole = torch.arange(ROWS)
    lists = [torch.tensor([row, row]) for row in range(ROWS)]
    with repository.begin() as attempt, attempt.part("p") as part:
        table = part.table("t")
        table.append(
            [f"k{row}" for row in range(ROWS)], {"x": list(whole.unbind()), "y": list(lists)}
        )
        whole.zero_()
        for row in lists:
            row.zero_()
        table.close()
        attempt.publish([part.seal()])
    _, columns = repository.snapshot().table("t").to_torch()
    assert [int(value) for value in columns["x"]] == list(range(ROWS))
    assert [value.tolist() for value in columns["y"]] == [[row, row] for row in range(ROWS)]
