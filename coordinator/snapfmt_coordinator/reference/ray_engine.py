"""Replies from a named Ray actor, which also knows the version of the weights."""

from typing import Any, Final

import ray

from snapfmt_coordinator.reference.batching import Batcher
from snapfmt_coordinator.reference.policy import Ask

ACTOR: Final = "generation-engine"
"""Name of the actor. Its method `generate` gets a list of `Ask` and gives a list of
(message, weight version); `policy.replies` does both."""
PARALLEL: Final = 4
"""Most batches that the actor is asked at once."""


class RayEngine:
    """Asks the actor, in small batches."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._batches: Batcher[Ask, tuple[dict[str, Any], int]] = Batcher(
            self._ask, parallel=PARALLEL
        )

    @classmethod
    def find(cls, name: str = ACTOR, namespace: str | None = None) -> "RayEngine":
        """The engine of that name; blocks, and needs a connection to Ray.

        Raises:
            ValueError: If there is no such actor.
        """
        return cls(ray.get_actor(name, namespace=namespace))

    async def generate(self, ask: Ask) -> tuple[dict[str, Any], int]:
        """The actor's reply, and the version of the weights that made it."""
        return await self._batches.submit(ask)

    async def close(self) -> None:
        """Waits for what the actor was asked."""
        await self._batches.close()

    async def _ask(self, asks: list[Ask]) -> list[tuple[dict[str, Any], int]]:
        replies: list[tuple[dict[str, Any], int]] = await self._actor.generate.remote(asks)
        return replies
