"""One line of a continuation index: where one parked rollout goes on after a restore."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from snapfmt_schemas._base import Record
from snapfmt_schemas.identity import CaptureKey, Count, ModelCallId, RolloutId, capture_key

ServerName = Annotated[str, StringConstraints(min_length=1, max_length=512)]
"""Name of a Gym server, as its configuration gives it."""


class Continuation(Record):
    """A rollout that was parked after a committed model call.

    Fields and order are those of upstream's AgentContinuationRoot.
    """

    SCHEMA: ClassVar[str] = "snapfmt.continuation"

    schema_version: Literal[1] = 1
    rollout_id: RolloutId
    attempt_index: Annotated[Count, Field(description="Run number of the rollout.")]
    capture_key: Annotated[CaptureKey, Field(description="Key of that run in Gym.")]
    last_committed_model_call_id: ModelCallId
    resource_state_revisions: Annotated[
        dict[ServerName, Count] | None,
        Field(description="Revision per resource server; null: unknown, so all were used."),
    ] = None

    @model_validator(mode="after")
    def _capture_key(self) -> Self:
        expected = capture_key(self.rollout_id, self.attempt_index)
        if self.capture_key != expected:
            raise ValueError(f"capture key is {self.capture_key!r}, its run has {expected!r}")
        return self
