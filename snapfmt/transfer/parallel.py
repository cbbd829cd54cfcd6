"""Many small jobs in a few threads, with a bound on the bytes that they hold in memory."""

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TypeVar

from snapfmt.limits import MIB

T = TypeVar("T")
R = TypeVar("R")
BYTES_IN_FLIGHT = 256 * MIB
"""Bytes of objects that are in memory at once; one that is larger goes alone."""
_TICK_S = 5.0


class Stopped(Exception):
    """Another job failed; this one gives up."""


class Bound:
    """Bytes that jobs may hold together."""

    def __init__(self, total: int = BYTES_IN_FLIGHT) -> None:
        self._total = total
        self._free = total
        self._room = threading.Condition()

    @contextmanager
    def taking(self, size: int) -> Iterator[None]:
        """Waits for room, and gives it back."""
        size = min(size, self._total)
        with self._room:
            self._room.wait_for(lambda: self._free >= size)
            self._free -= size
        try:
            yield
        finally:
            with self._room:
                self._free += size
                self._room.notify_all()


def run_all(
    work: Callable[[T, threading.Event], R],
    items: Iterable[T],
    *,
    workers: int,
    tick: Callable[[], None],
) -> list[R]:
    """The results in order; `tick` is called now and then, in this thread.

    The first error ends all of it: `work` looks at its event between steps, and raises `Stopped`.
    """
    stop = threading.Event()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="snapfmt-copy")
    try:
        jobs = [pool.submit(work, item, stop) for item in items]
        pending = set(jobs)
        while pending:
            done, pending = wait(pending, timeout=_TICK_S, return_when=FIRST_COMPLETED)
            for job in done:
                job.result()
            tick()
        return [job.result() for job in jobs]
    finally:
        stop.set()
        pool.shutdown(wait=True, cancel_futures=True)
