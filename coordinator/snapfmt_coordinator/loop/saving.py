"""Snapshots at intervals, and what belongs to them in this loop."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Any, Final, Protocol

from snapfmt import Repository, Snapshot
from snapfmt.errors import MissingObject, SnapfmtError
from snapfmt_coordinator.loop.control import BOOTSTRAP
from snapfmt_coordinator.loop.hub import Hub
from snapfmt_coordinator.loop.trip import Stepped, Trip
from snapfmt_coordinator.sequence.save import SaveResult

AGAIN_S: Final = 0.2
"""Pause before a save that was skipped, or thrown away, or a release is tried again."""
_log = logging.getLogger(__name__)


class Saves(Protocol):
    """`sequence.save.SaveSequence`, as far as the pump needs it."""

    @property
    def pending_release(self) -> str | None:
        """The checkpoint whose release Gym has not confirmed."""
        ...

    async def save(self, *, force: bool = False) -> SaveResult:
        """One try at a snapshot."""
        ...

    async def release_pending(self) -> None:
        """Asks Gym for it again."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SavePolicy:
    """When to save. Times in seconds."""

    interval_s: float
    max_saves: int | None = None


class CheckpointPump:
    """One save after the other until the training is over."""

    def __init__(
        self,
        hub: Hub,
        saves: Saves,
        policy: SavePolicy,
        *,
        ended: Callable[[SaveResult], Awaitable[None]],
    ) -> None:
        """`ended` is told of every save that was tried."""
        self._hub = hub
        self._saves = saves
        self._policy = policy
        self._ended = ended
        self._woken = False
        self.results: list[SaveResult] = []

    def wake(self) -> None:
        """The trainer has a new place; a save that was put off for it is tried now."""
        self._woken = bool(self.results) and self.results[-1].outcome == "skipped"

    async def run(self) -> None:
        """Ends when every prompt is trained.

        Raises:
            SnapfmtError: If saves failed too often, or for a reason that trying again hides.
        """
        control = self._hub.control
        pause = self._policy.interval_s
        while not control.state.idle():
            if not await self._pause(pause):
                return
            result = await self._saves.save()
            self.results.append(result)
            _log.info("save: %s (%s) in %.3f s", result.outcome, result.reason, result.total_s)
            await self._ended(result)
            pause = AGAIN_S if result.outcome == "skipped" else self._policy.interval_s

    async def _pause(self, seconds: float) -> bool:
        """Whether there is another save to take after this time."""
        control, until = self._hub.control, time.monotonic() + seconds
        self._woken = False
        await self._release(until)
        while not control.state.idle():
            done = sum(1 for result in self.results if result.manifest is not None)
            if self._policy.max_saves is not None and done >= self._policy.max_saves:
                return False
            left = until - time.monotonic()
            if left <= 0 or self._woken:
                return True
            await control.changed.wait(left)
        return False

    async def _release(self, until: float) -> None:
        """Has Gym confirm a release that is pending: as long as it does not, rollouts wait.

        What is refused until then, the next save meets again and counts as its failure.
        """
        saves, control = self._saves, self._hub.control
        while saves.pending_release and not control.state.idle() and time.monotonic() < until:
            await asyncio.sleep(AGAIN_S)
            try:
                await saves.release_pending()
            except SnapfmtError as error:
                _log.warning("%s is not released: %s", saves.pending_release, error)


class SteppedDataPlane:
    """A data plane whose cuts, too, are steps of a save."""

    def __init__(self, inner: Any, trip: Trip) -> None:
        self._inner = Stepped(inner, trip, "save", ("take_cut",))
        self._trip = trip

    async def prepare(self, repository: Repository) -> int | None:
        """Holds nobody, so it is no step."""
        base: int | None = await self._inner.prepare(repository)
        return base

    async def take_cut(self) -> Any:
        """A cut whose write is a step."""
        return Stepped(await self._inner.take_cut(), self._trip, "save", ("write",))


class SteppedController:
    """The controller's side of a save; writing its state is a step."""

    def __init__(self, inner: Any, trip: Trip) -> None:
        self._inner = inner
        self._trip = trip

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def cut(self) -> Any:
        """A state whose write is a step."""
        return _SteppedState(self._inner.cut(), self._trip)


class _SteppedState:
    def __init__(self, inner: Any, trip: Trip) -> None:
        self._inner = inner
        self._trip = trip

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def write(self, part: Any) -> None:
        self._trip.at_blocking("save:state")
        self._inner.write(part)


class SteppedLoader:
    """The controller's side of a restore; taking the state over is a step.

    `durable` has the steps with a trainer checkpoint.
    """

    def __init__(self, inner: Any, trip: Trip, durable: Collection[int]) -> None:
        self._inner = inner
        self._trip = trip
        self._durable = durable

    def read(self, snapshot: Snapshot) -> Any:
        """A state whose installation is a step.

        Raises:
            MissingObject: If the trainer has no checkpoint of the step that it stands on; so an
                older snapshot is taken.
        """
        anchor = snapshot.manifest.anchor
        if anchor is not None and anchor.train_step not in {BOOTSTRAP, *self._durable}:
            raise MissingObject(
                f"it stands on step {anchor.train_step}, whose trainer checkpoint is gone",
                what=snapshot.name,
                hint="bring the checkpoint back, or restore an older snapshot",
            )
        return Stepped(self._inner.read(snapshot), self._trip, "restore", ("install",))
