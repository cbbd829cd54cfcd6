"""Clocks, the activity log, places to stop at, and runs over real HTTP."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from pydantic import ValidationError

from snapfmt.errors import ControlRefused, ParticipantFailed
from snapfmt_coordinator.loop import activity
from snapfmt_coordinator.loop.activity import ActivityLog, Interval, State, from_rows, share
from snapfmt_coordinator.loop.config import LoopConfig
from snapfmt_coordinator.loop.running import AgentRuns
from snapfmt_coordinator.loop.state import Run
from snapfmt_coordinator.loop.timers import PausableClock, StallWatchdog
from snapfmt_coordinator.loop.trip import Stepped, Trip
from snapfmt_coordinator.participant.agent import AgentExecution, AgentParticipant
from snapfmt_coordinator.protocol.codes import refused, to_body
from snapfmt_coordinator.protocol.v1 import HELD_HEADER


class Hands:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_paused_clock_stands_still() -> None:
    hands = Hands()
    clock = PausableClock(hands)
    hands.now += 3
    clock.pause()
    clock.pause()
    hands.now += 50
    assert (clock.now(), clock.paused) == (3, True)
    clock.resume()
    clock.resume()
    hands.now += 2
    assert (clock.now(), clock.paused) == (5, False)


def test_the_watchdog_speaks_once_until_there_is_progress() -> None:
    hands = Hands()
    dog = StallWatchdog(10, hands)
    hands.now += 9
    assert dog.stalled() is None
    hands.now += 2
    assert dog.stalled() == 11
    assert dog.stalled() is None
    dog.progress()
    hands.now += 10
    assert dog.stalled() == 10


def test_shares_of_a_phase() -> None:
    hands = Hands()
    log = ActivityLog(hands)
    part = State(log, activity.TRAINER, "working", "a")
    hands.now += 4
    part.change("working", "a")
    part.change("waiting", "b")
    hands.now += 6
    lasting = log.begin(activity.TRAINER, "working", "c")
    hands.now += 2
    found = share(from_rows(log.rows()), activity.TRAINER, 102, 112)
    assert found.seconds == {("working", "a"): 2, ("waiting", "b"): 8, ("working", "c"): 2}
    assert (found.of("working"), found.of("working", "c"), found.finished) == (4, 2, 1)
    log.end(lasting)
    log.end(lasting)
    assert share(log.intervals(), activity.TRAINER, 102, 112).finished == 2
    assert share(log.intervals(), activity.REFIT, 0, 999).seconds == {}


def test_waits_that_are_none_are_forgotten() -> None:
    hands = Hands()
    log = ActivityLog(hands)
    with log.during(activity.REFIT, "waiting", activity.BARRIER):
        hands.now += 0.0005
    with log.during(activity.REFIT, "working"):
        pass
    assert [item.doing for item in log.intervals()] == ["working"]
    assert Interval("a", "working", 1.0, None).overlap(0.0, 3.0) == 2.0


def test_a_run_stops_at_its_step_and_nowhere_else() -> None:
    async def body() -> None:
        told: list[str] = []
        trip = Trip(
            told.append, stop_at="save:commit.after", stop_on=2, holds={"save:prepare": 0.1}
        )

        class Port:
            async def prepare(self) -> int:
                return 1

            async def commit(self) -> int:
                return 2

            def other(self) -> int:
                return 3

        port: Any = Stepped(Port(), trip, "save", ("prepare", "commit"))
        began = time.monotonic()
        assert (await port.prepare(), await port.commit(), port.other()) == (1, 2, 3)
        assert time.monotonic() - began >= 0.1
        assert told == []
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(port.commit(), 1.0)
        assert told == ["save:commit.after"]
        assert trip.reached["save:commit"] == 2

    asyncio.run(body())


def test_a_configuration_survives_its_json() -> None:
    config = LoopConfig(home="/x", snapshot_attempt_interval_s=2.0, holds={"save:write": 1.0})
    assert LoopConfig.model_validate_json(config.model_dump_json()) == config
    other = config.model_copy(update={"max_turns": 9})
    assert other.recipe().to_fingerprint() != config.recipe().to_fingerprint()
    faster = config.model_copy(update={"units": 1, "step_s": 0.0, "stop_at": "save:commit"})
    assert faster.recipe().to_fingerprint() == config.recipe().to_fingerprint()


@pytest.mark.parametrize(
    "wrong",
    [
        {"stop_at": "save:cut"},
        {"holds": {"save:published.after": 1.0}},
        {"batch_groups": 9, "max_buffered_groups": 8},
    ],
)
def test_a_configuration_that_cannot_run_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=r"no such steps|more groups"):
        LoopConfig(home="/x", **wrong)


# --- runs over HTTP

RUN = Run("p", 0, 1, 2)
Handler = Callable[[dict[str, Any]], Awaitable[web.Response]]


def answer(attempt_index: int = 2, **changes: Any) -> web.Response:
    receipt = {
        "rollout_id": "p_g1",
        "attempt_index": attempt_index,
        "execution_generation": 1,
        "result_identity": "r",
        "result_digest": "0" * 64,
    }
    value = {
        "reward": 0.5,
        "turns": 3,
        "verify": {"notes": {"reward": 0.5, "state": {"a": 1}}},
        "manifest": [{"model_call_id": "call-1", "staging_key": "p_g1-a2/call-1"}],
        "completion_receipt": receipt,
    }
    return web.json_response({**value, **changes})


def refusal(reason: Any) -> web.Response:
    error = refused(reason, "no")
    return web.json_response(to_body(error), status=error.status)


class Lost(Exception):
    """The process is killed while it works on a request."""


@asynccontextmanager
async def agent(
    handle: Handler, *, held: socket.socket | None = None, **options: Any
) -> AsyncIterator[AgentRuns]:
    """A real server that answers `/run` with `handle`, and somebody who asks it."""

    async def route(request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        if held := request.headers.get(HELD_HEADER):
            body["held"] = held
        try:
            return await handle(body)
        except Lost:
            assert request.transport is not None
            request.transport.abort()
            raise

    async def always() -> None:
        return

    app = web.Application()
    app.router.add_post("/run", route)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.SockSite(runner, held) if held else web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        async with aiohttp.ClientSession() as session:
            values: dict[str, Any] = {
                "url": f"http://127.0.0.1:{port}",
                "agent_name": "agent",
                "clock": PausableClock(),
                "limit_s": 10.0,
                "admitted": always,
            }
            yield AgentRuns(session, **{**values, **options})
    finally:
        await runner.cleanup()


def test_a_run_is_sent_again_after_refusals_that_pass() -> None:
    async def body() -> None:
        asked: list[dict[str, Any]] = []
        refusals = ["agent_admission_closed", "duplicate_execution"]

        async def handle(request: dict[str, Any]) -> web.Response:
            asked.append(request)
            return refusal(refusals.pop(0)) if refusals else answer()

        async with agent(handle) as runs:
            found = await runs.run(RUN, {"prompt": "x"})
        request = {"_ng_rollout_id": "p_g1", "_ng_attempt_index": 2, "task": {"prompt": "x"}}
        # From the second refusal on it is known to have begun.
        assert asked == [request, request, {**request, "held": "1"}]
        assert found.reward == 0.5
        assert found.receipt.capture_key == "p_g1-a2"
        assert [call.staging_key for call in found.receipt.manifest] == ["p_g1-a2/call-1"]
        assert found.receipt.extensions["turns"] == 3

    asyncio.run(body())


@pytest.mark.parametrize(
    ("response", "says"),
    [
        (lambda: refusal("stale_attempt"), "stale_attempt"),
        (lambda: web.json_response({"x": 1}, status=500), "HTTP 500"),
        (lambda: web.Response(text="<html>"), "not JSON"),
        (lambda: answer(reward=None), "no result"),
        (lambda: answer(manifest=[{}]), "no result"),
        (lambda: answer(attempt_index=1), "another run"),
    ],
)
def test_a_run_without_a_result_fails(response: Callable[[], web.Response], says: str) -> None:
    async def body() -> None:
        async def handle(_: dict[str, Any]) -> web.Response:
            return response()

        async with agent(handle) as runs:
            with pytest.raises(ParticipantFailed, match=says):
                await runs.run(RUN, {})

    asyncio.run(body())


@pytest.mark.parametrize("restored", [False, True])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_run_whose_connection_was_lost_is_not_begun_from_nothing(
    restored: bool, restarted: bool
) -> None:
    async def body() -> None:
        agents = [AgentParticipant(server_name="agent")]
        begun: list[AgentExecution] = []
        asked: list[bool] = []

        async def handle(request: dict[str, Any]) -> web.Response:
            asked.append("held" in request)
            if len(asked) == 1 and restored:
                raise Lost
            run = request["_ng_rollout_id"], request["_ng_attempt_index"]
            try:
                begun.append(await agents[-1].begin(*run, held="held" in request))
            except ControlRefused as error:
                if error.reason == "duplicate_execution":
                    return answer()
                return web.json_response(to_body(error), status=error.status)
            if restarted:
                agents.append(AgentParticipant(server_name="agent"))
            raise Lost

        async with agent(handle) as runs:
            work = runs.run(replace(RUN, held=restored), {})
            if not restarted and not restored:
                assert (await work).reward == 0.5
            else:
                with pytest.raises(ParticipantFailed, match="unknown_execution"):
                    await work
        assert asked == [restored, True]
        assert len(begun) == (0 if restored else 1)

    asyncio.run(body())


def test_a_run_that_met_nobody_may_be_begun() -> None:
    async def body() -> None:
        asked: list[bool] = []

        async def handle(request: dict[str, Any]) -> web.Response:
            asked.append("held" in request)
            return answer()

        with closing(socket.socket()) as held:
            # Nobody listens there, and nobody else gets it meanwhile.
            held.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{held.getsockname()[1]}"
            async with agent(handle, url=url, limit_s=60.0) as runs:
                task = asyncio.create_task(runs.run(RUN, {}))
                await asyncio.sleep(0.1)
                async with agent(handle, held=held):
                    await task
        assert asked == [False]

    asyncio.run(body())


def test_the_time_of_a_run_stands_still_while_a_save_parks_it() -> None:
    async def body() -> None:
        seconds = 0.0
        clock = PausableClock(lambda: seconds)
        asked, released = asyncio.Event(), asyncio.Event()

        async def handle(_: dict[str, Any]) -> web.Response:
            asked.set()
            await released.wait()
            return answer()

        async with agent(handle, clock=clock, limit_s=0.3) as runs:
            task = asyncio.ensure_future(runs.run(RUN, {}))
            await asked.wait()
            clock.pause()
            seconds = 60.0
            # Longer than it takes to look at the clock again.
            await asyncio.sleep(0.4)
            assert not task.done(), "it is parked"
            clock.resume()
            released.set()
            await asyncio.wait_for(task, 60.0)
            asked.clear()
            released.clear()
            task = asyncio.ensure_future(runs.run(RUN, {}))
            await asked.wait()
            seconds = 60.5
            with pytest.raises(ParticipantFailed, match="its own time"):
                await task
            released.set()

    asyncio.run(body())


def test_no_run_is_sent_while_a_checkpoint_keeps_runs_out() -> None:
    async def body() -> None:
        opened, asked = asyncio.Event(), []

        async def admitted() -> None:
            await opened.wait()

        async def handle(request: dict[str, Any]) -> web.Response:
            asked.append(request)
            return answer()

        async with agent(handle, admitted=admitted) as runs:
            task = asyncio.ensure_future(runs.run(RUN, {}))
            await asyncio.sleep(0.1)
            assert asked == []
            opened.set()
            await asyncio.wait_for(task, 60.0)

    asyncio.run(body())
