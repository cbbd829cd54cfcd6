"""Calls that run ahead on threads, their results in order or by name."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from itertools import chain, islice
from typing import Generic, Self, TypeVar

from snapfmt.threads import Pool

T = TypeVar("T")

WORKERS = 2
"""Threads that read, verify and decompress ahead."""
AHEAD = 4
"""Results that wait for who asked for them."""


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
