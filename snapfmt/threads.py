"""Calls on threads, where the system has some to give, and what is done without."""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from typing import Generic, ParamSpec, Self, TypeVar

from snapfmt.errors import StorageError

T = TypeVar("T")
P = ParamSpec("P")

WORKERS = 2
"""Threads that read, verify and decompress ahead."""
REQUESTS = 16
"""Small requests at the same time, where each takes long."""
AHEAD = 4
"""Results that wait for who asked for them."""


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


def here(fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
    """Done at once, on the caller's thread; an error is raised when its result is asked for."""
    future: Future[T] = Future()
    try:
        future.set_result(fn(*args, **kwargs))
    except Exception as error:  # noqa: BLE001 - as of a thread
        future.set_exception(error)
    return future


class Pool(ThreadPoolExecutor):
    """Runs calls on the caller's thread, where the system has no thread to give.

    A limit of processes that is reached must not be what keeps a run from being restored.
    """

    _here = False
    _over = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """As of any executor."""
        if not self._here:
            try:
                return super().submit(fn, *args, **kwargs)
            except RuntimeError:
                # Not `_shutdown`: an interpreter that ends sets that too, and ends the threads.
                if self._over:
                    raise
                # For good: what lies in the queue now is for no thread to take.
                self._here = True
        return here(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """As of any executor."""
        self._over = True
        super().shutdown(wait, cancel_futures=cancel_futures)

    def _adjust_thread_count(self) -> None:
        try:
            super()._adjust_thread_count()
        except RuntimeError:
            # Those that there are do it all.
            if not self._threads:
                raise


def in_order(calls: Iterable[Callable[[], T]], *, workers: int = WORKERS) -> Iterator[T]:
    """What the calls return, in their order; raises what the first failing one raised.

    Calls must not depend on one another. None is begun after an error, or when nobody asks for
    more; those that run are waited for. A call that is the only one runs on the caller's thread:
    a thread takes longer to start than a small batch takes to read.
    """
    waiting = iter(calls)
    first = list(islice(waiting, 2))
    if len(first) < 2:
        for call in first:
            yield call()
        return
    flight: deque[Future[T]] = deque()
    with Pool(workers, thread_name_prefix="snapfmt-read") as pool:
        try:
            for call in chain(first, waiting):
                flight.append(pool.submit(call))
                if len(flight) > max(AHEAD, workers):
                    yield flight.popleft().result()
            while flight:
                yield flight.popleft().result()
        finally:
            for future in flight:
                future.cancel()


def together(calls: Iterable[Callable[[], T]], *, workers: int) -> list[T]:
    """What the calls return, as of `in_order`; with one worker, on the caller's thread."""
    return [call() for call in calls] if workers == 1 else list(in_order(calls, workers=workers))


class Begun(Generic[T]):
    """Calls that run on threads before their results are asked for, each under a name.

    A context manager; leaving it gives up those that did not begin and waits for the others.
    """

    def __init__(self, workers: int = WORKERS) -> None:
        self._pool = Pool(workers, thread_name_prefix="snapfmt-begun")
        self._futures: dict[str, Future[T]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def begin(self, name: str, call: Callable[[], T]) -> None:
        """Begin a call, unless one was begun under that name."""
        if name not in self._futures:
            self._futures[name] = self._pool.submit(call)

    def result(self, name: str) -> T:
        """What the call returned; raises what it raised."""
        return self._futures[name].result()
