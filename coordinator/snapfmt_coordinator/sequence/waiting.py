"""Waiting for a thread, which a cancellation cannot tear, and up to a deadline."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from snapfmt.errors import DeadlineExceeded
from snapfmt_coordinator.gym.fanout import to_the_end

T = TypeVar("T")

GRACE_S = 10.0
"""How much longer than its deadline a port may take to say that the deadline has passed."""


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
