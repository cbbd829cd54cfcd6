"""The fan-out against the real participants: a save, a restore, and what goes wrong in between."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI

from snapfmt import Repository
from snapfmt.errors import ControlRefused, DeadlineExceeded, ParticipantFailed
from snapfmt.reading.snapshot import Part, Snapshot
from snapfmt_coordinator.gym.client import Retries, ServerAddress
from snapfmt_coordinator.gym.parts import METADATA_KEY, GymParts, to_metadata
from snapfmt_coordinator.gym.side import GymSide
from snapfmt_coordinator.participant import agent_part, model_part, sessions_part
from snapfmt_coordinator.participant.agent import AgentParticipant
from snapfmt_coordinator.participant.model import ModelParticipant
from snapfmt_coordinator.participant.resources import ResourcesParticipant
from snapfmt_coordinator.participant.router import control_router
from snapfmt_coordinator.protocol.v1 import (
    DiscardRestored,
    Execution,
    PublishedPart,
    Restore,
    Resume,
)
from snapfmt_coordinator.sequence import records
from snapfmt_coordinator.sequence.restore import restore
from snapfmt_schemas.agent import AgentBoundaryRecord
from snapfmt_schemas.identity import capture_key
from snapfmt_schemas.resources import ResourceSnapshot

TOKEN = "a-test-token"
AGENTS = ("a1", "a2")
Make = Callable[..., Any]


class Sessions:
    """A session per run: how often a tool was used."""

    def __init__(self) -> None:
        self.used: dict[tuple[str, int], int] = {}

    def __len__(self) -> int:
        return len(self.used)

    def export(self) -> Iterable[tuple[str, int, int, dict[str, Any]]]:
        return [(*key, count, {"used": count}) for key, count in self.used.items()]

    def install(self, sessions: Iterable[ResourceSnapshot]) -> None:
        for one in sessions:
            self.used[one.rollout_id, one.attempt_index] = one.state["used"]

    def drop(self, rollout_id: str, attempt_index: int) -> bool:
        return self.used.pop((rollout_id, attempt_index), None) is not None


class Gym:
    """Two agents, the policy model, a judge, tools that export and tools that do not."""

    def __init__(self, boundary: Make, lineage_row: Make) -> None:
        self._boundary, self._row = boundary, lineage_row
        self.agents = {name: AgentParticipant(server_name=name, grace_s=0.5) for name in AGENTS}
        self.model = ModelParticipant(server_name="policy", grace_s=0.5)
        self.judge = ModelParticipant(server_name="judge", instance_role="auxiliary")
        self.sessions = Sessions()
        self.tools = ResourcesParticipant(self.sessions, server_name="tools", grace_s=0.5)
        self.search = ResourcesParticipant(
            Sessions(), server_name="search", mode="restart_only", grace_s=0.5
        )
        self.going = True
        self.done: dict[str, AgentBoundaryRecord | None] = {}

    def participants(self) -> list[Any]:
        return [*self.agents.values(), self.model, self.judge, self.tools, self.search]

    async def run(self, agent: str, rollout_id: str, attempt_index: int = 0) -> None:
        """Turn after turn of a model call and a tool, until `going` is false."""
        async with await self.agents[agent].begin(rollout_id, attempt_index) as execution:
            restored = self.done[rollout_id] = execution.restored
            turn = restored.turn_index if restored else 0
            last = restored.last_committed_model_call_id if restored else None
            while self.going:
                call_id = f"call-{attempt_index}-{turn}"
                try:
                    async with self.model.call(rollout_id, attempt_index, call_id) as call:
                        await asyncio.sleep(0.01)
                        key = capture_key(rollout_id, attempt_index)
                        call.commit(self._row(key, call_id, last))
                except ControlRefused as refusal:
                    if refusal.reason != "model_admission_closed":
                        raise
                    await execution.wait_admission()
                    continue
                async with self.tools.operation(rollout_id, attempt_index):
                    key = (rollout_id, attempt_index)
                    self.sessions.used[key] = self.sessions.used.get(key, 0) + 1
                last, turn = call_id, turn + 1
                await execution.boundary(
                    self._boundary(
                        rollout_id,
                        attempt_index,
                        call_id,
                        turn_index=turn,
                        resource_state_revisions={"tools": turn},
                    )
                )
            execution.finish(
                result_identity=rollout_id, result={"turns": turn}, terminal_model_call_id=None
            )


class Scene:
    """Served participants, the side that asks them, and runs in flight."""

    def __init__(self, gym: Gym, side: GymSide) -> None:
        self.gym, self.side = gym, side
        self.tasks: list[asyncio.Task[None]] = []

    def start(self, count: int, attempt_index: int = 0) -> None:
        for i in range(count):
            work = self.gym.run(AGENTS[i % 2], f"p{i}_g0", attempt_index)
            self.tasks.append(asyncio.create_task(work))

    async def under_way(self, count: int, attempt_index: int = 0) -> None:
        """Until so many runs have come past a boundary and use their session again."""
        used = self.gym.sessions.used
        while sum(used.get((f"p{i}_g0", attempt_index), 0) > 1 for i in range(count)) < count:
            assert not any(task.done() for task in self.tasks)
            await asyncio.sleep(0.01)

    async def finish(self) -> None:
        self.gym.going = False
        await asyncio.gather(*self.tasks)


@asynccontextmanager
async def hosted(gym: Gym) -> AsyncIterator[list[ServerAddress]]:
    """All of them in one HTTP server, each below a path of its own."""
    app = FastAPI()
    for participant in gym.participants():
        below = FastAPI()
        below.include_router(control_router(participant, token=TOKEN))
        app.mount(f"/{participant.server_name}", below)
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="critical", lifespan="off")
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - it has no event to wait for
        await asyncio.sleep(0.005)
    url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    try:
        yield [
            ServerAddress(one.server_name, f"{url}/{one.server_name}") for one in gym.participants()
        ]
    finally:
        server.should_exit = True
        await task


@pytest.fixture
def play(boundary: Make, lineage_row: Make) -> Make:
    """Runs a scene with servers of its own."""

    def run(act: Callable[[Scene], Awaitable[None]]) -> None:
        async def body() -> None:
            gym = Gym(boundary, lineage_row)
            async with hosted(gym) as addresses:
                retries = Retries(first_s=0.01, longest_s=0.05, patience_s=0.3)
                await act(Scene(gym, GymSide(addresses, token=TOKEN, retries=retries)))

        asyncio.run(body())

    return run


def soon(seconds: float = 60.0) -> float:
    return time.time() + seconds


async def save(stage: Scene, repository: Repository, checkpoint_id: str = "c1") -> GymParts:
    side = stage.side
    with repository.begin() as attempt:
        await side.prepare(checkpoint_id, deadline_ts=soon())
        await side.commit(checkpoint_id, deadline_ts=soon(), tickets=attempt.ticket)
        await side.resume(checkpoint_id, deadline_ts=soon())
        parts = await side.collect(checkpoint_id, deadline_ts=soon(), tickets=attempt.ticket)
        attempt.publish(list(parts.receipts), user_metadata={METADATA_KEY: to_metadata(parts)})
    return parts


def saved(play: Make, repository: Repository, runs: int = 6) -> Snapshot:
    """A snapshot of runs in flight, taken from servers that are gone by now."""

    async def act(stage: Scene) -> None:
        stage.start(runs)
        await stage.under_way(runs)
        await save(stage, repository)
        await stage.finish()

    play(act)
    return repository.snapshot()


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository.create(tmp_path / "run")


def test_a_save_while_runs_are_in_flight(play: Make, repository: Repository) -> None:
    async def act(stage: Scene) -> None:
        stage.start(6)
        await stage.under_way(6)
        steps: list[tuple[str, str]] = []

        def observe(step: str, actor: str, *_: object) -> None:
            steps.append((step, actor))

        with repository.begin() as attempt:
            counts = await stage.side.prepare("c1", deadline_ts=soon(), observe=observe)
            assert counts.parked == 6
            assert counts.sessions == 6
            frozen = dict(stage.gym.sessions.used)
            await stage.side.commit("c1", deadline_ts=soon(), tickets=attempt.ticket)
            assert stage.gym.sessions.used == frozen
            await stage.side.resume("c1", deadline_ts=soon())
            while stage.gym.sessions.used == frozen:
                assert not any(task.done() for task in stage.tasks)
                await asyncio.sleep(0.01)
            parts = await stage.side.collect("c1", deadline_ts=soon(), tickets=attempt.ticket)
            # Told twice, the same is given twice.
            again = await stage.side.collect("c1", deadline_ts=soon(), tickets=attempt.ticket)
            assert again == parts
            attempt.publish(list(parts.receipts))
        await stage.finish()
        assert [one.part for one in parts.receipts] == [
            "gym/agent/a1",
            "gym/agent/a2",
            "gym/model/policy",
            "gym/resources/search",
            "gym/resources/tools",
        ]
        assert sum(one.records for one in parts.continuation_indexes.values()) == 6
        snapshot = repository.snapshot()
        found = sessions_part.records(snapshot.part("gym/resources/tools"))
        assert {(one.rollout_id, one.attempt_index): one.state["used"] for one in found} == frozen
        assert ("prepare.park", "gym/agent/a2") in steps
        assert not [actor for _, actor in steps if actor == "gym/model/judge"]

    play(act)


def test_a_model_keeps_its_cut_while_agents_write(
    play: Make, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, held_until = agent_part.write, [0.0]

    def slow(*args: Any) -> Any:
        # Longer than the model's deadline to hold its cut, and its grace of 0.5 s.
        time.sleep(max(held_until[0] + 0.8 - time.time(), 0.0))
        return write(*args)

    monkeypatch.setattr(agent_part, "write", slow)

    async def act(stage: Scene) -> None:
        side = stage.side
        stage.start(2)
        with repository.begin() as attempt:
            await side.prepare("c1", deadline_ts=soon())
            held_until[0] = soon(2.0)
            await side.commit("c1", deadline_ts=held_until[0], tickets=attempt.ticket)
            await side.resume("c1", deadline_ts=soon())
            parts = await side.collect("c1", deadline_ts=soon(), tickets=attempt.ticket)
        assert len(parts.receipts) == 5
        await stage.finish()

    play(act)


def test_a_restore_continues_every_run_as_the_next_one(play: Make, repository: Repository) -> None:
    snapshot = saved(play, repository)
    sessions = {
        (one.rollout_id, one.attempt_index + 1): one.state["used"]
        for one in sessions_part.records(snapshot.part("gym/resources/tools"))
    }

    async def act(stage: Scene) -> None:
        installed = await stage.side.restore(
            "restore-1", deadline_ts=soon(), snapshot=snapshot, source_checkpoint_id="c1"
        )
        assert installed == 18
        assert stage.gym.sessions.used == sessions
        for participant in stage.gym.participants():
            if participant is not stage.gym.judge:
                assert participant.fence.phase == "restored_paused"
        over = {"a1": [Execution(rollout_id="p0_g0", attempt_index=1)]}
        assert await stage.side.discard("restore-1", over, deadline_ts=soon()) == 1
        assert ("p0_g0", 1) not in stage.gym.sessions.used
        assert stage.gym.model.rows("p0_g0", 1) == ()
        assert len(stage.gym.model.rows("p1_g0", 1)) == sessions["p1_g0", 1]
        await stage.side.resume("restore-1", deadline_ts=soon())
        stage.start(6, 1)
        await asyncio.sleep(0.05)
        await stage.finish()
        starts = {name: record and record.turn_index for name, record in stage.gym.done.items()}
        assert starts["p0_g0"] is None
        assert all(starts[name] == sessions[name, 1] for name in starts if name != "p0_g0")

    play(act)


class Nothing:
    """No rows."""

    async def load(self, snapshot: Snapshot) -> None:
        pass

    async def unload(self) -> None:
        pass


class Beginning:
    """A controller that had sent one run."""

    def read(self, snapshot: Snapshot) -> "Beginning":
        return self

    def required_rows(self) -> frozenset[str]:
        return frozenset()

    def dispatched_runs(self) -> frozenset[str]:
        return frozenset({"p0_g0"})

    def given_up_runs(self) -> frozenset[str]:
        return frozenset()

    def pending_acknowledgements(self) -> int:
        return 0

    async def install(self, continued: frozenset[str]) -> None:
        assert not continued

    async def uninstall(self) -> None:
        pass


def test_a_run_that_starts_over_meets_no_session_of_a_run_without_a_boundary(
    play: Make, repository: Repository
) -> None:
    async def before(stage: Scene) -> None:
        execution = await stage.gym.agents["a1"].begin("p0_g0", 0)
        async with stage.gym.tools.operation("p0_g0", 0):
            stage.gym.sessions.used["p0_g0", 0] = 7
        parked = asyncio.create_task(stage.side.prepare("c1", deadline_ts=soon()))
        while not execution.parking:
            assert not parked.done()
            await asyncio.sleep(0.005)
        waiting = asyncio.create_task(execution.wait_admission())
        await parked
        with repository.begin() as attempt:
            await stage.side.commit("c1", deadline_ts=soon(), tickets=attempt.ticket)
            await stage.side.resume("c1", deadline_ts=soon())
            await waiting
            parts = await stage.side.collect("c1", deadline_ts=soon(), tickets=attempt.ticket)
            record = records.SaveRecord(
                checkpoint_id="c1", gym=True, mutation_version=1, capture_partition="staging"
            )
            attempt.publish(
                list(parts.receipts),
                fingerprints=[stage.side.topology().to_fingerprint()],
                user_metadata=records.to_metadata(record, parts, {}),
            )

    async def act(stage: Scene) -> None:
        installed: list[int] = []
        install = stage.gym.sessions.install

        def counted(sessions: Iterable[ResourceSnapshot]) -> None:
            install(sessions)
            installed.append(stage.gym.sessions.used["p0_g0", 1])

        stage.gym.sessions.install = counted  # type: ignore[method-assign]
        result = await restore(repository, stage.side, Beginning(), Nothing())
        assert (result.continued, result.started_over) == ((), ())
        assert installed == [7]
        assert stage.gym.sessions.used == {}

    play(before)
    play(act)


def test_a_restore_that_fails_leaves_servers_that_serve_it_later(
    play: Make, repository: Repository
) -> None:
    snapshot = saved(play, repository)

    async def act(stage: Scene) -> None:
        for number, failing in enumerate(("model/policy", "agent/a2", "resources/tools")):
            named = pytest.raises(ParticipantFailed, match=failing.split("/")[1])
            with spoiled(snapshot, f"gym/{failing}"), named as caught:
                await stage.side.restore(
                    f"restore-{number}",
                    deadline_ts=soon(),
                    snapshot=snapshot,
                    source_checkpoint_id="c1",
                )
            assert isinstance(caught.value.__cause__, ControlRefused)
            assert {one.fence.phase for one in stage.gym.participants()} == {"idle"}
            assert stage.gym.sessions.used == {}
            for i in range(6):
                assert stage.gym.model.rows(f"p{i}_g0", 1) == ()
        installed = await stage.side.restore(
            "restore-9", deadline_ts=soon(), snapshot=snapshot, source_checkpoint_id="c1"
        )
        assert installed == 18
        await stage.side.resume("restore-9", deadline_ts=soon())

    play(act)


@contextmanager
def spoiled(snapshot: Snapshot, part: str) -> Iterator[None]:
    """The part's first pack with other bytes, as long as this is open."""
    pack = snapshot.part(part).entries()[0].location.pack.removeprefix("sha256:")
    path = Path(snapshot.location) / "objects" / pack[:2] / pack
    good = path.read_bytes()
    path.chmod(0o600)
    path.write_bytes(bytes(byte ^ 1 for byte in good))
    try:
        yield
    finally:
        path.write_bytes(good)


@pytest.mark.parametrize("kind", ["agent/a1", "model/policy", "resources/tools"])
def test_a_discard_waits_for_a_part_that_is_still_read(
    play: Make, repository: Repository, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    snapshot = saved(play, repository, 2)
    module = {"a": agent_part, "m": model_part, "r": sessions_part}[kind[0]]
    part, read, may_end = snapshot.part(f"gym/{kind}"), module.read, threading.Event()
    runs = tuple(Execution(rollout_id=f"p{i}_g0", attempt_index=1) for i in range(2))

    def slow(part: Part) -> Any:
        assert may_end.wait(60)
        return read(part)

    monkeypatch.setattr(module, "read", slow)

    async def act(stage: Scene) -> None:
        gym = stage.gym
        participant = {"a": gym.agents["a1"], "m": gym.model, "r": gym.tools}[kind[0]]
        place = PublishedPart(
            location=snapshot.location,
            number=snapshot.number,
            part=part.name,
            index_digest=part.receipt.index_digest,
        )
        request = Restore(
            checkpoint_id="r1", deadline_ts=soon(), source_checkpoint_id="c1", snapshot=place
        )
        restoring = asyncio.create_task(participant.restore(request))
        while participant.fence.phase != "restoring":
            assert not restoring.done()
            await asyncio.sleep(0.005)
        short = DiscardRestored(checkpoint_id="r1", deadline_ts=soon(0.05), executions=runs)
        with pytest.raises(ControlRefused) as caught:
            await participant.discard(short)
        assert caught.value.reason == "deadline_passed"
        late = short.model_copy(update={"deadline_ts": soon()})
        discarding = asyncio.create_task(participant.discard(late))
        await asyncio.sleep(0.02)
        assert not discarding.done()
        may_end.set()
        installed = (await restoring).restored
        assert installed > 0
        assert (await discarding).discarded == installed
        await participant.resume(Resume(checkpoint_id="r1", deadline_ts=soon()))
        assert gym.sessions.used == {}
        assert gym.model.rows("p0_g0", 1) == ()
        assert (await gym.agents["a1"].begin("p0_g0", 1)).restored is None

    play(act)


def test_a_prepare_that_is_too_short_is_given_up_and_the_next_one_works(
    play: Make, repository: Repository
) -> None:
    async def act(stage: Scene) -> None:
        stage.start(4)
        await stage.under_way(4)
        await stage.side.discover()
        stubborn = await stage.gym.agents["a1"].begin("stubborn_g0", 0)
        with pytest.raises(DeadlineExceeded, match="stubborn_g0 run 0"):
            await stage.side.prepare("c1", deadline_ts=soon(3.0))
        await stage.side.resume("c1", deadline_ts=soon())
        assert {one.fence.phase for one in stage.gym.participants()} == {"idle"}
        stubborn.fail()
        parts = await save(stage, repository, "c2")
        assert len(parts.receipts) == 5
        await stage.finish()

    play(act)


def test_results_owed_hold_a_save_up_until_they_are_acknowledged(
    play: Make, repository: Repository
) -> None:
    async def act(stage: Scene) -> None:
        stage.start(300)
        await stage.finish()
        receipts = []
        for i in range(300):
            retained = stage.gym.agents[AGENTS[i % 2]].result_of(f"p{i}_g0", 0)
            assert retained is not None
            receipts.append((AGENTS[i % 2], retained[0]))

        async def later() -> None:
            await asyncio.sleep(0.2)
            await stage.side.acknowledge(receipts, deadline_ts=soon())

        work = asyncio.create_task(later())
        started = time.monotonic()
        await save(stage, repository)
        assert time.monotonic() - started > 0.15
        await work
        # Again, after a lost answer: the same.
        await stage.side.acknowledge(receipts, deadline_ts=soon())
        await stage.side.retire([Execution(rollout_id="p1_g0", attempt_index=0)])
        with pytest.raises(ControlRefused):
            await stage.gym.agents["a2"].begin("p1_g0", 0)

    play(act)


def test_a_wrong_token_is_refused_and_not_shown(play: Make) -> None:
    async def act(stage: Scene) -> None:
        side = GymSide(stage.side._servers, token="another-t0ken")
        with pytest.raises(ControlRefused, match="unauthorized") as caught:
            await side.discover()
        assert "another-t0ken" not in str(caught.value)

    play(act)
