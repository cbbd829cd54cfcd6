"""The cut of a checkpoint: held by reference, written once, kept until its receipt was fetched.

A cut outlives `resume`: rollouts run while it is written. It is let go of when its lease ends
or when the next checkpoint takes its place; a write that runs is never stopped.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from snapfmt_coordinator.participant.fence import Fence
from snapfmt_coordinator.participant.waiting import Lease
from snapfmt_coordinator.protocol.codes import refused
from snapfmt_coordinator.protocol.v1 import Commit, Committed
from snapfmt_schemas.attempt import Ticket

C = TypeVar("C")


@dataclass(slots=True, eq=False)
class _Held(Generic[C]):
    checkpoint_id: str
    cut: C | None
    summary: Committed
    ticket: Ticket
    ends_at: float = 0.0
    given: str | None = None
    task: asyncio.Task[Committed] | None = None
    answer: Committed | None = None


class CutHolder(Generic[C]):
    """What `commit` does in every kind of participant."""

    def __init__(self, fence: Fence, part: str) -> None:
        self.part = part
        self._fence = fence
        self._held: _Held[C] | None = None
        self._lease = Lease(fence.timer, self._expire)

    @property
    def holds(self) -> str | None:
        """Id of the checkpoint whose cut, or whose receipt, is held."""
        return self._held.checkpoint_id if self._held else None

    def drop(self) -> None:
        """Let go; a write that runs comes to its end."""
        self._held = None
        self._lease.clear()

    async def commit(
        self,
        request: Commit,
        *,
        take: Callable[[], tuple[C, Committed]],
        write: Callable[[C, Ticket], Coroutine[Any, Any, Committed]] | None,
        given: str = "",
    ) -> Committed:
        """Take the cut, unless it is held; with `wait` and `write`, write it and give the receipt.

        `given` stands for what else the write depends on. The same request again gives the same
        receipt.

        Raises:
            ControlRefused: `deadline_passed` (the write goes on), `stale_checkpoint`,
                `unknown_checkpoint`, `wrong_phase`, `checkpoint_conflict` for another attempt,
                and what `take` and `write` raise.
        """
        self._fence.check_deadline(request)
        self._lease.check()
        held = self._hold(request, take)
        answer = held.answer
        if request.wait and write is not None:
            answer = await self._written(held, request, write, given)
        if answer is None:
            answer = held.summary
        return answer.model_copy(update={"state": self._fence.phase})

    def _hold(self, request: Commit, take: Callable[[], tuple[C, Committed]]) -> _Held[C]:
        if request.ticket.part != self.part:
            raise refused(
                "invalid_request",
                f"the ticket is for part {request.ticket.part!r}, this is {self.part!r}",
                what="ticket.part",
                hint="give each server the ticket for its own part; check the addresses",
            )
        held = self._held
        if held is None or held.checkpoint_id != request.checkpoint_id:
            self._fence.require(request, "preparing", "prepared")
            cut, summary = take()
            held = _Held(request.checkpoint_id, cut, summary, request.ticket)
            self._held = held
            self._fence.move("committed_paused")
        elif _target(held.ticket) != _target(request.ticket):
            raise refused(
                "checkpoint_conflict",
                "this checkpoint is written into another attempt",
                what=request.checkpoint_id,
                hint="commit each attempt under a checkpoint id of its own",
            )
        # A later ticket of the same attempt may have a later deadline.
        held.ticket = request.ticket
        if self._fence.is_active(request.checkpoint_id):
            self._fence.renew(request.deadline_ts)
        held.ends_at = max(held.ends_at, self._fence.lease_end(request.deadline_ts))
        self._lease.set(held.ends_at)
        return held

    async def _written(
        self,
        held: _Held[C],
        request: Commit,
        write: Callable[[C, Ticket], Coroutine[Any, Any, Committed]],
        given: str,
    ) -> Committed:
        if held.given not in (None, given):
            raise refused(
                "checkpoint_conflict",
                "the cut is written for other receipts",
                what=request.checkpoint_id,
                hint="ask again with the same agents; for others begin another checkpoint",
            )
        if held.answer is not None or held.cut is None:
            return held.answer or held.summary
        task = held.task
        if task is None:
            held.given = given
            task = held.task = asyncio.create_task(write(held.cut, held.ticket))
            task.add_done_callback(lambda task: _keep(held, task))
        done, _ = await asyncio.wait({task}, timeout=self._fence.remaining(request))
        if done:
            return task.result()
        raise refused(
            "deadline_passed",
            "the part is not written yet; the write goes on",
            what=request.checkpoint_id,
            hint="ask again with a later deadline_ts",
        )

    def _expire(self) -> None:
        held = self._held
        if held is not None and held.task is not None and held.answer is None:
            self._lease.set(self._fence.timer() + max(self._fence.grace_s, 1.0))
        else:
            self.drop()


def _target(ticket: Ticket) -> tuple[str, str, int]:
    return (ticket.repository_id, ticket.attempt_id, ticket.number)


def _keep(held: _Held[C], task: asyncio.Task[Committed]) -> None:
    """Keep a receipt, and let go of the cut; after a failure the next request tries again."""
    if task.cancelled() or task.exception() is not None:
        held.task, held.given = None, None
        return
    held.answer = task.result()
    held.cut = None
