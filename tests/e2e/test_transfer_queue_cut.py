"""The cut: consistent while others write, short whatever the bytes, safe when a driver dies."""

import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from snapfmt import MISSING, Repository
from snapfmt.adapters.transfer_queue import controller as at_controller
from snapfmt.adapters.transfer_queue import jobs, load, save, saving, unit
from snapfmt.adapters.transfer_queue.cluster import run
from snapfmt.errors import AttemptError, CutInconsistent, DeadlineExceeded, NotPublished

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


def start_writer(seconds: float, number: int) -> Any:
    """A process that puts, overwrites and clears rows of its own."""
    import ray

    fields = code_fields

    def write() -> int:
        import random

        import transfer_queue as tq
        from tensordict import TensorDict

        tq.init()
        rng = random.Random(number)
        ends, code = time.monotonic() + seconds, number * 1_000_000
        while time.monotonic() < ends:
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


def test_a_cut_is_consistent_while_other_processes_write(
    lab: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    real = saving.run

    def slow_units(calls: Any, **options: Any) -> Any:
        # Without the hold, rows would be cleared between the two halves of the cut.
        if calls[-1].function is unit.take_cut:
            first = real(calls[:1], **options)
            time.sleep(0.15)
            return first + real(calls[1:], **options)
        return real(calls, **options)

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    lab.start(2)
    lab.put("shared", ["seed"], code_fields([1]), tags=[{}])
    writers = [start_writer(6.0, number) for number in (1, 2)]
    before = lab.census()["state"]["counter"]
    while lab.census()["state"]["counter"] < before + 40:
        time.sleep(0.05)
    reports = []
    while ray.wait(writers, num_returns=2, timeout=0)[1]:
        reports.append(save(tmp_path / "run"))
        monkeypatch.setattr(saving, "run", slow_units if len(reports) % 2 else real)
    ray.get(writers)
    assert max(report.longest_wait_s for report in reports) > 0.1, "writers met the hold"
    assert len(reports) >= 5
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
    waits: list[float] = []
    stop = threading.Event()

    def overwrite() -> None:
        while not stop.is_set():
            started = time.monotonic()
            lab.put("q", ["live"], {"x": torch.zeros(1, 4)})
            waits.append(time.monotonic() - started)

    writer = threading.Thread(target=overwrite)
    writer.start()
    try:
        reports = [save(tmp_path / "large") for _ in range(3)]
    finally:
        stop.set()
        writer.join()
    large = min(report.controller_held_s for report in reports)
    assert reports[0].logical_bytes > 100_000_000
    assert large < small + 0.05
    assert large < reports[0].write_s / 3
    assert max(report.longest_wait_s for report in reports) < 0.5
    # Puts went on while 100 MB were written, and none of them waited for the writing.
    assert len(waits) > 20
    assert max(waits) < min(report.write_s for report in reports)


def test_a_dead_driver_leaves_the_queue_running(lab: Any) -> None:
    import torch

    lab.start(2)
    lab.put("p", ["a"], {"x": torch.zeros(1, 4)})
    cluster = lab.cluster
    lab.on_controller(at_controller.prepare, 5.0)
    lab.on_controller(at_controller.hold, "dead", 5.0, 1.0)
    started = time.monotonic()
    lab.put("p", ["b"], {"x": torch.zeros(1, 4)})
    assert 0.5 < time.monotonic() - started < 4.0
    assert "b" in dict(lab.census()["state"]["partitions"]["p"]["keys"])
    # What the dead driver still had cannot be used any more, nor by mistake.
    with pytest.raises(CutInconsistent):
        lab.on_controller(at_controller.copy, "dead", None, 5.0)
    assert lab.on_controller(at_controller.release, "dead").held_s is None
    # A cut that nobody asks for is let go of as well.
    run(cluster.unit_calls(unit.take_cut, "dead", 5.0, 0.2), timeout_s=10.0)
    time.sleep(0.6)
    with pytest.raises(AttemptError):
        run(cluster.unit_calls(jobs.poll, "dead", 5.0), timeout_s=10.0)


def test_one_save_at_a_time_holds_the_queue(lab: Any, tmp_path: Path) -> None:
    lab.start(2)
    lab.on_controller(at_controller.prepare, 5.0)
    lab.on_controller(at_controller.hold, "first", 5.0, 5.0)
    with pytest.raises(DeadlineExceeded, match="another save"):
        save(tmp_path / "run", hold_timeout_s=0.3)
    assert lab.on_controller(at_controller.release, "first").held_s is not None
    assert save(tmp_path / "run").snapshot is not None


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
