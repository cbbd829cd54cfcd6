"""The pumps over ports in memory: everything is trained once, and who waits for what in a save."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from snapfmt.errors import ControlRefused, ParticipantFailed, SnapfmtError
from snapfmt_coordinator.loop import activity, saving
from snapfmt_coordinator.loop.activity import ActivityLog
from snapfmt_coordinator.loop.control import Control
from snapfmt_coordinator.loop.hub import Hub
from snapfmt_coordinator.loop.pumps import (
    AcknowledgePump,
    FinalizePump,
    RetirePump,
    RolloutPump,
)
from snapfmt_coordinator.loop.saving import CheckpointPump, SavePolicy
from snapfmt_coordinator.loop.state import Finished, Run
from snapfmt_coordinator.loop.timers import StallWatchdog
from snapfmt_coordinator.loop.training import TrainPump, watch
from snapfmt_coordinator.protocol.v1 import Execution
from snapfmt_coordinator.sequence.save import SaveResult
from snapfmt_schemas.completion import CompletionReceipt
from snapfmt_schemas.identity import capture_key
from snapfmt_schemas.ledger import CallRecord, LedgerGroup, RolloutReceipt
from snapfmt_schemas.replay import KVBatchMeta, ReplayGroup
from snapfmt_schemas.timeline import PhaseTimeline

PROMPTS, GENERATIONS = 6, 2


def result(run: Run) -> Finished:
    return Finished(
        receipt=RolloutReceipt(
            rollout_id=run.rollout_id,
            attempt_index=run.attempt_index,
            capture_key=run.key,
            manifest=(CallRecord(model_call_id="c", staging_key=f"{run.key}/c"),),
        ),
        completion=CompletionReceipt(
            rollout_id=run.rollout_id,
            attempt_index=run.attempt_index,
            execution_generation=1,
            result_identity=run.key,
            result_digest="0" * 64,
        ),
        reward=1.0,
        agent_name="agent",
    )


class World:
    """Every port of the pumps, with switches that make one of them wait or fail."""

    def __init__(self) -> None:
        self.sent: list[Run] = []
        self.restored: set[str] = set()
        self.acknowledged: list[str] = []
        self.retired: list[Execution] = []
        self.rows: set[str] = set()
        self.begun: list[int] = []
        self.trained: list[str] = []
        self.durable: list[int] = []
        self.version = 0
        self.failing: Counter[str] = Counter()
        self.failed: list[str] = []
        self.refusals = 0
        self.writing: asyncio.Event | None = None
        """Trainer checkpoints wait for it."""
        self.stepping: asyncio.Event | None = None
        self.computed: asyncio.Event | None = None
        self.computing = False
        self.written: list[str] = []

    # Runner

    async def run(self, run: Run) -> Finished:
        self.sent.append(run)
        assert not run.held or run.key in self.restored
        await asyncio.sleep(0.001)
        if self.failing[run.rollout_id]:
            self.failing[run.rollout_id] -= 1
            self.failed.append(run.key)
            raise ParticipantFailed("it died", what=run.key)
        return result(run)

    # Gym, as far as the pumps need it

    async def acknowledge(
        self, receipts: Sequence[tuple[str, CompletionReceipt]], *, deadline_ts: float
    ) -> None:
        assert deadline_ts > time.time()
        if self.refusals:
            self.refusals -= 1
            raise ControlRefused("not now", reason="internal_error")
        for agent, receipt in receipts:
            assert agent == "agent"
            self.acknowledged.append(receipt.result_identity)

    async def retire(self, executions: Sequence[Execution]) -> None:
        if self.refusals:
            self.refusals -= 1
            raise ControlRefused("not now", reason="internal_error")
        for one in executions:
            key = capture_key(one.rollout_id, one.attempt_index)
            assert key in self.acknowledged or key in self.failed
            self.retired.append(one)

    # Finalizer

    async def prepare(self, group: LedgerGroup) -> ReplayGroup:
        keys = tuple(f"{group.group_id}_g{i}" for i in range(GENERATIONS))
        meta = KVBatchMeta(partition_id="rollout_buffer", sample_ids=keys)
        return ReplayGroup(meta=meta, start_weight=0, end_weight=0, group_id=group.group_id)

    async def put(self, group_id: str) -> None:
        await asyncio.sleep(0)
        self.rows.add(group_id)

    async def clear(self, group_ids: Sequence[str]) -> None:
        self.rows -= set(group_ids)

    # Advantages

    async def compute(self, groups: Sequence[ReplayGroup]) -> None:
        assert {group.group_id for group in groups} <= self.rows
        self.computing = True
        if self.computed is not None:
            await self.computed.wait()

    async def write(self, groups: Sequence[ReplayGroup]) -> None:
        assert {group.group_id for group in groups} <= self.rows
        self.written += [group.group_id for group in groups]

    # Trainer, engine

    async def step(self, number: int, groups: Sequence[ReplayGroup]) -> None:
        self.begun.append(number)
        if self.stepping is not None:
            await self.stepping.wait()
        self.trained += [group.group_id for group in groups]

    async def commit(self, number: int) -> None:
        await asyncio.sleep(0)

    async def save(self, number: int) -> None:
        if self.writing is not None:
            await self.writing.wait()
        self.durable.append(number)

    async def update_weights(self, version: int) -> None:
        self.version = version


def hub_of(**options: Any) -> Hub:
    shape = {"seed": 1, "prompts": PROMPTS, "generations": GENERATIONS, "capacity": 4}
    return Hub(Control(**{**shape, **options}), StallWatchdog(60.0))


def pumps(
    hub: Hub, world: Any, *more: Any, adopted: Callable[[Run], object] = lambda _: None
) -> Any:
    return asyncio.gather(
        RolloutPump(hub, world, adopted).run(),
        AcknowledgePump(hub, world).run(),
        RetirePump(hub, world).run(),
        FinalizePump(hub, world).run(),
        train_pump(hub, world).run(),
        *more,
    )


def train_pump(hub: Hub, world: Any, **options: Any) -> TrainPump:
    return TrainPump(
        hub,
        trainer=world,
        advantages=world,
        finalizer=world,
        engine=world,
        batch_groups=2,
        **options,
    )


async def soon(check: Any) -> None:
    """Waits until it is true."""
    async with asyncio.timeout(60.0):
        while not check():  # noqa: ASYNC110 - it is somebody else's state
            await asyncio.sleep(0.002)


def test_a_run_that_a_restore_has_set_up_is_sent_as_such() -> None:
    async def body() -> None:
        hub, world = hub_of(), World()
        (first, *_) = hub.control.state.reserve(0)
        hub.control.state.dispatch(first)
        set_up = hub.control.state.fail(first)
        hub.control.continued, world.restored = frozenset({first.key}), {set_up.key}
        world.failing[first.rollout_id] = 1
        async with asyncio.timeout(60.0):
            await pumps(hub, world)
        sent = [run for run in world.sent if run.rollout_id == first.rollout_id]
        assert [(run.attempt_index, run.held) for run in sent] == [(1, True), (2, False)]

    asyncio.run(body())


def test_every_group_is_trained_once_and_every_result_acknowledged() -> None:
    async def body() -> None:
        hub, world = hub_of(), World()
        async with asyncio.timeout(60.0):
            await pumps(hub, world)
        assert len(world.trained) == len(set(world.trained)) == PROMPTS
        assert world.durable == [1, 2, 3]
        assert world.version == 3
        assert len(world.acknowledged) == PROMPTS * GENERATIONS
        assert world.rows == set()
        assert hub.control.state.idle()
        # The last ones may be left when the training is over.
        assert len(world.retired) == len(set(world.retired)) >= (PROMPTS - 2) * GENERATIONS

    asyncio.run(body())


def test_a_run_that_fails_is_sent_again_with_the_next_number() -> None:
    async def body() -> None:
        hub, world = hub_of(prompts=2), World()
        probe = hub_of(prompts=2).control.state.reserve(0)[0]
        world.failing[probe.rollout_id] = 2
        told: list[str] = []
        async with asyncio.timeout(60.0):
            await pumps(hub, world, adopted=lambda run: told.append(run.key))
        # Who asks is told of the results that count.
        assert sorted(told) == sorted(world.acknowledged)
        numbers = [run.attempt_index for run in world.sent if run.rollout_id == probe.rollout_id]
        assert numbers == [0, 1, 2]
        assert world.acknowledged.count(f"{probe.rollout_id}-a2") == 1
        assert probe.key not in world.acknowledged
        retired = {capture_key(one.rollout_id, one.attempt_index) for one in world.retired}
        assert {probe.key, f"{probe.rollout_id}-a1"} <= retired

    asyncio.run(body())


def test_acknowledgements_are_tried_again() -> None:
    async def body() -> None:
        hub, world = hub_of(prompts=2), World()
        world.refusals = 2
        async with asyncio.timeout(60.0):
            await pumps(hub, world)
        assert sorted(set(world.acknowledged)) == sorted(world.acknowledged)
        assert len(world.acknowledged) == 2 * GENERATIONS

    asyncio.run(body())


def test_a_closed_gate_keeps_runs_back_and_prompts_are_still_picked() -> None:
    async def body() -> None:
        hub, world = hub_of(), World()
        hub.gate.close("save")
        task = asyncio.ensure_future(pumps(hub, world))
        await soon(lambda: len(hub.control.state.reserved()) == 4 * GENERATIONS)
        for _ in range(20):
            await asyncio.sleep(0)
        # By now it waits.
        await asyncio.sleep(0.05)
        assert world.sent == []
        hub.gate.open("save")
        async with asyncio.timeout(60.0):
            await task
        waits = activity.share(hub.log.intervals(), activity.ROLLOUT_PUMP, 0.0, time.time()).of(
            "waiting", activity.GATE
        )
        assert waits > 0.05

    asyncio.run(body())


def test_a_gate_that_closes_while_a_run_waits_for_the_barrier_keeps_it_back() -> None:
    async def body() -> None:
        hub, world = hub_of(), World()
        hub.control.state.reserve(0)
        async with hub.barrier.checkpoint():
            task = asyncio.ensure_future(RolloutPump(hub, world).run())
            await asyncio.sleep(0.02)
            hub.gate.close("save")
        await asyncio.sleep(0.02)
        assert world.sent == []
        assert not any(
            attempt.status == "dispatched"
            for group in hub.control.state.cut().groups
            for _, attempt in group.runs()
        )
        task.cancel()

    asyncio.run(body())


def test_only_a_wait_is_noted_as_one() -> None:
    """Also by a process that the machine leaves no time: each look at its clock is a second on."""
    ticks = map(float, count())
    hub = replace(hub_of(), log=ActivityLog(lambda: next(ticks)))

    async def passes() -> None:
        await hub.wait_gate()
        async with hub.mutation("other", activity.ROLLOUT_PUMP):
            pass

    async def body() -> None:
        await passes()
        assert hub.log.rows() == []
        hub.gate.close("save")
        async with hub.barrier.checkpoint():
            task = asyncio.ensure_future(passes())
            await asyncio.sleep(0)
            hub.gate.open("save")
            await asyncio.sleep(0.01)
        await task
        waits = [(part, doing, what) for part, doing, _, _, what in hub.log.rows()]
        pump = activity.ROLLOUT_PUMP
        expected = [(pump, "waiting", activity.GATE), (pump, "waiting", activity.BARRIER)]
        assert waits == expected

    asyncio.run(body())


def test_nothing_changes_while_the_barrier_stands() -> None:
    """A run comes back, groups are ready, a step ends: all of it waits, none of it is lost."""

    async def body() -> None:
        hub, world = hub_of(), World()
        world.stepping = asyncio.Event()
        task = asyncio.ensure_future(pumps(hub, world))
        await soon(lambda: world.begun)
        async with hub.barrier.checkpoint():
            before = hub.control.state.cut()
            assert before.rolled_back, "a step holds its groups"
            rows = set(world.rows)
            world.stepping.set()
            await asyncio.sleep(0.05)
            assert hub.control.state.cut() == before
            assert world.rows == rows
            canonical = {group.group_id for group in before.replay}
            assert canonical == rows, "rows and replay agree at the cut"
        async with asyncio.timeout(60.0):
            await task
        assert len(world.trained) == PROMPTS

    asyncio.run(body())


def test_advantages_are_computed_during_a_cut_and_written_after_it() -> None:
    async def body() -> None:
        hub, world = hub_of(), World()
        world.computed = asyncio.Event()
        task = asyncio.ensure_future(pumps(hub, world))
        await soon(lambda: world.computing)
        async with hub.barrier.checkpoint():
            world.computed.set()
            await asyncio.sleep(0.05)
            assert world.written == []
        await soon(lambda: world.written)
        async with asyncio.timeout(60.0):
            await task

    asyncio.run(body())


def test_a_step_is_committed_only_when_no_save_looks_at_the_trainer() -> None:
    async def body() -> None:
        hub, world = hub_of(), World()
        async with hub.lock.hold("save"):
            task = asyncio.ensure_future(pumps(hub, world))
            await soon(lambda: world.trained)
            await asyncio.sleep(0.05)
            assert (hub.control.train_steps, hub.control.committing) == (0, False)
        async with asyncio.timeout(60.0):
            await task

    asyncio.run(body())


def test_a_trainer_checkpoint_waits_for_no_phase_of_a_save_and_nothing_waits_for_it() -> None:
    async def body() -> None:
        hub, world = hub_of(prompts=4, capacity=8), World()
        world.writing = asyncio.Event()
        task = asyncio.ensure_future(pumps(hub, world))
        await soon(lambda: hub.control.train_steps == 2)
        assert world.durable == [], "both steps were made while the first was being written"
        assert hub.control.skip_reason() == "missing_trainer_anchor"
        hub.gate.close("save")
        async with hub.lock.hold("save"), hub.barrier.checkpoint():
            world.writing.set()
            await soon(lambda: world.durable == [1, 2])
            assert hub.control.skip_reason() is None
        hub.gate.open("save")
        async with asyncio.timeout(60.0):
            await task

    asyncio.run(body())


def test_the_watchdog_counts_on_during_a_save_and_is_told_once() -> None:
    async def body() -> None:
        hub = Hub(hub_of().control, StallWatchdog(0.05))
        stalls: list[float] = []
        task = asyncio.ensure_future(watch(hub, stalls.append))
        hub.gate.close("save")
        async with hub.barrier.checkpoint():
            await soon(lambda: stalls)
            await asyncio.sleep(0.2)
        assert len(stalls) == 1
        hub.watchdog.progress()
        await soon(lambda: len(stalls) == 2)
        task.cancel()

    asyncio.run(body())


class Saves:
    """Saves that end as they are told."""

    def __init__(self, *outcomes: tuple[str, str]) -> None:
        self.outcomes = list(outcomes)
        self.made = 0
        self.pending_release: str | None = None
        self.releases: list[SnapfmtError] = []
        """How the next releases fail."""

    async def release_pending(self) -> None:
        if self.releases:
            raise self.releases.pop(0)
        self.pending_release = None

    async def save(self, *, force: bool = False) -> SaveResult:
        assert not force
        self.made += 1
        outcome, reason = self.outcomes.pop(0) if self.outcomes else ("completed", "completed")
        manifest: Any = object() if outcome == "completed" else None
        return SaveResult(
            outcome=outcome,  # type: ignore[arg-type]
            reason=reason,  # type: ignore[arg-type]
            manifest=manifest,
            timeline=PhaseTimeline(operation="save"),
            total_s=0.0,
        )


def test_a_save_that_was_put_off_is_tried_again_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # So late it would come without the trainer.
    monkeypatch.setattr(saving, "AGAIN_S", 3600.0)

    async def body() -> None:
        hub, ended = hub_of(), []
        saves = Saves(("skipped", "missing_trainer_anchor"))

        async def told(one: SaveResult) -> None:
            ended.append(one.reason)

        pump = CheckpointPump(hub, saves, SavePolicy(interval_s=0.1), ended=told)
        pump_task = asyncio.ensure_future(pump.run())
        await soon(lambda: saves.made == 1)
        # The first attempt comes after one interval, the next when the trainer is durable.
        pump.wake()
        hub.control.changed.tell()
        await soon(lambda: saves.made == 2)
        assert ended == ["missing_trainer_anchor", "completed"]
        pump_task.cancel()

    asyncio.run(body())


def test_the_gate_opens_soon_after_gym_is_back() -> None:
    async def body() -> None:
        hub, saves = hub_of(), Saves(("failed", "io_error"))

        async def told(_: SaveResult) -> None:
            saves.pending_release = "checkpoint-1"
            saves.releases = [ParticipantFailed("it is down")]
            # The next save is far away, however long the releases take.
            pump._policy = SavePolicy(interval_s=3600.0)

        pump = CheckpointPump(hub, saves, SavePolicy(interval_s=0.1), ended=told)
        pump_task = asyncio.ensure_future(pump.run())
        await soon(lambda: saves.pending_release)
        await soon(lambda: saves.pending_release is None)
        assert saves.made == 1
        pump_task.cancel()

    asyncio.run(body())


def test_a_release_that_is_refused_holds_the_next_save_up_no_longer_than_planned() -> None:
    async def body() -> None:
        hub, saves = hub_of(), Saves(("failed", "io_error"))

        async def told(_: SaveResult) -> None:
            saves.pending_release = "checkpoint-1"
            saves.releases = [ParticipantFailed("it is down") for _ in range(99)]

        policy = SavePolicy(interval_s=0.1, max_saves=1)
        async with asyncio.timeout(60.0):
            await CheckpointPump(hub, saves, policy, ended=told).run()
        assert saves.made == 2

    asyncio.run(body())


def test_no_more_saves_than_asked_for() -> None:
    async def body() -> None:
        hub, saves = hub_of(), Saves()

        async def told(_: SaveResult) -> None:
            return

        policy = SavePolicy(interval_s=0.01, max_saves=2)
        async with asyncio.timeout(60.0):
            await CheckpointPump(hub, saves, policy, ended=told).run()
        assert saves.made == 2

    asyncio.run(body())


def test_a_failed_part_ends_the_run() -> None:
    async def body() -> None:
        hub, world = hub_of(), World()

        async def broken(group_id: str) -> None:
            raise ParticipantFailed("the queue is gone", what=group_id)

        world.put = broken  # type: ignore[method-assign]

        async def both() -> None:
            async with asyncio.timeout(60.0), asyncio.TaskGroup() as tasks:
                tasks.create_task(RolloutPump(hub, world).run())
                tasks.create_task(FinalizePump(hub, world).run())

        with pytest.raises(BaseExceptionGroup) as caught:
            await both()
        assert caught.group_contains(ParticipantFailed, match="queue is gone")
        # The barrier is free, and the group is ready again.
        async with asyncio.timeout(60.0), hub.barrier.checkpoint():
            hub.control.state.cut()

    asyncio.run(body())
