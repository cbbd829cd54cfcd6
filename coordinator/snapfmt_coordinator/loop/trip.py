"""Places where a run can be told to stay or to stop, so that it can be killed right there."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

EVENT: Final = "at"
"""What a run says when it has stopped: `{"event": "at", "step": ...}`."""
STEPS: Final = (
    "save:prepare",
    "save:commit",
    "save:take_cut",
    "save:resume",
    "save:collect",
    "save:write",
    "save:state",
    "save:published",
    "restore:load",
    "restore:restore",
    "restore:install",
    "restore:discard",
    "restore:resume",
)
"""In the order in which a save and a restore pass them, except that a save writes at once what
comes from Gym, the queue and the controller."""
_WITHOUT_AFTER: Final = frozenset({"save:state", "save:published"})


def is_step(name: str) -> bool:
    """Whether there is such a step; `<step>.after` is where its call has returned."""
    before = name.removesuffix(".after")
    return before in STEPS and (name == before or before not in _WITHOUT_AFTER)


class Trip:
    """Counts the steps that are passed, and stays where it was told to."""

    def __init__(
        self,
        tell: Callable[[str], object],
        *,
        stop_at: str | None = None,
        stop_on: int = 1,
        holds: Mapping[str, float] | None = None,
    ) -> None:
        """`tell` is called, in any thread, when the run has stopped for good at a step."""
        self._tell = tell
        self._stop_at = stop_at
        self._stop_on = stop_on
        self._holds = dict(holds or {})
        self._reached: Counter[str] = Counter()

    @property
    def reached(self) -> dict[str, int]:
        """Every step that was passed, and how often."""
        return dict(self._reached)

    async def at(self, step: str) -> None:
        """The run is at a step; returns at once unless it is to stay or to stop there."""
        if self._stops(step):
            self._tell(step)
            await asyncio.Event().wait()
        await asyncio.sleep(self._holds.get(step, 0.0))

    def at_blocking(self, step: str) -> None:
        """The same in a worker thread."""
        if self._stops(step):
            self._tell(step)
            threading.Event().wait()
        time.sleep(self._holds.get(step, 0.0))

    def _stops(self, step: str) -> bool:
        self._reached[step] += 1
        return step == self._stop_at and self._reached[step] == self._stop_on


class Stepped:
    """A port whose calls are steps: `<prefix>:<method>` before, with `.after` behind."""

    def __init__(self, inner: Any, trip: Trip, prefix: str, methods: tuple[str, ...]) -> None:
        self._inner = inner
        self._trip = trip
        self._prefix = prefix
        self._methods = methods

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return self._stepped(name, found) if name in self._methods else found

    def _stepped(self, name: str, call: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
        step = f"{self._prefix}:{name}"

        async def stepped(*args: Any, **kwargs: Any) -> Any:
            await self._trip.at(step)
            result = await call(*args, **kwargs)
            await self._trip.at(f"{step}.after")
            return result

        return stepped
