"""torch tensors in cells: every dtype, every bit pattern, every way to lie in memory."""

import copy
import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from snapfmt import MISSING, Repository
from snapfmt.errors import UnsupportedValue
from snapfmt.format.columns import Ragged
from snapfmt.format.dtypes import LOGICAL
from snapfmt.reading.table import TableReader
from snapfmt.testing.equality import same, tensor_bits

torch = pytest.importorskip("torch")
Stored = Callable[[Mapping[str, Sequence[Any]]], TableReader]

DTYPES = [getattr(torch, name) for name in LOGICAL]
FLOATS = [dtype for dtype in DTYPES if dtype.is_floating_point]
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def assert_kept(stored: Stored, rows: Sequence[Any]) -> None:
    """The rows come back with their dtypes, shapes and bits, each by its key as well."""
    rows = list(rows)
    reader = stored({"x": rows})
    keys, columns = reader.to_torch()
    back = dict(zip(keys, columns["x"], strict=True))
    assert len(back) == len(rows)
    for number, row in enumerate(rows):
        assert same(back[f"k{number}"], row), number
    last = len(rows) - 1
    assert same(reader.row_torch(f"k{last}")["x"], rows[last])


def patterns(dtype: Any) -> Any:
    """A tensor with interesting bit patterns of a dtype; all of them for one or two bytes."""
    size = dtype.itemsize
    if dtype is torch.bool:
        return torch.tensor([True, False])
    if size <= 2:
        every = np.arange(2 ** (8 * size), dtype=np.uint64).astype(f"u{size}")
        return torch.from_numpy(every.view(f"i{size}" if size > 1 else "u1")).view(dtype)
    top = 1 << (8 * size - 1)
    mantissa = {4: 23, 8: 52}[size]
    exponent = (top - 1) >> mantissa << mantissa
    raw = [0, 1, top, top - 1, top + 1, exponent, exponent | top, exponent | 1]
    raw += [exponent | (1 << (mantissa - 1)), exponent | 0x1234, exponent | top | 0x5678]
    raw += [(1 << mantissa) - 1, 1 << mantissa, 2 * top - 1]
    raw += np.random.default_rng(0).integers(0, 2 * top, 100, np.uint64).tolist()
    return torch.from_numpy(np.array(raw, f"u{size}").view(f"i{size}")).view(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_bit_pattern_of_every_dtype(stored: Stored, dtype: Any) -> None:
    whole = patterns(dtype)
    assert_kept(stored, [whole, whole[:1], whole[1:], whole[:0]])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_bit_pattern_as_a_scalar(stored: Stored, dtype: Any) -> None:
    whole = patterns(dtype)
    assert_kept(stored, list(whole[:300].unbind()))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_number_of_axes(stored: Stored, dtype: Any) -> None:
    whole = patterns(torch.bool if dtype is torch.bool else dtype)
    flat = torch.cat([whole.view(BITS[dtype.itemsize])] * 24)[:24].view(dtype)
    for shape in [(24,), (2, 12), (2, 3, 4), (1, 24, 1), (2, 3, 2, 2), (1, 2, 3, 2, 2, 1)]:
        assert_kept(stored, [flat.reshape(shape), flat.reshape(shape)[:1]])


def test_empty_shapes_keep_every_size(stored: Stored) -> None:
    shapes = [(0, 3), (3, 0), (0, 0), (2, 3)]
    assert_kept(stored, [torch.empty(shape) for shape in shapes])
    assert_kept(stored, [torch.empty((2, 0, 5)), torch.empty((0, 7, 0))])
    assert_kept(stored, [torch.empty(0, dtype=torch.bfloat16)] * 3)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_views_that_are_not_dense(stored: Stored, dtype: Any) -> None:
    flat = torch.cat([patterns(dtype).view(BITS[dtype.itemsize])] * 40)[:40].view(dtype)
    grid = flat.reshape(5, 8)
    assert_kept(stored, [flat[::2], flat[1::3]])
    assert_kept(stored, [grid.t(), grid[:, ::2], grid[::2]])
    assert_kept(stored, [grid[:, 3], grid[2]])
    assert_kept(stored, [flat[:1].expand(7), flat[3:4].expand(2)])
    assert_kept(stored, [grid.permute(1, 0).unsqueeze(0)])
    assert_kept(stored, [grid.select(0, 1).select(0, 2), flat[5]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("ndim", [0, 1, 2])
def test_tensors_that_require_a_gradient(stored: Stored, dtype: Any, ndim: int) -> None:
    leaf = torch.arange(4, dtype=dtype).reshape([4, 1, 1][: max(ndim, 1)])
    leaf = (leaf[0] if ndim == 0 else leaf).clone().requires_grad_()
    assert_kept(stored, [leaf, leaf * 2])


def test_a_gradient_beside_a_plain_tensor(stored: Stored) -> None:
    assert_kept(stored, [torch.ones(2).requires_grad_(), torch.zeros(3), torch.ones(1)])


def test_lazy_negation_is_carried_out(stored: Stored) -> None:
    lazy = torch.tensor([1 + 2j, -3j]).conj().imag
    assert lazy.is_neg()
    (back,) = stored({"x": [lazy]}).to_torch()[1]["x"]
    assert back.tolist() == [-2.0, 3.0]
    assert not back.is_neg()
    assert_kept(stored, [lazy, torch.tensor([4.0])])
    assert_kept(stored, list(lazy))
    grid = torch.tensor([[1 + 2j, -3j], [5j, 4 - 1j]]).conj().imag
    assert grid.is_neg()
    assert_kept(stored, [grid, grid.t(), grid[:, :1]])
    assert stored({"x": [grid]}).row_torch("k0")["x"].tolist() == [[-2.0, 3.0], [-5.0, 1.0]]


@pytest.mark.parametrize("k", [16, 1000])
def test_rows_that_are_views_of_a_batch_cost_their_own_bytes(stored: Stored, k: int) -> None:
    rows = 64
    generator = torch.Generator().manual_seed(0)
    batch = torch.randint(2**40, 2**62, (rows, k), generator=generator)
    reader = stored({"x": list(batch.unbind())})
    logical = rows * k * 8
    assert reader.logical_bytes == logical
    # Offsets and keys of the rows, message heads; far from rows * logical.
    assert logical <= reader.stored_bytes <= logical + rows * 64 + 4096
    assert same(torch.stack(reader.to_torch()[1]["x"]), batch)


def test_what_is_read_has_storage_of_its_own(stored: Stored) -> None:
    first, second = stored({"x": [torch.zeros(4), torch.ones(4)]}).to_torch()[1]["x"]
    first += 5
    assert second.tolist() == [1.0] * 4
    assert first.untyped_storage().nbytes() == 16


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided], ids=str)
def test_nested_tensors_are_stored_row_by_row(stored: Stored, layout: Any) -> None:
    rows = [torch.arange(n, dtype=torch.int64) for n in (3, 0, 5)]
    nested = torch.nested.nested_tensor(rows, layout=layout)
    assert_kept(stored, nested.unbind())
    with pytest.raises(UnsupportedValue, match="nested"):
        stored({"x": [nested]})


@pytest.mark.parametrize("shape", [(6,), (6, 3), (6, 2, 2), (6, 0), (6, 1, 1, 2, 1, 1)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_whole_batch_may_be_given_as_a_column(stored: Stored, dtype: Any, shape: Any) -> None:
    size = int(np.prod(shape))
    whole = patterns(dtype).repeat(24)[: 2 * size]
    # Beside a column of several kinds the rows of the batch are taken out of order.
    mixed = [1, "two", torch.ones(1), 3, "four", torch.zeros(2)]
    for batch in (whole[:size].reshape(shape), whole[::2].reshape(shape)):
        keys, columns = stored({"x": batch, "y": mixed}).to_torch()
        rows = [int(key[1:]) for key in keys]
        assert all(same(columns["x"][at], batch[row]) for at, row in enumerate(rows))
        assert all(same(columns["y"][at], mixed[row]) for at, row in enumerate(rows))


def test_a_lazily_negated_batch_is_stored_as_what_it_says(stored: Stored) -> None:
    batch = torch._neg_view(torch.arange(6.0).reshape(3, 2)).requires_grad_()
    back = stored({"x": batch}).to_torch()[1]["x"]
    assert same(torch.stack(back), -torch.arange(6.0).reshape(3, 2))


def test_a_batch_is_copied_when_append_returns(tmp_path: Path) -> None:
    repository = Repository.create(tmp_path)
    attempt = repository.begin()
    part = attempt.part("p")
    held = {"tensor": torch.arange(6).reshape(2, 3), "array": np.arange(6.0).reshape(2, 3)}
    table = part.table("t")
    table.append(["a", "b"], held)
    held["tensor"].fill_(9)
    held["array"][:] = 9
    attempt.publish([part.seal()])
    back = repository.snapshot().table("t").row("b")
    assert back["array"].tolist() == [3.0, 4.0, 5.0]
    assert back["tensor"].tolist() == [3, 4, 5]


REFUSED = {
    "complex": lambda: torch.zeros(2, dtype=torch.complex64),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "csr": lambda: torch.eye(3).to_sparse_csr(),
    "meta": lambda: torch.empty(2, device="meta"),
    "too many axes": lambda: torch.ones([1] * 65),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(1)]),
}


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("alone", [True, False])
def test_a_tensor_without_an_exact_form_is_refused_by_row_and_field(
    repository: Repository, kind: str, alone: bool
) -> None:
    bad = REFUSED[kind]()
    part = repository.begin().part("p")
    table = part.table("rows/t")
    rest = [bad, bad] if alone else [torch.ones(3), torch.ones(3)]
    with pytest.raises(UnsupportedValue) as caught:
        table.append(["good", "first", "second"], {"a": [1, 2, 3], "x": [rest[0], bad, rest[1]]})
    named = "good" if alone else "first"
    assert f"row '{named}'" in str(caught.value)
    assert "field 'x'" in str(caught.value)
    assert "rows/t" in str(caught.value)
    # Nothing of that call was added, and the same keys can be used again.
    assert table.rows == 0
    table.append(["good"], {"a": [1]})
    assert part.seal().tables[0].rows == 1


def test_what_a_caller_changes_after_append_is_not_changed_in_the_store(
    tmp_path: Path,
) -> None:
    repository = Repository.create(tmp_path)
    attempt = repository.begin()
    part = attempt.part("p")
    held = {
        "one": torch.arange(5, dtype=torch.float32),
        "scalar": torch.tensor(3),
        "grid": torch.ones(2, 3, dtype=torch.bfloat16),
        "array": np.arange(4),
        "frozen": np.float32([[1, 2]]),
        "value": {"list": [1, 2], "inner": {"x": 1}},
        "blob": bytearray(b"abc"),
    }
    before = {
        name: value.clone() if isinstance(value, torch.Tensor) else copy.deepcopy(value)
        for name, value in held.items()
    }
    table = part.table("t")
    table.append(["a"], {name: [value] for name, value in held.items()})
    table.append(["b"], {name: [MISSING] for name in held})
    for name in ("one", "scalar", "grid"):
        held[name].fill_(9)
    held["array"][:] = 9
    held["frozen"][:] = 9
    held["value"]["list"].append(3)
    held["value"]["inner"]["x"] = 2
    held["blob"][0] = 0
    attempt.publish([part.seal()])
    back = repository.snapshot().table("t").row_torch("a")
    for name, value in before.items():
        assert same(back[name], value), name


def test_dtypes_and_kinds_of_one_column_may_differ_by_row(stored: Stored) -> None:
    rows = [
        torch.ones(2),
        torch.ones(2, dtype=torch.bfloat16),
        np.ones(2, np.float32),
        torch.ones(2, 2),
        "text",
        MISSING,
        torch.tensor(1),
        1,
        None,
    ]
    assert_kept(stored, rows + rows)


def test_equal_bits_of_other_dtypes_are_told_apart() -> None:
    assert tensor_bits(torch.zeros(1, dtype=torch.int16)) != tensor_bits(
        torch.zeros(1, dtype=torch.float16)
    )


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.bfloat16, torch.bool])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)], ids=str)
def test_a_jagged_column_is_taken_whole(
    repository: Repository, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    rows = [torch.randint(0, 2, (length, *shape)).to(dtype) for length in (3, 0, 1, 7, 2)]
    jagged = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
    assert isinstance(torch_values().rows_of(jagged), Ragged)
    back = through(repository, {"x": jagged}, 5)
    for row, value in zip(rows, back, strict=True):
        assert value["x"].dtype == dtype
        assert torch.equal(value["x"], row)


def test_a_jagged_column_may_be_a_window(repository: Repository) -> None:
    """Of a longer buffer: its first offset is not 0 and its last is not the end."""
    values = torch.arange(20)
    offsets = torch.tensor([3, 5, 5, 11])
    jagged = torch.nested.nested_tensor_from_jagged(values, offsets)
    back = through(repository, {"x": jagged}, 3)
    assert [value["x"].tolist() for value in back] == [[3, 4], [], [5, 6, 7, 8, 9, 10]]


def test_jagged_rows_with_holes_or_another_ragged_axis_are_taken_one_by_one(
    repository: Repository,
) -> None:
    whole = torch.arange(12).reshape(4, 3)
    holes = torch.nested.narrow(
        whole,
        dim=1,
        start=torch.tensor([0, 1, 2, 0]),
        length=torch.tensor([3, 1, 1, 0]),
        layout=torch.jagged,
    )
    turned = torch.nested.as_nested_tensor(
        [torch.ones(2, 1), torch.ones(4, 1), torch.ones(1, 1), torch.ones(1, 1)],
        layout=torch.jagged,
    ).transpose(1, 2)
    for jagged in (holes, turned):
        assert isinstance(torch_values().rows_of(jagged), list)
        back = through(repository, {"x": jagged}, 4)
        for row, value in zip(jagged.unbind(), back, strict=True):
            assert torch.equal(value["x"], row)


def test_what_was_appended_may_be_overwritten(repository: Repository) -> None:
    """The bits of a whole column were copied when the call returned."""
    values = torch.arange(6)
    jagged = torch.nested.nested_tensor_from_jagged(values, torch.tensor([0, 2, 6]))
    dense = torch.arange(4).reshape(2, 2)
    with repository.begin() as attempt, attempt.part("p") as part:
        table = part.table("t")
        table.append(["a", "b"], {"x": jagged, "y": dense})
        values.zero_()
        dense.zero_()
        table.close()
        attempt.publish([part.seal()])
    reader = repository.snapshot().table("t")
    assert [reader.row_torch(key)["x"].tolist() for key in "ab"] == [[0, 1], [2, 3, 4, 5]]
    assert [reader.row_torch(key)["y"].tolist() for key in "ab"] == [[0, 1], [2, 3]]


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3), (1, 0, 2), (1, 1), (2, 3, 1)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64, torch.bool, torch.uint8])
def test_a_tensor_comes_back_with_the_strides_of_a_new_one(
    stored: Stored, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    new = torch.empty(shape, dtype=dtype)
    back, other = stored({"x": [new, torch.zeros_like(new)]}).to_torch()[1]["x"]
    assert back.stride() == other.stride() == new.stride()
    assert torch.equal(back.view(torch.uint8), new.view(torch.uint8))


def test_many_batches_may_be_overwritten(repository: Repository) -> None:
    """Neither a batch that was handed over nor the rest that waits is read again later."""
    generator = torch.Generator().manual_seed(1)
    noise = torch.randint(-(2**62), 2**62, (50, 8192), generator=generator)
    small = torch.arange(50 * 8192).reshape(50, 8192)
    columns = {"noise": noise, "small": small, "frozen": noise.numpy().copy()}
    before = {name: torch.as_tensor(value).clone() for name, value in columns.items()}
    keys = [f"k{row}" for row in range(50)]
    with repository.begin() as attempt, attempt.part("p") as part:
        table = part.table("t")
        table.append(keys, columns)
        for value in columns.values():
            value[:] = 0
        table.close()
        attempt.publish([part.seal()])
    found, back = repository.snapshot().table("t").to_torch()
    assert found == keys
    for name, value in before.items():
        assert torch.equal(torch.stack(list(map(torch.as_tensor, back[name]))), value), name


def torch_values() -> Any:
    return importlib.import_module("snapfmt.adapters.torch_values")


def through(repository: Repository, columns: dict[str, Any], rows: int) -> list[dict[str, Any]]:
    """The rows as they come back."""
    with repository.begin() as attempt, attempt.part("p") as part:
        with part.table("t") as table:
            # Two calls, so that rows wait for others and are joined.
            table.append([f"r{row}" for row in range(rows)], columns)
        attempt.publish([part.seal()])
    reader = repository.snapshot().table("t")
    return [reader.row_torch(f"r{row}") for row in range(rows)]
