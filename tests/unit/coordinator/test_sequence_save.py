"""One save over small ports and a real repository: its order, and every way in which it fails."""

import asyncio
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from snapfmt import Attempt, PartWriter, Repository
from snapfmt.errors import (
    AttemptError,
    CommitOutcomeUnknown,
    CutInconsistent,
    DeadlineExceeded,
    ParticipantFailed,
    SnapfmtError,
    StorageError,
)
from snapfmt.writing import attempt as attempt_module
from snapfmt_coordinator.gym.parts import METADATA_KEY, GymParts
from snapfmt_coordinator.participant import agent_part, sessions_part
from snapfmt_coordinator.protocol.codes import refused
from snapfmt_coordinator.protocol.v1 import Capabilities, ReferenceIndex
from snapfmt_coordinator.sequence import records
from snapfmt_coordinator.sequence.gates import CheckpointLock, DataPlaneBarrier, DispatchGate
from snapfmt_coordinator.sequence.save import SaveResult, SaveSequence
from snapfmt_schemas.agent import AgentBoundaryRecord
from snapfmt_schemas.attempt import Receipt, Ticket
from snapfmt_schemas.completion import CompletionReceipt
from snapfmt_schemas.fingerprint import Fingerprint
from snapfmt_schemas.ledger import PendingAcknowledgement
from snapfmt_schemas.lineage import ExternalStorageReference
from snapfmt_schemas.manifest import TrainerAnchor
from snapfmt_schemas.topology import ParticipantName, Topology

AGENT, MODEL, TOOLS = "gym/agent/simple", "gym/model/policy", "gym/resources/tools"
Fault = Callable[[], None]


class World:
    """All ports of one run. Every call passes `step`, where it may fail or be cancelled."""

    def __init__(self, path: Path, *, with_gym: bool = True, **options: Any) -> None:
        self.steps: list[str] = []
        self.faults: dict[str, Fault] = {}
        self.repository = Repository.open(path, create=True)
        self.gate, self.barrier, self.lock = DispatchGate(), DataPlaneBarrier(), CheckpointLock()
        self.gym = FakeGym(self)
        self.controller = FakeController(self)
        self.rows = FakeRows(self)
        self.sequence = SaveSequence(
            self.repository,
            self.gym if with_gym else None,
            self.controller,
            self.rows,
            self.gate,
            self.barrier,
            self.lock,
            **{"prepare_timeout_s": 60.0, "write_timeout_s": 60.0, **options},
        )

    def step(self, name: str) -> None:
        """Notes a step, and does what is planned for it."""
        self.steps.append(name)
        if (fault := self.faults.pop(name, None)) is not None:
            fault()

    async def wait(self, name: str) -> None:
        """The same in a coroutine: a planned cancellation strikes here."""
        self.step(name)
        await asyncio.sleep(0)

    def fail(self, name: str, error: BaseException) -> None:
        """Plans an error."""

        def fault() -> None:
            raise error

        self.faults[name] = fault

    def files(self) -> set[Path]:
        """Every file of the repository."""
        return {path for path in Path(self.repository.location).rglob("*") if path.is_file()}

    def leftovers(self) -> list[str]:
        """What an attempt that is over must not leave behind."""
        root = Path(self.repository.location)
        return [
            str(path.relative_to(root))
            for folder in ("attempts", "workspaces")
            for path in sorted((root / folder).glob("*"))
        ]

    def check_running(self) -> None:
        """Rollouts run, nothing is held, nothing is left over."""
        assert self.gate.owner is None
        assert self.gym.closed_for is None
        self.check_let_go()

    def check_let_go(self) -> None:
        """Nothing is held on RL's side, nothing is left over."""
        assert not self.barrier.standing
        assert self.lock.owner is None
        assert self.rows.held == 0
        assert self.leftovers() == []


class FakeGym:
    """Closes with prepare, opens with resume, and writes two real parts."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.closed_for: str | None = None
        self.acknowledged: list[str] = []
        self.runs = {"p7_g2": "call-2"}
        self.keys = {"p7_g2": ["p7_g2/call-1", "p7_g2/call-2"]}
        self.boundaries: dict[str, dict[str, Any]] = {}
        """Fields of the runs' boundary records; a run that has no call is here only."""
        self.sessions: list[tuple[str, int, int, dict[str, Any]]] | None = None
        """Those that server `tools` exports; None: there is no such server."""
        self.mode: Any = "export_restore"
        self.during_prepare: Fault = lambda: None

    async def discover(self) -> tuple[Capabilities, ...]:
        await self.world.wait("gym.discover")
        return ()

    def topology(self) -> Topology:
        return Topology()

    async def acknowledge(
        self, receipts: Sequence[tuple[str, CompletionReceipt]], *, deadline_ts: float
    ) -> None:
        await self.world.wait("gym.acknowledge")
        self.acknowledged += [receipt.rollout_id for _, receipt in receipts]

    async def prepare(self, checkpoint_id: str, *, deadline_ts: float, observe: Any = None) -> Any:
        assert self.closed_for in (None, checkpoint_id)
        self.closed_for = checkpoint_id
        await self.world.wait("gym.prepare")
        self.during_prepare()
        while self.world.controller.owed:  # noqa: ASYNC110 - as a server would see it
            await asyncio.sleep(0.001)
        now = time.time_ns()
        observe("prepare.park", AGENT, now, now, {"parked": 1})
        return Counts()

    async def commit(
        self, checkpoint_id: str, *, deadline_ts: float, tickets: Any, observe: Any = None
    ) -> None:
        assert self.closed_for == checkpoint_id
        assert tickets(AGENT).part == AGENT
        await self.world.wait("gym.commit")

    async def collect(
        self, checkpoint_id: str, *, deadline_ts: float, tickets: Any, observe: Any = None
    ) -> GymParts:
        assert self.closed_for is None, "written while rollouts run"
        await self.world.wait("gym.collect")
        written = await asyncio.to_thread(self._write, tickets)
        return GymParts(checkpoint_id, *written)

    def _write(self, tickets: Callable[[str], Ticket]) -> tuple[Any, ...]:
        parked = [
            boundary(run, self.runs.get(run), **self.boundaries.get(run, {}))
            for run in {**self.runs, **self.boundaries}
        ]
        written = agent_part.write(agent_part.AgentCut(parked), tickets(AGENT))
        agent, index = written.receipt, written.continuation_index
        assert agent is not None
        assert index is not None
        references = [
            ExternalStorageReference(
                capture_key=run,
                boundary_model_call_id=self.runs.get(run, "call-2"),
                kind="token_capture_staging",
                key=key,
            )
            for run, keys in self.keys.items()
            for key in keys
        ]
        with Repository.join(tickets(MODEL)) as part:
            part.records("storage-references.jsonl", references, key="key")
            model = part.seal()
        names = {
            AGENT: ParticipantName(
                server_name="simple", component="agent", participant_name="agent"
            ),
            MODEL: ParticipantName(
                server_name="policy", component="model", participant_name="model"
            ),
        }
        receipts = [agent, model]
        if self.sessions is not None:
            cut = sessions_part.SessionCut(self.sessions, 1.0)
            reply = sessions_part.write(cut, "tools", self.mode, tickets(TOOLS))
            assert reply.receipt is not None
            receipts.append(reply.receipt)
            names[TOOLS] = ParticipantName(
                server_name="tools", component="resources", participant_name="tools"
            )
        return (
            tuple(receipts),
            names,
            {AGENT: index},
            {MODEL: self._index(model, "storage-references.jsonl")},
        )

    def _index(self, receipt: Receipt, path: str) -> ReferenceIndex:
        from snapfmt.reading.snapshot import Part
        from snapfmt.reading.source import Source

        repository = self.world.repository
        source = Source(repository.store, repository.limits)
        entry = Part(source, receipt, snapshot="attempt").entry(path)
        return ReferenceIndex(
            part=receipt.part, path=path, digest=entry.digest, records=entry.records or 0
        )

    async def resume(self, checkpoint_id: str, *, deadline_ts: float, observe: Any = None) -> None:
        await self.world.wait(f"gym.resume {checkpoint_id}")
        await self.world.wait("gym.resume")
        self.closed_for = None

    async def restore(self, *_: Any, **__: Any) -> None:
        raise AssertionError

    async def discard(self, *_: Any, **__: Any) -> None:
        raise AssertionError

    async def retire(self, *_: Any, **__: Any) -> None:
        raise AssertionError


class Counts:
    """Of a prepared Gym."""

    def as_counts(self) -> dict[str, int]:
        return {"parked": 1}


def boundary(run: str, call: str | None, **fields: Any) -> AgentBoundaryRecord:
    return AgentBoundaryRecord(
        rollout_id=run,
        attempt_index=0,
        boundary_index=1,
        turn_index=1,
        boundary_kind="turn_complete",
        last_committed_model_call_id=call,
        created_at=1.0,
        **fields,
    )


def owed(name: str) -> PendingAcknowledgement:
    receipt = CompletionReceipt(
        rollout_id=name,
        attempt_index=0,
        execution_generation=1,
        result_identity="r",
        result_digest="0" * 64,
    )
    return PendingAcknowledgement(receipt=receipt, agent_name="simple")


class FakeController:
    """A ledger of a few runs."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.reason: Any = None
        self.train_step = 5
        self.owed: list[PendingAcknowledgement] = []
        self.dispatched = {"p7_g2"}
        self.given_up: set[str] = set()
        self.sealed_rows = {"p7_g1/call-9"}

    def skip_reason(self) -> Any:
        return self.reason

    def anchor(self) -> TrainerAnchor:
        self.world.step("controller.anchor")
        return TrainerAnchor(train_step=self.train_step, trainer_version=self.train_step, epoch=1)

    def acknowledgements(self) -> list[PendingAcknowledgement]:
        return list(self.owed)

    def acknowledged(self, done: Sequence[PendingAcknowledgement]) -> None:
        self.owed = [item for item in self.owed if item not in done]

    def cut(self) -> "FakeState":
        self.world.step("controller.cut")
        assert self.world.barrier.standing
        return FakeState(self)


class FakeState:
    """The controller's state at the cut."""

    def __init__(self, controller: FakeController) -> None:
        self.world = controller.world
        self.rows = frozenset(controller.sealed_rows)
        self.runs = frozenset(controller.dispatched)
        self.gone = frozenset(controller.given_up)
        self.debts = len(controller.owed)

    def write(self, part: PartWriter) -> None:
        assert threading.current_thread() is not threading.main_thread()
        self.world.step("controller.write")
        part.json("ledger.json", {"runs": sorted(self.runs)})

    def required_rows(self) -> frozenset[str]:
        return self.rows

    def dispatched_runs(self) -> frozenset[str]:
        return self.runs

    def given_up_runs(self) -> frozenset[str]:
        return self.gone

    def pending_acknowledgements(self) -> int:
        return self.debts


class FakeRows:
    """A queue with token-capture rows; counts the cuts that somebody holds."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.keys = {"p7_g2/call-1", "p7_g2/call-2", "p7_g1/call-9"}
        self.held = 0
        self.base: int | None = None

    async def prepare(self, repository: Repository) -> int | None:
        await self.world.wait("rows.prepare")
        assert self.world.gate.owner is None, "holds nobody"
        return self.base

    async def take_cut(self) -> "FakeCut":
        assert self.world.barrier.standing
        self.world.step("rows.take_cut")
        # A call that is under way goes on when its caller is cancelled.
        await asyncio.to_thread(self._take)
        return FakeCut(self)

    def _take(self) -> None:
        time.sleep(0.005)
        self.held += 1


class FakeCut:
    """References to the rows."""

    lease_s = 0.03

    def __init__(self, rows: FakeRows) -> None:
        self.rows = rows
        self.keys_then = frozenset(rows.keys)
        self.dropped = False
        self.renewals = 0

    async def write(self, source: Any) -> tuple[Receipt, ...]:
        await self.rows.world.wait("cut.write")
        return (await asyncio.to_thread(self._write, source.ticket("rl/tq/unit-0000")),)

    def _write(self, ticket: Ticket) -> Receipt:
        with Repository.join(ticket) as part:
            with part.table("rows/rollout_staging") as table:
                table.append(sorted(self.keys_then), {"x": [1] * len(self.keys_then)})
            return part.seal()

    async def keys(self, partition: str) -> frozenset[str]:
        await self.rows.world.wait("cut.keys")
        assert partition == "rollout_staging"
        return self.keys_then

    async def renew(self) -> None:
        self.renewals += 1

    async def drop(self) -> None:
        await self.rows.world.wait("cut.drop")
        if not self.dropped:
            self.dropped = True
            self.rows.held -= 1


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Any]:
    """Runs a test's coroutine with a new world."""
    count = 0

    def go(body: Callable[[World], Any], **options: Any) -> Any:
        nonlocal count
        count += 1

        async def main() -> Any:
            return await body(World(tmp_path / f"run{count}", **options))

        return asyncio.run(main())

    return go


@pytest.fixture(autouse=True)
def watched_repository(monkeypatch: pytest.MonkeyPatch) -> list[World]:
    """Steps of the repository that a test can let fail: begin and publish."""
    worlds: list[World] = []
    begin, publish = Repository.begin, Attempt.publish

    def on_begin(self: Repository, **options: Any) -> Attempt:
        for world in worlds:
            world.step("repository.begin")
        return begin(self, **options)

    def on_publish(self: Attempt, *args: Any, **options: Any) -> Any:
        for world in worlds:
            world.step("repository.publish")
        return publish(self, *args, **options)

    monkeypatch.setattr(Repository, "begin", on_begin)
    monkeypatch.setattr(Attempt, "publish", on_publish)
    init = World.__init__

    def watched(self: World, *args: Any, **options: Any) -> None:
        init(self, *args, **options)
        worlds.append(self)

    monkeypatch.setattr(World, "__init__", watched)
    return worlds


STEPS = [
    "gym.discover",
    "rows.prepare",
    "repository.begin",
    "gym.acknowledge",
    "gym.prepare",
    "gym.commit",
    "controller.cut",
    "rows.take_cut",
    "gym.resume",
    "gym.collect",
    "cut.write",
    "controller.write",
    "cut.keys",
    "repository.publish",
]
"""Every step that can fail and after which nothing is published."""
ERRORS: Mapping[str, tuple[Callable[[], BaseException], str]] = {
    "storage": (lambda: StorageError("planned"), "io_error"),
    "os": (lambda: OSError(5, "planned"), "io_error"),
    "time": (lambda: DeadlineExceeded("planned"), "timeout"),
    "plain time": (lambda: TimeoutError("planned"), "timeout"),
    "dead": (lambda: ParticipantFailed("planned"), "io_error"),
    "refused for now": (lambda: refused("agent_prepare_incomplete", "planned"), "timeout"),
    "refused": (lambda: refused("ledger_mismatch", "planned"), "invariant_error"),
    "bug": (lambda: ValueError("planned"), "invariant_error"),
    "inconsistent": (lambda: CutInconsistent("planned"), "invariant_error"),
}


async def ended(world: World, **options: Any) -> SaveResult:
    """The save's result, also when it raised it."""
    raised = None
    try:
        return await world.sequence.save(**options)
    except SnapfmtError as error:
        raised = error
    result = world.sequence.last
    assert result is not None
    assert result.error is raised
    return result


def test_the_steps_come_in_this_order(run: Any) -> None:
    async def body(world: World) -> None:
        world.controller.owed = [owed("done")]
        result = await world.sequence.save()
        assert (result.outcome, result.reason) == ("completed", "completed")
        world.check_running()
        done = [step for step in world.steps if " " not in step]
        order = [*STEPS[:6], "controller.cut", "rows.take_cut", "gym.resume"]
        assert [step for step in done if step in order] == order
        assert done.index("repository.publish") > max(
            done.index(step) for step in ("gym.collect", "cut.write", "controller.write")
        )
        assert done[-1] == "cut.drop"
        names = [phase.name for phase in result.timeline.phases]
        wanted = ["gate", "prepare", "commit", "cut", "resume", "write", "publish"]
        assert [name for name in dict.fromkeys(names) if name in wanted] == wanted
        assert "prepare.park" in names
        snapshot = world.repository.snapshot()
        assert snapshot.part_names() == [
            AGENT, MODEL, "rl/controller", "rl/tq/unit-0000",
        ]  # fmt: skip
        assert snapshot.manifest.anchor == world.controller.anchor()
        stored = snapshot.manifest.timeline
        assert stored is not None
        assert {phase.name for phase in stored.phases} >= {"gate", "cut", "resume", "write"}
        assert world.repository.verify().ok

    run(body)


def test_the_manifest_says_what_a_restore_needs(run: Any) -> None:
    recipe = Fingerprint.of("recipe", {"lr": 1})

    async def body(world: World) -> None:
        async with world.barrier.mutation("other"):
            pass
        result = await world.sequence.save()
        snapshot = world.repository.snapshot()
        assert {item.name for item in snapshot.manifest.fingerprints} == {"recipe", "topology"}
        record = records.of_snapshot(snapshot)
        assert record.checkpoint_id == result.checkpoint_id
        assert record.checkpoint_id.startswith("rollout-step-5-snapshot-1-")
        assert (record.gym, record.mutation_version) == (True, 1)
        assert snapshot.manifest.user_metadata["note"] == "mine"
        gym = records.gym_of_snapshot(snapshot)
        assert gym is not None
        assert gym.continuation_indexes[AGENT].records == 1
        assert METADATA_KEY in snapshot.manifest.user_metadata

    run(body, fingerprints=[recipe], user_metadata={"note": "mine"})


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("step", STEPS)
def test_a_failing_step_publishes_nothing_and_the_next_save_works(
    run: Any, step: str, kind: str
) -> None:
    make, reason = ERRORS[kind]
    if step == "rows.take_cut" and kind == "inconsistent":
        reason = "timeout"

    async def body(world: World) -> None:
        world.controller.owed = [owed("done")]
        error = make()
        world.fail(step, error)
        result = await ended(world)
        assert (result.outcome, result.reason) == ("failed", reason)
        assert result.manifest is None
        assert world.repository.numbers() == []
        assert isinstance(result.error, SnapfmtError)
        assert "planned" in str(result.error)
        assert type(error) in map(type, causes(result.error))
        if step == "gym.resume":
            # Fail closed: Gym may still be parked, so nothing new goes out.
            assert world.gate.owner == result.checkpoint_id == world.sequence.pending_release
            world.check_let_go()
        else:
            assert world.sequence.pending_release is None
            world.check_running()
        world.steps.clear()
        again = await world.sequence.save()
        assert again.outcome == "completed"
        assert world.sequence.consecutive_failures == 0
        assert world.repository.numbers() == [again.number]
        if step == "gym.resume":
            assert world.steps[0] == f"gym.resume {result.checkpoint_id}"
        world.check_running()

    run(body)


def causes(error: BaseException) -> list[BaseException]:
    """The error, its causes, and the members of groups among them."""
    found = [error]
    for item in found:
        found += [item.__cause__] if item.__cause__ is not None else []
        found += item.exceptions if isinstance(item, BaseExceptionGroup) else []
    return found


@pytest.mark.parametrize("step", [*STEPS, "cut.drop", "controller.anchor"])
def test_a_save_that_is_cancelled_lets_go_of_everything(run: Any, step: str) -> None:
    async def body(world: World) -> None:
        world.controller.owed = [owed("done")]
        loop = asyncio.get_running_loop()
        task = asyncio.create_task(world.sequence.save())

        def cancel() -> None:
            if threading.current_thread() is threading.main_thread():
                task.cancel()
            else:
                loop.call_soon_threadsafe(task.cancel)
                time.sleep(0.02)

        world.faults[step] = cancel
        with pytest.raises(asyncio.CancelledError):
            await task
        world.check_running()
        assert world.sequence.pending_release is None
        published = step in ("repository.publish", "cut.drop")
        assert len(world.repository.numbers()) == published
        assert (await world.sequence.save()).outcome == "completed"
        world.check_running()

    run(body)


def test_a_cancellation_at_any_moment_leaves_a_run_that_goes_on(run: Any) -> None:
    """First by steps of the loop, then by time, until the cancellation comes too late."""

    async def body(world: World) -> None:
        published, attempt = 0, 0
        while attempt < 40 or not published:
            world.controller.owed = [owed("done")]
            task = asyncio.create_task(world.sequence.save())
            for _ in range(min(attempt, 40)):
                await asyncio.sleep(0)
            if attempt > 30:
                await asyncio.sleep(0.004 * (attempt - 30))
            task.cancel()
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            world.check_running()
            assert world.sequence.pending_release is None
            now = len(world.repository.numbers())
            assert now - published in (0, 1)
            published = now
            attempt += 1
        assert (await world.sequence.save()).outcome == "completed"
        assert world.repository.verify().ok

    run(body)


def test_the_release_is_asked_for_until_gym_confirms(run: Any) -> None:
    async def body(world: World) -> None:
        world.fail("gym.resume", ParticipantFailed("planned"))
        first = await world.sequence.save()
        waiter = asyncio.create_task(world.gate.wait())
        world.fail("gym.resume", DeadlineExceeded("still"))
        second = await world.sequence.save()
        assert (second.outcome, second.reason) == ("failed", "timeout")
        assert second.checkpoint_id == "", "it did not get that far"
        assert world.sequence.pending_release == first.checkpoint_id
        assert not waiter.done()
        await world.sequence.release_pending()
        await waiter
        world.check_running()
        with_no_debt = len(world.steps)
        await world.sequence.release_pending()
        assert len(world.steps) == with_no_debt

    run(body)


def test_a_failed_release_while_giving_up_is_told_and_pending(run: Any) -> None:
    async def body(world: World) -> None:
        world.fail("gym.commit", StorageError("first"))
        world.fail("gym.resume", ParticipantFailed("second"))
        result = await world.sequence.save()
        assert isinstance(result.error, AttemptError)
        group = result.error.__cause__
        assert isinstance(group, BaseExceptionGroup)
        assert [str(item) for item in group.exceptions] == ["first", "second"]
        assert "first" in str(result.error)
        assert "second" in str(result.error)
        assert world.gate.owner == world.sequence.pending_release == result.checkpoint_id
        assert (await world.sequence.save()).outcome == "completed"

    run(body)


def test_the_third_failure_in_a_row_ends_the_run(run: Any) -> None:
    async def body(world: World) -> None:
        for count in (1, 2):
            world.fail("gym.prepare", StorageError("planned"))
            assert (await world.sequence.save()).outcome == "failed"
            assert world.sequence.consecutive_failures == count
        world.controller.reason = "optimizer_commit_in_progress"
        assert (await world.sequence.save()).reason == "optimizer_commit_in_progress"
        assert world.sequence.consecutive_failures == 0, "a skip starts over"
        world.controller.reason = None
        for _ in range(2):
            world.fail("gym.prepare", StorageError("planned"))
            await world.sequence.save()
        world.fail("gym.prepare", StorageError("planned"))
        with pytest.raises(StorageError, match="planned"):
            await world.sequence.save()
        world.check_running()

    run(body)


def test_a_broken_invariant_ends_the_run_at_once(run: Any) -> None:
    async def body(world: World) -> None:
        world.fail("cut.write", ValueError("planned"))
        with pytest.raises(AttemptError, match="ValueError: planned"):
            await world.sequence.save()
        assert world.repository.numbers() == []

    run(body)


@pytest.mark.parametrize("reason", ["optimizer_commit_in_progress", "missing_trainer_anchor"])
def test_a_skipped_save_asks_nobody(run: Any, reason: str) -> None:
    async def body(world: World) -> None:
        world.controller.reason = reason
        result = await world.sequence.save()
        assert (result.outcome, result.reason) == ("skipped", reason)
        assert world.steps == []
        assert (await world.sequence.save(force=True)).reason == reason

    run(body)


def test_without_gym_a_save_needs_a_mutation(run: Any) -> None:
    async def body(world: World) -> None:
        world.gym.runs, world.gym.keys = {}, {}
        assert (await world.sequence.save()).outcome == "completed"
        assert (await world.sequence.save()).reason == "no_data_plane_mutations"
        with pytest.raises(RuntimeError):
            async with world.barrier.mutation("other"):
                raise RuntimeError
        result = await world.sequence.save()
        assert result.outcome == "completed"
        assert (await world.sequence.save(force=True)).outcome == "completed"
        assert not [step for step in world.steps if step.startswith("gym")]
        assert result.gate is None
        assert records.gym_of_snapshot(world.repository.snapshot()) is None

    run(body, with_gym=False)


def test_with_gym_a_save_needs_no_mutation(run: Any) -> None:
    async def body(world: World) -> None:
        for _ in range(2):
            assert (await world.sequence.save()).outcome == "completed"

    run(body)


@pytest.mark.parametrize("reason", ["missing_trainer_anchor", "optimizer_commit_in_progress"])
def test_a_place_without_a_durable_checkpoint_at_the_cut_throws_the_save_away(
    run: Any, reason: str
) -> None:
    async def body(world: World) -> None:
        def train() -> None:
            world.controller.train_step += 1
            world.controller.reason = reason

        world.faults["gym.commit"] = train
        result = await world.sequence.save()
        assert (result.outcome, result.reason) == ("skipped", "trainer_state_changed")
        assert "rows.take_cut" not in world.steps
        assert world.repository.numbers() == []
        world.check_running()
        world.controller.reason = None
        assert (await world.sequence.save()).outcome == "completed"

    run(body)


def test_a_durable_train_step_during_the_gym_phase_is_the_snapshots_anchor(run: Any) -> None:
    async def body(world: World) -> None:
        def train() -> None:
            world.controller.train_step += 1

        before = world.controller.train_step
        world.faults["gym.commit"] = train
        result = await world.sequence.save()
        assert result.outcome == "completed"
        anchor = world.repository.snapshot().manifest.anchor
        assert anchor is not None
        assert anchor.train_step == before + 1

    run(body)


def test_results_that_arrive_during_the_prepare_are_acknowledged(run: Any) -> None:
    async def body(world: World) -> None:
        world.gym.during_prepare = lambda: world.controller.owed.append(owed("late"))
        assert (await world.sequence.save()).outcome == "completed"
        assert world.gym.acknowledged == ["late"]

    run(body)


def test_an_acknowledgement_that_fails_during_the_prepare_ends_it(run: Any) -> None:
    async def body(world: World) -> None:
        def late() -> None:
            world.controller.owed.append(owed("late"))
            world.fail("gym.acknowledge", ParticipantFailed("planned"))

        world.gym.during_prepare = late
        result = await world.sequence.save()
        assert result.reason == "io_error"
        world.check_running()

    run(body)


def changed(world: World, how: str) -> None:
    """Lets one part of the cut contradict another."""
    if how == "row":
        world.rows.keys.discard("p7_g2/call-1")
    elif how == "ledger row":
        world.controller.sealed_rows.add("p7_g1/call-10")
    elif how == "run":
        world.controller.dispatched.clear()
    elif how == "lineage":
        world.gym.keys = {}
    else:
        world.gym.keys["other"] = ["p7_g1/call-9"]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("row", "lineage names .*p7_g2/call-1"),
        ("ledger row", "ledger names .*p7_g1/call-10"),
        ("run", "not dispatched: p7_g2"),
        ("lineage", "without lineage: p7_g2"),
        ("loose", "of no continuation: p7_g1/call-9"),
    ],
)
def test_parts_that_do_not_fit_together_are_not_published(run: Any, how: str, said: str) -> None:
    async def body(world: World) -> None:
        changed(world, how)
        with pytest.raises(CutInconsistent, match=said):
            await world.sequence.save()
        assert world.repository.numbers() == []
        world.check_running()

    run(body)


@pytest.mark.parametrize("step", ["gym.commit", "controller.cut"])
def test_a_result_that_is_adopted_after_the_last_acknowledgement_costs_one_save(
    run: Any, step: str
) -> None:
    async def body(world: World) -> None:
        world.faults[step] = lambda: world.controller.owed.append(owed("late"))
        result = await world.sequence.save()
        assert (result.outcome, result.reason) == ("failed", "io_error")
        assert "1 results were adopted between" in str(result.error)
        assert "gym.collect" not in world.steps
        assert world.repository.numbers() == []
        world.check_running()
        assert (await world.sequence.save()).outcome == "completed"
        assert world.gym.acknowledged == ["late"]

    run(body)


def test_a_run_that_is_given_up_during_the_cut_costs_one_save(run: Any) -> None:
    """The agents hold their cut of it when its rollout starts over."""

    async def body(world: World) -> None:
        def fail() -> None:
            world.controller.dispatched.clear()
            world.controller.given_up = {"p7_g2"}

        world.faults["controller.cut"] = fail
        result = await world.sequence.save()
        assert (result.outcome, result.reason) == ("failed", "io_error")
        assert "given up during the cut: p7_g2" in str(result.error)
        assert world.repository.numbers() == []
        world.check_running()

    run(body)


@pytest.mark.parametrize(
    ("sessions", "said"),
    [
        ([], "'tools' has lost sessions of runs that used it.*: p7_g2$"),
        ([("p7_g2", 1, 3, {})], "'tools' has lost sessions .*: p7_g2$"),
        ([("p7_g2", 0, 2, {})], r"'tools' has other sessions .*: p7_g2 \(revision 2, not 3\)$"),
    ],
    ids=["lost", "of another run", "of another revision"],
)
@pytest.mark.parametrize("called", [True, False], ids=["after a call", "before any call"])
def test_a_session_that_a_run_needs_is_missed_before_the_publication(
    run: Any, sessions: Any, said: str, called: bool
) -> None:
    async def body(world: World) -> None:
        world.gym.sessions = sessions
        if not called:
            world.gym.runs, world.gym.keys = {}, {}
        world.gym.boundaries = {"p7_g2": {"resource_state_revisions": {"tools": 3}}}
        result = await world.sequence.save()
        # The server was started anew perhaps: a later snapshot may be whole.
        assert (result.outcome, result.reason) == ("failed", "io_error")
        assert isinstance(result.error, ParticipantFailed)
        assert re.search(said, result.error.message)
        assert world.repository.numbers() == []
        world.check_running()

    run(body)


@pytest.mark.parametrize("case", ["there", "other server", "restart-only", "unknown", "not whole"])
def test_sessions_that_need_not_be_there_are_not_missed(run: Any, case: str) -> None:
    async def body(world: World) -> None:
        used: dict[str, Any] = {"resource_state_revisions": {"tools": 3}}
        world.gym.sessions = []
        if case == "there":
            world.gym.sessions = [("p7_g2", 0, 3, {"large": "x" * 300_000}), ("p9", 4, 1, {})]
        elif case == "other server":
            used = {"resource_state_revisions": {"search": 3}}
        elif case == "restart-only":
            world.gym.mode = "restart_only"
        elif case == "unknown":
            used = {}
        else:
            used |= {"agent_state": {"secret_word": "x"}}
        world.gym.boundaries = {"p7_g2": used}
        assert (await world.sequence.save()).outcome == "completed"

    run(body)


def test_state_that_is_not_whole_is_told(run: Any) -> None:
    async def body(world: World) -> None:
        world.gym.boundaries = {
            "p7_g2": {"agent_state": {"secret_word": "hunter2"}},
            "p8_g0": {"agent_state": {"fine": 1}},
        }
        world.gym.sessions = [("p7_g2", 0, 1, {"token": "hunter2"}), ("p9_g0", 2, 1, {"pwd": "x"})]
        result = await world.sequence.save()
        agents, tools = result.notes
        assert "agent server 'simple': state of 1 run has" in agents
        assert "'agent_state.secret_word' of p7_g2" in agents
        assert "resources server 'tools': state of 2 runs" in tools
        assert "'state.token' of p7_g2" in tools
        assert "secrets='keep'" in tools
        assert "hunter2" not in agents + tools
        (phase,) = [item for item in result.timeline.phases if item.actor == "consistency"]
        assert phase.counts == {"redacted_runs": 2}

    run(body)


def test_rollouts_run_while_parts_are_written(run: Any) -> None:
    async def body(world: World) -> None:
        started = threading.Event()
        go_on = threading.Event()

        def slow() -> None:
            started.set()
            assert go_on.wait(60)

        world.faults["controller.write"] = slow
        task = asyncio.create_task(world.sequence.save())
        assert await asyncio.to_thread(started.wait, 10)
        assert world.gate.owner is None
        assert await world.gate.wait() == 0.0
        async with world.barrier.mutation("group_commits"):
            pass
        async with world.lock.hold("trainer checkpoint") as waited:
            assert waited < 0.1
        go_on.set()
        result = await task
        assert records.of_snapshot(world.repository.snapshot()).mutation_version == 0
        assert result.gate is not None
        assert result.gate.closed_s < result.total_s

    run(body)


def test_a_trainer_checkpoint_does_not_wait_for_the_gym_phase(run: Any) -> None:
    async def body(world: World) -> None:
        waits: list[float] = []

        async def trainer() -> None:
            async with world.lock.hold("trainer checkpoint") as waited, world.barrier.checkpoint():
                waits.append(waited)

        tasks: list[asyncio.Task[None]] = []
        world.faults["gym.prepare"] = lambda: tasks.append(asyncio.create_task(trainer()))

        # Gym takes its time, and the trainer is done before it is.
        async def slow_commit(*_: Any, **__: Any) -> None:
            await asyncio.wait_for(asyncio.shield(tasks[0]), 30)

        world.gym.commit = slow_commit  # type: ignore[method-assign]
        assert (await world.sequence.save()).outcome == "completed"
        assert waits[0] < 10.0, "nobody held it"

    run(body)


def test_a_cut_that_waits_for_a_trainer_checkpoint_gives_up_in_time(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("snapfmt_coordinator.sequence.waiting.GRACE_S", 0.05)

    async def body(world: World) -> None:
        async with world.lock.hold("trainer checkpoint"):
            result = await world.sequence.save()
        assert (result.outcome, result.reason) == ("failed", "timeout")
        assert "cut" in str(result.error)
        world.check_running()
        over = asyncio.Event()

        async def mutate() -> None:
            async with world.barrier.mutation("other"):
                await over.wait()

        task = asyncio.create_task(mutate())
        await asyncio.sleep(0)
        assert (await world.sequence.save()).reason == "timeout"
        over.set()
        await task
        world.check_running()
        assert (await world.sequence.save()).outcome == "completed"

    run(body, prepare_timeout_s=2.0)


def test_the_cut_is_renewed_while_gym_resumes(run: Any) -> None:
    async def body(world: World) -> None:
        cuts: list[FakeCut] = []
        take = world.rows.take_cut

        async def taken() -> FakeCut:
            cuts.append(await take())
            return cuts[-1]

        world.rows.take_cut = taken  # type: ignore[method-assign]
        resume = world.gym.resume

        async def slow(*args: Any, **options: Any) -> None:
            while cuts[0].renewals < 3:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.01)
            await resume(*args, **options)

        world.gym.resume = slow  # type: ignore[method-assign]
        assert (await world.sequence.save()).outcome == "completed"
        assert cuts[0].renewals >= 3
        after = cuts[0].renewals
        await asyncio.sleep(0.05)
        assert cuts[0].renewals == after

    run(body)


def test_an_unknown_outcome_deletes_nothing(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(world: World) -> None:
        before = world.files()
        real = attempt_module.Attempt._commit

        def unknown(self: Attempt, *args: Any) -> None:
            real(self, *args)
            self._closed = True
            raise CommitOutcomeUnknown("planned")

        monkeypatch.setattr(attempt_module.Attempt, "_commit", unknown)
        result = await world.sequence.save()
        assert (result.outcome, result.reason) == ("failed", "io_error")
        assert isinstance(result.error, CommitOutcomeUnknown)
        monkeypatch.setattr(attempt_module.Attempt, "_commit", real)
        assert world.repository.numbers() == [1], "it did happen"
        assert world.repository.verify(1).ok
        assert len(world.files() - before) > 5
        assert world.gate.owner is None
        assert world.rows.held == 0
        again = await world.sequence.save()
        assert again.number == 2
        assert world.repository.verify(1).ok

    run(body)


def test_only_the_newest_snapshots_stay(run: Any) -> None:
    retired: list[int] = []

    def retire(number: int) -> None:
        assert threading.current_thread() is not threading.main_thread()
        if number == 1:
            raise StorageError("it is pinned")
        retired.append(number)

    async def body(world: World) -> None:
        results = [await world.sequence.save() for _ in range(4)]
        assert [result.retired for result in results] == [(), (), (), (2,)]
        assert "pinned" in results[-1].notes[0]
        assert results[-1].outcome == "completed"

    run(body, keep_latest=2, retire=retire)
    assert retired == [2]


def test_a_save_builds_on_the_snapshot_that_holds_the_rows(run: Any) -> None:
    async def body(world: World) -> None:
        bases: list[int | None] = []
        # The last: retired since it was looked for, so that all rows are written.
        for base in (None, 1, 99):
            world.rows.base = base
            world.faults["gym.prepare"] = lambda: bases.append(world.repository.leases()[0].base)
            assert (await world.sequence.save()).outcome == "completed"
        assert bases == [None, 1, None]

    run(body)


def test_saves_come_one_after_the_other(run: Any) -> None:
    async def body(world: World) -> None:
        results = await asyncio.gather(*(world.sequence.save() for _ in range(3)))
        assert [result.number for result in results] == [1, 2, 3]

    run(body)


def test_a_drop_that_fails_after_the_publication_is_a_note(run: Any) -> None:
    async def body(world: World) -> None:
        world.fail("cut.drop", ParticipantFailed("planned"))
        result = await world.sequence.save()
        assert result.outcome == "completed"
        assert result.notes == ("planned",)

    run(body)


def test_the_writers_of_rows_wait_only_for_the_cut(run: Any) -> None:
    async def body(world: World) -> None:
        seen: list[tuple[str, bool]] = []
        step = World.step

        def noting(self: World, name: str) -> None:
            seen.append((name, self.barrier.standing))
            step(self, name)

        world.step = noting.__get__(world)  # type: ignore[method-assign]
        result = await world.sequence.save()
        held = {name for name, standing in seen if standing}
        assert held == {"controller.anchor", "controller.cut", "rows.take_cut"}
        assert result.hold is not None
        assert result.hold.hold_s < 0.5

    run(body)


def test_nothing_of_a_save_is_left_in_the_repository(run: Any) -> None:
    async def body(world: World) -> None:
        world.fail("repository.publish", StorageError("planned"))
        await world.sequence.save()
        assert {path.name for path in world.files()} == {"snapfmt.json"}

    run(body)
