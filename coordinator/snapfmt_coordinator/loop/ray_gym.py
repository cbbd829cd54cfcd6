"""The NemoGym actor: sends runs to the agents and fans a save out over all Gym servers."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import aiohttp
import ray

from snapfmt import Repository, Snapshot
from snapfmt.errors import SnapfmtError
from snapfmt_coordinator.gym.client import ServerAddress
from snapfmt_coordinator.gym.parts import GymParts
from snapfmt_coordinator.gym.preparing import PrepareCounts
from snapfmt_coordinator.gym.side import GymSide
from snapfmt_coordinator.loop import activity
from snapfmt_coordinator.loop.config import GymConfig
from snapfmt_coordinator.loop.ray_calls import answer
from snapfmt_coordinator.loop.running import AgentRuns
from snapfmt_coordinator.loop.state import Finished, Run
from snapfmt_coordinator.loop.timers import PausableClock
from snapfmt_coordinator.protocol.v1 import Capabilities, Execution
from snapfmt_coordinator.sequence.ports import Observe, TicketFor
from snapfmt_schemas.attempt import Ticket
from snapfmt_schemas.completion import CompletionReceipt
from snapfmt_schemas.topology import Topology

CONCURRENCY: Final = 8192
"""Most calls at a time: one for each run in flight."""
_ANY_PART: Final = "gym/any"
Steps = list[tuple[str, str, int, int, dict[str, int]]]
"""What `gym.observing.Observe` is told, call by call."""


@ray.remote(max_concurrency=CONCURRENCY)
class NemoGymActor:
    """All methods are asynchronous and share one event loop.

    Made before the servers are there, so that it starts beside them: `join` comes first. A call
    of `ports.Gym` gives its result and the steps that were observed.
    """

    _config: GymConfig
    _side: GymSide

    def __init__(self) -> None:
        self._log = activity.ActivityLog()
        self._clock = PausableClock()
        self._open = asyncio.Event()
        self._open.set()
        self._standing = activity.State(self._log, activity.GYM, "working", "open")
        self._limits = activity.State(self._log, activity.TIME_LIMITS, "working", "count")
        self._session: aiohttp.ClientSession | None = None

    async def join(self, config: GymConfig, token: str) -> None:
        """Is told of the servers."""
        self._config = config
        addresses = [ServerAddress(server.name, server.url) for server in config.servers]
        self._side = GymSide(addresses, token=token, interrupt_after=config.interrupt_after)

    # --- runs

    async def run(self, run: Run) -> Finished:
        """Sends one run and waits for its result, also over a save."""
        agents = AgentRuns(
            self._http(),
            url=self._config.agent.url,
            agent_name=self._config.agent.name,
            clock=self._clock,
            limit_s=self._config.rollout_limit_s,
            admitted=self._admitted,
        )
        try:
            return await agents.run(run, self._config.task_of(run))
        except SnapfmtError as error:
            # Gone for good: its rollout gets another run, and no late handler may finish this one.
            gone = Execution(rollout_id=run.rollout_id, attempt_index=run.attempt_index)
            try:
                await self._side.retire([gone])
            except SnapfmtError as second:
                # The caller's pump goes on trying.
                error.add_note(f"and it could not be retired: {second}")
            raise

    async def _admitted(self) -> None:
        await self._open.wait()

    def _http(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
            )
        return self._session

    # --- ports.Gym

    async def discover(self) -> tuple[tuple[Capabilities, ...], Topology]:
        """Capabilities and topology of all servers."""
        found = await self._side.discover()
        return found, self._side.topology()

    async def acknowledge(
        self, receipts: Sequence[tuple[str, CompletionReceipt]], deadline_ts: float
    ) -> None:
        """Tells agents which results were adopted."""
        await self._side.acknowledge(receipts, deadline_ts=deadline_ts)

    async def prepare(self, checkpoint_id: str, deadline_ts: float) -> tuple[PrepareCounts, Steps]:
        """Brings all to rest; limits of rollouts stand still from here until `resume`."""
        self._stop("parks")
        steps, observe = _collector()
        found = await self._side.prepare(checkpoint_id, deadline_ts=deadline_ts, observe=observe)
        self._standing.change("parked", f"{found.parked} runs")
        return found, steps

    async def commit(self, checkpoint_id: str, deadline_ts: float, ticket: str) -> Steps:
        """Has all take their cut; `ticket` is one of the attempt, in JSON."""
        steps, observe = _collector()
        await self._side.commit(
            checkpoint_id, deadline_ts=deadline_ts, tickets=_tickets(ticket), observe=observe
        )
        return steps

    async def collect(
        self, checkpoint_id: str, deadline_ts: float, ticket: str
    ) -> tuple[GymParts, Steps]:
        """Has the held cuts written."""
        steps, observe = _collector()
        found = await self._side.collect(
            checkpoint_id, deadline_ts=deadline_ts, tickets=_tickets(ticket), observe=observe
        )
        return found, steps

    async def resume(self, checkpoint_id: str, deadline_ts: float) -> Steps:
        """Opens all again."""
        steps, observe = _collector()
        try:
            await self._side.resume(checkpoint_id, deadline_ts=deadline_ts, observe=observe)
        finally:
            # A server that stays closed refuses runs, and they are sent again until it opens.
            self._go()
        return steps

    async def restore(
        self,
        restore_id: str,
        deadline_ts: float,
        source: tuple[str, int],
        source_checkpoint_id: str,
    ) -> Steps:
        """Installs the saved state; everything stays paused."""
        location, number = source
        snapshot = await asyncio.to_thread(
            lambda: Repository.open(location).snapshot(number),
        )
        self._stop("is restored")
        steps, observe = _collector()
        await self._side.restore(
            restore_id,
            deadline_ts=deadline_ts,
            snapshot=snapshot,
            source_checkpoint_id=source_checkpoint_id,
            observe=observe,
        )
        return steps

    async def discard(
        self,
        restore_id: str,
        executions: Mapping[str, Sequence[Execution]],
        deadline_ts: float,
    ) -> Steps:
        """Has restored runs start over."""
        steps, observe = _collector()
        await self._side.discard(restore_id, executions, deadline_ts=deadline_ts, observe=observe)
        return steps

    async def retire(self, executions: Sequence[Execution]) -> None:
        """Has all forget and refuse these runs."""
        await self._side.retire(executions)

    async def activity(self) -> list[list[Any]]:
        """Its intervals, see `activity.from_rows`."""
        return self._log.rows()

    def _stop(self, why: str) -> None:
        self._open.clear()
        self._clock.pause()
        self._limits.change("paused", why)
        self._standing.change("waiting", why)

    def _go(self) -> None:
        self._clock.resume()
        self._open.set()
        self._limits.change("working", "count")
        self._standing.change("working", "open")


class RemoteGym:
    """Implements `sequence.ports.Gym` and `loop.ports.Runner` over the actor."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._found: tuple[tuple[Capabilities, ...], Topology] | None = None

    async def run(self, run: Run) -> Finished:
        """See the actor."""
        result: Finished = await answer(self._actor.run.remote(run), "gym")
        return result

    async def discover(self) -> tuple[Capabilities, ...]:
        """Asks once."""
        if self._found is None:
            self._found = await answer(self._actor.discover.remote(), "gym")
        return self._found[0]

    def topology(self) -> Topology:
        """Of the servers that were discovered."""
        if self._found is None:
            raise AssertionError("discover() comes first")
        return self._found[1]

    async def acknowledge(
        self, receipts: Sequence[tuple[str, CompletionReceipt]], *, deadline_ts: float
    ) -> None:
        """See the actor."""
        await answer(self._actor.acknowledge.remote(list(receipts), deadline_ts), "gym")

    async def prepare(
        self, checkpoint_id: str, *, deadline_ts: float, observe: Observe | None = None
    ) -> PrepareCounts:
        """See the actor."""
        call = self._actor.prepare.remote(checkpoint_id, deadline_ts)
        counts, steps = await answer(call, "gym")
        _repeat(steps, observe)
        found: PrepareCounts = counts
        return found

    async def commit(
        self,
        checkpoint_id: str,
        *,
        deadline_ts: float,
        tickets: TicketFor,
        observe: Observe | None = None,
    ) -> None:
        """See the actor."""
        call = self._actor.commit.remote(checkpoint_id, deadline_ts, _template(tickets))
        _repeat(await answer(call, "gym"), observe)

    async def collect(
        self,
        checkpoint_id: str,
        *,
        deadline_ts: float,
        tickets: TicketFor,
        observe: Observe | None = None,
    ) -> GymParts:
        """See the actor."""
        call = self._actor.collect.remote(checkpoint_id, deadline_ts, _template(tickets))
        parts, steps = await answer(call, "gym")
        _repeat(steps, observe)
        found: GymParts = parts
        return found

    async def resume(
        self, checkpoint_id: str, *, deadline_ts: float, observe: Observe | None = None
    ) -> None:
        """See the actor."""
        call = self._actor.resume.remote(checkpoint_id, deadline_ts)
        _repeat(await answer(call, "gym"), observe)

    async def restore(
        self,
        restore_id: str,
        *,
        deadline_ts: float,
        snapshot: Snapshot,
        source_checkpoint_id: str,
        observe: Observe | None = None,
    ) -> None:
        """See the actor."""
        source = (snapshot.location, snapshot.number)
        call = self._actor.restore.remote(restore_id, deadline_ts, source, source_checkpoint_id)
        _repeat(await answer(call, "gym"), observe)

    async def discard(
        self,
        restore_id: str,
        executions: Mapping[str, Sequence[Execution]],
        *,
        deadline_ts: float,
        observe: Observe | None = None,
    ) -> None:
        """See the actor."""
        chosen = {name: list(found) for name, found in executions.items()}
        call = self._actor.discard.remote(restore_id, chosen, deadline_ts)
        _repeat(await answer(call, "gym"), observe)

    async def retire(self, executions: Sequence[Execution]) -> None:
        """See the actor."""
        await answer(self._actor.retire.remote(list(executions)), "gym")


def _collector() -> tuple[Steps, Observe]:
    steps: Steps = []

    def observe(step: str, actor: str, started: int, ended: int, counts: dict[str, int]) -> None:
        steps.append((step, actor, started, ended, counts))

    return steps, observe


def _repeat(steps: Steps, observe: Observe | None) -> None:
    if observe is not None:
        for step in steps:
            observe(*step)


def _template(tickets: TicketFor) -> str:
    """A ticket of the attempt; the actor puts the parts' names into it."""
    return tickets(_ANY_PART).model_dump_json()


def _tickets(template: str) -> Callable[[str], Ticket]:
    known = Ticket.model_validate_json(template)

    def ticket(part: str) -> Ticket:
        return Ticket.model_validate({**dict(known), "part": part})

    return ticket
