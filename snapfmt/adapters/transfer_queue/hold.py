"""Gates in the queue's actors: requests wait for milliseconds while references are taken.

A gate lets requests pass, one hold at a time stops new ones and waits for those inside. Every
hold carries a lease: a driver that dies while it holds a gate leaves the queue stopped for
seconds at most. Requests wait at a closed gate, they are never dropped or answered early.
"""

import inspect
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

from snapfmt.errors import DeadlineExceeded
from snapfmt.threads import start

_GATE = "_snapfmt_gate"
_POLL_S = 0.001


class Lease:
    """Calls `on_expiry` once unless it is renewed or ended in time."""

    def __init__(self, seconds: float, on_expiry: Callable[[], object]) -> None:
        self._lock = threading.Lock()
        self._on_expiry = on_expiry
        self._deadline = time.monotonic() + seconds
        self._over = False
        self._timer = self._armed(seconds)

    def renew(self, seconds: float) -> bool:
        """Moves the expiry to `seconds` from now; False when it is already over."""
        with self._lock:
            if self._over:
                return False
            deadline, timer = time.monotonic() + seconds, self._armed(seconds)
            # Only now: where no thread can be had, the lease ends when it would have.
            self._timer.cancel()
            self._deadline, self._timer = deadline, timer
            return True

    def end(self) -> bool:
        """Ends the lease without calling `on_expiry`; False when it had expired."""
        with self._lock:
            if self._over:
                return False
            self._over = True
            self._timer.cancel()
            return True

    def _armed(self, seconds: float) -> threading.Timer:
        timer = threading.Timer(seconds, self._fire)
        timer.daemon = True
        start(timer)
        return timer

    def _fire(self) -> None:
        with self._lock:
            if self._over or time.monotonic() < self._deadline:
                return
            self._over = True
        self._on_expiry()


class Gate:
    """Lets requests pass; a holder stops new ones and waits until nobody is inside."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._owner: str | None = None
        self._lease: Lease | None = None
        self._since = 0.0
        self._waiting_since: float | None = None
        self._longest_wait = 0.0

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Surrounds one request; waits while the gate is held."""
        with self._changed:
            if self._owner is not None:
                self._waiting_since = self._waiting_since or time.monotonic()
                self._changed.wait_for(lambda: self._owner is None)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    def hold(self, owner: str, *, lease_s: float, timeout_s: float) -> float:
        """Closes the gate until `release` or the end of the lease; returns the seconds waited.

        Raises:
            DeadlineExceeded: If another holder or a request inside stays for too long.
            StorageError: If the system has no thread to give. The gate is open again after both.
        """
        started = time.monotonic()
        with self._changed:
            if not self._changed.wait_for(lambda: self._owner is None, timeout_s):
                raise DeadlineExceeded(
                    "another save or restore holds the queue", hint="let it finish, or wait"
                )
            left = timeout_s - (time.monotonic() - started)
            lease = Lease(left + lease_s, lambda: self.release(owner))
            self._owner, self._lease = owner, lease
            self._waiting_since, self._longest_wait = None, 0.0
            try:
                if not self._changed.wait_for(lambda: self._inside == 0, left):
                    raise DeadlineExceeded("a request inside the queue did not end in time")
                self._since = time.monotonic()
                lease.renew(lease_s)
            except BaseException:
                self._open()
                raise
            return self._since - started

    def renew(self, owner: str, lease_s: float) -> bool:
        """Keeps the gate closed for `lease_s` from now; False when it is not held any more."""
        with self._changed:
            return self._owner == owner and self._lease is not None and self._lease.renew(lease_s)

    def release(self, owner: str) -> float | None:
        """Opens the gate; returns how long it was closed, None when the lease had ended."""
        with self._changed:
            if self._owner != owner:
                return None
            held = time.monotonic() - self._since
            self._open()
            return held

    @property
    def longest_wait(self) -> float:
        """Longest time that a request waited at the gate during the last hold."""
        with self._changed:
            return self._longest_wait

    def _open(self) -> None:
        if self._lease is not None:
            self._lease.end()
        if self._waiting_since is not None:
            self._longest_wait = time.monotonic() - self._waiting_since
        self._owner, self._lease = None, None
        self._changed.notify_all()


def install_gate(
    target: Any,
    methods: tuple[str, ...],
    *,
    timeout_s: float = 30.0,
    seen: Callable[[str, tuple[Any, ...], Mapping[str, Any]], object] | None = None,
) -> Gate:
    """Puts one gate around the named methods of an object; finds the one that is there already.

    `seen` is called inside of a new gate before each call, with the method and its arguments.

    Raises:
        DeadlineExceeded: If a call that entered before the gate was there does not end.
    """
    found: tuple[Gate, frozenset[CodeType]] | None = target.__dict__.get(_GATE)
    if found is None:
        gate = Gate()
        codes = []
        for method in methods:
            original = getattr(target, method)
            # Ray wraps the methods of actors; all wrappers share one code object.
            codes.append(inspect.unwrap(original.__func__).__code__)
            setattr(target, method, _gated(gate, original, method, seen))
        found = (gate, frozenset(codes))
        setattr(target, _GATE, found)
    gate, entered_before = found
    # A request that was inside when the gate came is not counted by it: let it leave first.
    deadline = time.monotonic() + timeout_s
    while _running(entered_before):
        if time.monotonic() > deadline:
            raise DeadlineExceeded("a request inside the queue did not end in time")
        time.sleep(_POLL_S)
    return gate


def _gated(
    gate: Gate,
    original: Callable[..., Any],
    method: str,
    seen: Callable[[str, tuple[Any, ...], Mapping[str, Any]], object] | None,
) -> Callable[..., Any]:
    def gated(*args: Any, **kwargs: Any) -> Any:
        with gate.passing():
            if seen is not None:
                seen(method, args, kwargs)
            return original(*args, **kwargs)

    return gated


def _running(codes: frozenset[CodeType]) -> bool:
    """Whether some thread runs one of `codes` without having passed a gate."""
    for top in sys._current_frames().values():
        frame: FrameType | None = top
        inside = False
        while frame is not None:
            if frame.f_code is _GATED_CODE:
                inside = False
                break
            inside = inside or frame.f_code in codes
            frame = frame.f_back
        if inside:
            return True
    return False


_GATED_CODE = next(
    constant for constant in _gated.__code__.co_consts if isinstance(constant, CodeType)
)
