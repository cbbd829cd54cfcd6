"""Who takes part, and whether each can do what a save and a restore need."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from pydantic import TypeAdapter, ValidationError

from snapfmt.errors import InputError, UnsupportedFeature
from snapfmt_coordinator.gym.client import ControlClient, ServerAddress
from snapfmt_coordinator.gym.fanout import together
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
        UnsupportedFeature: If a server lacks something; names the server and the feature.
        ControlRefused: If a server answers for another one (`topology_mismatch`).
        ParticipantFailed, DeadlineExceeded: If a server does not answer.
    """

    async def ask(client: ControlClient) -> Participant:
        with observed(observe, DISCOVER, client.address.name):
            reply = await client.request(
                v1.CAPABILITIES, None, v1.Capabilities, deadline_ts=deadline_ts
            )
            return Participant(client.address, reply)

    found = await together(ask(client) for client in clients)
    found.sort(key=lambda item: item.capabilities.topology().order())
    for item in found:
        _check(item)
    sorted_out = Participants(
        agents=_of(found, "agent"),
        models=tuple(item for item in _of(found, "model") if not _is_auxiliary(item)),
        resources=_of(found, "resources"),
        auxiliary=tuple(item for item in found if _is_auxiliary(item)),
    )
    if any(item.capabilities.checkpoint_mode == "restart_only" for item in sorted_out.resources):
        for item in sorted_out.agents:
            _need(item, NEEDED_FOR_RESTART)
    return sorted_out


def _of(found: Iterable[Participant], component: str) -> tuple[Participant, ...]:
    return tuple(item for item in found if item.capabilities.component == component)


def _is_auxiliary(item: Participant) -> bool:
    return item.capabilities.instance_role == "auxiliary"


def _check(item: Participant) -> None:
    capabilities = item.capabilities
    if capabilities.server_name != item.address.name:
        raise refused(
            "topology_mismatch",
            f"the server at the address of {item.address.name!r} says that it is "
            f"{capabilities.server_name!r}",
            what=item.address.name,
            hint="correct the addresses; each server is asked under its own name",
        )
    if _is_auxiliary(item):
        return
    if capabilities.component == "model" and capabilities.instance_role is None:
        raise UnsupportedFeature(
            "a model server must say whether it is the policy or auxiliary (instance_role)",
            what=item.address.name,
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
