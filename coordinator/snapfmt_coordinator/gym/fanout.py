"""Runs requests to many servers at once, to one error or none, and to their end if need be."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, TypeVar

T = TypeVar("T")

SETTLE_S: Final = 0.5
"""How long the other requests may still run when one has failed."""


async def together(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Results of works that run at once, in their order.

    When one fails the others get a moment to finish, so that no request is cut off which a
    server would meet later, after it was resumed; then they are given up.

    Raises:
        Exception: The first failure; further ones are its notes.
    """
    tasks = [asyncio.create_task(work) for work in works]
    first: BaseException | None = None
    try:
        if tasks:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            first = next(iter(_errors(tasks)), None)
            if first is not None:
                await asyncio.wait(tasks, timeout=SETTLE_S)
        errors = _errors(tasks)
    finally:
        await _end(tasks)
    if first is not None:
        raise _noted(first, errors)
    return [task.result() for task in tasks]


async def in_stages(
    work: Callable[[T], Coroutine[Any, Any, None]],
    stages: Sequence[Sequence[T]],
    *,
    patience_s: float,
) -> None:
    """Does `work` for every member of one stage at once, then for the next stage.

    All stages are done, whatever fails. A stage that takes longer than `patience_s` seconds
    holds the next one up no longer; its work goes on beside it.

    Raises:
        Exception: The first failure in the order of the stages; further ones are its notes.
    """
    tasks: list[asyncio.Task[None]] = []
    try:
        for stage in stages:
            current = [asyncio.create_task(work(member)) for member in stage]
            tasks += current
            if current:
                await asyncio.wait(current, timeout=patience_s)
        if tasks:
            await asyncio.wait(tasks)
        errors = _errors(tasks)
    finally:
        await _end(tasks)
    if errors:
        raise _noted(errors[0], errors)


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


def _errors(tasks: Iterable[asyncio.Task[Any]]) -> list[BaseException]:
    found = (task.exception() for task in tasks if task.done() and not task.cancelled())
    return [error for error in found if error is not None]


async def _end(tasks: Iterable[Awaitable[Any]]) -> None:
    waiting = list(tasks)
    for task in waiting:
        if isinstance(task, asyncio.Task):
            task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


def _noted(error: BaseException, errors: Iterable[BaseException]) -> BaseException:
    for other in errors:
        if other is not error:
            error.add_note(f"also: {other}")
    return error
