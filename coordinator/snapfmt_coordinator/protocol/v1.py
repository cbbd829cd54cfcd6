"""Control routes of the first generation: paths, request and reply bodies.

Field names, states and order are upstream's v1, with these additions, announced by a feature
in `capabilities`:

    snapfmt_ticket_v1          `commit` gets a ticket instead of a folder, and gives a receipt
    snapfmt_deferred_commit_v1 `commit` with `wait=false` answers when the cut is held; the same
                               request with `wait=true` gives the receipt once it is written
    snapfmt_part_restore_v1    `restore` gets the place of a published part instead of a folder
    snapfmt_interrupt_call_v1  `abort_inflight` with `keep_run` ends the generation of calls and
                               lets the run make them again after the resume

and with `incarnation` in `capabilities`, which every other answer has in `INCARNATION_HEADER`.

No list in a request or a reply is longer than `MAX_LIST`; what is longer lies in the part.
"""

from typing import Annotated, Any, Final, Literal

from pydantic import Field, JsonValue

from snapfmt_schemas._base import Record
from snapfmt_schemas.attempt import Receipt, Ticket
from snapfmt_schemas.completion import CompletionReceipt
from snapfmt_schemas.identity import Count, Digest, Identity, ModelCallId, PartName, RolloutId
from snapfmt_schemas.topology import MultiProcess, ParticipantName, TopologyParticipant

PREFIX: Final = "/ng-control/v1"
CAPABILITIES: Final = "/capabilities"
MODEL_ADMISSION: Final = "/model-admission"
MODEL: Final = "/model-checkpoint"
AGENT: Final = "/agent-checkpoint"
RESOURCES: Final = "/resources-checkpoint"
MAX_LIST: Final = 512
"""Longest list in a body."""
MAX_BODY: Final = 1024 * 1024
"""Largest body, in bytes."""
GENERATION_HEADER: Final = "x-nemo-gym-agent-execution-generation"
REVISION_HEADER: Final = "x-nemo-gym-resource-state-revision"
INCARNATION_HEADER: Final = "x-snapfmt-incarnation"
"""Says which process answered; also on refusals."""
HELD_HEADER: Final = "x-snapfmt-run-held"
"""On a data request that begins a run, "1": the agent must hold the run, as one that a restore
set up or that was sent before; a restarted agent must not begin it from nothing."""

Component = Literal["agent", "model", "resources"]
Mode = Literal["stateless", "restart_only", "export_restore"]
Phase = Literal[
    "idle",
    "preparing",
    "prepared",
    "committing",
    "committed_paused",
    "restoring",
    "restore_failed_paused",
    "restored_paused",
]
UnixTime = Annotated[float, Field(gt=0, allow_inf_nan=False, description="Absolute, in seconds.")]

TICKET: Final = "snapfmt_ticket_v1"
DEFERRED: Final = "snapfmt_deferred_commit_v1"
PART_RESTORE: Final = "snapfmt_part_restore_v1"
INTERRUPT: Final = "snapfmt_interrupt_call_v1"
ACKNOWLEDGEMENT: Final = "completed_result_acknowledgement"
CONTINUATION_INDEX: Final = "agent_continuation_index_v1"
STORAGE_REFERENCES: Final = "external_storage_reference_index_v1"
DISCARD: Final = "discard_restored_continuation_v1"
DEPENDENCIES: Final = "agent_resource_dependency_index_v1"


class Capabilities(Record):
    """What a participant is and can do."""

    component: Component
    name: str
    server_name: str
    schema_version: Literal[1] = 1
    admission_states: tuple[str, ...] = ("accepting", "paused")
    checkpoint_mode: Mode
    concurrency_contract: Literal["stateless", "serialized_per_session", "transactional_parallel"]
    multi_process: MultiProcess = MultiProcess(mode="single_worker", num_workers=1)
    instance_role: Literal["policy", "auxiliary"] | None = None
    phase: Phase = "idle"
    active_checkpoint_id: str | None = None
    deadline_ts: float | None = None
    features: tuple[str, ...] = ()
    incarnation: Annotated[
        Identity | None, Field(description="Made anew by each process; null where it is not told.")
    ] = None

    def topology(self) -> TopologyParticipant:
        """Its share of the topology fingerprint."""
        return TopologyParticipant(
            participant=ParticipantName(
                server_name=self.server_name,
                component=self.component,
                participant_name=self.name,
            ),
            schema_version=self.schema_version,
            admission_states=tuple(sorted(set(self.admission_states))),
            checkpoint_mode=self.checkpoint_mode,
            concurrency_contract=self.concurrency_contract,
            multi_process=self.multi_process,
            instance_role=self.instance_role,
        )


class Control(Record):
    """What every control request carries."""

    schema_version: Literal[1] = 1
    checkpoint_id: Identity
    deadline_ts: UnixTime


class Execution(Record):
    """One run of one rollout."""

    rollout_id: RolloutId
    attempt_index: Count


class ReferenceIndex(Record):
    """Where a list lies in a part, and what it hashes to."""

    part: PartName
    path: str
    digest: Digest
    records: Count


# --- agents


class AcknowledgeCompleted(Record):
    """Results that the trainer adopted; the agent lets go of them. No checkpoint is involved."""

    schema_version: Literal[1] = 1
    executions: Annotated[tuple[CompletionReceipt, ...], Field(max_length=MAX_LIST)]


class Acknowledged(Record):
    """Which of them are acknowledged now, also those that were before."""

    acknowledged: tuple[Execution, ...]
    idempotent: Annotated[Count, Field(description="How many were acknowledged before.")] = 0
    unknown: Annotated[
        tuple[Execution, ...],
        Field(
            max_length=MAX_LIST,
            description="Nothing is held of these runs, since the process began after they ended.",
        ),
    ] = ()


class PrepareAgents(Control):
    """Closes the admission of runs and parks each run at its next turn boundary."""

    wait_s: Annotated[float, Field(ge=0, le=60, description="Answer after this at the latest.")] = 0


class AgentsPrepared(Record):
    """How far the parking is."""

    state: Phase
    ready_to_commit: bool
    running: Count
    parked: Count
    parked_with_boundary: Count
    parked_without_boundary: Count
    completed_unacknowledged: Count
    acknowledged_completed: Count = 0
    active: Count
    blocking_attempts: Annotated[tuple[Execution, ...], Field(max_length=MAX_LIST)] = ()
    completed_unacknowledged_attempts: Annotated[
        tuple[Execution, ...], Field(max_length=MAX_LIST)
    ] = ()


class Commit(Control):
    """Writes a participant's part; see the module for `wait`."""

    ticket: Ticket
    wait: bool = True


class Committed(Record):
    """The cut is held (`ready` false), or the part is sealed (`ready` true, with its receipt)."""

    state: Phase
    ready: bool
    records: Count = 0
    receipt: Receipt | None = None
    continuation_index: ReferenceIndex | None = None
    storage_reference_index: ReferenceIndex | None = None
    rollouts: Count = 0
    rows: Count = 0
    excluded_tombstoned: Count = 0
    excluded_inactive: Count = 0
    sessions: Count = 0
    redacted: Annotated[
        Count, Field(description="Runs whose state is not whole; see the part's redacted.jsonl.")
    ] = 0


class DiscardRestored(Control):
    """Restored continuations that must start over; `attempt_index` is the new run's."""

    executions: Annotated[tuple[Execution, ...], Field(max_length=MAX_LIST)]


class Discarded(Record):
    """How many were there to discard."""

    discarded: Count


class Retire(Record):
    """Runs that are over for good: forget and refuse them. No checkpoint is involved."""

    schema_version: Literal[1] = 1
    executions: Annotated[tuple[Execution, ...], Field(max_length=MAX_LIST)]


class Retired(Record):
    """What was forgotten, and what will be refused from now on."""

    retired: Count
    tombstoned: Count


# --- the policy model


class PauseModel(Control):
    """Refuses new model calls; those admitted go on."""


class ModelAdmission(Record):
    """Admission of the model server."""

    state: Phase
    admission: Literal["accepting", "paused"]
    inflight_total: Count
    tombstones: Count = 0
    inflight: Annotated[
        tuple[Execution, ...],
        Field(max_length=MAX_LIST, description="Some of the runs that have calls inside."),
    ] = ()


class AbortInflight(Control):
    """Gives up the calls of one run, which becomes a tombstone unless it is kept."""

    rollout_id: RolloutId
    attempt_index: Count
    keep_run: Annotated[
        bool,
        Field(description="End what is generated and not stored yet; refuse those calls for now."),
    ] = False


class AbortedInflight(Record):
    """How many calls were given up."""

    aborted_inflight: Count


class CommitModel(Commit):
    """With the agents' sealed parts; the lineage of their continuations is written.

    Without them the cut is taken and held.
    """

    agents: Annotated[tuple[Receipt, ...] | None, Field(max_length=MAX_LIST)] = None


# --- resources


class ResourcesPrepared(Record):
    """Sessions that are frozen."""

    state: Phase
    sessions: Count
    inflight_total: Count = 0


# --- all


class PublishedPart(Record):
    """Where a participant finds its own part of a published snapshot."""

    location: Annotated[str, Field(min_length=1)]
    number: Count
    part: PartName
    index_digest: Digest


class Restore(Control):
    """Installs the saved state; every rollout as its next run, everything stays paused."""

    source_checkpoint_id: Identity
    snapshot: PublishedPart


class Restored(Record):
    """What was installed."""

    state: Phase
    restored: Count
    continuation_index: ReferenceIndex | None = None
    storage_reference_index: ReferenceIndex | None = None


class Resume(Control):
    """Opens admission again; also the way out of a checkpoint or restore that is given up."""


class Resumed(Record):
    """Admission is open."""

    state: Phase
    released: Count = 0
    idempotent: bool = False


class CallIdentity(Record):
    """How a data request says which run and which model call it belongs to."""

    rollout_id: RolloutId
    attempt_index: Count
    model_call_id: ModelCallId | None = None
    extensions: dict[str, JsonValue] = Field(default_factory=dict)


def data(record: Record) -> dict[str, Any]:
    """A body as JSON values."""
    value: dict[str, Any] = record.model_dump(mode="json")
    return value
