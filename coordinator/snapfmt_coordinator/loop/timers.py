"""Time limits of rollouts, which a save stops, and the stall watchdog, which it does not."""

import time
from collections.abc import Callable


class PausableClock:
    """Seconds that count only while nothing pauses it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._total = 0.0
        self._since: float | None = clock()

    @property
    def paused(self) -> bool:
        """Whether it stands still."""
        return self._since is None

    def now(self) -> float:
        """Seconds that counted so far."""
        running = 0.0 if self._since is None else self._clock() - self._since
        return self._total + running

    def pause(self) -> None:
        """Stands still from now on."""
        if self._since is not None:
            self._total += self._clock() - self._since
            self._since = None

    def resume(self) -> None:
        """Counts again."""
        if self._since is None:
            self._since = self._clock()


class StallWatchdog:
    """Says when no progress was made for too long; a save does not stop it."""

    def __init__(self, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._timeout_s = timeout_s
        self._last = clock()
        self._told = False

    def progress(self) -> None:
        """A train step was finished."""
        self._last = self._clock()
        self._told = False

    def stalled(self) -> float | None:
        """Seconds without progress once they pass the limit, and then once only; else None."""
        seconds = self._clock() - self._last
        if seconds < self._timeout_s or self._told:
            return None
        self._told = True
        return seconds
