"""The trainer's recovery ledger: every prompt group that is not yet safely trained on.

The layout is upstream's version 4. There the number is no layout id, so an adapter decides
by the fields; here `snapfmt.recovery-ledger` with its version is one.
"""

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, StringConstraints, model_validator

from snapfmt_schemas._base import Record
from snapfmt_schemas.completion import CompletionReceipt
from snapfmt_schemas.identity import CaptureKey, Count, ModelCallId, RolloutId, capture_key
from snapfmt_schemas.lineage import Hash, StagingKey, WeightVersion
from snapfmt_schemas.opaque import Items, OpaqueObject

GroupId = Annotated[RolloutId, Field(description="Id of a prompt group.")]
Name = Annotated[str, StringConstraints(min_length=1, max_length=512)]

AttemptStatus = Literal["reserved", "dispatched", "sealed", "failed", "abandoned"]
GroupStatus = Literal[
    "generating",
    "ready_to_finalize",
    "finalizing",
    "finalization_unknown",
    "finalized",
    "claimed_for_training",
    "applied_uncheckpointed",
]
UNSAFE_STATUSES = frozenset({"finalizing", "finalization_unknown"})
"""A group in one of these cannot be restored: whether its rows exist is not known."""


def logical_rollout_id(group_id: str, generation_index: int) -> str:
    """Upstream's id of one generation of a group."""
    return f"{group_id}_g{generation_index}"


class PromptRef(Record):
    """Where the dataset has a prompt; the prompt itself is not stored."""

    sample_id: int | Name
    task_name: Name | None = None


class CallRecord(Record):
    """One model call of a sealed rollout."""

    model_call_id: ModelCallId
    parent_call_id: ModelCallId | None = None
    staging_key: StagingKey
    weight_version: WeightVersion | None = None
    prev_len: Count | None = None
    delta_len: Count | None = None
    cum_len: Count | None = None
    digest: Hash | None = None
    extensions: OpaqueObject = Field(default_factory=dict)


class RolloutReceipt(Record):
    """What a sealed run consists of: its calls, in order."""

    rollout_id: RolloutId
    attempt_index: Count
    capture_key: CaptureKey
    manifest: Items[CallRecord]
    extensions: OpaqueObject = Field(default_factory=dict)

    @model_validator(mode="after")
    def _identity(self) -> Self:
        expected = capture_key(self.rollout_id, self.attempt_index)
        if self.capture_key != expected:
            raise ValueError(f"receipt has capture key {self.capture_key!r}, not {expected!r}")
        return self


class RolloutAttempt(Record):
    """One run of one generation."""

    attempt_index: Count
    status: AttemptStatus
    receipt: RolloutReceipt | None = None
    completion_receipt: CompletionReceipt | None = None
    reward: float | None = None
    mask_sample: bool | None = None
    staging_keys: Items[StagingKey] = ()

    @model_validator(mode="after")
    def _receipt(self) -> Self:
        if self.receipt is not None:
            named = tuple(call.staging_key for call in self.receipt.manifest)
            if named != self.staging_keys:
                raise ValueError("staging_keys must be those of the receipt, in its order")
        return self


class Sibling(Record):
    """One generation of a group, with its runs."""

    generation_index: Count
    attempts: Items[RolloutAttempt]

    @model_validator(mode="after")
    def _contiguous(self) -> Self:
        if [attempt.attempt_index for attempt in self.attempts] != [*range(len(self.attempts))]:
            raise ValueError("attempt indexes must be 0, 1, 2 and so on")
        return self


class LedgerGroup(Record):
    """One admitted prompt and its generations."""

    group_id: GroupId
    admission_id: int | Name | None = None
    prompt_id: int | Name | None = None
    prompt_ref: PromptRef
    task_source: Name | None = None
    resolved_agent_name: Name | None = None
    recovery_granularity: Literal["sibling", "prompt_group"] = "sibling"
    restore_level: int | Name | None = None
    expected_generations: Annotated[int, Field(ge=1)]
    target_step: Count | None = None
    start_weight_version: WeightVersion | None = None
    status: GroupStatus
    phase: Literal["reserved", "admitted"]
    siblings: Items[Sibling]

    @model_validator(mode="after")
    def _siblings(self) -> Self:
        if len(self.siblings) != self.expected_generations:
            raise ValueError(
                f"{len(self.siblings)} siblings, expected_generations is"
                f" {self.expected_generations}"
            )
        indexes = [sibling.generation_index for sibling in self.siblings]
        if indexes != [*range(len(indexes))]:
            raise ValueError("generation indexes must be 0, 1, 2 and so on")
        return self

    @model_validator(mode="after")
    def _safe(self) -> Self:
        if self.status in UNSAFE_STATUSES:
            raise ValueError(f"a group in status {self.status!r} cannot be restored")
        return self

    @model_validator(mode="after")
    def _identities(self) -> Self:
        for key, attempt in self.runs():
            for receipt in (attempt.receipt, attempt.completion_receipt):
                if receipt is None:
                    continue
                named = capture_key(receipt.rollout_id, receipt.attempt_index)
                if named != key:
                    raise ValueError(f"receipt of run {named!r} is kept for run {key!r}")
        return self

    def runs(self) -> Iterator[tuple[str, RolloutAttempt]]:
        """Every run with its capture key, in order."""
        for sibling in self.siblings:
            rollout_id = logical_rollout_id(self.group_id, sibling.generation_index)
            for attempt in sibling.attempts:
                yield capture_key(rollout_id, attempt.attempt_index), attempt


class PendingAcknowledgement(Record):
    """A finished execution that the trainer adopted and Gym does not know it yet."""

    receipt: CompletionReceipt
    agent_name: Name


def _integer_keys(value: Any) -> Any:
    """JSON has text keys only; take back exactly what `str(int)` gives."""
    if not isinstance(value, dict):
        return value
    if any(isinstance(key, str) and not _is_canonical(key) for key in value):
        raise ValueError("keys must be canonical decimal integers")
    return {int(key) if isinstance(key, str) else key: item for key, item in value.items()}


def _is_canonical(key: str) -> bool:
    return key.isascii() and key.isdigit() and (key == "0" or key[0] != "0")


class RecoveryLedger(Record):
    """Run numbers and acknowledgements owed, for everything that is not finished."""

    SCHEMA: ClassVar[str] = "snapfmt.recovery-ledger"
    VERSION: ClassVar[int] = 4

    schema_version: Literal[4] = 4
    groups: Items[LedgerGroup] = ()
    pending_completed_execution_acknowledgements: Items[PendingAcknowledgement] = ()
    batch_shortfall: Annotated[
        dict[Count, Count],
        BeforeValidator(_integer_keys),
        Field(description="Groups still missing, per training step."),
    ] = Field(default_factory=dict)
    sampler_stamps_target_steps: bool = False

    @model_validator(mode="after")
    def _unique(self) -> Self:
        ids = [group.group_id for group in self.groups]
        if len(set(ids)) != len(ids):
            raise ValueError("group ids must be unique")
        return self

    def staging_keys(self) -> frozenset[str]:
        """Every token-capture row that the ledger needs."""
        return frozenset(
            key for group in self.groups for _, run in group.runs() for key in run.staging_keys
        )
