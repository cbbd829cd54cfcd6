"""Who takes part, and whether each can do what a save and a restore need."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from pydantic import TypeAdapter, ValidationError

from snapfmt.errors import DeadlineExceeded, InputError, UnsupportedFeature
from snapfmt_coordinator.gym.client import ControlClient, ServerAddress
from snapfmt_coordinator.gym.fanout import together
from snapfmt_coordinator.gym.incarnations import ONE_WORKER
from snapfmt_coordinator.gym.observing import DISCOVER, Observe, observed
from snapfmt_coordinator.protocol import v1
from snapfmt_coordinator.protocol.codes import refused
from snapfmt_schemas.identity import PartName
from snapfmt_schemas.topology import ParticipantName, Topology

_COMMON: Final = (v1.TICKET, v1.DEFERRED, v1.PART_RESTORE)
NEEDED: Final = MappingProxyType(
    {
        "agent": (*_COMMON, v1.ACKNOWLEDGEMENT, v1.CONTINUATION_INDEX),
        "model": (*_COMMON, v1.STORAGE_REFERENCES),
        "resources": _COMMON,
    }
)
"""Features without which a participant cannot take part."""
NEEDED_FOR_RESTART: Final = (v1.DISCARD, v1.DEPENDENCIES)
"""What agents need besides, once a resource server cannot export its sessions."""
PROBES: Final = 6
"""Connections at once that look for a second process behind an address, once per round."""
PROBE_ROUNDS: Final = 3
_PASSING: Final = {"phase", "active_checkpoint_id", "deadline_ts"}
_PART: Final[TypeAdapter[str]] = TypeAdapter(PartName)


@dataclass(frozen=True, slots=True)
class Participant:
    """A server and what it says of itself."""

    address: ServerAddress
    capabilities: v1.Capabilities

    @property
    def part(self) -> str:
        """Name of its part of a snapshot, which also names it in a timeline."""
        return f"gym/{self.capabilities.component}/{self.address.name}"

    @property
    def name(self) -> ParticipantName:
        """The three names that identify it."""
        return self.capabilities.topology().participant


@dataclass(frozen=True, slots=True)
class Participants:
    """All of them; auxiliary models, such as judges, are known and left alone."""

    agents: tuple[Participant, ...]
    models: tuple[Participant, ...]
    resources: tuple[Participant, ...]
    auxiliary: tuple[Participant, ...]

    def __iter__(self) -> Iterator[Participant]:
        return iter((*self.agents, *self.models, *self.resources))

    def everybody(self) -> tuple[Participant, ...]:
        """Also the auxiliary models."""
        return (*self, *self.auxiliary)

    def topology(self) -> Topology:
        """What a restore needs to find again."""
        return Topology.of(item.capabilities.topology() for item in self.everybody())


async def discover(
    clients: Sequence[ControlClient], *, deadline_ts: float, observe: Observe | None = None
) -> Participants:
    """Asks every server what it is and can do.

    Raises:
        UnsupportedFeature: If a server lacks something, names the server and the feature; if
            several processes answer for one, or there are two policy models.
        ControlRefused: If a server answers for another one (`topology_mismatch`).
        ParticipantFailed, DeadlineExceeded: If a server does not answer.
    """
    silent: list[str] = []

    async def ask(client: ControlClient) -> Participant:
        with observed(observe, DISCOVER, client.address.name):
            try:
                reply = await _capabilities(client, deadline_ts)
                _check(Participant(client.address, reply), client)
                await _check_one_process(client, reply, deadline_ts)
            except DeadlineExceeded:
                silent.append(client.address.name)
                raise
            return Participant(client.address, reply)

    try:
        found = await together(ask(client) for client in clients)
    except DeadlineExceeded as error:
        raise DeadlineExceeded(
            f"{len(silent)} of {len(clients)} servers did not answer {v1.CAPABILITIES} in time",
            what=", ".join(sorted(silent)),
            hint="look whether they run and whether something blocks their event loop",
        ) from error
    found.sort(key=lambda item: item.capabilities.topology().order())
    sorted_out = Participants(
        agents=_of(found, "agent"),
        models=tuple(item for item in _of(found, "model") if not _is_auxiliary(item)),
        resources=_of(found, "resources"),
        auxiliary=tuple(item for item in found if _is_auxiliary(item)),
    )
    if len(sorted_out.models) > 1:
        raise UnsupportedFeature(
            f"{len(sorted_out.models)} policy models: each would have to hold the lineage of all"
            " runs",
            what=", ".join(item.address.name for item in sorted_out.models),
            hint="let one take part; a model that makes no rollouts is 'auxiliary'",
        )
    if any(item.capabilities.checkpoint_mode == "restart_only" for item in sorted_out.resources):
        for item in sorted_out.agents:
            _need(item, NEEDED_FOR_RESTART)
    return sorted_out


async def has_changed(known: Participant, client: ControlClient, deadline_ts: float) -> bool:
    """Whether a server says something else of itself than before, but for what it does now."""
    reply = await _capabilities(client, deadline_ts)
    return reply.model_dump(exclude=_PASSING) != known.capabilities.model_dump(exclude=_PASSING)


async def _capabilities(client: ControlClient, deadline_ts: float) -> v1.Capabilities:
    return await client.request(v1.CAPABILITIES, None, v1.Capabilities, deadline_ts=deadline_ts)


async def _check_one_process(
    client: ControlClient, first: v1.Capabilities, deadline_ts: float
) -> None:
    if first.incarnation is None:
        return
    for _ in range(PROBE_ROUNDS):
        replies = await together(_capabilities(client, deadline_ts) for _ in range(PROBES))
        if {reply.incarnation for reply in replies} != {first.incarnation}:
            raise UnsupportedFeature(
                "several processes answer at the server's address, each with a state of its own",
                what=client.address.name,
                hint=f"{ONE_WORKER}, unless it was restarted just now",
            )


def _of(found: Iterable[Participant], component: str) -> tuple[Participant, ...]:
    return tuple(item for item in found if item.capabilities.component == component)


def _is_auxiliary(item: Participant) -> bool:
    return item.capabilities.instance_role == "auxiliary"


def _check(item: Participant, client: ControlClient) -> None:
    capabilities = item.capabilities
    if capabilities.server_name != item.address.name:
        raise refused(
            "topology_mismatch",
            f"the server at the address of {item.address.name!r} says that it is "
            f"{client.clean(capabilities.server_name)!r}",
            what=item.address.name,
            hint="correct the addresses; each server is asked under its own name",
        )
    if _is_auxiliary(item):
        return
    if capabilities.component == "model" and capabilities.instance_role is None:
        raise UnsupportedFeature(
            "a model server must say whether it is the policy or auxiliary (instance_role)",
            what=item.address.name,
            hint="set it to 'policy' if its replies are trained on, else to 'auxiliary'",
        )
    workers = capabilities.multi_process
    if workers.mode == "unmanaged" and workers.num_workers > 1:
        raise UnsupportedFeature(
            f"{workers.num_workers} workers without a coordinator (multi_process 'unmanaged'): "
            "a request would pause only one of them",
            what=item.address.name,
            hint="run one worker, or workers under a coordinator",
        )
    try:
        _PART.validate_python(item.part, strict=True)
    except ValidationError as error:
        raise InputError(
            "the server's name cannot be part of a part's name",
            what=item.part,
            hint="use letters, digits and ._@%+=-",
        ) from error
    _need(item, NEEDED[capabilities.component])


def _need(item: Participant, features: Iterable[str]) -> None:
    missing = [name for name in features if name not in item.capabilities.features]
    if missing:
        raise UnsupportedFeature(
            f"the {item.capabilities.component} server lacks {', '.join(missing)}",
            what=item.address.name,
            hint="update the server, or leave it out of the checkpoints",
        )
