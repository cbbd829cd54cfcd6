"""Records of Gym's servers: each rule with what keeps it and what breaks it."""

from typing import Any

import pytest
from pydantic import ValidationError

from snapfmt_schemas._base import Record
from snapfmt_schemas.agent import AgentBoundaryRecord, BoundaryHead, PendingModel
from snapfmt_schemas.completion import CompletionReceipt
from snapfmt_schemas.continuation import Continuation
from snapfmt_schemas.lineage import (
    ExternalStorageReference,
    GenerationCutRow,
    ModelFailureRow,
    ModelLineageRow,
)
from snapfmt_schemas.redacted import MAX_PATH, MAX_PATHS, RedactedRun
from snapfmt_schemas.resources import ResourceSnapshot

CONTINUATION = {
    "rollout_id": "p7_g2",
    "attempt_index": 0,
    "capture_key": "p7_g2",
    "last_committed_model_call_id": "call-2",
    "resource_state_revisions": {"tools": 3},
}
PENDING = PendingModel(model_call_id="c", response={})
BOUNDARY = {
    "rollout_id": "p7_g2",
    "attempt_index": 0,
    "boundary_index": 0,
    "turn_index": 0,
    "boundary_kind": "turn_complete",
    "created_at": 1.0,
}
ROOT = {
    "model_call_id": "c1",
    "staging_key": "p7_g2/c1",
    "weight_version": 0,
    "prev_len": 0,
    "delta_len": 5,
    "cum_len": 5,
    "mode": "text",
}
CHILD = ROOT | {
    "model_call_id": "c2",
    "parent_call_id": "c1",
    "prev_len": 5,
    "cum_len": 10,
    "mode": "token_in",
}
COMPLETION = {
    "rollout_id": "p7_g2",
    "attempt_index": 0,
    "execution_generation": 1,
    "result_identity": "r",
    "result_digest": "0" * 64,
}
SESSION = {
    "rollout_id": "p7_g2",
    "attempt_index": 0,
    "state_revision": 0,
    "state": {},
    "created_at": 1.0,
}
REFERENCE = {
    "capture_key": "p7_g2",
    "boundary_model_call_id": "c",
    "kind": "generation_prefix_cut",
    "key": "k",
}
CUT = {"checkpoint_id": "ck", "disposition": "staged"}

GOOD: list[tuple[type[Record], dict[str, Any], dict[str, Any]]] = [
    (Continuation, CONTINUATION, {}),
    (Continuation, CONTINUATION, {"attempt_index": 12, "capture_key": "p7_g2-a12"}),
    (Continuation, CONTINUATION, {"resource_state_revisions": None}),
    (Continuation, CONTINUATION, {"resource_state_revisions": {}}),
    (AgentBoundaryRecord, BOUNDARY, {}),
    (AgentBoundaryRecord, BOUNDARY, {"schema_version": 1}),
    (
        AgentBoundaryRecord,
        BOUNDARY,
        {"boundary_kind": "pending_model", "pending_model": PENDING},
    ),
    (AgentBoundaryRecord, BOUNDARY, {"output_items": [{"a": 1}]}),
    (BoundaryHead, BOUNDARY, {"item_count": 2}),
    (BoundaryHead, BOUNDARY, {"output_items": [{"a": 1}]}),
    (ModelLineageRow, ROOT, {}),
    (ModelLineageRow, CHILD, {}),
    (ModelLineageRow, CHILD, {"staging_chain": ["a", "b"], "weight_version": -1}),
    (ModelLineageRow, CHILD, {"delta_len": 0, "cum_len": 5}),
    (ModelFailureRow, {"model_call_id": "c", "failure_reason": ""}, {}),
    (GenerationCutRow, CUT, {"staging_keys": ["a", "b"], "continuation": {"x": 1}}),
    (ExternalStorageReference, REFERENCE, {}),
    (CompletionReceipt, COMPLETION, {}),
    (
        CompletionReceipt,
        COMPLETION,
        {"manifest_capture_key": "p7_g2", "terminal_model_call_id": "c"},
    ),
    (ResourceSnapshot, SESSION, {}),
]
BAD: list[tuple[type[Record], dict[str, Any], dict[str, Any]]] = [
    (Continuation, CONTINUATION, {"capture_key": "p7_g2-a0"}),
    (Continuation, CONTINUATION, {"attempt_index": 1}),
    (Continuation, CONTINUATION, {"attempt_index": 2, "capture_key": "p7_g2-a1"}),
    (Continuation, CONTINUATION, {"rollout_id": "-p7", "capture_key": "-p7"}),
    (Continuation, CONTINUATION, {"last_committed_model_call_id": ""}),
    (Continuation, CONTINUATION, {"last_committed_model_call_id": None}),
    (Continuation, CONTINUATION, {"resource_state_revisions": {"": 1}}),
    (Continuation, CONTINUATION, {"resource_state_revisions": {"tools": True}}),
    (AgentBoundaryRecord, BOUNDARY, {"schema_version": 3}),
    (AgentBoundaryRecord, BOUNDARY, {"boundary_kind": "pending_model"}),
    (AgentBoundaryRecord, BOUNDARY, {"pending_model": PENDING}),
    (AgentBoundaryRecord, BOUNDARY, {"boundary_kind": "other"}),
    (AgentBoundaryRecord, BOUNDARY, {"output_items": ["text"]}),
    (AgentBoundaryRecord, BOUNDARY, {"item_count": 0}),
    (BoundaryHead, BOUNDARY, {"item_count": 1, "output_items": [{"a": 1}]}),
    (BoundaryHead, BOUNDARY, {"item_count": -1}),
    (AgentBoundaryRecord, BOUNDARY, {"agent_state": [1]}),
    (AgentBoundaryRecord, BOUNDARY, {"created_at": float("nan")}),
    (ModelLineageRow, ROOT, {"cum_len": 6}),
    (ModelLineageRow, ROOT, {"mode": "token_in"}),
    (ModelLineageRow, ROOT, {"prev_len": 1, "cum_len": 6}),
    (ModelLineageRow, CHILD, {"mode": "text"}),
    (ModelLineageRow, CHILD, {"prev_len": 0, "cum_len": 5}),
    (ModelLineageRow, CHILD, {"parent_call_id": "c2"}),
    (ModelLineageRow, CHILD, {"staging_chain": ["a", "a"]}),
    (ModelLineageRow, CHILD, {"delta_len": -1, "cum_len": 4}),
    (GenerationCutRow, CUT, {"event": "other"}),
    (GenerationCutRow, CUT, {"staging_keys": ["a", "a"]}),
    (ExternalStorageReference, REFERENCE, {"kind": "other"}),
    (ExternalStorageReference, REFERENCE, {"key": ""}),
    (CompletionReceipt, COMPLETION, {"execution_generation": 0}),
    (CompletionReceipt, COMPLETION, {"result_identity": "x" * 513}),
    (CompletionReceipt, COMPLETION, {"result_digest": "0" * 63}),
    (CompletionReceipt, COMPLETION, {"result_digest": "A" * 64}),
    (CompletionReceipt, COMPLETION, {"manifest_capture_key": "p7_g2"}),
    (CompletionReceipt, COMPLETION, {"terminal_model_call_id": "c"}),
    (ResourceSnapshot, SESSION, {"state_revision": -1}),
    (ResourceSnapshot, SESSION, {"state": None}),
]


@pytest.mark.parametrize(("model", "base", "change"), GOOD)
def test_what_keeps_the_rules_is_taken(
    model: type[Record], base: dict[str, Any], change: dict[str, Any]
) -> None:
    assert isinstance(model.model_validate(base | change), model)


@pytest.mark.parametrize(("model", "base", "change"), BAD)
def test_what_breaks_a_rule_is_refused(
    model: type[Record], base: dict[str, Any], change: dict[str, Any]
) -> None:
    with pytest.raises(ValidationError):
        model.model_validate(base | change)


def test_continuation_has_upstreams_fields_in_order() -> None:
    assert list(Continuation.model_fields) == [
        "schema_version",
        "rollout_id",
        "attempt_index",
        "capture_key",
        "last_committed_model_call_id",
        "resource_state_revisions",
    ]


def test_lineage_row_has_upstreams_fields_in_order() -> None:
    assert " ".join(ModelLineageRow.model_fields) == (
        "model_call_id fingerprint context_len context_digest digest parent_call_id staging_key"
        " weight_version prev_len delta_len cum_len staging_digest extras_digest mode"
        " admitted_at staging_chain chain_hash cumulative_hash response_id output_fingerprint"
        " continuation_fingerprint fingerprint_version"
    )


def test_a_boundary_gives_its_continuation() -> None:
    boundary = AgentBoundaryRecord.model_validate(
        BOUNDARY
        | {
            "attempt_index": 3,
            "last_committed_model_call_id": "call-2",
            "resource_state_revisions": {"tools": 1},
        }
    )
    found = boundary.continuation()
    assert found is not None
    assert found.capture_key == "p7_g2-a3"
    assert found.resource_state_revisions == {"tools": 1}


def test_a_boundary_without_a_committed_call_has_no_continuation() -> None:
    assert AgentBoundaryRecord.model_validate(BOUNDARY).continuation() is None


def test_records_are_frozen() -> None:
    record = Continuation.model_validate(CONTINUATION)
    with pytest.raises(ValidationError, match="frozen"):
        record.attempt_index = 2  # type: ignore[misc]


def test_a_redacted_run_says_where_within_bounds() -> None:
    paths = tuple(f"state.{i:03d}." + "x" * 1000 for i in range(MAX_PATHS + 5))
    found = RedactedRun.of("p7_g2", paths)
    assert found.replaced == MAX_PATHS + 5
    assert found.paths == tuple(path[:MAX_PATH] for path in paths[:MAX_PATHS])
    odd = RedactedRun.of("p7_g2", ("state.\ud800\n\u00e9.password",))
    assert odd.paths == ("state.\\ud800\n\\xe9.password",)
    with pytest.raises(ValidationError):
        RedactedRun.of("p7_g2", ())
