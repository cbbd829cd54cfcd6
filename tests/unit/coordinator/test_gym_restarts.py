"""Servers that were restarted, that run several processes, or were restored just now."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI

from snapfmt import Repository
from snapfmt.errors import (
    ControlRefused,
    DeadlineExceeded,
    ParticipantFailed,
    UnsupportedFeature,
)
from snapfmt_coordinator.gym import discovery
from snapfmt_coordinator.gym.client import Retries, ServerAddress
from snapfmt_coordinator.gym.parts import METADATA_KEY, GymParts, to_metadata
from snapfmt_coordinator.gym.side import GymSide
from snapfmt_coordinator.loop.control import Control
from snapfmt_coordinator.loop.saved import CutState, SavedState
from snapfmt_coordinator.loop.state import Run
from snapfmt_coordinator.participant.agent import AgentExecution, AgentParticipant
from snapfmt_coordinator.participant.model import ModelParticipant
from snapfmt_coordinator.participant.router import control_router
from snapfmt_coordinator.protocol.v1 import Execution
from snapfmt_coordinator.sequence.consistency import problems
from snapfmt_coordinator.sequence.indexes import read_indexes
from snapfmt_coordinator.sequence.outcomes import classify
from snapfmt_schemas.completion import CompletionReceipt
from snapfmt_schemas.identity import capture_key

TOKEN = "a-test-token"
QUICK = Retries(first_s=0.01, longest_s=0.05, patience_s=0.3)
Make = Callable[..., Any]


def soon(seconds: float = 60.0) -> float:
    return time.time() + seconds


class Process:
    """A server's address; what answers there can be restarted, and is empty then."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self.restart()

    def restart(self) -> None:
        self.participant = self._make()
        self._app = FastAPI()
        self._app.include_router(control_router(self.participant, token=TOKEN))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._app(scope, receive, send)


class Gym:
    """One agent and the policy model, and runs of one model call a turn."""

    def __init__(self, boundary: Make, lineage_row: Make) -> None:
        self._boundary, self._row = boundary, lineage_row
        self.processes = {
            "swe": Process(lambda: AgentParticipant(server_name="swe", grace_s=0.5)),
            "policy": Process(lambda: ModelParticipant(server_name="policy", grace_s=0.5)),
        }
        self.side = GymSide([], token=TOKEN)
        self.generation_s = 0.0
        self.calls: list[str] = []

    @property
    def agent(self) -> AgentParticipant:
        found: AgentParticipant = self.processes["swe"].participant
        return found

    @property
    def model(self) -> ModelParticipant:
        found: ModelParticipant = self.processes["policy"].participant
        return found

    async def begin(self, rollout_id: str, attempt_index: int = 0) -> AgentExecution:
        return await self.agent.begin(rollout_id, attempt_index)

    async def turn(self, run: AgentExecution, last: str | None) -> str:
        """One model call and its boundary; parks there while a checkpoint is in force."""
        call_id = f"{last}x" if last else "call"
        while True:
            try:
                async with self.model.call(run.rollout_id, run.attempt_index, call_id) as call:
                    key = capture_key(run.rollout_id, run.attempt_index)
                    self.calls.append(call_id)
                    await call.generated(asyncio.sleep(self.generation_s))
                    call.commit(self._row(key, call_id, last))
                break
            except ControlRefused as refusal:
                if refusal.reason != "model_admission_closed":
                    raise
            await run.wait_admission()
        await run.boundary(self._boundary(run.rollout_id, run.attempt_index, call_id))
        return call_id

    async def prepare_parked(self, checkpoint_id: str, runs: Iterable[AgentExecution]) -> Any:
        """The prepare, and the parked runs, each of which is woken by the resume."""
        parked = [asyncio.create_task(run.wait_admission()) for run in runs]
        asking = asyncio.create_task(self.side.prepare(checkpoint_id, deadline_ts=soon()))
        while not asking.done():
            parked = [
                task if not task.done() else asyncio.create_task(run.wait_admission())
                for task, run in zip(parked, runs, strict=True)
            ]
            await asyncio.sleep(0.01)
        return parked, asking.result()

    async def save(
        self, repository: Repository, checkpoint_id: str, runs: Iterable[AgentExecution] = ()
    ) -> GymParts:
        """A whole save; the runs park where they are. Everything is open again afterwards."""
        with repository.begin() as attempt:
            try:
                parked, _ = await self.prepare_parked(checkpoint_id, list(runs))
                await self.side.commit(checkpoint_id, deadline_ts=soon(), tickets=attempt.ticket)
            finally:
                await self.side.resume(checkpoint_id, deadline_ts=soon())
            await asyncio.gather(*parked)
            parts = await self.side.collect(
                checkpoint_id, deadline_ts=soon(), tickets=attempt.ticket
            )
            attempt.publish(list(parts.receipts), user_metadata={METADATA_KEY: to_metadata(parts)})
        return parts


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[str]:
    """The address of an application that is served on a free port of this machine."""
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="critical", lifespan="off")
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - it has no event to wait for
        await asyncio.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


@asynccontextmanager
async def hosted(gym: Gym) -> AsyncIterator[None]:
    app = FastAPI()
    for name, process in gym.processes.items():
        app.mount(f"/{name}", process)
    async with served(app) as url:
        servers = [ServerAddress(name, f"{url}/{name}") for name in gym.processes]
        gym.side = GymSide(servers, token=TOKEN, retries=QUICK)
        yield


@pytest.fixture
def play(boundary: Make, lineage_row: Make) -> Make:
    """Runs an act with servers of its own."""

    def run(act: Callable[[Gym], Awaitable[None]]) -> None:
        async def body() -> None:
            gym = Gym(boundary, lineage_row)
            async with hosted(gym):
                await act(gym)

        asyncio.run(body())

    return run


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository.create(tmp_path / "run")


def finished(run: AgentExecution) -> CompletionReceipt:
    return run.finish(result_identity=run.rollout_id, result={"reward": 1.0})


def test_a_restarted_agent_is_owed_nothing(play: Make, repository: Repository) -> None:
    async def act(gym: Gym) -> None:
        owed = ("swe", finished(await gym.begin("a_g0")))
        gym.processes["swe"].restart()
        for _ in range(2):
            await gym.side.acknowledge([owed], deadline_ts=soon())
        # It is over there as well: a late request does not begin it again.
        with pytest.raises(ControlRefused, match="stale_attempt"):
            await gym.begin("a_g0")
        held = finished(await gym.begin("b_g0"))
        wrong = held.model_copy(update={"result_digest": "0" * 64})
        with pytest.raises(ControlRefused) as caught:
            await gym.side.acknowledge([owed, ("swe", wrong)], deadline_ts=soon())
        assert caught.value.reason == "completed_execution_acknowledgement_error"
        await gym.side.acknowledge([("swe", held)], deadline_ts=soon())
        assert len((await gym.save(repository, "c1")).receipts) == 2

    play(act)


def test_runs_that_a_restarted_model_does_not_know_fail_one_save_and_start_over(
    play: Make, repository: Repository
) -> None:
    async def act(gym: Gym) -> None:
        old, untouched = await gym.begin("a_g0"), await gym.begin("b_g0")
        last = await gym.turn(old, None)
        gym.processes["policy"].restart()
        await gym.turn(untouched, None)
        with pytest.raises(ControlRefused) as caught:
            await gym.save(repository, "c1", (old, untouched))
        assert caught.value.reason == "ledger_not_checkpointable"
        assert "a_g0 run 0" in str(caught.value)
        assert classify(caught.value) == "io_error"
        # The run cannot go on, so its rollout starts over, and then the save works.
        with pytest.raises(ControlRefused, match="ledger_mismatch"):
            await gym.turn(old, last)
        await gym.side.retire([Execution(rollout_id="a_g0", attempt_index=0)])
        new = await gym.begin("a_g0", 1)
        assert new.restored is None
        await gym.turn(new, None)
        parts = await gym.save(repository, "c2", (new, untouched))
        snapshot = repository.snapshot()
        indexes = read_indexes(snapshot.part, parts)
        assert {line.capture_key for _, line in indexes.continuations} == {"a_g0-a1", "b_g0"}
        with pytest.raises(ControlRefused, match="stale_attempt"):
            finished(old)

    play(act)


@pytest.mark.parametrize("name", ["swe", "policy"])
def test_a_server_that_is_restarted_within_a_checkpoint_fails_that_one_only(
    play: Make, repository: Repository, name: str
) -> None:
    async def act(gym: Gym) -> None:
        with repository.begin() as attempt:
            await gym.side.prepare("c1", deadline_ts=soon())
            gym.processes[name].restart()
            with pytest.raises(ParticipantFailed, match="another process") as caught:
                await gym.side.commit("c1", deadline_ts=soon(), tickets=attempt.ticket)
            assert name in str(caught.value)
            assert "one worker" in str(caught.value)
            assert classify(caught.value) == "io_error"
            await gym.side.resume("c1", deadline_ts=soon())
        assert {gym.agent.fence.phase, gym.model.fence.phase} == {"idle"}
        await gym.save(repository, "c2")

    play(act)


# --- a call that takes longer than a checkpoint may


@pytest.mark.parametrize("ends", [True, False])
def test_a_call_that_takes_too_long_is_made_again_after_the_save(
    play: Make, repository: Repository, ends: bool
) -> None:
    async def act(gym: Gym) -> None:
        gym.side = GymSide(
            gym.side._servers, token=TOKEN, retries=QUICK, interrupt_after=0.05 if ends else None
        )
        run = await gym.begin("a_g0")
        last = await gym.turn(run, None)
        gym.generation_s = 60.0
        working = asyncio.create_task(gym.turn(run, last))
        while len(gym.calls) < 2:  # noqa: ASYNC110 - a call that is made next
            await asyncio.sleep(0)
        if not ends:
            with pytest.raises(DeadlineExceeded, match="a_g0 run 0"):
                await gym.side.prepare("c1", deadline_ts=soon(3.0))
            working.cancel()
            return
        steps: dict[str, dict[str, int]] = {}
        with repository.begin() as attempt:
            started = time.monotonic()
            await gym.side.prepare(
                "c1",
                deadline_ts=soon(20),
                observe=lambda step, *told: steps.update({step: told[-1]}),
            )
            assert time.monotonic() - started > 0.7
            assert steps["prepare.interrupt"] == {"interrupted": 1}
            await gym.side.commit("c1", deadline_ts=soon(), tickets=attempt.ticket)
            gym.generation_s = 0.0
            await gym.side.resume("c1", deadline_ts=soon())
            assert await working == f"{last}x"
            parts = await gym.side.collect("c1", deadline_ts=soon(), tickets=attempt.ticket)
            attempt.publish(list(parts.receipts))
        # Of the call that was ended nothing is left; the second one counts, once.
        assert gym.calls == ["call", "callx", "callx"]
        assert [row.model_call_id for row in gym.model.rows("a_g0", 0)] == ["call", "callx"]
        indexes = read_indexes(repository.snapshot().part, parts)
        (line,) = (line for _, line in indexes.continuations)
        assert line.last_committed_model_call_id == "call"
        finished(run)

    play(act)


# --- several processes

APP = """
from fastapi import FastAPI
from snapfmt_coordinator.participant.agent import AgentParticipant
from snapfmt_coordinator.participant.router import control_router

app = FastAPI()
app.include_router(control_router(AgentParticipant(server_name="swe"), token="a-test-token"))
"""


@contextmanager
def workers(home: Path, count: int) -> Iterator[ServerAddress]:
    """An agent server of so many worker processes."""
    (home / "two_workers.py").write_text(APP)
    command = [sys.executable, "-m", "uvicorn", "two_workers:app", "--app-dir", str(home)]
    with closing(socket.socket()) as held, (home / "log").open("wb") as log:
        # The port is theirs from the start: one that is only free now may be another's then.
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        process = subprocess.Popen(
            [*command, "--fd", str(held.fileno()), "--workers", str(count)],
            stdout=log,
            stderr=log,
            pass_fds=(held.fileno(),),
            start_new_session=True,
        )
    try:
        until = time.monotonic() + 60
        while (home / "log").read_text().count("Application startup complete") < count:
            assert process.poll() is None, (home / "log").read_text()
            assert time.monotonic() < until
            time.sleep(0.05)
        yield ServerAddress("swe", f"http://127.0.0.1:{port}")
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def test_two_processes_behind_an_address_are_found_at_once() -> None:
    processes = [Process(lambda: AgentParticipant(server_name="swe")) for _ in range(2)]
    connections: dict[Any, int] = {}

    async def in_turn(scope: Any, receive: Any, send: Any) -> None:
        number = connections.setdefault(tuple(scope["client"]), len(connections))
        await processes[number % 2](scope, receive, send)

    async def body() -> None:
        async with served(in_turn) as url:
            side = GymSide([ServerAddress("swe", url)], token=TOKEN, retries=QUICK)
            for _ in range(2):
                with pytest.raises(UnsupportedFeature, match="one worker") as caught:
                    await side.discover()
                assert "swe" in str(caught.value)

    asyncio.run(body())


def test_two_workers_are_found_and_also_within_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each question goes to whichever process takes the connection: so it is asked again."""

    async def discover(address: ServerAddress) -> None:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            await GymSide([address], token=TOKEN, retries=QUICK).discover()

    async def prepare(address: ServerAddress) -> None:
        side, until = GymSide([address], token=TOKEN, retries=QUICK), time.monotonic() + 60
        while time.monotonic() < until:
            await side.prepare("c1", deadline_ts=soon())

    with workers(tmp_path, 2) as address:
        for _ in range(2):
            with pytest.raises(UnsupportedFeature, match="one worker") as caught:
                asyncio.run(discover(address))
            assert "swe" in str(caught.value)
        monkeypatch.setattr(discovery, "PROBE_ROUNDS", 0)
        with pytest.raises(ParticipantFailed, match="one worker"):
            asyncio.run(prepare(address))


def test_one_worker_is_no_several(tmp_path: Path) -> None:
    with workers(tmp_path, 1) as address:
        found = asyncio.run(GymSide([address], token=TOKEN, retries=QUICK).discover())
    assert found[0].incarnation


# --- between a restore and the sending of its runs


def controller() -> Control:
    return Control(seed=7, prompts=2, generations=2, capacity=4)


async def restored(gym: Gym, repository: Repository, parts: GymParts, cut: CutState) -> Control:
    """Gym and the controller, as a restore of the newest snapshot leaves them."""
    await gym.side.restore(
        f"restore-{parts.checkpoint_id}",
        deadline_ts=soon(),
        snapshot=repository.snapshot(),
        source_checkpoint_id=parts.checkpoint_id,
    )
    control = controller()
    saved = SavedState(cut.ledger(), cut.replay(), cut.state.place, None, cut.run)  # type: ignore[arg-type]
    assert saved.dispatched_runs() == cut.dispatched_runs()
    await control.install(saved, frozenset())
    await gym.side.resume(f"restore-{parts.checkpoint_id}", deadline_ts=soon())
    return control


def check(repository: Repository, parts: GymParts, cut: CutState) -> set[str]:
    """Continued runs of a save, once it is sure that its parts fit together."""
    indexes = read_indexes(repository.snapshot().part, parts)
    rows = frozenset(reference.key for reference in indexes.references)
    assert problems(indexes, cut, rows) == []
    return {line.capture_key for _, line in indexes.continuations}


def test_a_save_between_a_restore_and_the_sending_of_its_runs(
    play: Make, repository: Repository
) -> None:
    first = controller()
    runs = first.state.reserve(0)
    keys: list[set[str]] = []
    left: list[Any] = []

    async def begin(gym: Gym) -> None:
        for run in runs:
            first.state.dispatch(run)
        executions = [await gym.begin(run.rollout_id) for run in runs]
        # The second one has no boundary yet.
        await gym.turn(executions[0], None)
        cut = first.cut()
        parts = await gym.save(repository, "c1", executions)
        keys.append(check(repository, parts, cut))
        left[:] = [parts, cut]

    async def again(gym: Gym) -> None:
        control = await restored(gym, repository, *left)
        number = len(keys) + 1
        cut = control.cut()
        parts = await gym.save(repository, f"c{number}")
        keys.append(check(repository, parts, cut))
        left[:] = [parts, cut]

    async def go_on(gym: Gym) -> None:
        control = await restored(gym, repository, *left)
        # Every earlier run is closed, also where Gym had nothing of it.
        await gym.side.retire(control.over)
        for run in control.restarted:
            with pytest.raises(ControlRefused, match="stale_attempt"):
                await gym.begin(run.rollout_id, run.attempt_index - 1)
        for run in control.state.reserved():
            control.state.dispatch(run)
        execution = await gym.begin(runs[0].rollout_id, 3)
        assert execution.restored is not None
        assert execution.restored.last_committed_model_call_id == "call"
        await gym.turn(execution, "call")
        other = await gym.begin(runs[1].rollout_id, 3)
        assert other.restored is None
        cut = control.cut()
        keys.append(check(repository, await gym.save(repository, "c9", (execution, other)), cut))

    for act in (begin, again, again, go_on):
        play(act)
    name = runs[0].rollout_id
    assert keys == [{name}, {f"{name}-a1"}, {f"{name}-a2"}, {f"{name}-a3"}]


def test_a_server_that_is_restarted_after_its_restore_has_restored_nothing(
    play: Make, repository: Repository
) -> None:
    first = controller()
    (run, _) = first.state.reserve(0)
    left: list[Any] = []

    async def begin(gym: Gym) -> None:
        first.state.dispatch(run)
        execution = await gym.begin(run.rollout_id)
        await gym.turn(execution, None)
        left[:] = [await gym.save(repository, "c1", [execution])]

    async def again(gym: Gym) -> None:
        for _ in range(2):
            await gym.side.restore(
                "r1",
                deadline_ts=soon(),
                snapshot=repository.snapshot(),
                source_checkpoint_id=left[0].checkpoint_id,
            )
        gym.processes["swe"].restart()
        for _ in range(2):
            with pytest.raises(ParticipantFailed, match="swe"):
                await gym.side.resume("r1", deadline_ts=soon(3))
            assert {gym.agent.fence.phase, gym.model.fence.phase} == {"idle"}

    play(begin)
    play(again)


def test_a_run_that_failed_is_not_one_that_gym_may_go_on_with() -> None:
    control = controller()
    runs: tuple[Run, ...] = control.state.reserve(0)
    for run in runs:
        control.state.dispatch(run)
    assert control.cut().dispatched_runs() == {run.key for run in runs}
    control.state.fail(runs[0])
    assert control.cut().dispatched_runs() == {runs[1].key}
