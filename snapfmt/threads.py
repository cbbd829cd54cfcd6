"""Threads where the system has some to give, and what is done without."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from snapfmt.errors import StorageError

T = TypeVar("T")
P = ParamSpec("P")


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
            hint="raise the limit of processes (ulimit -u, pids.max) or of memory, and try again",
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

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """As of any executor."""
        if not self._here:
            try:
                return super().submit(fn, *args, **kwargs)
            except RuntimeError:
                if self._threads or self._shutdown:
                    raise
                # For good: what lies in the queue now is for no thread to take.
                self._here = True
        return here(fn, *args, **kwargs)

    def _adjust_thread_count(self) -> None:
        try:
            super()._adjust_thread_count()
        except RuntimeError:
            # Those that there are do it all.
            if not self._threads:
                raise
