"""Calls that run ahead on threads, their results in order."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from typing import TypeVar

T = TypeVar("T")

WORKERS = 2
"""Threads that read, verify and decompress ahead."""
AHEAD = 4
"""Results that wait for who asked for them."""


def in_order(calls: Iterable[Callable[[], T]]) -> Iterator[T]:
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
    with ThreadPoolExecutor(WORKERS, thread_name_prefix="snapfmt-read") as pool:
        try:
            for call in chain(first, waiting):
                flight.append(pool.submit(call))
                if len(flight) > AHEAD:
                    yield flight.popleft().result()
            while flight:
                yield flight.popleft().result()
        finally:
            for future in flight:
                future.cancel()
