"""The ports of the pumps over actors; imports none of what the actors need themselves."""

from collections.abc import Sequence
from typing import Any

from snapfmt_coordinator.loop.ray_calls import answer
from snapfmt_schemas.ledger import LedgerGroup
from snapfmt_schemas.replay import ReplayGroup


class RemoteFinalizer:
    """Implements `loop.ports.Finalizer` over the actor."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    async def prepare(self, group: LedgerGroup) -> ReplayGroup:
        """See the actor."""
        made: ReplayGroup = await answer(self._actor.prepare.remote(group), "finalizer")
        return made

    async def put(self, group_id: str) -> None:
        """See the actor."""
        await answer(self._actor.put.remote(group_id), "finalizer")

    async def clear(self, group_ids: Sequence[str]) -> None:
        """See the actor."""
        await answer(self._actor.clear.remote(list(group_ids)), "finalizer")


class RemoteAdvantages:
    """Implements `loop.ports.Advantages` over the trainer's actor, where the pool lives."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    async def compute(self, groups: Sequence[ReplayGroup]) -> None:
        """See the actor."""
        await answer(self._actor.compute_advantages.remote(list(groups)), "advantage pool")

    async def write(self, groups: Sequence[ReplayGroup]) -> None:
        """See the actor."""
        await answer(self._actor.write_advantages.remote(list(groups)), "advantage pool")


class RemoteTrainer:
    """Implements `loop.ports.Trainer` over the actor."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    async def step(self, number: int, groups: Sequence[ReplayGroup]) -> None:
        """See the actor."""
        await answer(self._actor.step.remote(number, list(groups)), "trainer")

    async def commit(self, number: int) -> None:
        """See the actor."""
        await answer(self._actor.commit.remote(number), "trainer")

    async def save(self, number: int) -> None:
        """See the actor."""
        await answer(self._actor.save.remote(number), "trainer")

    async def load(self, step: int) -> None:
        """See the actor."""
        await answer(self._actor.load.remote(step), "trainer")

    async def prune(self, keep: Sequence[int]) -> None:
        """See the actor."""
        await answer(self._actor.prune.remote(list(keep)), "trainer")

    async def steps(self) -> Sequence[int]:
        """See the actor."""
        steps: list[int] = await answer(self._actor.steps.remote(), "trainer")
        return steps


class RemoteEngine:
    """Implements `loop.ports.Engine` over the actor."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    async def update_weights(self, version: int) -> None:
        """See the actor."""
        await answer(self._actor.update_weights.remote(version), "generation engine")
