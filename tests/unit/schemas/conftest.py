"""One good example of every record that is stored on its own."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from snapfmt_schemas._base import Record
from snapfmt_schemas.agent import AgentBoundaryRecord, BoundaryHead, PendingModel
from snapfmt_schemas.attempt import Lease, Owner, Receipt, TableSummary, Ticket
from snapfmt_schemas.completion import CompletionReceipt
from snapfmt_schemas.continuation import Continuation
from snapfmt_schemas.fingerprint import Fingerprint
from snapfmt_schemas.ledger import (
    CallRecord,
    LedgerGroup,
    PendingAcknowledgement,
    PromptRef,
    RecoveryLedger,
    RolloutAttempt,
    RolloutReceipt,
    Sibling,
)
from snapfmt_schemas.lineage import (
    ExternalStorageReference,
    GenerationCutRow,
    ModelFailureRow,
    ModelLineageRow,
)
from snapfmt_schemas.loader import LoaderPlace
from snapfmt_schemas.manifest import Manifest, RepositoryDocument, TrainerAnchor
from snapfmt_schemas.part import Entry, Location, PartIndex
from snapfmt_schemas.pin import Pin
from snapfmt_schemas.recipe import Recipe
from snapfmt_schemas.redacted import RedactedRun
from snapfmt_schemas.replay import KVBatchMeta, ReplayGroup, ReplayIndex
from snapfmt_schemas.reserve import ReplacementReserve, ReservedPrompt
from snapfmt_schemas.resources import ResourceSnapshot
from snapfmt_schemas.timeline import Phase, PhaseTimeline
from snapfmt_schemas.topology import (
    MultiProcess,
    ParticipantName,
    Topology,
    TopologyParticipant,
)

HEX = "0" * 32
DIGEST = "sha256:" + "a" * 64


def _completion() -> CompletionReceipt:
    return CompletionReceipt(
        rollout_id="p7_g0",
        attempt_index=1,
        execution_generation=2,
        result_identity="r1",
        result_digest="b" * 64,
        manifest_capture_key="p7_g0-a1",
        terminal_model_call_id="call-2",
    )


def _ledger() -> RecoveryLedger:
    sealed = RolloutAttempt(
        attempt_index=1,
        status="sealed",
        receipt=RolloutReceipt(
            rollout_id="p7_g0",
            attempt_index=1,
            capture_key="p7_g0-a1",
            manifest=(CallRecord(model_call_id="c1", staging_key="p7_g0-a1/c1"),),
        ),
        completion_receipt=_completion(),
        reward=0.5,
        mask_sample=False,
        staging_keys=("p7_g0-a1/c1",),
    )
    group = LedgerGroup(
        group_id="p7",
        admission_id=3,
        prompt_ref=PromptRef(sample_id=12, task_name="swe"),
        expected_generations=2,
        status="generating",
        phase="admitted",
        siblings=(
            Sibling(
                generation_index=0,
                attempts=(RolloutAttempt(attempt_index=0, status="abandoned"), sealed),
            ),
            Sibling(generation_index=1, attempts=()),
        ),
    )
    return RecoveryLedger(
        groups=(group,),
        pending_completed_execution_acknowledgements=(
            PendingAcknowledgement(receipt=_completion(), agent_name="swe"),
        ),
        batch_shortfall={12: 3},
    )


def _replay() -> ReplayIndex:
    meta = KVBatchMeta(
        partition_id="train",
        task_name="swe",
        sample_ids=("p6_g0", "p6_g1"),
        fields=("input_ids",),
        sequence_lengths=(5, 9),
        tags=({"weight_version": 3}, {"weight_version": 4}),
    )
    group = ReplayGroup(meta=meta, start_weight=3, end_weight=4, group_id="p6")
    return ReplayIndex.of([group], partition_id="train", saved_capacity=64)


def participant(server: str = "policy", component: str = "model") -> TopologyParticipant:
    return TopologyParticipant(
        participant=ParticipantName(
            server_name=server, component=component, participant_name=server
        ),
        admission_states=("accepting", "paused"),
        checkpoint_mode="export_restore",
        concurrency_contract="transactional_parallel",
        multi_process=MultiProcess(mode="single_worker", num_workers=1),
        instance_role="policy",
    )


def _examples() -> list[Record]:
    fingerprint = Fingerprint.of("topology", {"a": 1})
    timeline = PhaseTimeline(
        operation="save", phases=(Phase(name="cut", started_at_ns=1, ended_at_ns=2),)
    )
    receipt = Receipt(
        part="gym/agent",
        attempt_id=HEX,
        index_digest=DIGEST,
        index_size=1,
        entries=1,
        records=1,
        tables=(TableSummary(name="rows", rows=1, logical_bytes=1),),
        stored_bytes=1,
        new_objects=1,
    )
    entry = Entry(
        path="a.json",
        media_type="application/json",
        location=Location(pack=DIGEST, offset=64, size=1),
        digest=DIGEST,
    )
    return [
        AgentBoundaryRecord(
            rollout_id="p7_g2",
            attempt_index=1,
            boundary_index=4,
            turn_index=2,
            boundary_kind="pending_model",
            pending_model=PendingModel(
                model_call_id="call-3", response={"z": 1, "a": [1.5, None, 2**80]}
            ),
            output_items=({"role": "user", "content": "hé\ud83d"},),
            last_committed_model_call_id="call-2",
            resource_state_revisions={"tools": 3},
            agent_state={"b": 1, "a": 1e300},
            created_at=1.5,
        ),
        BoundaryHead(
            rollout_id="p7_g2",
            attempt_index=1,
            boundary_index=4,
            turn_index=2,
            boundary_kind="turn_complete",
            created_at=1.5,
            item_count=3,
        ),
        _completion(),
        Continuation(
            rollout_id="p7_g2",
            attempt_index=2,
            capture_key="p7_g2-a2",
            last_committed_model_call_id="call-2",
            resource_state_revisions={"tools": 3},
        ),
        ExternalStorageReference(
            capture_key="p7_g2",
            boundary_model_call_id="call-2",
            kind="token_capture_staging",
            key="p7_g2/call-2",
        ),
        fingerprint,
        GenerationCutRow(checkpoint_id="ck-1", disposition="staged", staging_keys=("k",)),
        Lease(
            attempt_id=HEX,
            number=1,
            started_at_ns=1,
            expires_at_ns=2,
            owner=Owner(host="h"),
        ),
        Pin(name="best", number=1, created_at_ns=1),
        LoaderPlace(epoch=1, batches=7, state={"rng": [1, 2]}),
        Manifest(
            repository_id=HEX,
            number=1,
            attempt_id=HEX,
            write_id=HEX,
            created_at_ns=1,
            writer="w",
            parts=(receipt,),
            fingerprints=(fingerprint,),
            anchor=TrainerAnchor(train_step=1, trainer_version=1, epoch=0),
            timeline=timeline,
        ),
        ModelFailureRow(model_call_id="c", failure_reason="timeout"),
        ModelLineageRow(
            model_call_id="c2",
            parent_call_id="c1",
            staging_key="p7_g2/c2",
            weight_version=3,
            prev_len=10,
            delta_len=5,
            cum_len=15,
            mode="token_in",
            staging_chain=("p7_g2/c1",),
        ),
        PartIndex(part="gym/agent", attempt_id=HEX, entries=(entry,)),
        timeline,
        receipt,
        Recipe.of({"policy": {"model": "m", "optimizer": {"lr": 1}}, "logger": {}}),
        _ledger(),
        RedactedRun.of("p7_g2-a1", ("agent_state.secret_word",)),
        ReplacementReserve(prompts=(ReservedPrompt(prompt_ref=PromptRef(sample_id="s1")),)),
        _replay(),
        RepositoryDocument(repository_id=HEX, created_at_ns=1, writer="w"),
        ResourceSnapshot(
            rollout_id="p7_g2",
            attempt_index=0,
            state_revision=3,
            state={"rng": 2**70},
            created_at=2.0,
        ),
        Ticket(
            location="run",
            repository_id=HEX,
            attempt_id=HEX,
            number=1,
            part="gym/agent",
            deadline_ns=5,
        ),
        Topology.of([participant(), participant("swe", "agent")]),
    ]


@pytest.fixture(scope="session")
def examples() -> dict[str, Record]:
    """Examples by schema id."""
    return {example.SCHEMA: example for example in _examples()}


@pytest.fixture
def make_participant() -> Callable[..., TopologyParticipant]:
    return participant


def _utf8(text: str) -> "np.ndarray[Any, np.dtype[np.uint8]]":
    return np.frombuffer(text.encode(), np.uint8)


@pytest.fixture
def capture_row() -> dict[str, Any]:
    """A child call's row that keeps every rule."""
    return {
        "token_ids_delta": np.array([5, 6, 7], np.int64),
        "token_mask_delta": np.array([0.0, 1.0, 1.0], np.float32),
        "generation_logprobs_delta": np.array([0.0, -0.5, -0.25], np.float32),
        "schema_version": 2,
        "digest_version": 2,
        "extras_digest_version": 1,
        "capture_mode": 1,
        "prev_len": 10,
        "delta_len": np.int64(3),
        "cum_len": 13,
        "weight_version": 4,
        "routed_len": 0,
        "routed_experts_encoding": 0,
        "parent_call_id_present": True,
        "chain_hash_present": False,
        "cumulative_hash_present": False,
        "rollout_id_utf8": _utf8("p7_g2"),
        "model_call_id_utf8": _utf8("c2"),
        "parent_call_id_utf8": _utf8("c1"),
        "digest_bytes": bytes(32),
        "extras_digest_bytes": bytes(32),
        "chain_hash_bytes": bytes(32),
        "cumulative_hash_bytes": bytes(32),
        "extras_metadata_json": b"{}",
    }
