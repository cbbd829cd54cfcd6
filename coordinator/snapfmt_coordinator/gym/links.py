"""Clients of all participants for the length of one operation, and what they have in common."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from snapfmt.errors import DeadlineExceeded, ParticipantFailed
from snapfmt_coordinator.gym.client import ControlClient
from snapfmt_coordinator.gym.discovery import Participant, Participants
from snapfmt_coordinator.gym.observing import Observe
from snapfmt_coordinator.protocol.v1 import MAX_BODY, MAX_LIST
from snapfmt_schemas._base import Record

R = TypeVar("R", bound=Record)

PAGE_BYTES: Final = MAX_BODY // 2
"""Largest list that one request carries, in bytes."""
POLL_S: Final = 0.05
"""Pause between two questions to a server that answers at once although it is not ready."""


@dataclass(frozen=True, slots=True)
class Link:
    """A participant and the client that asks it."""

    participant: Participant
    client: ControlClient

    @property
    def part(self) -> str:
        """Name of its part, and its name in a timeline."""
        return self.participant.part

    @property
    def component(self) -> str:
        """Which of the three kinds it is."""
        return self.participant.capabilities.component


@dataclass(frozen=True, slots=True)
class Links:
    """Those who take part, by kind, and who watches."""

    agents: tuple[Link, ...]
    models: tuple[Link, ...]
    resources: tuple[Link, ...]
    observe: Observe | None

    @classmethod
    def to(
        cls,
        participants: Participants,
        client: Callable[[Participant], ControlClient],
        observe: Observe | None,
    ) -> "Links":
        """One link to each."""

        def each(members: Sequence[Participant]) -> tuple[Link, ...]:
            return tuple(Link(member, client(member)) for member in members)

        return cls(
            agents=each(participants.agents),
            models=each(participants.models),
            resources=each(participants.resources),
            observe=observe,
        )

    def __iter__(self) -> Iterator[Link]:
        return iter((*self.agents, *self.models, *self.resources))


def pages(items: Sequence[R]) -> Iterator[tuple[R, ...]]:
    """The items in lists that fit into a body."""
    page: list[R] = []
    size = 0
    for item in items:
        length = len(item.model_dump_json().encode()) + 1
        if page and (len(page) == MAX_LIST or size + length > PAGE_BYTES):
            yield tuple(page)
            page, size = [], 0
        page.append(item)
        size += length
    if page:
        yield tuple(page)


async def until(
    ask: Callable[[], Awaitable[R]],
    ready: Callable[[R], bool],
    *,
    deadline_ts: float,
    late: Callable[[R], DeadlineExceeded],
) -> R:
    """Asks again and again until the reply is ready.

    Raises:
        DeadlineExceeded: As `late` words it, from the last reply.
    """
    reply: R | None = None
    while True:
        started = time.monotonic()
        try:
            reply = await ask()
        except DeadlineExceeded as error:
            if reply is None:
                raise
            # What was seen last says more than that there was no further answer.
            raise late(reply) from error
        if ready(reply):
            return reply
        # A server that waits before it answers needs no pause of ours.
        idle = POLL_S * random.uniform(0.5, 1.5) - (time.monotonic() - started)  # noqa: S311
        if time.time() + max(idle, 0) >= deadline_ts:
            raise late(reply)
        if idle > 0:
            await asyncio.sleep(idle)


def contradiction(link: Link, what: str) -> ParticipantFailed:
    """The error for a server whose reply cannot be true; `what` follows "the server"."""
    return ParticipantFailed(
        f"the server {what}",
        what=link.part,
        hint="check that its version fits this coordinator's",
    )
