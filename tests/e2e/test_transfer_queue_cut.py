"""The cut: consistent while others write, short whatever the bytes, safe when a driver dies."""

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from snapfmt import MISSING, Repository
from snapfmt.adapters.transfer_queue import controller as at_controller
from snapfmt.adapters.transfer_queue import load, prepare_cut, save, take_cut, unit
from snapfmt.adapters.transfer_queue.cluster import run
from snapfmt.errors import CutInconsistent, DeadlineExceeded, NotPublished, ParticipantFailed

pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("ignore")]


def code_fields(codes: list[int]) -> dict[str, Any]:
    """Rows whose every field says the same number, so that a torn row shows."""
    import torch
    from tensordict import NonTensorStack

    return {
        "a": torch.nested.as_nested_tensor(
            [torch.full((20 + code % 50,), code) for code in codes], layout=torch.jagged
        ),
        "b": torch.tensor(codes, dtype=torch.float64).unsqueeze(1).repeat(1, 64),
        "c": NonTensorStack(*map(str, codes)),
    }


def torn(row: dict[str, Any]) -> bool:
    code = int(row["c"])
    return not (
        (row["a"] == code).all() and (row["b"] == code).all() and len(row["a"]) == 20 + code % 50
    )


def start_writer(stop: Path, number: int) -> Any:
    """A process that puts, overwrites and clears rows of its own until there is such a file."""
    import ray

    fields = code_fields

    def write() -> int:
        import random

        import transfer_queue as tq
        from tensordict import TensorDict

        tq.init()
        rng = random.Random(number)
        code = number * 1_000_000
        while not stop.exists():
            rows = rng.sample(range(60), 12)
            codes = [code + i for i in range(12)]
            code += 12
            keys = [f"w{number}-{row}" for row in rows]
            data = TensorDict(fields(codes), batch_size=12)
            tags = [{"code": code} for code in codes]
            tq.kv_batch_put(keys=keys, partition_id="shared", fields=data, tags=tags)
            if rng.random() < 0.4:
                tq.kv_clear(keys[:5], "shared")
        return code

    return ray.remote(num_cpus=0)(write).remote()


def slow_copy(controller: Any, seconds: float) -> None:
    """Runs in the controller: from now on its half of a cut comes so long after the units'."""
    from snapfmt.adapters.transfer_queue import state

    def copy(*arguments: Any) -> Any:
        time.sleep(seconds)
        return state.copy_controller(*arguments)

    at_controller.copy_controller = copy


@pytest.fixture
def slow(lab: Any) -> Iterator[Any]:
    """Makes cuts slow that the queue takes in this test."""
    yield lambda seconds: lab.on_controller(slow_copy, seconds)
    lab.on_controller(slow_copy, 0.0)


def test_a_cut_is_consistent_while_other_processes_write(
    lab: Any, tmp_path: Path, slow: Any
) -> None:
    import ray

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    lab.start(2)
    lab.put("shared", ["seed"], code_fields([1]), tags=[{}])
    writers = [start_writer(tmp_path / "stop", number) for number in (1, 2)]
    before = lab.census()["state"]["counter"]
    while lab.census()["state"]["counter"] < before + 40:
        time.sleep(0.05)
    reports = []
    try:
        while len(reports) < 8:
            reports.append(save(tmp_path / "run"))
            # Without the hold, rows would be cleared between the two halves of the cut.
            slow(0.15 if len(reports) % 2 else 0.0)
            time.sleep(0.1)
    finally:
        (tmp_path / "stop").touch()
    ray.get(writers)
    assert max(report.longest_wait_s for report in reports) > 0.1, "writers met the hold"
    seen = set()
    for report in reports:
        snapshot = report.snapshot
        assert snapshot is not None
        keys, state = snapshot.table("state/shared").to_torch(["produced", "flags"])
        produced = {key for key, bits in zip(keys, state["produced"], strict=True) if bits.any()}
        names, rows = snapshot.table("rows/shared").to_torch()
        assert set(names) == produced
        for position, key in enumerate(names):
            row = {name: values[position] for name, values in rows.items()}
            assert MISSING not in [type(value) for value in row.values()]
            assert not torn(row), key
            seen.add((key, row["c"]))
    assert len(seen) > 100, "the writers really changed rows between the cuts"
    lab.empty()
    assert reports[-1].snapshot is not None
    load(reports[-1].snapshot)
    lab.fetch("shared", "train", ["a", "b", "c"], 4)


def test_the_hold_does_not_grow_with_the_bytes(lab: Any, tmp_path: Path) -> None:
    import torch

    lab.start(2)
    rows = [f"k{i}" for i in range(256)]
    lab.put("p", rows, {"x": torch.zeros(256, 4)})
    small = min(save(tmp_path / "small").controller_held_s for _ in range(3))
    lab.put("p", rows, {"x": torch.randn(256, 100_000)})
    puts = 0
    stop = threading.Event()

    def overwrite() -> None:
        nonlocal puts
        while not stop.is_set():
            lab.put("q", ["live"], {"x": torch.zeros(1, 4)})
            puts += 1

    writer = threading.Thread(target=overwrite)
    writer.start()
    try:
        reports = [save(tmp_path / "large") for _ in range(3)]
    finally:
        stop.set()
        writer.join()
    written = min(report.write_s for report in reports)
    assert reports[0].logical_bytes > 100_000_000
    # Compared with what the bytes take at the same time: a machine may be slow for both.
    large = min(report.controller_held_s for report in reports)
    assert large < small + written / 10
    assert large < written / 3
    # Puts went on while 100 MB were written, and none of them waited for the writing.
    assert puts > 6
    assert max(report.longest_wait_s for report in reports) < written


def test_a_dead_driver_leaves_the_queue_running(lab: Any, slow: Any, eventually: Any) -> None:
    import ray
    import torch

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    lab.start(2)
    lab.put("p", ["a"], {"x": torch.zeros(1, 4)})
    cluster = prepare_cut().cluster
    slow(4.0)

    def drive() -> None:
        take_cut(lease_s=4.0)

    driving = ray.remote(num_cpus=0, max_retries=0)(drive).remote()
    # The controller answers no other call meanwhile.
    kept = cluster.unit_calls(holdings)
    eventually(lambda: run(kept, timeout_s=30.0) == [1, 1], within=60.0)
    ray.cancel(driving, force=True)
    with pytest.raises((ray.exceptions.WorkerCrashedError, ray.exceptions.TaskCancelledError)):
        ray.get(driving)
    started = time.monotonic()
    lab.put("p", ["b"], {"x": torch.zeros(1, 4)})
    assert time.monotonic() - started < 8.0
    assert "b" in dict(lab.census()["state"]["partitions"]["p"]["keys"])
    # A cut that nobody asks for is let go of.
    kept.append(cluster.controller_call(holdings))
    eventually(lambda: not any(run(kept, timeout_s=30.0)), within=30.0)


def holdings(actor: Any) -> int:
    """Runs in an actor: how many cuts it keeps."""
    kept = vars(actor).get("_snapfmt_holdings", {}).values()
    return sum(type(item.content).__name__ in ("UnitCut", "ControllerCut") for item in kept)


def test_a_unit_that_stands_still_holds_the_queue_for_one_lease(lab: Any, eventually: Any) -> None:
    import torch

    lab.start(2)
    lab.put("p", ["a"], {"x": torch.zeros(1, 4)})
    waits = []

    def put() -> None:
        started = time.monotonic()
        lab.put("p", ["b"], {"x": torch.zeros(1, 4)})
        waits.append(time.monotonic() - started)

    prepared = prepare_cut(hold_lease_s=1.0)
    lab.on_unit(1, instead_of_a_cut, "sleep", 9.0)
    writer = threading.Timer(0.5, put)
    writer.start()
    try:
        with pytest.raises(DeadlineExceeded) as caught:
            prepared.take()
        assert caught.value.what == "TransferQueueStorageUnit#1"
    finally:
        writer.join()
        lab.on_unit(1, instead_of_a_cut, None)
    assert waits[0] < 8.0, "it did not wait for the unit"
    eventually(lambda: lab.on_controller(holdings) + lab.on_unit(1, holdings) == 0)
    with prepare_cut().take() as cut:
        assert cut.keys("p") == {"a", "b"}


def test_a_unit_that_dies_ends_the_hold(lab: Any) -> None:
    import torch

    lab.start(2)
    lab.put("p", ["a"], {"x": torch.zeros(1, 4)})
    prepared = prepare_cut(hold_lease_s=60.0)
    lab.on_unit(1, instead_of_a_cut, "die")
    try:
        with pytest.raises(ParticipantFailed) as caught:
            prepared.take()
        assert caught.value.what == "TransferQueueStorageUnit#1"
        started = time.monotonic()
        assert lab.client.get_partition_list() == ["p"]
        assert time.monotonic() - started < 50.0, "it did not wait for the lease"
        assert run([prepared.cluster.controller_call(holdings)], timeout_s=30.0) == [0]
    finally:
        lab.stop()


def instead_of_a_cut(_unit: Any, what: str | None, seconds: float = 0.0) -> None:
    """Runs in a unit: what it does when it is asked for its cut; with None, what it should."""
    import os

    real = vars(unit).setdefault("_real_take_cut", unit.take_cut)

    def take_cut(*arguments: Any) -> Any:
        if what == "die":
            os._exit(1)
        time.sleep(seconds)
        return real(*arguments)

    unit.take_cut = real if what is None else take_cut


def test_one_save_at_a_time_holds_the_queue(lab: Any, tmp_path: Path) -> None:
    lab.start(2)
    lab.on_controller(at_controller.prepare, 5.0)
    lab.on_controller(hold, "first")
    with pytest.raises(DeadlineExceeded, match="another save"):
        save(tmp_path / "run", hold_timeout_s=1.0)
    assert lab.on_controller(release, "first") is not None
    assert save(tmp_path / "run").snapshot is not None


def hold(controller: Any, owner: str) -> None:
    at_controller._gate(controller).hold(owner, lease_s=20.0, timeout_s=5.0)


def release(controller: Any, owner: str) -> float | None:
    return at_controller._gate(controller).release(owner)


def test_a_cell_that_is_not_there_stops_the_save(lab: Any, tmp_path: Path) -> None:
    import torch

    lab.start(2)
    lab.put("p", [f"k{i}" for i in range(8)], {"x": torch.zeros(8, 4), "y": torch.zeros(8)})

    def lose(storage_unit: Any) -> None:
        del storage_unit.storage_data.field_data["y"][4]

    lab.on_unit(0, lose)
    with pytest.raises(CutInconsistent, match="'k4' of 'p'"):
        save(tmp_path / "run")
    repository = Repository.open(tmp_path / "run")
    with pytest.raises(NotPublished):
        repository.snapshot()
    assert repository.leases() == []
    assert not [path for path in (tmp_path / "run" / "objects").rglob("*") if path.is_file()]
    lab.put("p", ["k4"], {"x": torch.zeros(1, 4), "y": torch.zeros(1)})
    assert save(tmp_path / "run").rows == 8


@pytest.mark.parametrize("ssd", [False, True])
def test_changes_after_the_cut_do_not_reach_it(lab: Any, tmp_path: Path, ssd: bool) -> None:
    import torch

    lab.start(2, ssd=ssd)
    keys = [f"k{i}" for i in range(16)]
    # Above the threshold of 1 KiB, so that every value is a file when `ssd` is on.
    lab.put("p", keys, {"x": torch.arange(16.0).unsqueeze(1).repeat(1, 4096)})
    before = lab.census()
    files = lambda: sorted(path.name for path in lab.scratch.rglob("*.bin"))  # noqa: E731
    old_files = files()
    assert len(old_files) == (16 if ssd else 0)

    def interfere() -> None:
        lab.put("p", keys[:6], {"x": torch.full((6, 4096), -1.0)})
        lab.clear("p", keys[6:12])
        lab.put("p", ["new"], {"x": torch.full((1, 4096), -2.0)})
        assert set(old_files) <= set(files()), "files of the cut are kept while it is written"

    repository = Repository.open(tmp_path / "run", create=True)
    stand_in = lab.stand_in(interfere, repository)
    report = save(attempt=stand_in)
    assert report.snapshot is None
    stand_in.attempt.publish(report.receipts)
    if ssd:
        assert len(files()) == 4 + 6 + 1
        assert len(set(old_files) & set(files())) == 4, "after it they are gone"
    lab.empty()
    load(repository.snapshot())
    assert lab.census() == before
    if ssd:
        active = [lab.on_unit(i, lambda u: u.storage_data.ssd_active_values) for i in range(2)]
        assert sum(active) == 16, "restored values are offloaded again"
