"""Batches: what comes together goes together, and everybody gets their own result."""

import asyncio

import pytest

from snapfmt_coordinator.reference.batching import Batcher


def test_each_item_gets_its_own_result_and_few_batches_are_made() -> None:
    sizes: list[int] = []

    async def body() -> None:
        async def double(items: list[int]) -> list[int]:
            sizes.append(len(items))
            await asyncio.sleep(0.005)
            return [2 * item for item in items]

        batches = Batcher(double, wait_s=0.002, most=16)
        results = await asyncio.gather(*(batches.submit(number) for number in range(100)))
        assert results == [2 * number for number in range(100)]
        await batches.close()

    asyncio.run(body())
    assert sum(sizes) == 100
    assert max(sizes) == 16
    assert len(sizes) <= 8


def test_batches_run_one_after_another_unless_more_are_allowed() -> None:
    for parallel in (1, 3):
        running = most = 0

        async def body(parallel: int = parallel) -> None:
            full = asyncio.Event()

            async def work(items: list[int]) -> list[int]:
                nonlocal running, most
                running += 1
                most = max(most, running)
                if running == parallel:
                    full.set()
                await full.wait()
                await asyncio.sleep(0.01)
                running -= 1
                return items

            batches = Batcher(work, wait_s=0.0, most=2, parallel=parallel)
            async with asyncio.timeout(60):
                await asyncio.gather(*(batches.submit(number) for number in range(12)))

        asyncio.run(body())
        assert most == parallel


def test_a_failing_batch_fails_its_items_and_no_others() -> None:
    async def body() -> None:
        async def work(items: list[int]) -> list[int]:
            if 1 in items:
                raise OSError("no room")
            return items[1:] if 9 in items else items

        batches = Batcher(work, wait_s=0.0)
        first = await asyncio.gather(batches.submit(1), batches.submit(2), return_exceptions=True)
        assert [type(result) for result in first] == [OSError, OSError]
        assert await batches.submit(3) == 3
        with pytest.raises(RuntimeError, match="0 results for 1 items"):
            await batches.submit(9)

    asyncio.run(body())


def test_one_that_gives_up_does_not_disturb_the_others() -> None:
    async def body() -> None:
        end = asyncio.Event()

        async def work(items: list[int]) -> list[int]:
            await end.wait()
            return items

        batches = Batcher(work, wait_s=0.001)
        leaving = asyncio.create_task(batches.submit(1))
        staying = asyncio.create_task(batches.submit(2))
        await asyncio.sleep(0.005)
        leaving.cancel()
        end.set()
        assert await staying == 2
        await asyncio.wait([leaving])
        assert leaving.cancelled()

    asyncio.run(body())
