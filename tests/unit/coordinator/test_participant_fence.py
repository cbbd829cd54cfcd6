"""The fence: one active id, stale ids, deadlines, the lease, and once per id."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from snapfmt.errors import ControlRefused
from snapfmt_coordinator.participant.fence import REMEMBERED_IDS, Fence
from snapfmt_coordinator.participant.tombstones import Tombstones
from snapfmt_coordinator.participant.waiting import Signal
from snapfmt_coordinator.protocol.v1 import Control, Discarded

Make = Callable[..., Any]


def run(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(body())


def reason(call: Callable[[], object]) -> str:
    with pytest.raises(ControlRefused) as caught:
        call()
    return caught.value.reason


def test_one_id_at_a_time_and_the_same_id_again_changes_nothing(control: Make) -> None:
    async def body() -> None:
        fence = Fence()
        assert not fence.closed
        assert fence.enter(control(), "preparing")
        fence.move("prepared")
        assert not fence.enter(control(), "preparing")
        assert (fence.phase, fence.active_id) == ("prepared", "c1")
        assert reason(lambda: fence.enter(control(Control, "c2"), "preparing")) == (
            "checkpoint_conflict"
        )
        assert (fence.phase, fence.active_id) == ("prepared", "c1")

    run(body)


def test_a_resumed_id_is_refused_and_its_resume_again_is_idempotent(control: Make) -> None:
    async def body() -> None:
        fence = Fence()
        fence.enter(control(), "preparing")
        assert fence.resume(control()) is False
        assert (fence.phase, fence.active_id, fence.deadline_ts) == ("idle", None, None)
        assert fence.resume(control()) is True
        assert reason(lambda: fence.enter(control(), "preparing")) == "stale_checkpoint"
        assert reason(lambda: fence.require(control())) == "stale_checkpoint"
        assert fence.enter(control(Control, "c2"), "preparing")
        assert fence.resume(control()) is True
        assert fence.active_id == "c2"

    run(body)


def test_an_unknown_id_is_told_apart(control: Make) -> None:
    async def body() -> None:
        fence = Fence()
        assert reason(lambda: fence.require(control())) == "unknown_checkpoint"
        assert reason(lambda: fence.resume(control(Control, "other"))) == "unknown_checkpoint"
        fence.enter(control(), "preparing")
        assert reason(lambda: fence.resume(control(Control, "c2"))) == "unknown_checkpoint"
        assert fence.active_id == "c1"

    run(body)


def test_a_prepare_that_arrives_after_its_resume_does_not_close(control: Make) -> None:
    async def body() -> None:
        fence = Fence()
        assert reason(lambda: fence.resume(control())) == "unknown_checkpoint"
        assert reason(lambda: fence.enter(control(), "preparing")) == "stale_checkpoint"
        assert not fence.closed
        assert fence.resume(control()) is True

    run(body)


def test_the_last_64_ids_are_remembered(control: Make) -> None:
    async def body() -> None:
        fence = Fence()
        for number in range(REMEMBERED_IDS + 1):
            fence.enter(control(Control, f"c{number}"), "preparing")
            fence.resume(control(Control, f"c{number}"))
        assert REMEMBERED_IDS == 64
        assert not fence.is_stale("c0")
        assert all(fence.is_stale(f"c{number}") for number in range(1, 65))

    run(body)


def test_a_past_deadline_changes_nothing(control: Make) -> None:
    async def body() -> None:
        fence = Fence()
        late = control(seconds=-1)
        for call in (lambda: fence.enter(late, "preparing"), lambda: fence.resume(late)):
            assert reason(call) == "deadline_passed"
        assert fence.phase == "idle"
        fence.enter(control(), "preparing")
        assert reason(lambda: fence.resume(late)) == "deadline_passed"
        assert fence.phase == "preparing"

    run(body)


def test_a_deadline_in_milliseconds_is_a_mistake(control: Make) -> None:
    async def body() -> None:
        fence = Fence()
        wrong = Control(checkpoint_id="c1", deadline_ts=1.7e12)
        assert reason(lambda: fence.enter(wrong, "preparing")) == "invalid_request"
        assert not fence.closed

    run(body)


class Clocks:
    """A wall clock that may be set, and a monotonic one; neither goes on by itself.

    Timers of the loop do, and look at them: one that ran too early is set again.
    """

    def __init__(self) -> None:
        self.wall, self.monotonic = 1e6, 50.0

    def fence(self, grace_s: float = 10.0) -> Fence:
        return Fence(grace_s=grace_s, clock=lambda: self.wall, timer=lambda: self.monotonic)

    def later(self, seconds: float) -> None:
        self.wall += seconds
        self.monotonic += seconds

    def request(self, checkpoint_id: str = "c1", seconds: float = 1.0) -> Control:
        return Control(checkpoint_id=checkpoint_id, deadline_ts=self.wall + seconds)


async def opens(fence: Fence) -> bool:
    """Whether it does by itself, without being asked whether it is closed."""
    return await fence.changed.wait_for(lambda: fence.phase == "idle", 60)


def test_it_opens_by_itself_when_nobody_resumes() -> None:
    async def body() -> None:
        clocks = Clocks()
        fence = clocks.fence(grace_s=0.05)
        opened: list[int] = []
        fence.on_open(lambda: opened.append(1))
        fence.enter(clocks.request(seconds=0.05), "preparing")
        clocks.later(0.075)
        await asyncio.sleep(0.15)
        assert fence.closed
        clocks.later(0.05)
        assert await opens(fence)
        assert opened == [1]
        again = clocks.request(seconds=30)
        assert reason(lambda: fence.enter(again, "preparing")) == "stale_checkpoint"
        assert fence.enter(clocks.request("c2", 30), "preparing")

    run(body)


def test_a_later_deadline_renews_the_lease_and_an_earlier_one_does_not() -> None:
    async def body() -> None:
        clocks = Clocks()
        fence = clocks.fence(grace_s=0.0)
        fence.enter(clocks.request(seconds=0.1), "preparing")
        later = clocks.request(seconds=0.4)
        fence.require(later)
        fence.require(clocks.request(seconds=0.05))
        assert fence.deadline_ts == later.deadline_ts
        clocks.later(0.3)
        await asyncio.sleep(0.15)
        assert fence.closed
        clocks.later(0.2)
        assert await opens(fence)

    run(body)


@pytest.mark.parametrize("look", ["closed", "request"])
def test_a_lease_has_ended_also_when_its_timer_did_not_run(look: str) -> None:
    async def body() -> None:
        clocks = Clocks()
        fence = clocks.fence()
        opened: list[str] = []
        fence.on_open(lambda: opened.append("open"))
        fence.enter(clocks.request(), "preparing")
        clocks.later(10.5)
        assert fence.closed
        clocks.later(1.0)
        if look == "closed":
            assert not fence.closed
        else:
            fence.check_deadline(clocks.request("c2", 100.0))
        assert (fence.phase, opened) == ("idle", ["open"])
        assert fence.is_stale("c1")

    run(body)


@pytest.mark.parametrize("jump", [86_400.0, -86_400.0])
def test_a_wall_clock_that_is_set_neither_ends_nor_prolongs_a_lease(jump: float) -> None:
    async def body() -> None:
        clocks = Clocks()
        fence = clocks.fence()
        fence.enter(clocks.request(), "preparing")
        clocks.wall += jump
        clocks.later(9.0)
        assert fence.closed
        # As the coordinator sees it now; 12 s from here, which is later than before.
        fence.require(clocks.request(seconds=2.0))
        clocks.later(11.0)
        assert fence.closed
        clocks.later(2.0)
        assert not fence.closed

    run(body)


@pytest.mark.parametrize("jump", [86_400.0, -86_400.0])
def test_the_timer_of_a_lease_does_not_ask_the_wall_clock(jump: float) -> None:
    async def body() -> None:
        clocks = Clocks()
        fence = clocks.fence(grace_s=0.1)
        fence.enter(clocks.request(seconds=0.1), "preparing")
        clocks.wall += jump
        clocks.later(0.15)
        await asyncio.sleep(0.3)
        assert fence.phase == "preparing"
        clocks.later(0.1)
        assert await opens(fence)

    run(body)


def test_a_request_runs_once_also_when_asked_concurrently(control: Make) -> None:
    async def body() -> None:
        fence = Fence()
        fence.enter(control(), "restoring")
        started: list[int] = []
        go = asyncio.Event()

        async def work() -> Discarded:
            started.append(1)
            await go.wait()
            return Discarded(discarded=len(started))

        def ask(seconds: float = 30) -> Coroutine[Any, Any, Discarded]:
            return fence.run_operation("x", control(seconds=seconds), work)

        first, second = asyncio.create_task(ask()), asyncio.create_task(ask(60))
        await asyncio.sleep(0)
        # The one who asked first goes away; the work does not.
        first.cancel()
        await asyncio.sleep(0)
        go.set()
        assert (await second).discarded == 1
        assert (await ask()).discarded == 1
        assert started == [1]
        assert (await fence.run_operation("y", control(), work)).discarded == 2
        fence.resume(control())
        assert (await ask()).discarded == 3

    run(body)


def test_a_failure_reaches_everybody_who_waits_and_is_not_kept(control: Make) -> None:
    async def body() -> None:
        fence = Fence()
        fence.enter(control(), "restoring")
        tries: list[int] = []

        async def work() -> Discarded:
            tries.append(1)
            await asyncio.sleep(0)
            if len(tries) == 1:
                raise OSError("disk")
            return Discarded(discarded=0)

        asked = [fence.run_operation("x", control(), work) for _ in range(2)]
        results = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(item) for item in results] == [OSError, OSError]
        assert await fence.run_operation("x", control(), work) == Discarded(discarded=0)
        assert len(tries) == 2

    run(body)


def test_a_signal_wakes_and_gives_up_in_time() -> None:
    async def body() -> None:
        signal, state = Signal(), [0]
        assert not await signal.wait_for(lambda: state[0] == 1, 0.01)
        waiting = asyncio.create_task(signal.wait_for(lambda: state[0] == 2, 60))
        for value in (1, 2):
            await asyncio.sleep(0)
            state[0] = value
            signal.notify()
        assert await waiting

    run(body)


def test_tombstones_close_a_run_and_those_before_it_and_are_bounded() -> None:
    closed = Tombstones(limit=2)
    closed.close("r", 2)
    closed.close("r", 1)
    assert [closed.covers("r", number) for number in range(4)] == [True, True, True, False]
    closed.forget("r", 1)
    assert closed.covers("r", 2)
    closed.forget("r", 2)
    assert not closed.covers("r", 0)
    for name in ("a", "b", "c"):
        closed.close(name, 0)
    assert [closed.covers(name, 0) for name in "abc"] == [False, True, True]
    assert len(closed) == 2
