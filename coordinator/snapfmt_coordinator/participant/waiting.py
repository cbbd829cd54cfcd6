"""Two small tools of an event loop: a lease that ends by itself, and waiting for a change."""

import asyncio
from collections.abc import Callable

_LONGEST_TIMER_S = 3600.0


class Lease:
    """Calls back once a time has passed, unless it is moved or cleared before.

    `clock` is monotonic: a wall clock that is set must neither end a lease nor prolong it.
    """

    def __init__(self, clock: Callable[[], float], ended: Callable[[], None]) -> None:
        self._clock = clock
        self._ended = ended
        self._at: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def set(self, at: float) -> None:
        """Let it end at this time of its clock. Needs a running event loop."""
        self.clear()
        self._at = at
        self._arm(at)

    def clear(self) -> None:
        """End it without a call."""
        self._at = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def check(self) -> None:
        """Call back now if the time has passed."""
        if self._at is not None and self._clock() >= self._at:
            self.clear()
            self._ended()

    def _arm(self, at: float) -> None:
        # An event loop takes no timer of any length.
        delay = min(max(at - self._clock(), 0.0), _LONGEST_TIMER_S)
        self._timer = asyncio.get_running_loop().call_later(delay, self._tick)

    def _tick(self) -> None:
        self.check()
        if self._at is not None:
            self._arm(self._at)


class Signal:
    """Wakes everybody who waits for something to change."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify(self) -> None:
        """Something changed."""
        event, self._event = self._event, asyncio.Event()
        event.set()

    async def wait_for(self, holds: Callable[[], bool], seconds: float) -> bool:
        """Wait until `holds` is true, at most this long; whether it is."""
        try:
            async with asyncio.timeout(max(seconds, 0.0)):
                while not holds():
                    await self._event.wait()
        except TimeoutError:
            return holds()
        return True
