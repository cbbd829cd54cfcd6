"""Waiting that a cancellation cannot tear: to the end, in a thread, or up to a deadline."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from snapfmt.errors import DeadlineExceeded

T = TypeVar("T")

GRACE_S = 10.0
"""How much longer than its deadline a port may take to say that the deadline has passed."""


async def to_the_end(work: Coroutine[Any, Any, T], *, patience_s: float | None = None) -> T:
    """Awaits `work` until it is done, also when the caller is cancelled meanwhile.

    The cancellation is raised afterwards, in place of the result: `work` keeps what a clean-up
    needs to know somewhere else. After a cancellation it is given `patience_s` seconds, by
    default as long as it takes.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    gives_up_at: float | None = None
    while not task.done():
        left = None if gives_up_at is None else gives_up_at - time.monotonic()
        if left is not None and left <= 0:
            task.cancel()
            break
        try:
            # Unlike `shield`, this raises nothing of the task itself.
            await asyncio.wait((task,), timeout=left)
        except asyncio.CancelledError as error:
            cancelled = error
            if patience_s is not None and gives_up_at is None:
                gives_up_at = time.monotonic() + patience_s
    if cancelled is None:
        return task.result()
    if task.done() and not task.cancelled():
        # Looked at, so that nobody warns of an error that was never retrieved.
        task.exception()
    raise cancelled


async def in_thread(function: Callable[[], T]) -> T:
    """Runs a blocking function in a thread and awaits its end, whatever happens."""
    return await to_the_end(asyncio.to_thread(function))


async def before(deadline_ts: float, what: str, work: Awaitable[T]) -> T:
    """Awaits `work` up to an absolute Unix time in seconds and some grace.

    Raises:
        DeadlineExceeded: If it is not done by then.
    """
    try:
        async with asyncio.timeout(max(0.0, deadline_ts - time.time()) + GRACE_S) as limit:
            return await work
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise DeadlineExceeded(
            "not done before the deadline", what=what, hint="allow more time for it"
        ) from error
