"""Brings all servers to rest, in upstream's order, from the outside in.

The model takes no new calls, so that agents reach a turn boundary; parked agents use no tools,
so that sessions can be frozen; then the calls that were inside run out.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Final, TypeVar

from snapfmt.errors import DeadlineExceeded
from snapfmt_coordinator.gym import observing, routes
from snapfmt_coordinator.gym.fanout import together
from snapfmt_coordinator.gym.links import Link, Links, contradiction, until
from snapfmt_coordinator.gym.observing import observed
from snapfmt_coordinator.protocol import v1
from snapfmt_schemas._base import Record

R = TypeVar("R", bound=Record)

WAIT_S: Final = 5.0
"""How long a server may hold a question back until it is ready, in seconds."""


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


async def prepare(links: Links, checkpoint_id: str, *, deadline_ts: float) -> PrepareCounts:
    """Brings all servers to rest. On an error some are closed: resume all of them.

    Raises:
        DeadlineExceeded: If something still ran at the deadline; names it.
        ControlRefused, ParticipantFailed: If a server refused or failed.
    """
    work = _Preparation(links, checkpoint_id, deadline_ts)
    await together(work.pause(link) for link in links.models)
    # First a question that is answered at once: whatever fails later, every agent knows the
    # checkpoint that it will be told to resume.
    await together(work.ask_to_park(link) for link in links.agents)
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
            raise contradiction(link, f"says that it is ready and has {_blockers(reply)}")
        return reply

    async def park(self, link: Link) -> v1.AgentsPrepared:
        def late(reply: v1.AgentsPrepared) -> str:
            return f"the agent server is not ready: {_blockers(reply)}"

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

    async def drain(self, link: Link) -> v1.ModelAdmission:
        async def ask() -> v1.ModelAdmission:
            reply = await link.client.request(
                routes.STATUS,
                None,
                v1.ModelAdmission,
                deadline_ts=self.deadline_ts,
                query={
                    "checkpoint_id": self.checkpoint_id,
                    "deadline_ts": repr(self.deadline_ts),
                    "wait_state": "paused",
                    "timeout_s": f"{self._wait_s():.3f}",
                },
            )
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
        return lambda reply: DeadlineExceeded(text(reply), what=link.part)


def _blockers(reply: v1.AgentsPrepared) -> str:
    first = (*reply.blocking_attempts, *reply.completed_unacknowledged_attempts)[:3]
    named = "".join(f"; {item.rollout_id} run {item.attempt_index}" for item in first)
    return (
        f"{reply.running} running, "
        f"{reply.completed_unacknowledged} finished and not acknowledged{named}"
    )
