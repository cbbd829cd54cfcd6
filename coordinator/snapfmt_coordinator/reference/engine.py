"""What generates the replies that the policy model server gives."""

import asyncio
from typing import Any, Protocol

from snapfmt_coordinator.reference import policy
from snapfmt_coordinator.reference.policy import Ask


class Engine(Protocol):
    """Replies to one conversation at a time, for many at once."""

    async def generate(self, ask: Ask) -> tuple[dict[str, Any], int]:
        """The assistant's message, and the version of the weights that made it."""
        ...

    async def close(self) -> None:
        """Lets go of what it holds."""
        ...


class LocalEngine:
    """The policy in this process."""

    def __init__(self, *, weight_version: int = 0, delay_s: float = 0.0) -> None:
        """`delay_s`: how long a reply takes."""
        self._weight_version = weight_version
        self._delay_s = delay_s

    async def generate(self, ask: Ask) -> tuple[dict[str, Any], int]:
        """The policy's reply, booked on the weights that the process was started with."""
        if self._delay_s:
            await asyncio.sleep(self._delay_s)
        return policy.reply(ask), self._weight_version

    async def close(self) -> None:
        """Nothing is held."""
