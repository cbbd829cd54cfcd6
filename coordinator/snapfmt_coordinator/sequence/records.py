"""What the coordinator says of a save in the manifest, in the user's metadata."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field, ValidationError

from snapfmt import Snapshot
from snapfmt.errors import FormatError
from snapfmt_coordinator.gym import parts
from snapfmt_coordinator.gym.parts import GymParts
from snapfmt_schemas._base import Record
from snapfmt_schemas.identity import Count, Identity
from snapfmt_schemas.lines import to_value

KEY: Final = "snapfmt_coordinator"
"""Key of the record in `Manifest.user_metadata`."""


class SaveRecord(Record):
    """How the parts of one snapshot belong together."""

    SCHEMA: ClassVar[str] = "snapfmt.coordinator-save"

    schema_version: Literal[1] = 1
    checkpoint_id: Identity
    gym: Annotated[bool, Field(description="Whether Gym took part.")]
    mutation_version: Annotated[Count, Field(description="Of the data plane, at the cut.")]
    capture_partition: Annotated[str, Field(description="Partition of the token-capture rows.")]


def to_metadata(record: SaveRecord, gym: GymParts | None, own: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata to publish: the caller's own, the record, and what Gym gave."""
    found = {**own, KEY: to_value(record)}
    if gym is not None:
        found[parts.METADATA_KEY] = parts.to_metadata(gym)
    return found


def of_snapshot(snapshot: Snapshot) -> SaveRecord:
    """The record of a snapshot.

    Raises:
        FormatError: If it has none, such as when it was not saved by a coordinator.
    """
    found = snapshot.manifest.user_metadata.get(KEY)
    if found is None:
        raise FormatError("not saved by a coordinator", what=snapshot.name)
    try:
        return SaveRecord.model_validate_json(json.dumps(found))
    except ValidationError as error:
        raise FormatError(f"not a record of a save: {error}", what=snapshot.name) from error


def gym_of_snapshot(snapshot: Snapshot) -> GymParts | None:
    """What Gym gave to a snapshot, None when it took no part.

    Raises:
        FormatError: If the metadata and the manifest contradict each other.
    """
    found = snapshot.manifest.user_metadata.get(parts.METADATA_KEY)
    return None if found is None else parts.from_metadata(found, snapshot.manifest.parts)
