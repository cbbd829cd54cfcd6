"""All Gym servers as one: what the save and the restore sequence drive."""

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

import aiohttp

from snapfmt.errors import InputError
from snapfmt.reading.snapshot import Snapshot
from snapfmt_coordinator.gym import (
    committing,
    discovery,
    preparing,
    restoring,
    resuming,
    upkeep,
)
from snapfmt_coordinator.gym.client import (
    GRACE_S,
    ControlClient,
    Retries,
    ServerAddress,
    SessionFactory,
    control_token,
    open_session,
)
from snapfmt_coordinator.gym.committing import Tickets
from snapfmt_coordinator.gym.discovery import Participants
from snapfmt_coordinator.gym.fanout import together
from snapfmt_coordinator.gym.incarnations import Incarnations
from snapfmt_coordinator.gym.links import Links
from snapfmt_coordinator.gym.observing import Observe
from snapfmt_coordinator.gym.parts import GymParts
from snapfmt_coordinator.gym.patience import INTERRUPT_AFTER
from snapfmt_coordinator.gym.preparing import PrepareCounts
from snapfmt_coordinator.protocol.v1 import Capabilities, Execution
from snapfmt_schemas.completion import CompletionReceipt
from snapfmt_schemas.topology import Topology

TIMEOUT_S: Final = 60.0
"""Time for a request that is given no deadline, in seconds."""
DISCOVER_S: Final = 20.0
"""The same for `discover`: short, so that it says who was silent before its caller gives up."""


class GymSide:
    """Asks all Gym servers, in upstream's order.

    Deadlines are in seconds since the epoch. `observe` is told each step (`gym.observing`).
    Everything may be repeated under the same id. It holds no connection between two calls, and
    so needs no closing.
    """

    def __init__(
        self,
        servers: Sequence[ServerAddress],
        *,
        token: str,
        session_factory: SessionFactory | None = None,
        grace_s: float = GRACE_S,
        retries: Retries | None = None,
        interrupt_after: float | None = INTERRUPT_AFTER,
    ) -> None:
        """`session_factory` makes a new session for each operation, which closes it.

        `interrupt_after` is the share of the time to prepare after which model calls that
        still generate are ended, to be made again after the resume; None waits for them.

        Raises:
            InputError: If two servers have one name, the token is none, or the share is none.
        """
        if interrupt_after is not None and not 0 <= interrupt_after < 1:
            raise InputError(
                "interrupt_after is a share of the time to prepare",
                what=str(interrupt_after),
                hint="give a number from 0 to below 1, or None",
            )
        names = [server.name for server in servers]
        if len(set(names)) != len(names):
            raise InputError(
                "each server has a name of its own",
                what=", ".join(sorted(names)),
                hint="name each server once in the configuration",
            )
        self._servers = tuple(servers)
        self._token = control_token(token)
        self._session_factory = session_factory or open_session
        self._grace_s = grace_s
        self._retries = retries or Retries()
        self._found: Participants | None = None
        self._incarnations = Incarnations()
        self._interrupt_after = interrupt_after
        self._restored: str | None = None

    async def discover(
        self, *, deadline_ts: float | None = None, observe: Observe | None = None
    ) -> tuple[Capabilities, ...]:
        """What every server is and can do; remembered, and looked at again by `prepare`.

        Raises:
            UnsupportedFeature: If one lacks something, or runs several processes, or there are
                two policy models; names the servers.
            ControlRefused: If one is another server than its address says.
            ParticipantFailed, DeadlineExceeded: If one does not answer; names all those.
        """
        found = await self._participants(deadline_ts, observe)
        return tuple(item.capabilities for item in found.everybody())

    def topology(self) -> Topology:
        """Who takes part, for the fingerprint.

        Raises:
            InputError: Before `discover`.
        """
        if self._found is None:
            raise InputError("the servers are not known yet", hint="await discover() first")
        return self._found.topology()

    async def acknowledge(
        self,
        receipts: Sequence[tuple[str, CompletionReceipt]],
        *,
        deadline_ts: float,
        observe: Observe | None = None,
    ) -> None:
        """Tells agents, by server name, which results were adopted; see `upkeep.acknowledge`."""
        async with self._links(deadline_ts, observe) as links:
            await upkeep.acknowledge(links, receipts, deadline_ts=deadline_ts)

    async def prepare(
        self, checkpoint_id: str, *, deadline_ts: float, observe: Observe | None = None
    ) -> PrepareCounts:
        """Brings all to rest; after an error, `resume`. See `preparing.prepare`.

        Before anybody is closed, all are asked whether they are still what `discover` found: a
        server may have been restarted since, as another one.
        """
        await self._look_again(checkpoint_id, deadline_ts, observe)
        async with self._links(deadline_ts, observe, checkpoint_id) as links:
            return await preparing.prepare(
                links,
                checkpoint_id,
                deadline_ts=deadline_ts,
                interrupt_after=self._interrupt_after,
            )

    async def commit(
        self,
        checkpoint_id: str,
        *,
        deadline_ts: float,
        tickets: Tickets,
        observe: Observe | None = None,
    ) -> None:
        """Has all take their cut, which writes nothing yet; see `committing.hold`."""
        async with self._links(deadline_ts, observe, checkpoint_id) as links:
            await committing.hold(links, checkpoint_id, deadline_ts=deadline_ts, tickets=tickets)

    async def collect(
        self,
        checkpoint_id: str,
        *,
        deadline_ts: float,
        tickets: Tickets,
        observe: Observe | None = None,
    ) -> GymParts:
        """Has the held cuts written, also after `resume`; see `committing.collect`."""
        async with self._links(deadline_ts, observe, checkpoint_id) as links:
            return await committing.collect(
                links, checkpoint_id, deadline_ts=deadline_ts, tickets=tickets
            )

    async def resume(
        self, checkpoint_id: str, *, deadline_ts: float, observe: Observe | None = None
    ) -> None:
        """Opens all again, also to give up a checkpoint; see `resuming.resume`.

        Raises:
            ControlRefused, ParticipantFailed, DeadlineExceeded: If one may still be closed, or
                has lost since its restore what it had installed; all were asked.
        """
        async with self._links(deadline_ts, observe, checkpoint_id) as links:
            await resuming.resume(
                links,
                checkpoint_id,
                deadline_ts=deadline_ts,
                same_process=checkpoint_id == self._restored,
            )

    async def restore(
        self,
        restore_id: str,
        *,
        deadline_ts: float,
        snapshot: Snapshot,
        source_checkpoint_id: str,
        committed: GymParts | None = None,
        observe: Observe | None = None,
    ) -> int:
        """Has all install their saved part and stay paused; see `restoring.restore`.

        `committed` is by default what the snapshot's user metadata says. Returns how many
        rollouts and sessions were installed.

        Raises:
            RestoreRefused, FormatError: If the snapshot does not fit; no server was asked.
            ParticipantFailed: If a server failed; all were resumed.
        """
        parts = committed or restoring.committed_parts(snapshot)
        async with self._links(deadline_ts, observe, restore_id) as links:
            restoring.check(links, parts, source_checkpoint_id)
            installed = await restoring.restore(
                links, restore_id, deadline_ts=deadline_ts, snapshot=snapshot, committed=parts
            )
            self._restored = restore_id
            return installed

    async def discard(
        self,
        restore_id: str,
        executions: Mapping[str, Sequence[Execution]],
        *,
        deadline_ts: float,
        observe: Observe | None = None,
    ) -> int:
        """Has restored rollouts start over, by agent's server name; see `upkeep.discard`."""
        async with self._links(deadline_ts, observe, restore_id) as links:
            return await upkeep.discard(links, restore_id, executions, deadline_ts=deadline_ts)

    async def retire(
        self,
        executions: Sequence[Execution],
        *,
        deadline_ts: float | None = None,
        observe: Observe | None = None,
    ) -> None:
        """Has all forget and refuse runs that are over for good; see `upkeep.retire`."""
        deadline = deadline_ts or time.time() + TIMEOUT_S
        async with self._links(deadline, observe) as links:
            await upkeep.retire(links, executions, deadline_ts=deadline)

    async def _participants(
        self, deadline_ts: float | None, observe: Observe | None
    ) -> Participants:
        if self._found is None:
            async with self._session_factory() as session:
                self._found = await discovery.discover(
                    [self._client(session, server) for server in self._servers],
                    deadline_ts=deadline_ts or time.time() + DISCOVER_S,
                    observe=observe,
                )
        return self._found

    async def _look_again(
        self, checkpoint_id: str, deadline_ts: float, observe: Observe | None
    ) -> None:
        """Discovers again when a server says something new; the process that says it is noted.

        From then on no other process may answer during this checkpoint, so that what is
        published of a server's kind and mode is what holds for its part.
        """
        async with self._links(deadline_ts, None, checkpoint_id) as links:
            changed = await together(
                discovery.has_changed(link.participant, link.client, deadline_ts) for link in links
            )
        if any(changed):
            self._found = None
            await self._participants(deadline_ts, observe)

    @asynccontextmanager
    async def _links(
        self, deadline_ts: float, observe: Observe | None, checkpoint_id: str | None = None
    ) -> AsyncIterator[Links]:
        participants = await self._participants(deadline_ts, observe)
        async with self._session_factory() as session:
            yield Links.to(
                participants,
                lambda item: self._client(session, item.address, checkpoint_id),
                observe,
            )

    def _client(
        self,
        session: aiohttp.ClientSession,
        server: ServerAddress,
        checkpoint_id: str | None = None,
    ) -> ControlClient:
        watch = None
        if checkpoint_id is not None:
            watch = self._incarnations.watch(checkpoint_id, server.name)
        return ControlClient(
            session,
            server,
            token=self._token,
            grace_s=self._grace_s,
            retries=self._retries,
            watch=watch,
        )
