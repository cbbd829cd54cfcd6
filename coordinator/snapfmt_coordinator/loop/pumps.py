"""Rollouts: drawn, sent, sealed, acknowledged and put together; each pump is one endless task."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from snapfmt.errors import AttemptError, ControlRefused, ParticipantFailed
from snapfmt_coordinator.loop import activity
from snapfmt_coordinator.loop.hub import Hub
from snapfmt_coordinator.loop.ports import Finalizer, Runner
from snapfmt_coordinator.loop.state import Run
from snapfmt_coordinator.sequence.ports import Gym
from snapfmt_schemas.ledger import LedgerGroup

ACKNOWLEDGE_TIMEOUT_S: Final = 60.0
ACKNOWLEDGE_TRIES: Final = 20
_RETRY_S = 0.2
_log = logging.getLogger(__name__)


class RolloutPump:
    """Draws prompts while there is room and sends every run, again after a failure."""

    def __init__(
        self, hub: Hub, runner: Runner, adopted: Callable[[Run], object] = lambda _: None
    ) -> None:
        """`adopted` is told of every run whose result counts."""
        self._hub = hub
        self._runner = runner
        self._adopted = adopted

    async def run(self) -> None:
        """Ends when every prompt is trained."""
        hub, state = self._hub, self._hub.control.state
        async with asyncio.TaskGroup() as sends:
            for run in state.reserved():
                sends.create_task(self._send(run))
            while not state.idle():
                if not state.room():
                    await hub.control.changed.wait()
                    continue
                async with hub.mutation("prompt_reservations", activity.ROLLOUT_PUMP):
                    runs = state.reserve(hub.control.train_steps)
                for run in runs:
                    sends.create_task(self._send(run))

    async def _send(self, first: Run) -> None:
        run: Run | None = first
        while run is not None:
            run = await self._once(run)

    async def _once(self, run: Run) -> Run | None:
        """Sends one run to its end; the rollout's next run when it failed."""
        hub, state = self._hub, self._hub.control.state
        while True:
            await hub.wait_gate()
            async with hub.mutation("other", activity.ROLLOUT_PUMP):
                # Closed again while this one waited for the barrier.
                if hub.gate.owner is not None:
                    continue
                state.dispatch(run)
            break
        try:
            finished = await self._runner.run(replace(run, held=hub.control.continues(run)))
        except ParticipantFailed as error:
            _log.warning("run %s failed: %s", run.key, error)
            async with hub.mutation("recovery_retries", activity.ROLLOUT_PUMP):
                return hub.control.failed(run)
        async with hub.mutation("sibling_seals", activity.ROLLOUT_PUMP):
            counts = state.adopt(run, finished)
        hub.control.changed.tell()
        if counts:
            self._adopted(run)
        return None


class AcknowledgePump:
    """Tells Gym which results were adopted, as soon as they are."""

    def __init__(self, hub: Hub, gym: Gym) -> None:
        self._hub = hub
        self._gym = gym

    async def run(self) -> None:
        """Ends when every prompt is trained and nothing is owed."""
        control, failures = self._hub.control, 0
        while not control.state.idle() or control.state.owed():
            owed = control.state.owed()
            if not owed:
                await control.changed.wait()
                continue
            try:
                await self._gym.acknowledge(
                    [(item.agent_name, item.receipt) for item in owed],
                    deadline_ts=time.time() + ACKNOWLEDGE_TIMEOUT_S,
                )
            except (AttemptError, ControlRefused) as error:
                failures += 1
                if failures >= ACKNOWLEDGE_TRIES:
                    raise
                _log.warning("acknowledging %d results failed: %s", len(owed), error)
                await asyncio.sleep(_RETRY_S)
                continue
            failures = 0
            control.acknowledged(owed)


class RetirePump:
    """Has Gym forget runs that are over, so that neither it nor a snapshot grows with them."""

    def __init__(self, hub: Hub, gym: Gym) -> None:
        self._hub = hub
        self._gym = gym

    async def run(self) -> None:
        """Ends when every prompt is trained; what is left then is nobody's concern."""
        control = self._hub.control
        while not control.state.idle():
            over, control.over = control.over, []
            if not over:
                await control.changed.wait()
                continue
            try:
                await self._gym.retire(over)
            except (AttemptError, ControlRefused) as error:
                # It costs memory, nothing else; they go with the next ones.
                _log.warning("retiring %d runs failed: %s", len(over), error)
                control.over = [*over, *control.over]
                await control.changed.wait(_RETRY_S)


class FinalizePump:
    """Turns groups whose runs are all sealed into canonical rows."""

    def __init__(self, hub: Hub, finalizer: Finalizer) -> None:
        self._hub = hub
        self._finalizer = finalizer
        self._busy: set[str] = set()

    async def run(self) -> None:
        """Ends when every prompt is trained."""
        control = self._hub.control
        async with asyncio.TaskGroup() as tasks:
            while not control.state.idle():
                for group in control.state.ready():
                    if group.group_id not in self._busy:
                        self._busy.add(group.group_id)
                        tasks.create_task(self._finalize(group))
                await control.changed.wait()

    async def _finalize(self, group: LedgerGroup) -> None:
        hub, state = self._hub, self._hub.control.state
        with hub.log.during(activity.REASSEMBLER, "working", "reads a group's captured rows"):
            rows = await self._finalizer.prepare(group)
        async with hub.mutation("group_commits", activity.REASSEMBLER):
            state.begin_finalize(group.group_id)
            try:
                with hub.log.during(activity.REASSEMBLER, "working", "puts canonical rows"):
                    await self._finalizer.put(group.group_id)
            except BaseException:
                state.abort_finalize(group.group_id)
                raise
            state.finalized(rows)
        self._busy.discard(group.group_id)
        hub.control.changed.tell()
