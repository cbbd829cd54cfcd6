"""What the Gym servers gave to a snapshot, and how the snapshot says so."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal

from pydantic import Field

from snapfmt.errors import FormatError
from snapfmt_coordinator.protocol.v1 import ReferenceIndex
from snapfmt_schemas._base import Record
from snapfmt_schemas.attempt import Receipt
from snapfmt_schemas.identity import Count, Digest, Identity, PartName
from snapfmt_schemas.lines import from_value, to_value
from snapfmt_schemas.topology import ParticipantName, ParticipantWord

METADATA_KEY: Final = "gym_checkpoint"
"""Where a snapshot's user metadata holds this."""
DAMAGED: Final = "verify the snapshot, and restore another one"


class GymParticipant(Record):
    """One server's part, and the indexes that a restore must find again."""

    server_name: ParticipantWord
    component: Literal["agent", "model", "resources"]
    participant_name: ParticipantWord
    part: PartName
    index_digest: Digest
    continuation_index: ReferenceIndex | None = None
    storage_reference_index: ReferenceIndex | None = None


class GymCheckpoint(Record):
    """Which checkpoint of Gym a snapshot holds; the field names are upstream's."""

    SCHEMA: ClassVar[str] = "snapfmt.gym-checkpoint"

    schema_version: Literal[1] = 1
    checkpoint_id: Identity
    participants: tuple[GymParticipant, ...]
    counts: dict[str, Count] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GymParts:
    """The sealed parts of all Gym servers."""

    checkpoint_id: str
    receipts: tuple[Receipt, ...]
    participants: Mapping[str, ParticipantName]
    """Who wrote each part, by the part's name; so are the indexes below."""
    continuation_indexes: Mapping[str, ReferenceIndex] = field(default_factory=dict)
    storage_reference_indexes: Mapping[str, ReferenceIndex] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)


def to_metadata(parts: GymParts) -> dict[str, Any]:
    """JSON for a snapshot's user metadata, under `METADATA_KEY`."""
    participants = tuple(
        # Validated: a participant's component is one of the three here.
        GymParticipant.model_validate(
            {
                **to_value(parts.participants[receipt.part]),
                "part": receipt.part,
                "index_digest": receipt.index_digest,
                "continuation_index": parts.continuation_indexes.get(receipt.part),
                "storage_reference_index": parts.storage_reference_indexes.get(receipt.part),
            }
        )
        for receipt in parts.receipts
    )
    return to_value(
        GymCheckpoint(
            checkpoint_id=parts.checkpoint_id,
            participants=participants,
            counts=dict(parts.counts),
        )
    )


def from_metadata(value: Any, receipts: Iterable[Receipt]) -> GymParts:
    """The parts, from that JSON and the receipts of the snapshot's manifest.

    Raises:
        FormatError: If the JSON is none, or names a part that the manifest does not hold.
    """
    try:
        checkpoint = from_value(GymCheckpoint, value)
    except (ValueError, RecursionError) as error:
        raise FormatError(
            f"not a Gym checkpoint: {error}",
            what=METADATA_KEY,
            hint=DAMAGED,
        ) from error
    known = {receipt.part: receipt for receipt in receipts}
    members = {member.part: member for member in checkpoint.participants}
    if len(members) != len(checkpoint.participants):
        raise FormatError(
            "a part is named twice",
            what=METADATA_KEY,
            hint=DAMAGED,
        )
    for member in members.values():
        receipt = known.get(member.part)
        if receipt is None or receipt.index_digest != member.index_digest:
            raise FormatError(
                "the Gym checkpoint and the manifest do not name the same part",
                what=member.part,
                hint=DAMAGED,
            )
    return GymParts(
        checkpoint_id=checkpoint.checkpoint_id,
        receipts=tuple(known[part] for part in members),
        participants={
            part: ParticipantName(
                server_name=member.server_name,
                component=member.component,
                participant_name=member.participant_name,
            )
            for part, member in members.items()
        },
        continuation_indexes={
            part: member.continuation_index
            for part, member in members.items()
            if member.continuation_index is not None
        },
        storage_reference_indexes={
            part: member.storage_reference_index
            for part, member in members.items()
            if member.storage_reference_index is not None
        },
        counts=dict(checkpoint.counts),
    )
