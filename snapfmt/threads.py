"""Calls on threads, where the system has some to give, and what is done without."""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from queue import Empty, SimpleQueue
from typing import Any, Generic, ParamSpec, Self, TypeVar

from snapfmt.errors import StorageError

T = TypeVar("T")
P = ParamSpec("P")

WORKERS = 2
"""Threads that read, verify and decompress ahead."""
REQUESTS = 16
"""Small requests at the same time, where each takes long."""
AHEAD = 4
"""Results that wait for who asked for them."""
HURRY_S = 0.5
"""For what runs when there is an interrupt, or nobody asks for more."""


def start(thread: threading.Thread) -> None:
    """Start a thread that nothing can do without.

    Raises:
        StorageError: If the system has none to give.
    """
    try:
        thread.start()
    except RuntimeError as error:
        raise StorageError(
            f"no thread could be started: {error}",
            what=thread.name,
            hint="raise the limit of processes (ulimit -u, pids.max) or of memory, and try again; "
            "a process that is ending may be given none",
        ) from error


def join(threads: Iterable[threading.Thread], seconds: float | None) -> None:
    """Wait for all of them, together no longer than so many seconds; for ever with None."""
    deadline = None if seconds is None else time.monotonic() + seconds
    for thread in threads:
        # One that was never started, or in whose start an interrupt came; it finds nothing to do.
        with contextlib.suppress(RuntimeError):
            thread.join(None if deadline is None else max(deadline - time.monotonic(), 0.0))


def run_for(seconds: float, work: Callable[[], object]) -> bool:
    """Let a thread do it; returns whether it ended in time. What it raises is lost."""

    def run() -> None:
        with contextlib.suppress(BaseException):
            work()

    thread = threading.Thread(target=run, name="snapfmt-end", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        # There is none to be had: as long as it takes, then.
        with contextlib.suppress(Exception):
            work()
        return True
    thread.join(seconds)
    return not thread.is_alive()


def here(fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
    """Done at once, on the caller's thread; an error is raised when its result is asked for."""
    future: Future[T] = Future()
    try:
        future.set_result(fn(*args, **kwargs))
    except Exception as error:  # noqa: BLE001 - as of a thread
        future.set_exception(error)
    return future


class Pool(Executor):
    """Runs calls on threads, or on the caller's where the system has no thread to give.

    A limit of processes that is reached must not be what keeps a run from being restored. Its
    threads are daemons: an interpreter that ends waits for those of `ThreadPoolExecutor`, also
    for one whose request a server does not answer.

    A context manager; leaving it gives up what did not begin and waits for the rest: after an
    interrupt, or where nobody asks for more, no longer than `HURRY_S`.
    """

    def __init__(self, workers: int, *, thread_name_prefix: str) -> None:
        self._workers = workers
        self._name = thread_name_prefix
        self._calls = _Calls()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._here = False
        self._over = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """As of any executor."""
        with self._lock:
            if self._over:
                raise RuntimeError("cannot submit after shutdown")
            if not self._here and self._grow():
                future: Future[T] = Future()
                self._calls.add(_Call(future, partial(fn, *args, **kwargs)))
                return future
            # For good.
            self._here = True
        return here(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """As of any executor."""
        self._end(None if wait else 0.0, cancel=cancel_futures)

    def __exit__(self, kind: type[BaseException] | None = None, *_: object) -> None:
        hurry = kind is not None and not issubclass(kind, Exception)
        self._end(HURRY_S if hurry else None, cancel=True)

    def __del__(self) -> None:
        # Its threads hold the calls only.
        self._calls.close()

    def _grow(self) -> bool:
        """Whether there is a thread to take one more call."""
        if self._calls.unfinished < len(self._threads) or len(self._threads) == self._workers:
            return True
        thread = threading.Thread(
            target=self._calls.serve, name=f"{self._name}_{len(self._threads)}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:
            # Those that there are do it all.
            return bool(self._threads)
        self._threads.append(thread)
        return True

    def _end(self, patience_s: float | None, *, cancel: bool) -> None:
        with self._lock:
            self._over = True
        if cancel:
            self._calls.cancel()
        self._calls.close()
        join(self._threads, patience_s)


@dataclass(frozen=True, slots=True)
class _Call:
    future: Future[Any]
    work: Callable[[], Any]


class _Calls:
    """What the threads of a pool take; they hold nothing else of it."""

    def __init__(self) -> None:
        self._waiting: SimpleQueue[_Call | None] = SimpleQueue()
        self._lock = threading.Lock()
        self.unfinished = 0
        """Calls that wait or run."""

    def add(self, call: _Call) -> None:
        with self._lock:
            self.unfinished += 1
        self._waiting.put(call)

    def close(self) -> None:
        """Who serves ends, after what waits."""
        self._waiting.put(None)

    def cancel(self) -> None:
        """Give up what waits."""
        with contextlib.suppress(Empty):
            while True:
                call = self._waiting.get_nowait()
                if call is not None:
                    call.future.cancel()

    def serve(self) -> None:
        """Do one call after another."""
        while (call := self._waiting.get()) is not None:
            if call.future.set_running_or_notify_cancel():
                self._do(call)
            else:
                self._one_less()
            # Not held while the next is waited for: what it was asked for may be large.
            del call
        # For the others.
        self._waiting.put(None)

    def _do(self, call: _Call) -> None:
        try:
            result = call.work()
        except BaseException as error:  # noqa: BLE001 - raised where it is asked for
            self._one_less()
            call.future.set_exception(error)
            # The error holds this frame: a cycle would keep what the call had.
            del call
        else:
            self._one_less()
            call.future.set_result(result)

    def _one_less(self) -> None:
        # Before the result is known: who waits for it may submit the next call.
        with self._lock:
            self.unfinished -= 1


def in_order(calls: Iterable[Callable[[], T]], *, workers: int = WORKERS) -> Iterator[T]:
    """What the calls return, in their order; raises what the first failing one raised.

    Calls must not depend on one another. None is begun after an error, or when nobody asks for
    more; those that run are waited for as by `Pool`. A call that is the only one runs on the
    caller's thread: a thread takes longer to start than a small batch takes to read.
    """
    waiting = iter(calls)
    first = list(islice(waiting, 2))
    if len(first) < 2:
        for call in first:
            yield call()
        return
    flight: deque[Future[T]] = deque()
    with Pool(workers, thread_name_prefix="snapfmt-read") as pool:
        for call in chain(first, waiting):
            flight.append(pool.submit(call))
            if len(flight) > max(AHEAD, workers):
                yield flight.popleft().result()
        while flight:
            yield flight.popleft().result()


def together(calls: Iterable[Callable[[], T]], *, workers: int) -> list[T]:
    """What the calls return, as of `in_order`; with one worker, on the caller's thread."""
    return [call() for call in calls] if workers == 1 else list(in_order(calls, workers=workers))


class Begun(Generic[T]):
    """Calls that run on threads before their results are asked for, each under a name.

    A context manager as `Pool`.
    """

    def __init__(self, workers: int = WORKERS) -> None:
        self._pool = Pool(workers, thread_name_prefix="snapfmt-begun")
        self._futures: dict[str, Future[T]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._pool.__exit__(kind)

    def begin(self, name: str, call: Callable[[], T]) -> None:
        """Begin a call, unless one was begun under that name."""
        if name not in self._futures:
            self._futures[name] = self._pool.submit(call)

    def result(self, name: str) -> T:
        """What the call returned; raises what it raised."""
        return self._futures[name].result()
