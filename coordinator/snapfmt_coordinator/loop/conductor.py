"""Puts the pumps and the sequences of one run together over their ports; no Ray in it."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, cast

from snapfmt import Repository
from snapfmt.errors import SnapfmtError
from snapfmt_coordinator.loop import activity
from snapfmt_coordinator.loop.config import LoopConfig
from snapfmt_coordinator.loop.control import Control
from snapfmt_coordinator.loop.hub import Hub
from snapfmt_coordinator.loop.ports import Advantages, Engine, Finalizer, Runner, Trainer
from snapfmt_coordinator.loop.pumps import AcknowledgePump, FinalizePump, RetirePump, RolloutPump
from snapfmt_coordinator.loop.saving import (
    CheckpointPump,
    SavePolicy,
    SteppedController,
    SteppedDataPlane,
    SteppedLoader,
)
from snapfmt_coordinator.loop.state import Run
from snapfmt_coordinator.loop.timers import StallWatchdog
from snapfmt_coordinator.loop.training import TrainPump, watch
from snapfmt_coordinator.loop.trip import Stepped, Trip
from snapfmt_coordinator.sequence.outcomes import grouped
from snapfmt_coordinator.sequence.ports import (
    Controller,
    ControllerLoader,
    DataPlane,
    DataPlaneLoader,
    Gym,
)
from snapfmt_coordinator.sequence.restore import RestoreResult, restore
from snapfmt_coordinator.sequence.save import SaveResult, SaveSequence

_log = logging.getLogger(__name__)


class Queue(DataPlane, DataPlaneLoader, Protocol):
    """TransferQueue, for saves and restores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parties:
    """The other actors, as ports."""

    gym: Gym
    runner: Runner
    finalizer: Finalizer
    trainer: Trainer
    advantages: Advantages
    engine: Engine
    queue: Queue


class Conductor:
    """One training run: its state, and everything that moves it."""

    def __init__(
        self,
        config: LoopConfig,
        parties: Parties,
        repository: Repository,
        trip: Trip,
        *,
        stalled: Callable[[float], object] = lambda _: None,
        saved: Callable[[SaveResult], object] = lambda _: None,
        adopted: Callable[[Run], object] = lambda _: None,
    ) -> None:
        """`stalled`, `saved` and `adopted` are told what the run's owner may want to know."""
        self.control = Control(
            seed=config.seed,
            prompts=config.prompts,
            generations=config.generations,
            capacity=config.max_buffered_groups,
            go_to_step=self._go_to_step,
        )
        self.hub = Hub(self.control, StallWatchdog(config.stall_timeout_s))
        self._config = config
        self._parties = parties
        self._repository = repository
        self._trip = trip
        self._stalled = stalled
        self._saved = saved
        self._adopted = adopted
        self._fingerprints = (config.recipe().to_fingerprint(),)

    async def restore(self) -> RestoreResult | None:
        """Goes on from the newest snapshot that fits; None when there is no snapshot at all.

        Raises:
            SnapfmtError: If none fits, or a step failed; nothing is restored then.
        """
        if not await asyncio.to_thread(self._repository.numbers):
            return None
        gym = Stepped(self._parties.gym, self._trip, "restore", ("restore", "discard", "resume"))
        queue = Stepped(self._parties.queue, self._trip, "restore", ("load",))
        durable = frozenset(await self._parties.trainer.steps())
        return await restore(
            self._repository,
            cast("Gym", gym),
            cast("ControllerLoader", SteppedLoader(self.control, self._trip, durable)),
            cast("DataPlaneLoader", queue),
            fingerprints=self._fingerprints,
            prepare_timeout_s=self._config.prepare_timeout_s,
        )

    async def train(self) -> None:
        """Runs until every prompt is trained and its last checkpoint is durable.

        Raises:
            SnapfmtError: What ended the run; its cause has everything that went wrong.
        """
        try:
            await self._train()
        except ExceptionGroup as group:
            raise grouped([group], "training run") from group

    async def _train(self) -> None:
        hub, parties = self.hub, self._parties
        # What a crashed run has left, now that nothing else runs.
        await asyncio.to_thread(self._repository.clean_up)
        saves = self._save_pump()
        training = TrainPump(
            hub,
            trainer=parties.trainer,
            advantages=parties.advantages,
            finalizer=parties.finalizer,
            engine=parties.engine,
            batch_groups=self._config.batch_groups,
            durable=saves.wake if saves is not None else lambda: None,
        )
        with hub.log.during(activity.ROLLOUT_PUMP, "working", "picks prompts"):
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(RolloutPump(hub, parties.runner, self._adopted).run())
                pumps.create_task(AcknowledgePump(hub, parties.gym).run())
                pumps.create_task(RetirePump(hub, parties.gym).run())
                pumps.create_task(FinalizePump(hub, parties.finalizer).run())
                pumps.create_task(training.run())
                pumps.create_task(watch(hub, self._stalled))
                if saves is not None:
                    pumps.create_task(saves.run())

    def activity(self) -> list[list[Any]]:
        """Intervals of the parts that live here."""
        return self.hub.log.rows()

    def _save_pump(self) -> CheckpointPump | None:
        config, parties, hub, trip = self._config, self._parties, self.hub, self._trip
        if config.snapshot_attempt_interval_s is None:
            return None
        steps = ("prepare", "commit", "resume", "collect")
        sequence = SaveSequence(
            self._repository,
            cast("Gym", Stepped(parties.gym, trip, "save", steps)),
            cast("Controller", SteppedController(self.control, trip)),
            cast("DataPlane", SteppedDataPlane(parties.queue, trip)),
            hub.gate,
            hub.barrier,
            hub.lock,
            fingerprints=self._fingerprints,
            retire=self._repository.retire,
            prepare_timeout_s=config.prepare_timeout_s,
            keep_latest=config.keep_latest,
            max_consecutive_failures=config.max_consecutive_failures,
        )
        policy = SavePolicy(
            interval_s=config.snapshot_attempt_interval_s, max_saves=config.max_saves
        )
        return CheckpointPump(hub, sequence, policy, ended=self._save_ended)

    async def _save_ended(self, result: SaveResult) -> None:
        if result.manifest is not None:
            await self._trip.at("save:published")
            try:
                anchors = await asyncio.to_thread(self._anchors)
            except SnapfmtError as error:
                # What cannot be read may stand on anything.
                _log.warning("no trainer checkpoint is removed now: %s", error)
            else:
                await self._parties.trainer.prune(anchors)
        self._saved(result)

    def _anchors(self) -> list[int]:
        """Steps that a published snapshot stands on."""
        snapshots = [self._repository.snapshot(number) for number in self._repository.numbers()]
        anchors = [snapshot.manifest.anchor for snapshot in snapshots]
        return sorted({anchor.train_step for anchor in anchors if anchor is not None})

    async def _go_to_step(self, step: int) -> None:
        await self._parties.trainer.load(step)
        await self._parties.engine.update_weights(step)
