"""Training: claim, advantages, step, commit, cleanup, refit; trainer checkpoints beside it."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from snapfmt_coordinator.loop import activity
from snapfmt_coordinator.loop.hub import Hub
from snapfmt_coordinator.loop.ports import Advantages, Engine, Finalizer, Trainer
from snapfmt_schemas.replay import ReplayGroup

_WATCH_S: Final = 0.05
_log = logging.getLogger(__name__)


class TrainPump:
    """One train step after the other, for as long as there are finished groups.

    A step waits for the barrier in three places: to claim its groups, to write advantages into
    their rows, and to clear the rows afterwards. Its trainer checkpoint waits for nothing.
    """

    def __init__(
        self,
        hub: Hub,
        *,
        trainer: Trainer,
        advantages: Advantages,
        finalizer: Finalizer,
        engine: Engine,
        batch_groups: int,
        durable: Callable[[], object] = lambda: None,
    ) -> None:
        self._hub = hub
        self._trainer = trainer
        self._advantages = advantages
        self._finalizer = finalizer
        self._engine = engine
        self._batch = batch_groups
        self._durable = durable
        self._saves: asyncio.Queue[int | None] = asyncio.Queue()

    async def run(self) -> None:
        """Ends when every prompt is trained and its last checkpoint is durable."""
        control = self._hub.control
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._save_all())
            while not control.state.idle():
                groups = await self._claim()
                if groups:
                    await self._step(groups)
            self._saves.put_nowait(None)

    async def _claim(self) -> tuple[ReplayGroup, ...]:
        hub, state = self._hub, self._hub.control.state
        with hub.log.during(activity.TRAINER, "waiting", activity.DATA):
            while not state.claimable(self._batch) and not state.idle():
                await hub.control.changed.wait()
        async with hub.mutation("group_removals", activity.TRAINER):
            return state.claim(self._batch)

    async def _step(self, groups: Sequence[ReplayGroup]) -> None:
        hub, control = self._hub, self._hub.control
        number = control.train_steps + 1
        with hub.log.during(activity.ADVANTAGE, "working", "computes"):
            await self._advantages.compute(groups)
        async with hub.mutation("other", activity.ADVANTAGE):
            with hub.log.during(activity.ADVANTAGE, "working", "writes back"):
                await self._advantages.write(groups)
        with hub.log.during(activity.TRAINER, "working", "forward, backward"):
            await self._trainer.step(number, groups)
        await self._commit(number, [group.group_id for group in groups])
        with hub.log.during(activity.REFIT, "working", f"version {number}"):
            await self._engine.update_weights(number)

    async def _commit(self, number: int, group_ids: list[str]) -> None:
        """The step counts and its rows go, in one mutation: a cut sees both or none."""
        hub, control = self._hub, self._hub.control
        # The lock before the barrier, as a save takes them.
        async with (
            hub.lock.hold("trainer checkpoint"),
            hub.mutation("group_removals", activity.TRAINER),
        ):
            control.committing = True
            try:
                with hub.log.during(activity.TRAINER, "working", "commits and cleans up"):
                    await self._trainer.commit(number)
                    await self._finalizer.clear(group_ids)
                control.state.trained(group_ids)
                control.train_steps = number
            finally:
                control.committing = False
        hub.watchdog.progress()
        self._saves.put_nowait(number)
        control.changed.tell()

    async def _save_all(self) -> None:
        """Trainer checkpoints, in order, while the next steps run."""
        hub, control = self._hub, self._hub.control
        while (number := await self._saves.get()) is not None:
            with hub.log.during(activity.CHECKPOINT, "working", f"step_{number}"):
                await self._trainer.save(number)
            control.durable_step = number
            self._durable()
            control.changed.tell()


async def watch(hub: Hub, stalled: Callable[[float], object]) -> None:
    """The stall watchdog: counts on during a save, and only warns."""
    with hub.log.during(activity.WATCHDOG, "working", "counts"):
        while not hub.control.state.idle():
            seconds = hub.watchdog.stalled()
            if seconds is not None:
                _log.warning("no train step was finished for %.1f s", seconds)
                stalled(seconds)
            await hub.control.changed.wait(_WATCH_S)
