"""The generation engine actor: replies of the policy, and the version of its weights."""

import asyncio
from collections.abc import Sequence
from typing import Any

import ray

from snapfmt_coordinator.loop import activity
from snapfmt_coordinator.reference import policy
from snapfmt_coordinator.reference.policy import Ask


@ray.remote
class GenerationEngine:
    """What it says never depends on its weights, so that runs can be compared."""

    def __init__(self, generation_s: float, refit_s: float) -> None:
        self._generation_s = generation_s
        self._refit_s = refit_s
        self._version = 0
        self._log = activity.ActivityLog()

    async def generate(self, asks: Sequence[Ask]) -> list[tuple[dict[str, Any], int]]:
        """One reply for each, booked on the weights that are there when it begins."""
        with self._log.during(activity.ENGINES, "working", "generates"):
            replies = policy.replies(asks, self._version)
            await asyncio.sleep(self._generation_s)
            return replies

    async def update_weights(self, version: int) -> None:
        """Generates with these weights from now on."""
        await asyncio.sleep(self._refit_s)
        self._version = version

    async def version(self) -> int:
        """Version of the weights."""
        return self._version

    async def activity(self) -> list[list[Any]]:
        """Its intervals, see `activity.from_rows`."""
        return self._log.rows()
