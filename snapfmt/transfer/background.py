"""The second tier: a thread that copies what a run publishes to another place soon after."""

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self

from snapfmt.errors import (
    ConflictError,
    CorruptError,
    InputError,
    LimitExceeded,
    NotFoundError,
    SnapfmtError,
    StorageError,
    StoreNotFound,
    UnsupportedFeature,
    UnsupportedVersion,
)
from snapfmt.repository import Repository
from snapfmt.transfer.copying import copy_snapshot
from snapfmt.transfer.ground import Ground
from snapfmt.transfer.parallel import Stopped

_HOPELESS: Final = (
    ConflictError,
    CorruptError,
    LimitExceeded,
    NotFoundError,
    UnsupportedFeature,
    UnsupportedVersion,
)
"""What another try of the same snapshot does not mend."""


@dataclass(frozen=True, slots=True)
class PushState:
    """Where a background push stands."""

    running: bool
    """Whether its thread lives."""
    copying: int | None
    """Number that is being copied just now."""
    pushed: tuple[int, ...]
    """Numbers that are known to be at the target, ascending."""
    behind: tuple[int, ...]
    """Numbers that are not there yet, newest first."""
    skipped: tuple[tuple[int, str], ...]
    """Numbers that were given up, and why."""
    failures: int
    """Tries that failed since the last success."""
    last_error: str
    """What the last failure said; empty after a success."""
    lag_seconds: float
    """Since when the longest waiting of `behind` waits; 0 when nothing does."""
    bytes_sent: int


class BackgroundPush:
    """Copies every published snapshot of `source` to `target`, the newest first.

    Nothing that goes wrong here reaches the run: it shows in `state()`, and is tried again after
    pauses that grow. A snapshot that the source retires meanwhile is passed over. Holds nothing
    at the source: retention there goes on as if this did not exist.
    """

    def __init__(
        self,
        source: Repository,
        target: Repository | Callable[[], Repository],
        *,
        workers: int = 2,
        poll_s: float = 10.0,
        first_pause_s: float = 1.0,
        longest_pause_s: float = 60.0,
    ) -> None:
        """`target` may be a function that opens it: then it need not be reachable yet.

        Raises:
            InputError: If a number does not fit.
        """
        for name, value in (("poll_s", poll_s), ("first_pause_s", first_pause_s)):
            if not value > 0:
                raise InputError(f"{name} is a number of seconds above 0", what=repr(value))
        if type(workers) is not int or workers < 1:
            raise InputError("workers is a whole number of at least 1", what=repr(workers))
        self._source = source
        self._open = target if callable(target) else lambda: target
        self._workers = workers
        self._poll_s = poll_s
        self._first_pause_s = first_pause_s
        self._longest_pause_s = longest_pause_s
        self._ground: Ground | None = None
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="snapfmt-push", daemon=True)
        self._pushed: set[int] = set()
        self._behind: dict[int, float] = {}
        self._skipped: dict[int, str] = {}
        self._not_before: dict[int, tuple[float, float]] = {}
        """Number -> when it may be tried again, and the pause that led there."""
        self._copying: int | None = None
        self._failures = 0
        self._last_error = ""
        self._bytes_sent = 0
        self._asked = 0
        """Looks at the source that somebody waits for."""
        self._answered = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Begin; a second call does nothing, and one after `close` neither."""
        with contextlib.suppress(RuntimeError):
            self._thread.start()

    def notify(self, number: int | None = None) -> None:
        """Say that a snapshot was published; only makes it sooner, and never blocks."""
        if number is not None:
            self._note([number])
        self._wake.set()

    def wait(self, timeout_s: float) -> bool:
        """Wait until all that the source has now is at the target or given up."""
        with self._changed:
            # A look that began before this call would not do.
            self._asked += 1
            mine = self._asked
            self._wake.set()
            return self._changed.wait_for(
                lambda: self._answered >= mine and not self._behind, timeout_s
            )

    def close(self, timeout_s: float = 30.0) -> bool:
        """Stop, in the middle of a copy if need be; returns whether the thread ended in time.

        What was sent stays: the next push goes on from there.
        """
        self._stop.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def state(self) -> PushState:
        """A look at it; cheap, from any thread."""
        with self._changed:
            now = time.monotonic()
            return PushState(
                running=self._thread.is_alive(),
                copying=self._copying,
                pushed=tuple(sorted(self._pushed)),
                behind=tuple(sorted(self._behind, reverse=True)),
                skipped=tuple(sorted(self._skipped.items())),
                failures=self._failures,
                last_error=self._last_error,
                lag_seconds=max((now - since for since in self._behind.values()), default=0.0),
                bytes_sent=self._bytes_sent,
            )

    def _note(self, numbers: list[int]) -> None:
        now = time.monotonic()
        with self._changed:
            for number in numbers:
                if number not in self._pushed and number not in self._skipped:
                    self._behind.setdefault(number, now)

    def _run(self) -> None:
        pause = self._first_pause_s
        while not self._stop.is_set():
            self._wake.clear()
            try:
                self._turn()
                pause = self._first_pause_s
                self._sleep(self._until_next())
            except Stopped:
                continue
            except Exception as error:  # noqa: BLE001 - nothing of this may reach the run
                self._failed(error)
                # Of the storage, so of every snapshot: nothing is tried before it is over.
                self._stop.wait(pause)
                pause = min(2 * pause, self._longest_pause_s)

    def _turn(self) -> None:
        """Copy until nothing is left that may be tried now."""
        while not self._stop.is_set():
            with self._changed:
                asked = self._asked
            self._note(self._source.numbers())
            with self._changed:
                self._answered = asked
                self._changed.notify_all()
            number = self._next()
            if number is None:
                return
            self._push(number)

    def _next(self) -> int | None:
        now = time.monotonic()
        with self._changed:
            ready = [n for n in self._behind if self._not_before.get(n, (0.0, 0.0))[0] <= now]
            return max(ready, default=None)

    def _push(self, number: int) -> None:
        if self._ground is None:
            self._ground = Ground(self._open())
        with self._changed:
            self._copying = number
        try:
            report = copy_snapshot(
                self._source,
                self._ground.target,
                number,
                workers=self._workers,
                progress=self._watch,
                ground=self._ground,
            )
        except (StorageError, StoreNotFound, Stopped):
            raise
        except _HOPELESS as error:
            self._over(number, f"{error.code}: {error}")
        except Exception as error:  # noqa: BLE001 - nothing of this may reach the run
            self._later(number, error)
        else:
            self._over(number, "", report.bytes_sent)
        finally:
            with self._changed:
                self._copying = None

    def _watch(self, _: int, __: str) -> None:
        if self._stop.is_set():
            raise Stopped

    def _over(self, number: int, reason: str, bytes_sent: int = 0) -> None:
        with self._changed:
            self._behind.pop(number, None)
            self._not_before.pop(number, None)
            if reason:
                self._skipped[number] = reason
            else:
                self._pushed.add(number)
                self._failures, self._last_error = 0, ""
                self._bytes_sent += bytes_sent
            self._changed.notify_all()

    def _later(self, number: int, error: Exception) -> None:
        """Of this snapshot only: others go on meanwhile."""
        self._failed(error)
        with self._changed:
            _, before = self._not_before.get(number, (0.0, 0.0))
            pause = min(max(2 * before, self._first_pause_s), self._longest_pause_s)
            self._not_before[number] = (time.monotonic() + pause, pause)

    def _failed(self, error: Exception) -> None:
        code = error.code if isinstance(error, SnapfmtError) else type(error).__name__
        with self._changed:
            self._failures += 1
            self._last_error = f"{code}: {error}"

    def _until_next(self) -> float:
        with self._changed:
            times = [self._not_before[n][0] for n in self._behind if n in self._not_before]
        return max(min([self._poll_s, *(at - time.monotonic() for at in times)]), 0.0)

    def _sleep(self, seconds: float) -> None:
        self._wake.wait(seconds)
