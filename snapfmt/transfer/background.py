"""The second tier: a thread that copies what a run publishes to another place soon after.

with BackgroundPush(source, target) as push:
    save(source)
    push.notify()
# Waited, at most `drain_s`, for what was saved; what did not get there is listed.
left = push.state().behind
"""

import contextlib
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from snapfmt import threads
from snapfmt.errors import (
    ConflictError,
    CorruptError,
    InputError,
    LimitExceeded,
    NotFoundError,
    RefusedError,
    SnapfmtError,
    StorageError,
    StoreNotFound,
    UnsupportedFeature,
    UnsupportedFilesystem,
    UnsupportedVersion,
)
from snapfmt.repository import Repository
from snapfmt.transfer.checks import check_pair, check_repository, check_seconds, check_whole
from snapfmt.transfer.copying import copy_snapshot
from snapfmt.transfer.ground import Ground
from snapfmt.transfer.parallel import Stopped
from snapfmt.transfer.push_state import PushState
from snapfmt.transfer.sides import at

_HOPELESS: Final = (
    ConflictError,
    CorruptError,
    InputError,
    LimitExceeded,
    NotFoundError,
    UnsupportedFeature,
    UnsupportedVersion,
)
"""What another try of the same snapshot does not mend."""
_LEAVE_S: Final = 2.0
"""For the thread to end, where a `with` block ends."""


class BackgroundPush:
    """Copies every published snapshot of `source` to `target`, the newest first.

    Nothing that goes wrong here reaches the run: it shows in `state()`, and is tried again after
    pauses that grow, unless no other try can mend it. A snapshot that the source retires
    meanwhile is passed over. Holds nothing at the source: retention there goes on as if this did
    not exist.

    The end of a `with` block waits, at most `drain_s`, until all that the source has is at the
    target; after an exception or an interrupt it does not wait. Without a `with` block, call
    `wait` and then `close`. Whatever is stuck, the process can end: no thread of this is waited
    for at its exit.
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
        drain_s: float = 60.0,
    ) -> None:
        """`target` may be a function that opens it: then it need not be reachable yet.

        Times are seconds: `poll_s` between looks at the source that nobody asked for, the pauses
        after failures, and `drain_s`, which the end of a `with` block waits at most.

        Raises:
            InputError: If a value is of the wrong type, or a number does not fit.
        """
        check_repository(source, "source")
        if not callable(target) and not isinstance(target, Repository):
            raise InputError(
                "target is an open Repository or a function that opens it",
                what=type(target).__name__,
                hint="lambda: open_target(url, source)",
            )
        check_seconds(poll_s, "poll_s")
        check_seconds(first_pause_s, "first_pause_s")
        check_seconds(longest_pause_s, "longest_pause_s")
        check_seconds(drain_s, "drain_s", zero=True)
        check_whole(workers, "workers", least=1)
        self._source = source
        self._target = target
        self._drain_s = drain_s
        self._workers = workers
        self._poll_s = poll_s
        self._first_pause_s = first_pause_s
        self._longest_pause_s = longest_pause_s
        self._ground: Ground | None = None
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._hurry = threading.Event()
        """Somebody waits for the end: a pause that a failure began is cut short."""
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
        self._given_up = ""
        self._bytes_sent = 0
        self._asked = 0
        """Looks at the source that somebody waits for."""
        self._answered = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None and self._drain_s > 0:
                self._drain()
        finally:
            self.close(_LEAVE_S)

    def _drain(self) -> None:
        with self._changed:
            self._not_before.clear()
        self._hurry.set()
        self.wait(self._drain_s)

    def start(self) -> None:
        """Begin; a second call does nothing, and one after `close` neither.

        Raises:
            StorageError: If the system has no thread to give.
        """
        with self._changed:
            if self._thread.ident is None:
                threads.start(self._thread)

    def notify(self, number: int | None = None) -> None:
        """Say that a snapshot was published; only makes it sooner, and never blocks."""
        if number is not None:
            self._note([number])
        self._wake.set()

    def wait(self, timeout_s: float) -> bool:
        """Wait until all that the source has now is at the target or skipped; whether it is.

        False at once if the push was closed, or gave up the target.
        """

        def done() -> bool:
            return self._answered >= mine and not self._behind

        with self._changed:
            # A look that began before this call would not do.
            self._asked += 1
            mine = self._asked
            self._wake.set()
            self._changed.wait_for(lambda: done() or self._stop.is_set(), timeout_s)
            return done()

    def close(self, timeout_s: float = 30.0) -> bool:
        """Stop, in the middle of a copy if need be; returns whether the thread ended in time.

        Waits for nothing that is not pushed yet: `wait` does. What was sent stays, and the next
        push goes on from there; `state().behind` is what the source has and the target lacks.
        """
        deadline = time.monotonic() + timeout_s
        self._end()
        if self._thread.ident is not None:
            # In a thread, since it may be the source that is stuck.
            look = threading.Thread(target=self._look, name="snapfmt-push-end", daemon=True)
            with contextlib.suppress(RuntimeError):
                look.start()
            for thread in (self._thread, look):
                if thread.ident is not None:
                    thread.join(max(deadline - time.monotonic(), 0.0))
        return not self._thread.is_alive()

    def _end(self) -> None:
        with self._changed:
            self._stop.set()
            self._changed.notify_all()
        self._hurry.set()
        self._wake.set()

    def _look(self) -> None:
        """What was published since the last look stays behind, and is told."""
        try:
            self._note(self._numbers())
        except Exception as error:  # noqa: BLE001 - nothing of this may reach the run
            self._failed(error)

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
                given_up=self._given_up,
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
                self._wake.wait(self._until_next())
            except Stopped:
                continue
            except (InputError, UnsupportedFilesystem) as error:
                self._give_up(error)
            except Exception as error:  # noqa: BLE001 - nothing of this may reach the run
                self._failed(error)
                # Of the storage, so of every snapshot: nothing is tried before it is over.
                pause = self._rest(pause)

    def _rest(self, pause: float) -> float:
        """Wait; returns the next pause."""
        if not self._hurry.is_set():
            if self._hurry.wait(pause):
                return self._first_pause_s
        else:
            self._stop.wait(pause)
        return min(2 * pause, self._longest_pause_s)

    def _turn(self) -> None:
        """Copy until nothing is left that may be tried now."""
        while not self._stop.is_set():
            with self._changed:
                asked = self._asked
            self._note(self._numbers())
            with self._changed:
                self._answered = asked
                self._changed.notify_all()
            if isinstance(self._target, Repository):
                self._reach()
            number = self._next()
            if number is None:
                return
            self._push(number)

    def _next(self) -> int | None:
        now = time.monotonic()
        with self._changed:
            ready = [n for n in self._behind if self._not_before.get(n, (0.0, 0.0))[0] <= now]
            return max(ready, default=None)

    def _numbers(self) -> list[int]:
        with at("source", self._source.location):
            return self._source.numbers()

    def _reach(self) -> Ground:
        """The target, opened once.

        Raises:
            Stopped: If it was given up: it will never take what the source has.
        """
        if self._ground is None:
            try:
                target = self._target
                if not isinstance(target, Repository):
                    with at("target"):
                        target = target()
                check_repository(target, "target")
                check_pair(self._source, target)
            except (RefusedError, InputError) as error:
                self._give_up(error)
                raise Stopped from error
            self._ground = Ground(target)
        return self._ground

    def _push(self, number: int) -> None:
        ground = self._reach()
        with self._changed:
            self._copying = number
        try:
            report = copy_snapshot(
                self._source,
                ground.target,
                number,
                workers=self._workers,
                progress=self._watch,
                ground=ground,
                check=self._check,
            )
        except (StorageError, StoreNotFound, Stopped, UnsupportedFilesystem):
            raise
        except _HOPELESS as error:
            self._over(number, _said(error))
        except Exception as error:  # noqa: BLE001 - nothing of this may reach the run
            self._later(number, error)
        else:
            self._over(number, "", report.bytes_sent)
        finally:
            with self._changed:
                self._copying = None

    def _watch(self, _: int, __: str) -> None:
        self._check()

    def _check(self) -> None:
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

    def _give_up(self, error: Exception) -> None:
        """Of all of it."""
        self._failed(error)
        with self._changed:
            self._given_up = self._last_error
        self._end()

    def _failed(self, error: Exception) -> None:
        with self._changed:
            self._failures += 1
            self._last_error = _said(error)

    def _until_next(self) -> float:
        with self._changed:
            times = [self._not_before[n][0] for n in self._behind if n in self._not_before]
        return max(min([self._poll_s, *(at - time.monotonic() for at in times)]), 0.0)


def _said(error: Exception) -> str:
    code = error.code if isinstance(error, SnapfmtError) else type(error).__name__
    return f"{code}: {error}"
