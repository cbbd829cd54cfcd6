"""What an agent server saves of one parked rollout."""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from snapfmt_schemas._base import Record
from snapfmt_schemas.continuation import Continuation, ServerName
from snapfmt_schemas.identity import Count, ModelCallId, RolloutId, capture_key
from snapfmt_schemas.opaque import PARSED, Items, OpaqueObject

UnixSeconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""Seconds since the Unix epoch, as upstream stamps its records."""


class PendingModel(Record):
    """A model response that the agent holds and has not acted on to the end."""

    model_call_id: ModelCallId
    response: OpaqueObject
    model_server_cookies: Annotated[
        OpaqueObject, Field(description="Secret; redacted before it is stored.")
    ] = Field(default_factory=dict)
    usage: OpaqueObject | None = None
    pending_action_cursor: Annotated[
        Count, Field(description="Actions of the response that are done.")
    ] = 0
    resource_request_id: Annotated[str, Field(max_length=512)] | None = None


class AgentBoundaryRecord(Record):
    """The state of one run at its last turn boundary.

    Fields and order are those of upstream's boundary schema 2, which also reads 1.
    """

    SCHEMA: ClassVar[str] = "snapfmt.agent-boundary"
    VERSION: ClassVar[int] = 2

    schema_version: Literal[1, 2] = 2
    rollout_id: RolloutId
    attempt_index: Count
    boundary_index: Annotated[Count, Field(description="Boundaries of this run so far.")]
    turn_index: Count
    boundary_kind: Literal["pending_model", "turn_complete"]
    pending_model: PendingModel | None = None
    output_items: Annotated[
        Items[OpaqueObject], Field(description="The conversation so far, item by item.")
    ] = ()
    usage: OpaqueObject | None = None
    last_committed_model_call_id: ModelCallId | None = None
    resource_state_revisions: Annotated[
        dict[ServerName, Count] | None,
        Field(description="Null: written before dependencies were recorded."),
    ] = None
    agent_state: OpaqueObject = Field(default_factory=dict)
    created_at: UnixSeconds

    @model_validator(mode="after")
    def _pending(self) -> Self:
        if (self.pending_model is not None) != (self.boundary_kind == "pending_model"):
            raise ValueError("pending_model goes with boundary kind 'pending_model' only")
        return self

    def continuation(self) -> Continuation | None:
        """The line of the continuation index, or None before the first committed call."""
        if self.last_committed_model_call_id is None:
            return None
        return Continuation(
            rollout_id=self.rollout_id,
            attempt_index=self.attempt_index,
            capture_key=capture_key(self.rollout_id, self.attempt_index),
            last_committed_model_call_id=self.last_committed_model_call_id,
            resource_state_revisions=self.resource_state_revisions,
        )


class BoundaryHead(AgentBoundaryRecord):
    """A boundary record as it is stored: its conversation is rows of a table.

    So that a save writes what was added to a conversation, and not the conversation again.
    """

    SCHEMA: ClassVar[str] = "snapfmt.boundary-head"

    item_count: Annotated[
        Count | None,
        Field(description="Items of the conversation; null: they are in output_items."),
    ] = None

    @model_validator(mode="after")
    def _divided(self) -> Self:
        if self.item_count is not None and self.output_items:
            raise ValueError("items are rows of the table, or in output_items")
        return self

    @classmethod
    def of(cls, record: AgentBoundaryRecord) -> Self:
        """The head of a record."""
        fields = {name: getattr(record, name) for name in type(record).model_fields}
        return cls.model_validate(
            fields | {"output_items": (), "item_count": len(record.output_items)}, context=PARSED
        )

    def whole(self, items: Sequence[dict[str, Any]]) -> AgentBoundaryRecord:
        """The record, with its conversation unless the head has it."""
        fields = {name: getattr(self, name) for name in AgentBoundaryRecord.model_fields}
        if self.item_count is not None:
            fields["output_items"] = tuple(items)
        return AgentBoundaryRecord.model_validate(fields, context=PARSED)
