"""Restores that are refused or fail leave nothing behind; a dead unit publishes nothing."""

import contextlib
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from snapfmt import Repository
from snapfmt.adapters.transfer_queue import controller as at_controller
from snapfmt.adapters.transfer_queue import jobs, load, save, unit
from snapfmt.adapters.transfer_queue.cluster import run
from snapfmt.errors import (
    AttemptError,
    CorruptError,
    DeadlineExceeded,
    NoMatch,
    ParticipantFailed,
    RestoreRefused,
    SnapfmtError,
)
from snapfmt_coordinator.reference.ray_session import join_queue

pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def saved(lab: Any, tmp_path: Path) -> Repository:
    """A repository with one snapshot of a small queue; the queue is empty again."""
    import torch

    lab.start(2)
    lab.put("p", [f"k{i}" for i in range(40)], {"x": torch.randn(40, 500)}, tags=[{"t": 1}] * 40)
    save(tmp_path / "run")
    lab.empty()
    return Repository.open(tmp_path / "run")


def usable(lab: Any) -> bool:
    """Whether the queue takes rows and gives them out from the first index on."""
    import torch

    lab.put("after", ["a", "b"], {"x": torch.ones(2, 3)})
    return bool(lab.fetch("after", "train", ["x"], 2) == [0, 1])


def test_a_queue_with_rows_is_not_restored_into(lab: Any, saved: Repository) -> None:
    import torch

    lab.put("other", ["a"], {"x": torch.zeros(1, 2)})
    before = lab.census()
    with pytest.raises(RestoreRefused, match="other"):
        load(saved.snapshot())
    assert lab.census() == before
    # Also when only a unit remembers rows: they would mix with the restored ones.
    lab.on_controller(_forget)
    with pytest.raises(RestoreRefused, match="storage unit"):
        load(saved.snapshot())
    assert lab.census()["cells"] == before["cells"]


def _forget(controller: Any) -> None:
    controller.partitions.clear()


def test_a_snapshot_without_a_queue_is_refused(lab: Any, saved: Repository) -> None:
    with pytest.raises(NoMatch, match="rl/other"):
        load(saved.snapshot(), part_prefix="rl/other")
    assert usable(lab)


@pytest.mark.parametrize("part", ["rl/tq/unit-0001", "rl/tq/controller"])
def test_damage_leaves_the_queue_empty_and_usable(lab: Any, saved: Repository, part: str) -> None:
    table = saved.snapshot().part(part).table_names()[-1]
    segment = saved.snapshot().part(part).table(table).segments()[0]
    chunk = segment.index.place(0).chunks[1]
    digest = segment.document.data.pack.removeprefix("sha256:")
    path = Path(saved.location) / "objects" / digest[:2] / digest
    data = bytearray(path.read_bytes())
    data[segment.document.data.offset + chunk.offset + chunk.size // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)
    with pytest.raises(CorruptError):
        load(saved.snapshot())
    assert lab.is_empty()
    assert usable(lab)


def test_a_unit_that_is_full_refuses_the_restore(lab: Any, saved: Repository) -> None:
    lab.on_unit(1, _limit, 5)
    try:
        with pytest.raises(RestoreRefused, match="capacity"):
            load(saved.snapshot())
    finally:
        lab.on_unit(1, _limit, None)
    assert lab.is_empty()
    load(saved.snapshot())
    assert len(lab.census()["cells"]["x"]) == 40


def _limit(storage_unit: Any, size: int | None) -> None:
    storage_unit.storage_data.storage_size = size


def test_a_step_that_fails_last_is_taken_back(
    lab: Any, saved: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the state was put in place, and after a unit has accepted its rows."""
    from snapfmt.adapters.transfer_queue import loading

    real = loading.run

    def failing(calls: Any, **options: Any) -> Any:
        if calls[0].function is unit.accept_load:
            real(calls[:1], **options)
            raise ParticipantFailed("planned")
        return real(calls, **options)

    monkeypatch.setattr(loading, "run", failing)
    with pytest.raises(ParticipantFailed, match="planned"):
        load(saved.snapshot())
    monkeypatch.undo()
    assert lab.is_empty()
    load(saved.snapshot())


def test_a_restore_whose_driver_dies_is_undone(
    lab: Any, saved: Repository, eventually: Any
) -> None:
    cluster = lab.cluster
    source = (saved.location, 1, "rl/tq")
    request = unit.LoadRequest(saved.location, 1, "rl/tq", (("p", "p"),), 2, 2)
    run([cluster.controller_call(at_controller.prepare, 5.0)], timeout_s=30.0)
    start = cluster.controller_call(at_controller.start_load, "dead", source, "require", 5.0, 6.0)
    run([start], timeout_s=30.0)
    run(cluster.unit_calls(unit.start_load, "dead", request, 6.0, each=[0, 1]), timeout_s=30.0)
    polls = cluster.unit_calls(jobs.poll, "dead", 6.0)
    eventually(lambda: all(status.done for status in run(polls, timeout_s=10.0)))
    assert len(lab.census()["cells"]["x"]) == 40
    started = time.monotonic()
    # A request waits at the controller until the restore is given up, and no longer.
    assert lab.client.get_partition_list() == []
    assert time.monotonic() - started < 60.0
    eventually(lab.is_empty)
    with pytest.raises(AttemptError):
        lab.on_controller(at_controller.install, "dead", 1.0)
    assert usable(lab)


def _has_grown(folder: Path) -> bool:
    # A file may be gone, or have its final name, between two looks.
    with contextlib.suppress(FileNotFoundError):
        return any(path.stat().st_size > 1_000_000 for path in folder.rglob("*"))
    return False


def test_a_unit_that_dies_during_the_save_publishes_nothing(
    lab: Any, tmp_path: Path, pid: Any, eventually: Any
) -> None:
    import torch

    lab.start(2)
    rows = [f"k{i}" for i in range(64)]
    lab.put("p", rows, {"x": torch.randn(64, 200_000)})
    victim = lab.on_unit(1, pid)
    repository = Repository.open(tmp_path / "run", create=True)
    failures: list[SnapfmtError] = []

    def try_to_save() -> None:
        try:
            save(repository)
        except SnapfmtError as error:
            failures.append(error)

    thread = threading.Thread(target=try_to_save)
    thread.start()
    # The unit has its cut and writes: a pack of the attempt has begun to grow.
    eventually(lambda: _has_grown(tmp_path / "run" / "attempts"))
    os.kill(victim, signal.SIGKILL)
    thread.join(timeout=60.0)
    assert [type(error) for error in failures] == [ParticipantFailed]
    assert failures[0].what == "TransferQueueStorageUnit#1"
    assert repository.numbers() == []
    assert repository.leases() == []

    lab.stop()
    # Whoever joins a run's queue waits for it, and starts none of its own.
    with pytest.raises(DeadlineExceeded, match="no TransferQueue was started"):
        join_queue(0.1)
    lab.start(2)
    lab.put("p", rows, {"x": torch.randn(64, 20)})
    assert save(repository).snapshot is not None
    assert repository.numbers() == [1]
    assert repository.verify(deep=True).findings == []
