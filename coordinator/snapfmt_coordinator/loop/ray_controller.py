"""The Single Controller: one actor that hosts the state, the pumps, the gate and the barrier."""

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from snapfmt import Repository
from snapfmt_coordinator.loop.conductor import Conductor, Parties
from snapfmt_coordinator.loop.config import LoopConfig
from snapfmt_coordinator.loop.pools import FinalizerPool
from snapfmt_coordinator.loop.ray_data_plane import QueueDataPlane
from snapfmt_coordinator.loop.ray_gym import RemoteGym
from snapfmt_coordinator.loop.ray_ports import (
    RemoteAdvantages,
    RemoteEngine,
    RemoteFinalizer,
    RemoteTrainer,
)
from snapfmt_coordinator.loop.reports import restore_report, save_report
from snapfmt_coordinator.loop.trip import EVENT, Trip
from snapfmt_coordinator.sequence.metrics import restore_metrics, save_metrics
from snapfmt_coordinator.sequence.ray_metrics import RayMetrics
from snapfmt_coordinator.sequence.save import SaveResult
from snapfmt_coordinator.sequence.timeline import render

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Handles:
    """The other actors."""

    gym: Any
    engine: Any
    trainer: Any
    """The advantage pool's too."""
    finalizers: Sequence[Any]


@ray.remote
class SingleController:
    """All methods are asynchronous and share one event loop.

    Made before the other actors are ready, so that it starts beside them: `start_queue` and
    `join` come first.
    """

    _gym: RemoteGym
    _conductor: Conductor

    def __init__(self, config: LoopConfig) -> None:
        self._config = config
        self._events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._metrics = RayMetrics()

    async def start_queue(self) -> None:
        """Starts TransferQueue with its storage units; it ends with this actor."""
        await asyncio.to_thread(_start_queue, self._config.units)

    async def join(self, handles: Handles) -> None:
        """Is told of the other actors."""
        config = self._config
        self._gym = RemoteGym(handles.gym)
        parties = Parties(
            gym=self._gym,
            runner=self._gym,
            finalizer=FinalizerPool([RemoteFinalizer(actor) for actor in handles.finalizers]),
            trainer=RemoteTrainer(handles.trainer),
            advantages=RemoteAdvantages(handles.trainer),
            engine=RemoteEngine(handles.engine),
            queue=QueueDataPlane(),
        )
        trip = Trip(
            self._stopped,
            stop_at=config.stop_at,
            stop_on=config.stop_on,
            holds=config.holds,
        )
        self._conductor = Conductor(
            config,
            parties,
            Repository.open(Path(config.home) / "repository", create=True),
            trip,
            stalled=lambda seconds: self._tell("stalled", seconds=seconds),
            saved=self._saved,
            adopted=lambda run: self._tell("adopted", rollout=run.rollout_id),
        )

    async def restore(self) -> dict[str, Any] | None:
        """Goes on from the newest snapshot; what was restored, None when there is none."""
        self._loop = asyncio.get_running_loop()
        await self._gym.discover()
        result = await self._conductor.restore()
        if result is None:
            return None
        self._metrics.export(restore_metrics(result))
        return restore_report(result)

    async def train(self) -> None:
        """Runs to the end."""
        self._loop = asyncio.get_running_loop()
        await self._gym.discover()
        await self._conductor.train()

    async def next_event(self) -> dict[str, Any]:
        """The next thing that the driver should know."""
        return await self._events.get()

    async def activity(self) -> list[list[Any]]:
        """Intervals of the parts that live here, see `activity.from_rows`."""
        return self._conductor.activity()

    def _saved(self, result: SaveResult) -> None:
        """After each save: its numbers, its steps for the log, and news for the driver."""
        self._metrics.export(save_metrics(result))
        _log.info("%s", render(result.timeline))
        self._tell("save", **save_report(result))

    def _stopped(self, step: str) -> None:
        """The run stands at a step for good; called in any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(lambda: self._tell(EVENT, step=step))

    def _tell(self, event: str, **details: Any) -> None:
        self._events.put_nowait({"event": event, "told_at": time.time(), **details})


def _start_queue(units: int) -> None:
    import transfer_queue as tq
    from omegaconf import OmegaConf

    storage = {"num_data_storage_units": units}
    tq.init(OmegaConf.create({"backend": {"SimpleStorage": storage}}))
