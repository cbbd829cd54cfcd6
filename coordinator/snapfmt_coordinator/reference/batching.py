"""Gathers what arrives within a few milliseconds into one piece of work."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")

WAIT_S: Final = 0.002
"""How long the first item of a batch waits for others."""
MOST: Final = 256
"""Most items of a batch."""


class Batcher(Generic[T, R]):
    """Runs `work` on batches; each item gets its own result, or the batch's error."""

    def __init__(
        self,
        work: Callable[[list[T]], Awaitable[Sequence[R]]],
        *,
        wait_s: float = WAIT_S,
        most: int = MOST,
        parallel: int = 1,
    ) -> None:
        """`parallel`: most batches that are worked on at once."""
        self._work = work
        self._wait_s = wait_s
        self._most = most
        self._turn = asyncio.Semaphore(parallel)
        self._waiting: list[tuple[T, asyncio.Future[R]]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def submit(self, item: T) -> R:
        """The item's result."""
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if len(self._waiting) % self._most == 1 or self._most == 1:
            task = asyncio.create_task(self._run())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await future

    async def close(self) -> None:
        """Works off what is waiting."""
        while self._tasks:
            await asyncio.gather(*self._tasks)

    async def _run(self) -> None:
        await asyncio.sleep(self._wait_s)
        async with self._turn:
            # All that came meanwhile goes along; a task whose items went with another's has none.
            while batch := self._waiting[: self._most]:
                del self._waiting[: self._most]
                await self._finish(batch)

    async def _finish(self, batch: list[tuple[T, asyncio.Future[R]]]) -> None:
        try:
            results = await self._work([item for item, _ in batch])
            if len(results) != len(batch):
                raise RuntimeError(f"{len(results)} results for {len(batch)} items")
        except Exception as error:  # noqa: BLE001 - it belongs to those who wait
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), result in zip(batch, results, strict=True):
            if not future.done():
                future.set_result(result)
