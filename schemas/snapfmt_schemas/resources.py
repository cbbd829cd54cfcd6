"""What a resource server saves of one session."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from snapfmt_schemas._base import Record
from snapfmt_schemas.agent import UnixSeconds
from snapfmt_schemas.identity import Count, RolloutId
from snapfmt_schemas.opaque import OpaqueObject


class ResourceSnapshot(Record):
    """The state of one session, for one run of one rollout."""

    SCHEMA: ClassVar[str] = "snapfmt.resource-snapshot"

    schema_version: Literal[1] = 1
    rollout_id: RolloutId
    attempt_index: Count
    state_revision: Annotated[Count, Field(description="Mutations of the session so far.")]
    state: OpaqueObject
    created_at: UnixSeconds
