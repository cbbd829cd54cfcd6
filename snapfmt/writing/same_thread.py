"""An executor that has no thread."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any


class SameThread(Executor):
    """Runs what it is given at once, on the caller's thread."""

    def submit(self, call: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        """Its result, or the error, which is raised when it is asked for."""
        future: Future[Any] = Future()
        try:
            future.set_result(call(*args, **named))
        except Exception as error:  # noqa: BLE001 - as a thread would keep it
            future.set_exception(error)
        return future
