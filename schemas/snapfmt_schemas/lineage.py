"""Rows of the policy model server's ledger: calls, failures, cuts, and what they refer to."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from snapfmt_schemas._base import Record
from snapfmt_schemas.agent import UnixSeconds
from snapfmt_schemas.identity import CaptureKey, Count, Identity, ModelCallId
from snapfmt_schemas.opaque import Items, OpaqueObject

StagingKey = Annotated[str, StringConstraints(min_length=1, max_length=2048)]
"""Key of a token-capture row, `<capture key>/<model call id>`."""
WeightVersion = Annotated[int, Field(ge=-1, description="-1: not known.")]
Hash = Annotated[str, StringConstraints(min_length=1, max_length=512)]


class ModelLineageRow(Record):
    """One committed model call of one run, and the call that it continues.

    Fields and order are those of upstream's ledger schema 3. A root starts from text; a
    child continues the tokens of its parent.
    """

    SCHEMA: ClassVar[str] = "snapfmt.model-lineage"

    model_call_id: ModelCallId
    fingerprint: Hash | None = None
    context_len: Count | None = None
    context_digest: Hash | None = None
    digest: Hash | None = None
    parent_call_id: Annotated[ModelCallId | None, Field(description="Null: a root.")] = None
    staging_key: StagingKey
    weight_version: WeightVersion
    prev_len: Annotated[Count, Field(description="Tokens before this call.")]
    delta_len: Annotated[Count, Field(description="Tokens that this call added.")]
    cum_len: Annotated[Count, Field(description="Tokens after it: prev_len + delta_len.")]
    staging_digest: Hash | None = None
    extras_digest: Hash | None = None
    mode: Literal["text", "token_in"]
    admitted_at: UnixSeconds | None = None
    staging_chain: Annotated[
        Items[StagingKey] | None,
        Field(description="Keys of the ancestors; null: left out, since the parents give them."),
    ] = None
    chain_hash: Hash | None = None
    cumulative_hash: Hash | None = None
    response_id: Annotated[str, Field(max_length=512)] | None = None
    output_fingerprint: Hash | None = None
    continuation_fingerprint: Hash | None = None
    fingerprint_version: Count | None = None

    @model_validator(mode="after")
    def _lengths(self) -> Self:
        if self.cum_len != self.prev_len + self.delta_len:
            raise ValueError("cum_len must be prev_len + delta_len")
        if self.parent_call_id is None:
            if self.mode != "text" or self.prev_len != 0:
                raise ValueError("a root call has mode 'text' and prev_len 0")
        elif self.mode != "token_in" or self.prev_len == 0:
            raise ValueError("a child call has mode 'token_in' and prev_len above 0")
        if self.parent_call_id == self.model_call_id:
            raise ValueError("a call is not its own parent")
        return self

    @model_validator(mode="after")
    def _chain(self) -> Self:
        chain = self.staging_chain
        if chain is not None and len(set(chain)) != len(chain):
            raise ValueError("staging_chain repeats a key")
        return self


class ModelFailureRow(Record):
    """A model call that failed for good."""

    SCHEMA: ClassVar[str] = "snapfmt.model-failure"

    model_call_id: ModelCallId
    failure_reason: str


class GenerationCutRow(Record):
    """A generation that a checkpoint cut short, with the prefix that it staged.

    The named fields are those known of upstream's row; a later one goes into `extensions`.
    """

    SCHEMA: ClassVar[str] = "snapfmt.generation-cut"

    event: Literal["generation_cut"] = "generation_cut"
    checkpoint_id: Identity
    disposition: Annotated[str, Field(min_length=1, max_length=128)]
    staging_keys: Items[StagingKey] = ()
    model_call_id: ModelCallId | None = None
    request_digest: Hash | None = None
    continuation: OpaqueObject | None = None
    extensions: OpaqueObject = Field(default_factory=dict)

    @model_validator(mode="after")
    def _unique(self) -> Self:
        if len(set(self.staging_keys)) != len(self.staging_keys):
            raise ValueError("staging_keys repeats a key")
        return self


class ExternalStorageReference(Record):
    """A token-capture row that the ledger of one run needs to be in the same snapshot."""

    SCHEMA: ClassVar[str] = "snapfmt.storage-reference"

    schema_version: Literal[1] = 1
    capture_key: CaptureKey
    boundary_model_call_id: ModelCallId
    kind: Literal["token_capture_staging", "generation_prefix_cut"]
    key: StagingKey
