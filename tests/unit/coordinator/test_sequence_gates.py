"""Gate, barrier and lock: who waits for whom, nobody for ever, and nothing lost by cancelling."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest

from snapfmt.errors import ConflictError, InputError
from snapfmt_coordinator.sequence.gates import (
    KINDS,
    CheckpointLock,
    DataPlaneBarrier,
    DispatchGate,
)

WITHIN_S = 60.0


def run(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Runs a test's body; one that waits for ever fails."""

    async def main() -> None:
        async with asyncio.timeout(WITHIN_S):
            await body()

    asyncio.run(main())


async def settle() -> None:
    """Lets every task run as far as it can."""
    for _ in range(10):
        await asyncio.sleep(0)


def test_the_gate_holds_new_rollouts_and_says_how_long() -> None:
    async def body() -> None:
        gate = DispatchGate()
        assert await gate.wait() == 0.0
        gate.close("a")
        gate.close("a")
        assert gate.owner == "a"
        assert gate.closed_since is not None
        waiting = [asyncio.create_task(gate.wait()) for _ in range(3)]
        await settle()
        await asyncio.sleep(0.05)
        assert not any(task.done() for task in waiting)
        report = gate.open("a")
        assert report.closed_s >= 0.05
        assert report.waited == 3
        assert min(await asyncio.gather(*waiting)) >= 0.04
        assert gate.owner is None
        assert gate.closed_since is None
        gate.close("b")
        assert gate.open("b").waited == 0

    run(body)


def test_the_gate_belongs_to_the_one_who_closed_it() -> None:
    async def body() -> None:
        gate = DispatchGate()
        with pytest.raises(ConflictError, match="open"):
            gate.open("a")
        gate.close("a")
        with pytest.raises(ConflictError, match="'a'"):
            gate.close("b")
        with pytest.raises(ConflictError, match="not b's"):
            gate.open("b")
        assert gate.owner == "a"

    run(body)


def test_a_gate_that_is_closed_again_at_once_still_holds() -> None:
    async def body() -> None:
        gate = DispatchGate()
        gate.close("a")
        waiter = asyncio.create_task(gate.wait())
        await settle()
        gate.open("a")
        gate.close("b")
        await settle()
        assert not waiter.done()
        gate.open("b")
        await waiter

    run(body)


def test_mutations_go_together_and_a_checkpoint_alone() -> None:
    async def body() -> None:
        barrier, log = DataPlaneBarrier(), list[str]()
        go = asyncio.Event()

        async def mutate(name: str) -> None:
            async with barrier.mutation("group_commits"):
                log.append(f"+{name}")
                await go.wait()
                log.append(f"-{name}")

        async def checkpoint() -> None:
            async with barrier.checkpoint() as hold:
                log.append("[")
                assert hold.mutation_version == barrier.mutation_version == 2
                await settle()
                log.append("]")
            assert hold.wait_s > 0
            assert hold.hold_s > 0
            assert hold.waited == 1
            assert 0 < hold.longest_wait_s < WITHIN_S

        first = [asyncio.create_task(mutate(name)) for name in "ab"]
        await settle()
        assert log == ["+a", "+b"]
        cut = asyncio.create_task(checkpoint())
        await settle()
        late = asyncio.create_task(mutate("c"))
        await settle()
        assert log == ["+a", "+b"], "the checkpoint waits, and the late one waits for it"
        assert not barrier.standing
        go.set()
        await asyncio.gather(*first, cut, late)
        assert log == ["+a", "+b", "-a", "-b", "[", "]", "+c", "-c"]
        assert barrier.mutation_version == 3
        assert barrier.mutations_by_kind == {"group_commits": 3}

    run(body)


def test_no_mutation_gets_in_between_the_turn_and_the_start_of_a_checkpoint() -> None:
    """The last mutation ends and the next begins within one step of the loop."""

    async def body() -> None:
        barrier = DataPlaneBarrier()
        inside = 0

        async def checkpoint() -> None:
            async with barrier.checkpoint():
                assert inside == 0
                await settle()
                assert inside == 0

        async def mutate() -> None:
            nonlocal inside
            async with barrier.mutation("other"):
                inside += 1
                await asyncio.sleep(0)
                inside -= 1

        async with barrier.mutation("other"):
            cut = asyncio.create_task(checkpoint())
            await settle()
        # Its turn has come, its task has not run yet.
        assert barrier.standing
        assert not cut.done()
        await mutate()
        assert cut.done()

    run(body)


def test_failed_and_cancelled_mutations_count() -> None:
    async def body() -> None:
        barrier = DataPlaneBarrier()
        with pytest.raises(RuntimeError):
            async with barrier.mutation("sample_clears"):
                raise RuntimeError
        assert barrier.mutation_version == 1

        async def forever() -> None:
            async with barrier.mutation("other"):
                await asyncio.Event().wait()

        task = asyncio.create_task(forever())
        await settle()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert barrier.mutation_version == 2
        async with barrier.checkpoint() as hold:
            assert hold.mutation_version == 2

    run(body)


def test_a_mutation_inside_a_mutation_passes_while_a_checkpoint_waits() -> None:
    async def body() -> None:
        barrier = DataPlaneBarrier()

        async def checkpoint() -> None:
            async with barrier.checkpoint():
                pass

        async with barrier.mutation("group_commits"):
            cut = asyncio.create_task(checkpoint())
            await settle()
            async with barrier.mutation("sample_clears"):
                # Also in a task that this one started and waits for.
                await asyncio.create_task(nested(barrier))
            assert barrier.mutation_version == 0, "only outer ones count"
            assert not cut.done()
        await cut
        assert barrier.mutation_version == 1
        assert barrier.mutations_by_kind == {"group_commits": 1}

    run(body)


async def nested(barrier: DataPlaneBarrier) -> None:
    async with barrier.mutation("other"):
        await asyncio.sleep(0)


def test_a_child_task_that_outlives_its_mutation_keeps_it_open() -> None:
    async def body() -> None:
        barrier, go = DataPlaneBarrier(), asyncio.Event()
        standing = list[bool]()

        async def child() -> None:
            async with barrier.mutation("other"):
                await go.wait()
                standing.append(barrier.standing)

        async with barrier.mutation("other"):
            task = asyncio.create_task(child())
            await settle()
        cut = asyncio.create_task(hold(barrier))
        await settle()
        assert not cut.done()
        go.set()
        await asyncio.gather(task, cut)
        assert standing == [False]
        # Long after its parent's mutation it is an outer one again.
        again = asyncio.create_task(nested(barrier))
        await again
        assert barrier.mutation_version == 2

    run(body)


async def hold(barrier: DataPlaneBarrier, ticks: int = 1) -> None:
    async with barrier.checkpoint():
        for _ in range(ticks):
            await asyncio.sleep(0)


def test_two_barriers_do_not_know_each_other() -> None:
    async def body() -> None:
        one, other = DataPlaneBarrier(), DataPlaneBarrier()
        async with one.mutation("other"), other.checkpoint():
            assert other.standing
        async with one.checkpoint(), other.mutation("other"):
            pass
        assert (one.mutation_version, other.mutation_version) == (1, 1)

    run(body)


def test_what_would_wait_for_itself_is_refused() -> None:
    async def body() -> None:
        barrier = DataPlaneBarrier()
        async with barrier.mutation("other"):
            with pytest.raises(ConflictError):
                await hold(barrier)
        async with barrier.checkpoint():
            with pytest.raises(ConflictError):
                await nested(barrier)
            with pytest.raises(ConflictError):
                await hold(barrier)
        async with barrier.mutation("other"):
            # Another task's checkpoint waits, also when it was started here.
            cut = asyncio.create_task(hold(barrier))
            await settle()
            assert not cut.done()
        await cut
        await nested(barrier)
        with pytest.raises(InputError, match="nonsense"):
            async with barrier.mutation("nonsense"):  # type: ignore[arg-type]
                pass
        assert len(KINDS) == 7

    run(body)


def test_a_stream_of_mutations_does_not_starve_a_checkpoint() -> None:
    async def body() -> None:
        barrier, stop = DataPlaneBarrier(), asyncio.Event()

        async def stream() -> None:
            while not stop.is_set():
                async with barrier.mutation("other"):
                    await asyncio.sleep(0)

        streams = [asyncio.create_task(stream()) for _ in range(8)]
        await settle()
        for _ in range(20):
            before = barrier.mutation_version
            await hold(barrier)
            assert barrier.mutation_version - before <= 16
            await settle()
        stop.set()
        await asyncio.gather(*streams)

    run(body)


def test_a_stream_of_checkpoints_does_not_starve_a_mutation() -> None:
    async def body() -> None:
        barrier, stop = DataPlaneBarrier(), asyncio.Event()
        taken = 0

        async def stream() -> None:
            nonlocal taken
            while not stop.is_set():
                await hold(barrier)
                taken += 1

        streams = [asyncio.create_task(stream()) for _ in range(3)]
        await settle()
        for _ in range(20):
            before = taken
            await nested(barrier)
            assert taken - before <= 6
        stop.set()
        await asyncio.gather(*streams)

    run(body)


def test_a_cancelled_checkpoint_lets_the_waiting_mutations_in() -> None:
    async def body() -> None:
        barrier = DataPlaneBarrier()
        # A task that is started inside a mutation belongs to it: so this one starts before.
        begun = asyncio.Event()

        async def mutate() -> None:
            await begun.wait()
            await nested(barrier)

        late = asyncio.create_task(mutate())
        async with barrier.mutation("other"):
            cut = asyncio.create_task(hold(barrier))
            await settle()
            begun.set()
            await settle()
            assert not late.done()
            cut.cancel()
            await late
        with suppress(asyncio.CancelledError):
            await cut
        await hold(barrier)

    run(body)


@pytest.mark.parametrize("seed", range(40))
def test_cancelling_at_random_loses_nothing(seed: int) -> None:
    """Whatever is cancelled, checkpoints stay alone, and the barrier can be used afterwards."""

    async def body() -> None:
        rng = random.Random(seed)
        barrier, inside, standing = DataPlaneBarrier(), 0, 0

        async def mutate(ticks: int) -> None:
            nonlocal inside
            async with barrier.mutation("other"):
                inside += 1
                try:
                    assert not standing
                    for _ in range(ticks):
                        await asyncio.sleep(0)
                        assert not standing
                finally:
                    inside -= 1

        async def checkpoint(ticks: int) -> None:
            nonlocal standing
            async with barrier.checkpoint():
                standing += 1
                try:
                    assert (inside, standing) == (0, 1)
                    for _ in range(ticks):
                        await asyncio.sleep(0)
                        assert (inside, standing) == (0, 1)
                finally:
                    standing -= 1

        tasks: list[asyncio.Task[None]] = []
        for _ in range(150):
            kind = rng.choice([mutate, mutate, checkpoint])
            tasks.append(asyncio.create_task(kind(rng.randrange(4))))
            if rng.random() < 0.4:
                await asyncio.sleep(0)
            if rng.random() < 0.5:
                rng.choice(tasks).cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(item) for item in found} <= {type(None), asyncio.CancelledError}
        assert any(item is None for item in found)
        await hold(barrier)
        await nested(barrier)
        assert not barrier.standing

    run(body)


def test_the_lock_is_held_by_one_at_a_time() -> None:
    async def body() -> None:
        lock = CheckpointLock()
        async with lock.hold("snapshot") as waited:
            assert waited < 1.0, "nobody held it"
            assert lock.owner == "snapshot"

            async def trainer() -> float:
                async with lock.hold("trainer") as seconds:
                    assert lock.owner == "trainer"
                    return seconds

            task = asyncio.create_task(trainer())
            gone = asyncio.create_task(trainer())
            await settle()
            await asyncio.sleep(0.05)
            gone.cancel()
        assert await task >= 0.04
        assert lock.owner is None

    run(body)
