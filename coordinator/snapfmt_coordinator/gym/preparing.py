"""Brings all servers to rest, in upstream's order, from the outside in.

The model takes no new calls, so that agents reach a turn boundary; parked agents use no tools,
so that sessions can be frozen; then the calls that were inside run out. A call that takes too
long for that is ended: its run parks before it, and makes it again after the resume.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Final, TypeVar

from snapfmt.errors import DeadlineExceeded
from snapfmt_coordinator.gym import observing, routes
from snapfmt_coordinator.gym.fanout import SETTLE_S, together
from snapfmt_coordinator.gym.links import Link, Links, contradiction, until
from snapfmt_coordinator.gym.observing import observed
from snapfmt_coordinator.gym.patience import INTERRUPT_AFTER, INTERRUPT_EVERY_S, WAIT_S
from snapfmt_coordinator.protocol import v1
from snapfmt_schemas._base import Record

R = TypeVar("R", bound=Record)

LONGER: Final = "allow more time to prepare, or look at what holds them up"


@dataclass(frozen=True, slots=True)
class PrepareCounts:
    """What is parked and frozen once everything is ready for the cut."""

    parked: int = 0
    parked_with_boundary: int = 0
    parked_without_boundary: int = 0
    acknowledged_completed: int = 0
    sessions: int = 0
    tombstones: int = 0

    def as_counts(self) -> dict[str, int]:
        """The same, for a timeline."""
        return asdict(self)


async def prepare(
    links: Links,
    checkpoint_id: str,
    *,
    deadline_ts: float,
    interrupt_after: float | None = INTERRUPT_AFTER,
) -> PrepareCounts:
    """Brings all servers to rest. On an error some are closed: resume all of them.

    When the share `interrupt_after` of the time to the deadline is over, model calls that still
    generate are ended on the servers that can do so without giving their runs up.

    Raises:
        DeadlineExceeded: If something still ran at the deadline; names it.
        ControlRefused, ParticipantFailed: If a server refused or failed.
    """
    work = _Preparation(links, checkpoint_id, deadline_ts)
    await together(work.pause(link) for link in links.models)
    # First a question that is answered at once: whatever fails later, every agent knows the
    # checkpoint that it will be told to resume.
    await together(work.ask_to_park(link) for link in links.agents)
    async with work.interrupting(interrupt_after):
        parked = await together(work.park(link) for link in links.agents)
        sessions = await together(work.freeze(link) for link in links.resources)
        drained = await together(work.drain(link) for link in links.models)
    return PrepareCounts(
        parked=sum(reply.parked for reply in parked),
        parked_with_boundary=sum(reply.parked_with_boundary for reply in parked),
        parked_without_boundary=sum(reply.parked_without_boundary for reply in parked),
        acknowledged_completed=sum(reply.acknowledged_completed for reply in parked),
        sessions=sum(sessions),
        tombstones=sum(reply.tombstones for reply in drained),
    )


@dataclass(frozen=True, slots=True)
class _Preparation:
    """One checkpoint's prepare: the requests to each kind of server."""

    links: Links
    checkpoint_id: str
    deadline_ts: float

    async def pause(self, link: Link) -> None:
        with observed(self.links.observe, observing.PAUSE, link.part) as counts:
            reply = await link.client.request(
                routes.PAUSE,
                v1.PauseModel(checkpoint_id=self.checkpoint_id, deadline_ts=self.deadline_ts),
                v1.ModelAdmission,
                deadline_ts=self.deadline_ts,
            )
            if reply.admission != "paused":
                raise contradiction(link, "was paused and says that it accepts calls")
            counts["inflight_total"] = reply.inflight_total

    async def ask_to_park(self, link: Link, wait_s: float = 0.0) -> v1.AgentsPrepared:
        reply = await link.client.request(
            routes.PREPARE_AGENT,
            v1.PrepareAgents(
                checkpoint_id=self.checkpoint_id, deadline_ts=self.deadline_ts, wait_s=wait_s
            ),
            v1.AgentsPrepared,
            deadline_ts=self.deadline_ts,
        )
        if reply.ready_to_commit and (reply.running or reply.completed_unacknowledged):
            raise contradiction(link, f"says that it is ready and has {_blockers(link, reply)}")
        return reply

    async def park(self, link: Link) -> v1.AgentsPrepared:
        def late(reply: v1.AgentsPrepared) -> str:
            return f"the agent server is not ready: {_blockers(link, reply)}"

        with observed(self.links.observe, observing.PARK, link.part) as counts:
            reply = await until(
                lambda: self.ask_to_park(link, self._wait_s()),
                lambda reply: reply.ready_to_commit,
                deadline_ts=self.deadline_ts,
                late=self._late(link, late),
            )
            counts["parked"] = reply.parked
            counts["parked_without_boundary"] = reply.parked_without_boundary
            return reply

    async def freeze(self, link: Link) -> int:
        with observed(self.links.observe, observing.FREEZE, link.part) as counts:
            reply = await link.client.request(
                routes.PREPARE_RESOURCES,
                v1.Control(checkpoint_id=self.checkpoint_id, deadline_ts=self.deadline_ts),
                v1.ResourcesPrepared,
                deadline_ts=self.deadline_ts,
            )
            if reply.inflight_total:
                raise contradiction(
                    link, f"is prepared and says that {reply.inflight_total} operations run"
                )
            counts["sessions"] = reply.sessions
            return reply.sessions

    @asynccontextmanager
    async def interrupting(self, share: float | None) -> AsyncIterator[None]:
        """Ends calls that take too long, as long as its body runs."""
        if share is None:
            yield
            return
        at_rest = asyncio.Event()
        after_s = max(self.deadline_ts - time.time(), 0.0) * share
        work = asyncio.create_task(self._interrupt_late(after_s, at_rest))
        try:
            yield
            at_rest.set()
            await asyncio.wait((work,), timeout=SETTLE_S)
        except DeadlineExceeded as error:
            if work.done() and not work.cancelled() and (cause := work.exception()) is not None:
                error.add_note(f"and model calls could not be ended: {cause}")
            raise
        finally:
            work.cancel()
            # What failed here shows at the latest when the calls are waited for.
            await asyncio.gather(work, return_exceptions=True)

    async def _interrupt_late(self, after_s: float, at_rest: asyncio.Event) -> None:
        if await _set_within(at_rest, after_s):
            return
        able = [
            link
            for link in self.links.models
            if v1.INTERRUPT in link.participant.capabilities.features
        ]
        await together(self._interrupt(link, at_rest) for link in able)

    async def _interrupt(self, link: Link, at_rest: asyncio.Event) -> None:
        with observed(self.links.observe, observing.INTERRUPT, link.part) as counts:
            while (reply := await self._status(link)).inflight_total:
                ended = await together(self._end_calls(link, run) for run in reply.inflight)
                counts["interrupted"] = counts.get("interrupted", 0) + sum(ended)
                if await _set_within(at_rest, INTERRUPT_EVERY_S):
                    break

    async def _end_calls(self, link: Link, run: v1.Execution) -> int:
        reply = await link.client.request(
            routes.ABORT,
            v1.AbortInflight(
                checkpoint_id=self.checkpoint_id,
                deadline_ts=self.deadline_ts,
                rollout_id=run.rollout_id,
                attempt_index=run.attempt_index,
                keep_run=True,
            ),
            v1.AbortedInflight,
            deadline_ts=self.deadline_ts,
        )
        return reply.aborted_inflight

    async def _status(self, link: Link, **wait: str) -> v1.ModelAdmission:
        return await link.client.request(
            routes.STATUS,
            None,
            v1.ModelAdmission,
            deadline_ts=self.deadline_ts,
            query={
                "checkpoint_id": self.checkpoint_id,
                "deadline_ts": repr(self.deadline_ts),
                **wait,
            },
        )

    async def drain(self, link: Link) -> v1.ModelAdmission:
        async def ask() -> v1.ModelAdmission:
            wait_s = f"{self._wait_s():.3f}"
            reply = await self._status(link, wait_state="paused", timeout_s=wait_s)
            if reply.admission != "paused":
                raise contradiction(link, "accepts calls again, while the checkpoint is prepared")
            return reply

        def late(reply: v1.ModelAdmission) -> str:
            return f"{reply.inflight_total} model calls are still in flight"

        with observed(self.links.observe, observing.DRAIN, link.part):
            return await until(
                ask,
                lambda reply: reply.inflight_total == 0,
                deadline_ts=self.deadline_ts,
                late=self._late(link, late),
            )

    def _wait_s(self) -> float:
        return min(WAIT_S, max(self.deadline_ts - time.time(), 0.0))

    @staticmethod
    def _late(link: Link, text: Callable[[R], str]) -> Callable[[R], DeadlineExceeded]:
        return lambda reply: DeadlineExceeded(text(reply), what=link.part, hint=LONGER)


async def _set_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


def _blockers(link: Link, reply: v1.AgentsPrepared) -> str:
    first = (*reply.blocking_attempts, *reply.completed_unacknowledged_attempts)[:3]
    named = "".join(
        f"; {link.client.clean(item.rollout_id)} run {item.attempt_index}" for item in first
    )
    return (
        f"{reply.running} running, "
        f"{reply.completed_unacknowledged} finished and not acknowledged{named}"
    )
