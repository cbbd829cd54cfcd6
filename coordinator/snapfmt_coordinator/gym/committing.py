"""The two halves of upstream's commit: every server holds its cut; later it writes it.

Between the two all servers are resumed, so that rollouts run while parts are written.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from snapfmt.errors import DeadlineExceeded
from snapfmt_coordinator.gym import observing, routes
from snapfmt_coordinator.gym.fanout import together
from snapfmt_coordinator.gym.links import Link, Links, contradiction, until
from snapfmt_coordinator.gym.observing import observed
from snapfmt_coordinator.gym.parts import GymParts
from snapfmt_coordinator.protocol import v1
from snapfmt_schemas.attempt import Receipt, Ticket

Tickets = Callable[[str], Ticket]
"""The ticket for a part, by its name; always of the same attempt."""
_COUNTED: Final = (
    "records",
    "rollouts",
    "rows",
    "excluded_tombstoned",
    "excluded_inactive",
    "sessions",
    "redacted",
)


@dataclass(frozen=True, slots=True)
class _Sealed:
    link: Link
    reply: v1.Committed
    receipt: Receipt


async def hold(links: Links, checkpoint_id: str, *, deadline_ts: float, tickets: Tickets) -> None:
    """Has every server take its cut; nothing is written yet.

    Raises:
        ControlRefused, ParticipantFailed, DeadlineExceeded: If one did not.
    """
    # All tickets first: an attempt that is over is found before any server is asked.
    held = {
        link.part: _request(link, checkpoint_id, deadline_ts, tickets(link.part), wait=False)
        for link in links
    }

    async def take(link: Link) -> None:
        with observed(links.observe, observing.HOLD, link.part) as counts:
            reply = await link.client.request(
                _route(link), held[link.part], v1.Committed, deadline_ts=deadline_ts
            )
            counts.update(_counts(reply))

    await together(take(link) for link in links)


async def collect(
    links: Links, checkpoint_id: str, *, deadline_ts: float, tickets: Tickets
) -> GymParts:
    """Has the held cuts written, and gives the receipts.

    Agents first, then the models, which write the lineage of what the agents wrote; resources
    beside them. A server keeps its cut until the deadline of the last commit that asked for it,
    and its grace: models, whose turn comes later, are told the deadline of this at once.

    Raises:
        ControlRefused, ParticipantFailed, DeadlineExceeded: If one did not.
    """

    async def write(link: Link, agents: tuple[Receipt, ...] | None = None) -> _Sealed:
        ticket = tickets(link.part)
        body = _request(link, checkpoint_id, deadline_ts, ticket, wait=True, agents=agents)
        with observed(links.observe, observing.WRITE, link.part) as counts:
            reply = await until(
                lambda: link.client.request(
                    _route(link), body, v1.Committed, deadline_ts=deadline_ts
                ),
                lambda reply: reply.ready,
                deadline_ts=deadline_ts,
                late=lambda _: DeadlineExceeded(
                    "the part is not written yet",
                    what=link.part,
                    hint="allow more time to write, or look at the server's storage",
                ),
            )
            counts.update(_counts(reply))
            return _Sealed(link, reply, _checked_receipt(link, reply, ticket))

    async def keep(link: Link) -> None:
        body = _request(link, checkpoint_id, deadline_ts, tickets(link.part), wait=False)
        await link.client.request(_route(link), body, v1.Committed, deadline_ts=deadline_ts)

    async def all_agents() -> list[_Sealed]:
        return await together(write(link) for link in links.agents)

    async def all_kept() -> list[_Sealed]:
        await together(keep(link) for link in links.models)
        return []

    async def lineage() -> list[_Sealed]:
        agents, _ = await together((all_agents(), all_kept()))
        receipts = tuple(item.receipt for item in agents)
        return agents + await together(write(link, receipts) for link in links.models)

    async def sessions() -> list[_Sealed]:
        return await together(write(link) for link in links.resources)

    turns, states = await together((lineage(), sessions()))
    return _parts(checkpoint_id, (*turns, *states))


def _parts(checkpoint_id: str, sealed: Sequence[_Sealed]) -> GymParts:
    totals: Counter[str] = Counter()
    for item in sealed:
        totals.update(_counts(item.reply))
    return GymParts(
        checkpoint_id=checkpoint_id,
        receipts=tuple(item.receipt for item in sealed),
        participants={item.link.part: item.link.participant.name for item in sealed},
        continuation_indexes={
            item.link.part: item.reply.continuation_index
            for item in sealed
            if item.reply.continuation_index is not None
        },
        storage_reference_indexes={
            item.link.part: item.reply.storage_reference_index
            for item in sealed
            if item.reply.storage_reference_index is not None
        },
        counts=dict(totals),
    )


def _route(link: Link) -> str:
    return f"{routes.BASE[link.component]}/commit"


def _request(
    link: Link,
    checkpoint_id: str,
    deadline_ts: float,
    ticket: Ticket,
    *,
    wait: bool,
    agents: tuple[Receipt, ...] | None = None,
) -> v1.Commit:
    body = v1.Commit(checkpoint_id=checkpoint_id, deadline_ts=deadline_ts, ticket=ticket, wait=wait)
    if link.component != "model":
        return body
    return v1.CommitModel(**dict(body), agents=agents)


def _counts(reply: v1.Committed) -> dict[str, int]:
    values = {name: int(getattr(reply, name)) for name in _COUNTED}
    if reply.receipt is not None:
        values["stored_bytes"] = reply.receipt.stored_bytes
    return {name: value for name, value in values.items() if value}


def _checked_receipt(link: Link, reply: v1.Committed, ticket: Ticket) -> Receipt:
    receipt = reply.receipt
    if receipt is None:
        raise contradiction(link, "is ready and gives no receipt")
    if receipt.part != ticket.part or receipt.attempt_id != ticket.attempt_id:
        raise contradiction(
            link,
            f"gives the receipt of {link.client.clean(receipt.part)!r}, not of its own part in"
            " this attempt",
        )
    indexes = {"agent": reply.continuation_index, "model": reply.storage_reference_index}
    index = indexes.get(link.component)
    if link.component in indexes and (index is None or index.part != ticket.part):
        raise contradiction(link, "gives no index of its own part")
    return receipt
