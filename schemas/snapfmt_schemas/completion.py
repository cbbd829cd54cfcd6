"""What an agent server owes an acknowledgement for: one finished execution."""

from typing import Annotated, ClassVar, Self

from pydantic import Field, StringConstraints, model_validator

from snapfmt_schemas._base import Record
from snapfmt_schemas.identity import CaptureKey, Count, ModelCallId, RolloutId

HexDigest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
"""An untagged sha256, as upstream writes it."""


class CompletionReceipt(Record):
    """Names the exact execution and result that the trainer adopted.

    The execution's generation keeps a late handler of an older execution from being
    acknowledged in its place.
    """

    SCHEMA: ClassVar[str] = "snapfmt.completion-receipt"

    rollout_id: RolloutId
    attempt_index: Count
    execution_generation: Annotated[int, Field(ge=1)]
    result_identity: Annotated[str, Field(min_length=1, max_length=512)]
    result_digest: Annotated[HexDigest, Field(description="Of the result's canonical JSON.")]
    manifest_capture_key: CaptureKey | None = None
    terminal_model_call_id: ModelCallId | None = None

    @model_validator(mode="after")
    def _together(self) -> Self:
        if (self.manifest_capture_key is None) != (self.terminal_model_call_id is None):
            raise ValueError("manifest_capture_key and terminal_model_call_id go together")
        return self
