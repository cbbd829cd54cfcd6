"""Many small jobs in a few threads, with a bound on the bytes that they hold in memory."""

import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from snapfmt.limits import MIB
from snapfmt.threads import HURRY_S, join, start

T = TypeVar("T")
R = TypeVar("R")
BYTES_IN_FLIGHT = 256 * MIB
"""Bytes of objects that are in memory at once; one that is larger goes alone."""
_TICK_S: Final = 0.25
_PATIENCE_S: Final = 10.0
"""After an error: for what is on its way; after an interrupt it is `HURRY_S`."""


class Stopped(Exception):
    """Another job failed, or the copy was told to end; this one gives up."""


class Bound:
    """Bytes that jobs may hold together."""

    def __init__(self, total: int = BYTES_IN_FLIGHT) -> None:
        self._total = total
        self._free = total
        self._room = threading.Condition()

    @contextlib.contextmanager
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

    The first error, also one of `tick`, ends all of it: `work` looks at its event between steps,
    and raises `Stopped`. A job that does not end soon is left to itself: its thread is a daemon,
    so that a request which is stuck keeps no process from its end.
    """
    todo = deque(enumerate(items))
    total = len(todo)
    done: queue.SimpleQueue[tuple[int, R] | BaseException] = queue.SimpleQueue()
    stop = threading.Event()

    def serve() -> None:
        while not stop.is_set():
            try:
                place, item = todo.popleft()
            except IndexError:
                return
            try:
                done.put((place, work(item, stop)))
            except BaseException as error:  # noqa: BLE001 - raised again by who waits
                done.put(error)
                # After it, so that what others raise because of this comes later.
                stop.set()

    threads = [
        threading.Thread(target=serve, name=f"snapfmt-copy-{number}", daemon=True)
        for number in range(min(workers, total))
    ]
    found: dict[int, R] = {}
    patience = HURRY_S
    try:
        for thread in threads[:1]:
            start(thread)
        with contextlib.suppress(RuntimeError):
            # Where the system has no more, fewer do it.
            for thread in threads[1:]:
                thread.start()
        while len(found) < total:
            try:
                answer = done.get(timeout=_TICK_S)
            except queue.Empty:
                pass
            else:
                if isinstance(answer, BaseException):
                    raise answer
                found[answer[0]] = answer[1]
            tick()
        return [found[place] for place in range(total)]
    except Stopped:
        raise
    except Exception:
        patience = _PATIENCE_S
        raise
    finally:
        stop.set()
        join(threads, patience)
