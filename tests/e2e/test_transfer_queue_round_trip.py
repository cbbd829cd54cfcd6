"""A queue comes back exactly, with any number of storage units."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from snapfmt import Repository
from snapfmt.adapters.transfer_queue import load, save
from snapfmt.errors import NoMatch, RestoreRefused, UnsupportedValue

pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("ignore")]

ROWS = 24
DTYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16",
    "float32", "float64", "bfloat16", "float8_e4m3fn", "float8_e5m2",
)  # fmt: skip


def every_kind(rows: int) -> dict[str, Any]:
    """One field for every kind of value that TransferQueue takes."""
    import torch
    from tensordict import NonTensorStack

    rng = np.random.default_rng(5)

    def jagged(values: list[Any]) -> Any:
        return torch.nested.as_nested_tensor(values, layout=torch.jagged)

    def stack(values: Any) -> Any:
        return NonTensorStack(*values)

    floats = [torch.from_numpy(rng.standard_normal(i).astype("f4")) for i in range(rows)]
    special = torch.tensor([-0.0, float("nan"), float("inf"), 1e-42]).repeat(rows, 1)
    special[1:2].view(torch.int32)[0, 1] = 0x7FC00123  # a NaN with a payload
    fields = {
        "ids": jagged([torch.arange(3 + i % 7) * 1000 for i in range(rows)]),
        "logprobs": jagged(floats),
        "halves": jagged([value.to(torch.bfloat16) for value in floats]),
        "special": special,
        "reward": torch.arange(rows).float(),
        "counts": torch.arange(rows),
        "experts": torch.randint(-9, 9, (rows, 2, 3), dtype=torch.int16),
        "images": torch.nested.as_nested_tensor(
            [torch.randn(1 + i % 3, 2) for i in range(rows)], layout=torch.strided
        ),
        "text": stack(f"row {i} \N{SNOWMAN}" for i in range(rows)),
        "raw": stack(bytes([i, 255]) for i in range(rows)),
        "none": stack(None if i % 2 else "x" for i in range(rows)),
        "tree": stack({"i": i, 7: [1, 2.5, None], "f": float(i)} for i in range(rows)),
        "array": stack(np.arange(i, dtype="u2").reshape(1, i) for i in range(rows)),
        "mixed": stack(torch.arange(i) if i % 3 else i for i in range(rows)),
    }
    for name in DTYPES:
        bits = torch.randint(0, 2, (rows, 4), dtype=torch.uint8)
        fields[f"dtype_{name}"] = bits.to(getattr(torch, name))
    return fields


def fill(lab: Any) -> None:
    """A queue with everything in it that a cut can meet."""
    import torch
    from transfer_queue.sampler import RankAwareSampler

    lab.sampler(RankAwareSampler())
    fields = every_kind(ROWS)
    tags = [{"group": i // 4, "score": i / 3, 5: (1, 2)} for i in range(ROWS)]
    lab.put("train@1", [f"k{i}" for i in range(ROWS)], fields, tags=tags)
    lab.clear("train@1", ["k3", "k11", "k4"])
    # These get the indexes of the cleared rows, in the order in which they became free.
    lab.put("train@1", ["late"], {"ids": torch.arange(6).reshape(1, 6)}, tags=[{"late": True}])
    lab.put("train@1", ["#7", "##", "only a tag"], None, tags=[{"x": None}, {}, {"y": 1}])
    lab.put_keyless("_No Key/s", {"ids": torch.arange(10).reshape(5, 2)}, 5)
    # Table names must differ without regard to case; an emptied partition stays a partition.
    lab.put("TRAIN@1", ["k0"], {"ids": torch.arange(4).reshape(1, 4)})
    lab.put("emptied", ["a", "b"], {"ids": torch.zeros(2, 3)})
    lab.clear("emptied", ["a", "b"])
    for rank, batch in ((0, 0), (1, 0), (0, 1)):
        lab.fetch("train@1", "train", ["ids", "reward"], 3, dp_rank=rank, batch_index=batch)
    lab.fetch("train@1", "reference", ["text"], 5, dp_rank=0, batch_index=0)


def what_comes_next(lab: Any) -> dict[str, Any]:
    """How a queue goes on: batches that were fetched before, new ones, new indexes."""
    import torch

    fields = ["ids", "reward"]
    found = {
        "again": lab.fetch("train@1", "train", fields, 3, dp_rank=1, batch_index=0),
        "next": lab.fetch("train@1", "train", fields, 3, dp_rank=1, batch_index=1),
        "other": lab.fetch("train@1", "reference", ["text"], 5, dp_rank=0, batch_index=1),
        "late": lab.fetch("train@1", "late", ["ids"], 4, dp_rank=0, batch_index=0),
    }
    lab.put("train@1", ["n0", "n1", "n2"], {"ids": torch.ones(3, 2, dtype=torch.int64)})
    lab.clear("train@1", ["k7", "n1"])
    found["census"] = lab.census()
    return found


def test_a_queue_comes_back_with_three_units_and_with_one(lab: Any, tmp_path: Path) -> None:
    lab.start(2)
    fill(lab)
    before = lab.census()
    report = save(tmp_path / "run", user_metadata={"step": 7})
    assert lab.census() == before, "a save leaves the queue as it was"
    assert report.snapshot is not None
    assert report.rows == ROWS - 3 + 1 + 5 + 1
    following = what_comes_next(lab)

    for units in (3, 1):
        lab.start(units)
        assert lab.is_empty()
        from transfer_queue.sampler import RankAwareSampler

        lab.sampler(RankAwareSampler())
        loaded = load(Repository.open(tmp_path / "run").snapshot())
        assert lab.census() == before
        assert (loaded.units, loaded.saved_units) == (units, 2)
        assert loaded.user_metadata == {"step": 7}
        assert (loaded.rows, loaded.cells) == (report.rows, report.cells)
        assert loaded.partitions["emptied"] == 0
        assert what_comes_next(lab) == following
        # The restored queue is as good a source as the first one.
        second = save(tmp_path / f"from {units}")
        assert second.snapshot is not None


def test_every_row_has_storage_of_its_own(lab: Any, tmp_path: Path) -> None:
    import torch

    lab.start(1)
    lab.put("p", [f"k{i}" for i in range(64)], {"x": torch.randn(64, 100)})
    save(tmp_path / "run")
    lab.empty()
    load(Repository.open(tmp_path / "run").snapshot())

    def storages(unit: Any) -> list[int]:
        return [v.untyped_storage().nbytes() for v in unit.storage_data.field_data["x"].values()]

    assert lab.on_unit(0, storages) == [400] * 64


def test_only_the_asked_for_partitions_are_saved(lab: Any, tmp_path: Path) -> None:
    import torch

    lab.start(1)
    lab.put("a", ["k0", "k1"], {"x": torch.zeros(2, 2)})
    lab.put("b", ["k0", "k1"], {"x": torch.ones(2, 2)})
    lab.put("a", ["k2"], {"x": torch.ones(1, 2)})
    report = save(tmp_path / "run", partitions=["a"], schemas={"a": "my.rows.v1"})
    assert report.snapshot is not None
    assert report.snapshot.table_names() == ["fields/a", "rows/a", "state/a"]
    with pytest.raises(NoMatch, match="missing"):
        save(tmp_path / "run", partitions=["missing"])
    lab.empty()
    load(Repository.open(tmp_path / "run").snapshot())
    assert set(lab.census()["state"]["partitions"]) == {"a"}
    # The indexes of `b` were not lost: the next rows get them.
    lab.put("c", ["k0", "k1"], {"x": torch.zeros(2, 2)})
    assert lab.census()["state"]["partitions"]["c"]["active"] == [2, 3]


def test_a_sampler_cursor_needs_its_sampler(lab: Any, tmp_path: Path) -> None:
    import torch
    from transfer_queue.sampler import GRPOGroupNSampler, SequentialSampler

    lab.start(1)
    lab.sampler(GRPOGroupNSampler(n_samples_per_prompt=2))
    lab.put("p", [f"k{i}" for i in range(12)], {"x": torch.zeros(12, 2)})
    first = lab.fetch("p", "train", ["x"], 4, dp_rank=0, batch_index=0)
    save(tmp_path / "run")
    following = lab.fetch("p", "train", ["x"], 4, dp_rank=0, batch_index=1)
    snapshot = Repository.open(tmp_path / "run").snapshot()

    for other in (SequentialSampler(), GRPOGroupNSampler(n_samples_per_prompt=4)):
        lab.empty()
        lab.sampler(other)
        with pytest.raises(RestoreRefused, match="cursor"):
            load(snapshot)
        assert lab.is_empty()
    lab.sampler(SequentialSampler())
    load(snapshot, sampler_state="drop")
    assert lab.fetch("p", "train", ["x"], 4) == following, "consumption does not depend on it"

    lab.empty()
    lab.sampler(GRPOGroupNSampler(n_samples_per_prompt=2))
    load(snapshot)
    assert lab.fetch("p", "train", ["x"], 4, dp_rank=0, batch_index=0) == first
    assert lab.fetch("p", "train", ["x"], 4, dp_rank=0, batch_index=1) == following


def test_a_value_without_exact_form_is_named(lab: Any, tmp_path: Path) -> None:
    import torch

    lab.start(1)
    lab.put("p", ["good", "bad"], {"wave": torch.zeros(2, 2, dtype=torch.complex64)})
    with pytest.raises(UnsupportedValue, match=r"row 'good', field 'wave'.*complex64"):
        save(tmp_path / "run")
    lab.put("q", ["k"], None, tags=[{"tag": torch.zeros(2).numpy()}])
    with pytest.raises(UnsupportedValue):
        save(tmp_path / "run", partitions=["q"])
    assert Repository.open(tmp_path / "run").numbers() == []
    lab.clear("p", ["good", "bad"])
    assert save(tmp_path / "run", partitions=["p"]).snapshot is not None
