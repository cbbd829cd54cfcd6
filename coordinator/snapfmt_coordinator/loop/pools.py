"""Several actors of one kind as one port."""

from collections.abc import Sequence

from snapfmt_coordinator.loop.ports import Finalizer
from snapfmt_schemas.ledger import LedgerGroup
from snapfmt_schemas.replay import ReplayGroup


class FinalizerPool:
    """Several finalizers; a group stays with the one that prepared it."""

    def __init__(self, members: Sequence[Finalizer]) -> None:
        self._members = tuple(members)
        self._next = 0
        self._of: dict[str, Finalizer] = {}

    async def prepare(self, group: LedgerGroup) -> ReplayGroup:
        """By the next one in turn."""
        member = self._members[self._next % len(self._members)]
        self._next += 1
        self._of[group.group_id] = member
        return await member.prepare(group)

    async def put(self, group_id: str) -> None:
        """By the one that prepared it."""
        await self._of.pop(group_id).put(group_id)

    async def clear(self, group_ids: Sequence[str]) -> None:
        """By the first one."""
        await self._members[0].clear(group_ids)
