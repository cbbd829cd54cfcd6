"""Any record comes back from its line, and its line is the same again."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from snapfmt_schemas.agent import AgentBoundaryRecord
from snapfmt_schemas.continuation import Continuation
from snapfmt_schemas.identity import capture_key
from snapfmt_schemas.lineage import ModelLineageRow
from snapfmt_schemas.lines import from_line, to_line
from snapfmt_schemas.redaction import redact
from snapfmt_schemas.resources import ResourceSnapshot

identities = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,40}\Z")
counts = st.integers(0, 2**63 - 1)
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)
any_text = st.text(st.characters(exclude_categories=[]), max_size=20)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | any_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(any_text, inner, max_size=4),
    max_leaves=20,
)
json_objects = st.dictionaries(any_text, json_values, max_size=5)


@st.composite
def continuations(draw: st.DrawFn) -> Continuation:
    rollout, attempt = draw(identities), draw(st.integers(0, 10**6))
    return Continuation(
        rollout_id=rollout,
        attempt_index=attempt,
        capture_key=capture_key(rollout, attempt),
        last_committed_model_call_id=draw(names),
        resource_state_revisions=draw(st.none() | st.dictionaries(names, counts, max_size=4)),
    )


@st.composite
def lineage_rows(draw: st.DrawFn) -> ModelLineageRow:
    root = draw(st.booleans())
    prev, delta = 0 if root else draw(st.integers(1, 2**40)), draw(st.integers(0, 2**40))
    return ModelLineageRow(
        model_call_id="call",
        parent_call_id=None if root else "parent",
        staging_key=draw(names),
        weight_version=draw(st.integers(-1, 10**6)),
        prev_len=prev,
        delta_len=delta,
        cum_len=prev + delta,
        mode="text" if root else "token_in",
        admitted_at=draw(st.none() | st.floats(0, 2**40)),
        staging_chain=draw(st.none() | st.lists(names, unique=True, max_size=4).map(tuple)),
    )


@given(continuations())
def test_continuations(record: Continuation) -> None:
    line = to_line(record)
    assert from_line(Continuation, line) == record
    assert to_line(from_line(Continuation, line)) == line
    assert line == json.dumps(record.model_dump(mode="json")).encode()


@given(lineage_rows())
def test_lineage_rows(record: ModelLineageRow) -> None:
    line = to_line(record)
    assert from_line(ModelLineageRow, line) == record
    assert to_line(from_line(ModelLineageRow, line)) == line


@given(json_objects, st.lists(json_objects, max_size=3))
def test_opaque_values(state: dict[str, Any], items: list[dict[str, Any]]) -> None:
    record = AgentBoundaryRecord(
        rollout_id="r",
        attempt_index=0,
        boundary_index=0,
        turn_index=0,
        boundary_kind="turn_complete",
        output_items=tuple(items),
        agent_state=state,
        created_at=0.0,
    )
    line = to_line(record)
    again = from_line(AgentBoundaryRecord, line)
    assert again == record
    assert json.dumps(again.agent_state) == json.dumps(state), "key order counts"
    assert to_line(again) == line


@given(json_objects)
def test_from_line_takes_any_spelling_of_the_same_json(state: dict[str, Any]) -> None:
    record = ResourceSnapshot(
        rollout_id="r", attempt_index=0, state_revision=0, state=state, created_at=0.0
    )
    spelled = json.dumps(json.loads(to_line(record)), indent=1).encode()
    assert from_line(ResourceSnapshot, spelled) == record


@given(json_values)
def test_redaction_is_idempotent_and_keeps_the_shape(value: Any) -> None:
    clean, paths = redact(value)
    assert redact(clean) == (clean, ())
    if not paths:
        assert json.dumps(clean) == json.dumps(value)
