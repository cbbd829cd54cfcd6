"""One call into the controller takes the cut: what it holds, what it leaves, whatever fails."""

import ctypes
import gc
import resource
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transfer_queue")

import torch
from transfer_queue.controller import DataPartitionStatus, PartitionIndexManager
from transfer_queue.sampler import SequentialSampler

from snapfmt.adapters.transfer_queue import controller as at_controller
from snapfmt.adapters.transfer_queue.cluster import Call
from snapfmt.adapters.transfer_queue.jobs import drop, holding_of, holdings_of
from snapfmt.adapters.transfer_queue.state import ControllerCut, copy_controller, install_controller
from snapfmt.adapters.transfer_queue.unit import CutReport
from snapfmt.errors import CutInconsistent, NoMatch, ParticipantFailed

SCHEMA = {"ids": {"dtype": torch.int64, "shape": (3,)}}


class Controller:
    """The controller's state and the one method through which requests come, without Ray."""

    def __init__(self) -> None:
        self.partitions: dict[str, Any] = {}
        self.index_manager: Any = PartitionIndexManager()
        self.sampler: Any = SequentialSampler()

    def _handle_request(self, act: Callable[[], object], _monitor: object) -> object:
        return act()

    def allocate(self, partition: str, count: int) -> list[int]:
        """Rows that are there and have no values yet."""
        status = self.partitions.setdefault(partition, DataPartitionStatus(partition))
        found: list[int] = self.index_manager.allocate_indexes(partition, count)
        status.global_indexes.update(found)
        return found


@pytest.fixture
def controller() -> Any:
    made = Controller()
    rows = made.allocate("train", 6)
    made.partitions["train"].update_production_status(rows, ["ids"], SCHEMA)
    at_controller._gate(made)
    return made


@pytest.fixture
def unit(monkeypatch: pytest.MonkeyPatch) -> Iterator["Unit"]:
    """The calls to units arrive here."""
    made = Unit()
    monkeypatch.setattr(at_controller, "run", lambda calls, timeout_s: calls)
    monkeypatch.setattr(at_controller, "ask", made.ask)
    monkeypatch.setattr(at_controller, "answers", made.answers)
    yield made
    assert made.asked == made.answered, "a unit may take its cut after it was dropped"


class Unit:
    """A unit whose part of the cut is `act`."""

    def __init__(self) -> None:
        self.asked = self.answered = 0
        self.act: Callable[[], object] = lambda: None

    def ask(self, calls: list[Call]) -> list[Call]:
        self.asked += len(calls)
        return calls

    def answers(self, calls: list[Call], *, timeout_s: float) -> list[CutReport]:
        assert timeout_s > 0
        self.answered += len(calls)
        self.act()
        return [CutReport(0.001, 0.0, 6) for _ in calls]


def take(
    controller: Any, partitions: list[str] | None = None, *, hold_lease_s: float = 30.0
) -> at_controller.Taken:
    calls = [Call(None, "unit", at_controller.prepare)]
    return at_controller.take_cut(controller, "cut", partitions, calls, 5.0, hold_lease_s, 60.0)


def goes_on(controller: Any) -> bool:
    """Whether a request passes at once."""
    done = threading.Event()
    request = threading.Thread(target=controller._handle_request, args=(done.set, None))
    request.daemon = True
    request.start()
    return done.wait(5.0)


def test_requests_wait_until_every_unit_has_its_cut(controller: Any, unit: Unit) -> None:
    order: list[str] = []

    def put() -> None:
        controller.allocate("train", 4)
        order.append("request")

    request = threading.Thread(target=controller._handle_request, args=(put, None))

    def act() -> None:
        request.start()
        time.sleep(0.2)
        order.append("unit")

    unit.act = act
    taken = take(controller)
    request.join()
    assert order == ["unit", "request"]
    assert taken.held_s >= 0.2
    assert taken.longest_wait_s > 0.1
    assert taken.units == (CutReport(0.001, 0.0, 6),)
    cut: ControllerCut = holding_of(controller, "cut").content
    assert sorted(cut.partitions[0].active) == list(range(6))
    drop(controller, "cut")


def test_a_unit_that_fails_ends_the_hold(controller: Any, unit: Unit) -> None:
    def act() -> None:
        raise ParticipantFailed("planned", what="unit")

    unit.act = act
    with pytest.raises(ParticipantFailed, match="planned"):
        take(controller)
    assert goes_on(controller)
    assert holdings_of(controller) == {}


def test_a_partition_that_is_not_there_asks_no_unit(controller: Any, unit: Unit) -> None:
    with pytest.raises(NoMatch, match="nowhere"):
        take(controller, ["nowhere"])
    assert unit.asked == 0
    assert goes_on(controller)


def test_a_copy_that_fails_waits_for_the_units(
    controller: Any, unit: Unit, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("planned")

    monkeypatch.setattr(at_controller, "copy_controller", fail)
    with pytest.raises(RuntimeError, match="planned"):
        take(controller)
    assert unit.answered == 1
    assert goes_on(controller)


def test_a_hold_that_ended_first_is_no_cut(controller: Any, unit: Unit) -> None:
    unit.act = lambda: time.sleep(0.5)
    with pytest.raises(CutInconsistent, match="hold ended"):
        take(controller, hold_lease_s=0.05)
    assert goes_on(controller)
    assert holdings_of(controller) == {}


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("before", [False, True])
def test_no_garbage_is_collected_under_the_hold(
    controller: Any, unit: Unit, before: bool, fails: bool
) -> None:
    seen = []

    def act() -> None:
        seen.append(gc.isenabled())
        if fails:
            raise ParticipantFailed("planned")

    unit.act = act
    if not before:
        gc.disable()
    try:
        if fails:
            with pytest.raises(ParticipantFailed):
                take(controller)
        else:
            take(controller)
            drop(controller, "cut")
        assert gc.isenabled() == before
    finally:
        gc.enable()
    assert seen == [False]


def test_a_copy_has_what_was_there_also_where_sets_disagree() -> None:
    """Such as after a put whose row was cleared meanwhile, or with indexes given out again."""
    source: Any = Controller()
    source.allocate("train", 8)
    source.allocate("other", 3)
    manager, status = source.index_manager, source.partitions["train"]
    manager.release_indexes("train", [1, 2])
    status.update_production_status([2, 40], ["ids"], SCHEMA)
    status.pre_allocated_global_indexes.update([3, 50])
    manager.allocated_indexes.discard(4)
    manager.partition_to_indexes["left"].update([70, 71])
    status.custom_meta[2] = {"weight_version": 1}
    status.keys_mapping["row"] = 2
    expected = sets_of(source)
    copied = copy_controller(source, None)
    status.custom_meta.clear()
    status.keys_mapping["later"] = 40
    status.global_indexes.clear()
    status.pre_allocated_global_indexes.add(99)
    manager.allocated_indexes.clear()
    manager.partition_to_indexes["train"].add(99)
    manager.partition_to_indexes["left"].clear()
    cut = copied()
    part = cut.partitions[0]
    assert (part.tags, part.keys) == ({2: {"weight_version": 1}}, {"row": 2})
    assert [set(group) for group in (part.active, part.pre_allocated, part.indexed)] == expected[0]
    assert (set(cut.allocated), set(cut.other_indexes["left"])) == (expected[1], {70, 71})
    target: Any = Controller()
    install_controller(target, cut)
    assert sets_of(target) == expected
    target.partitions["train"].global_indexes.clear()
    assert set(part.active) == expected[0][0], "what was installed is a copy of its own"


def test_the_hold_waits_for_no_memory(
    controller: Any, unit: Unit, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 50_000
    rows = controller.allocate("train", count)
    status = controller.partitions["train"]
    status.keys_mapping.update({f"row {row}": row for row in rows})
    status.custom_meta.update({row: {"weight_version": 1} for row in rows})
    pages: list[int] = []

    def counting(*arguments: Any) -> Any:
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        copied = copy_controller(*arguments)
        pages.append(resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before)
        return copied

    monkeypatch.setattr(at_controller, "copy_controller", counting)
    # What earlier tests freed is not at hand either.
    ctypes.CDLL(None).malloc_trim(0)
    take(controller)
    # Six lists of 400 kB are 600 pages.
    assert pages[0] < 100
    cut: ControllerCut = holding_of(controller, "cut").content
    assert len(cut.partitions[0].keys) == count


def sets_of(controller: Any) -> tuple[list[set[int]], set[int]]:
    status, manager = controller.partitions["train"], controller.index_manager
    groups = (
        status.global_indexes,
        status.pre_allocated_global_indexes,
        manager.partition_to_indexes["train"],
    )
    assert all(type(group) is set for group in groups)
    return [set(group) for group in groups], set(manager.allocated_indexes)
