"""Requests about single runs: acknowledge, discard, retire; in lists that fit into a body."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeVar

from snapfmt.errors import ControlRefused, InputError, ParticipantFailed, UnsupportedFeature
from snapfmt_coordinator.gym import observing, routes
from snapfmt_coordinator.gym.fanout import in_stages, together
from snapfmt_coordinator.gym.links import Link, Links, pages
from snapfmt_coordinator.gym.observing import observed
from snapfmt_coordinator.gym.resuming import STAGE_PATIENCE_S
from snapfmt_coordinator.protocol import v1
from snapfmt_schemas.completion import CompletionReceipt

T = TypeVar("T")

NO_AGENT: Final = ""
"""In place of an agent server's name: runs that no agent holds, only models and resources."""
_NOT_INSTALLED: Final = ("wrong_phase", "unknown_checkpoint", "stale_checkpoint")


async def acknowledge(
    links: Links, receipts: Iterable[tuple[str, CompletionReceipt]], *, deadline_ts: float
) -> None:
    """Tells each agent server which of its results were adopted; safe to repeat.

    A result that its server does not know any more counts as acknowledged.

    Raises:
        InputError: If there is no agent server of a name.
        ControlRefused: If a receipt is not that of the retained result.
        ParticipantFailed, DeadlineExceeded: If a server did not confirm all of its own.
    """
    by_agent: dict[str, list[CompletionReceipt]] = defaultdict(list)
    for name, receipt in receipts:
        by_agent[name].append(receipt)

    async def send(link: Link, owed: Sequence[CompletionReceipt]) -> None:
        with observed(links.observe, observing.ACKNOWLEDGE, link.part) as counts:
            for page in pages(owed):
                reply = await link.client.request(
                    routes.ACKNOWLEDGE,
                    v1.AcknowledgeCompleted(executions=page),
                    v1.Acknowledged,
                    deadline_ts=deadline_ts,
                )
                _check_acknowledged(link, page, reply)
                counts["acknowledged"] = counts.get("acknowledged", 0) + len(page)
                if reply.unknown:
                    counts["unknown"] = counts.get("unknown", 0) + len(reply.unknown)

    agents = _agents(links, by_agent)
    await together(send(link, owed) for link, owed in agents)


def _check_acknowledged(
    link: Link, page: Iterable[CompletionReceipt], reply: v1.Acknowledged
) -> None:
    # Of a run that a restarted agent does not know, nothing is left to let go of.
    settled = (*reply.acknowledged, *reply.unknown)
    done = {(item.rollout_id, item.attempt_index) for item in settled}
    for item in page:
        if (item.rollout_id, item.attempt_index) not in done:
            raise ParticipantFailed(
                f"the server did not confirm {item.rollout_id} run {item.attempt_index}",
                what=link.part,
                hint="acknowledge it again; it is safe to repeat",
            )


async def discard(
    links: Links,
    restore_id: str,
    executions: Mapping[str, Sequence[v1.Execution]],
    *,
    deadline_ts: float,
) -> int:
    """Has restored rollouts start over, by agent server; returns how many agents discarded.

    Models and resources are told of all, also of those of `NO_AGENT`, so that the new run meets
    no lineage and no session of the old one. Upstream has this route on agents only: elsewhere
    it may be missing.

    Raises:
        InputError: If there is no agent server of a name.
        ControlRefused, ParticipantFailed, DeadlineExceeded: If a server did not do it.
    """
    agents = _agents(links, {name: ones for name, ones in executions.items() if name != NO_AGENT})
    everything = [one for ones in executions.values() for one in ones]

    async def send(link: Link, ones: Sequence[v1.Execution]) -> int:
        try:
            return await _discard(links, link, restore_id, ones, deadline_ts)
        except UnsupportedFeature:
            if link.component == "agent":
                raise
            return 0

    work = [send(link, ones) for link, ones in agents]
    work += [send(link, everything) for link in (*links.models, *links.resources)]
    return sum((await together(work))[: len(agents)])


async def discard_installed(
    links: Links, restore_id: str, executions: Sequence[v1.Execution], *, deadline_ts: float
) -> None:
    """Empties the servers that have installed their part of a restore that is given up.

    Raises:
        ControlRefused, ParticipantFailed, DeadlineExceeded: If one may not be empty; all were
            asked.
    """

    async def send(link: Link) -> None:
        try:
            await _discard(links, link, restore_id, executions, deadline_ts)
        except UnsupportedFeature:
            if link.component == "agent":
                raise
        except ControlRefused as refusal:
            if refusal.reason not in _NOT_INSTALLED:
                raise

    await in_stages(send, [tuple(links)], patience_s=0)


async def _discard(
    links: Links,
    link: Link,
    restore_id: str,
    executions: Sequence[v1.Execution],
    deadline_ts: float,
) -> int:
    with observed(links.observe, observing.DISCARD, link.part) as counts:
        for page in pages(executions):
            reply = await link.client.request(
                f"{routes.BASE[link.component]}/{routes.DISCARD}",
                v1.DiscardRestored(
                    checkpoint_id=restore_id, deadline_ts=deadline_ts, executions=page
                ),
                v1.Discarded,
                deadline_ts=deadline_ts,
            )
            counts["discarded"] = counts.get("discarded", 0) + reply.discarded
        return counts.get("discarded", 0)


async def retire(links: Links, executions: Sequence[v1.Execution], *, deadline_ts: float) -> None:
    """Has every server forget and refuse these runs; agents first, since they call the others.

    Raises:
        ControlRefused, ParticipantFailed, DeadlineExceeded: If a server did not do it; all were
            told.
    """

    async def tell(link: Link) -> None:
        with observed(links.observe, observing.RETIRE, link.part) as counts:
            for page in pages(executions):
                reply = await link.client.request(
                    f"{routes.BASE[link.component]}/retire",
                    v1.Retire(executions=page),
                    v1.Retired,
                    deadline_ts=deadline_ts,
                )
                counts["retired"] = counts.get("retired", 0) + reply.retired

    stages = (links.agents, (*links.models, *links.resources))
    await in_stages(tell, stages, patience_s=STAGE_PATIENCE_S)


def _agents(links: Links, wanted: Mapping[str, T]) -> list[tuple[Link, T]]:
    known = {link.participant.address.name: link for link in links.agents}
    for name in wanted:
        if name not in known:
            raise InputError("no agent server has this name", what=name, hint=", ".join(known))
    return [(known[name], value) for name, value in wanted.items()]
