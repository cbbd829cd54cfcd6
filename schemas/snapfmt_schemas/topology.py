"""Which participants a snapshot was taken from; a restore needs the same ones."""

from collections.abc import Iterable
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from snapfmt_schemas._base import Record
from snapfmt_schemas.fingerprint import Fingerprint
from snapfmt_schemas.lines import to_value
from snapfmt_schemas.opaque import Items

ParticipantWord = Annotated[str, StringConstraints(min_length=1, max_length=512)]


class ParticipantName(Record):
    """The three names that identify a participant."""

    server_name: ParticipantWord
    component: ParticipantWord
    participant_name: ParticipantWord


class MultiProcess(Record):
    """How the server runs its workers."""

    mode: Literal["single_worker", "coordinator", "unmanaged"]
    num_workers: Annotated[int, Field(ge=1)]


class TopologyParticipant(Record):
    """One participant and what it promises; hosts, ports and feature lists do not count."""

    participant: ParticipantName
    schema_version: Annotated[int, Field(ge=1)] = 1
    admission_states: Annotated[
        Items[ParticipantWord], Field(description="Sorted, each once.")
    ] = ()
    checkpoint_mode: Literal["stateless", "restart_only", "export_restore"]
    concurrency_contract: Literal["stateless", "serialized_per_session", "transactional_parallel"]
    multi_process: MultiProcess
    instance_role: Literal["policy", "auxiliary"] | None = None

    @model_validator(mode="after")
    def _sorted(self) -> Self:
        if list(self.admission_states) != sorted(set(self.admission_states)):
            raise ValueError("admission_states must be sorted and without repetition")
        return self

    def order(self) -> tuple[str, str, str]:
        """The sort key that upstream's fingerprint uses."""
        name = self.participant
        return (name.component, name.server_name, name.participant_name)


class Topology(Record):
    """All participants, in the order of upstream's fingerprint."""

    SCHEMA: ClassVar[str] = "snapfmt.topology"

    schema_version: Literal[1] = 1
    participants: Annotated[
        Items[TopologyParticipant],
        Field(description="Sorted by component, server name, participant name."),
    ] = ()

    @model_validator(mode="after")
    def _order(self) -> Self:
        keys = [participant.order() for participant in self.participants]
        if keys != sorted(set(keys)):
            raise ValueError("participants must be sorted and without repetition")
        return self

    @classmethod
    def of(cls, participants: Iterable[TopologyParticipant]) -> Self:
        """The topology of participants in any order."""
        return cls(participants=tuple(sorted(participants, key=TopologyParticipant.order)))

    def to_fingerprint(self) -> Fingerprint:
        """The fingerprint `topology`; its digest is upstream's, with the algorithm's tag."""
        return Fingerprint.of("topology", to_value(self))
