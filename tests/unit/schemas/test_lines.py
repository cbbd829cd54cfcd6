"""Records as JSON lines, byte for byte."""

import json

import pytest
from pydantic import ValidationError

from snapfmt_schemas._base import Record
from snapfmt_schemas.agent import AgentBoundaryRecord
from snapfmt_schemas.continuation import Continuation
from snapfmt_schemas.lines import from_line, to_line, to_value
from snapfmt_schemas.registry import MODELS
from snapfmt_schemas.resources import ResourceSnapshot

SEED = (
    b'{"schema_version": 1, "rollout_id": "p7_g2", "attempt_index": 0, "capture_key": "p7_g2", '
    b'"last_committed_model_call_id": "call-2", "resource_state_revisions": {"tools": 3}}'
)
SCHEMA_IDS = sorted(schema_id for schema_id, _ in MODELS)


def test_upstreams_line_comes_back_byte_for_byte() -> None:
    record = from_line(Continuation, SEED)
    assert record.resource_state_revisions == {"tools": 3}
    assert to_line(record) == SEED


def test_null_revisions_stay_null() -> None:
    line = SEED.replace(b'{"tools": 3}', b"null")
    assert to_line(from_line(Continuation, line)) == line


@pytest.mark.parametrize("schema_id", SCHEMA_IDS)
def test_every_record_round_trips(schema_id: str, examples: dict[str, Record]) -> None:
    record = examples[schema_id]
    again = from_line(type(record), to_line(record))
    assert again == record
    assert to_line(again) == to_line(record)
    assert b"\n" not in to_line(record)


@pytest.mark.parametrize("schema_id", [s for s in SCHEMA_IDS if s != "snapfmt.agent-boundary"])
def test_a_line_is_the_default_dump_of_the_model(
    schema_id: str, examples: dict[str, Record]
) -> None:
    record = examples[schema_id]
    assert to_line(record) == json.dumps(record.model_dump(mode="json")).encode()


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(SEED.replace(b'"attempt_index": 0', b'"attempt_index": true'), id="bool"),
        pytest.param(SEED.replace(b'"attempt_index": 0', b'"attempt_index": 0.0'), id="float"),
        pytest.param(SEED.replace(b'"attempt_index": 0', b'"attempt_index": "0"'), id="text"),
        pytest.param(SEED.replace(b'"attempt_index": 0', b'"attempt_index": -1'), id="negative"),
        pytest.param(SEED.replace(b'"attempt_index": 0', b'"attempt_index": 1'), id="key-rule"),
        pytest.param(SEED.replace(b'"tools": 3', b'"tools": -3'), id="revision"),
        pytest.param(SEED.replace(b'_version": 1', b'_version": 2'), id="version"),
        pytest.param(SEED[:-1] + b', "x": 1}', id="unknown-field"),
        pytest.param(SEED[:-1], id="truncated"),
        pytest.param(SEED + SEED, id="two-values"),
        pytest.param(b"\xff" + SEED, id="not-utf-8"),
        pytest.param(b"[]", id="not-an-object"),
        pytest.param(b"[" * 100_000, id="too-deep"),
    ],
)
def test_bad_lines_are_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        from_line(Continuation, line)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"attempt_index": 0', b'"attempt_index": 0, "attempt_index": 0'),
        (b'"tools": 3', b'"tools": 3, "tools": 3'),
    ],
)
def test_a_repeated_key_is_refused_and_named(old: bytes, new: bytes) -> None:
    with pytest.raises(ValueError, match=r"repeats the key '(attempt_index|tools)'"):
        from_line(Continuation, SEED.replace(old, new))


def snapshot(state: object) -> ResourceSnapshot:
    return ResourceSnapshot.model_validate(
        {
            "rollout_id": "r",
            "attempt_index": 0,
            "state_revision": 0,
            "state": state,
            "created_at": 0.0,
        }
    )


def test_opaque_state_keeps_order_big_integers_and_depth() -> None:
    deep: object = 2**200
    for level in range(400):
        deep = {"z": deep, "a": level} if level % 2 else [deep]
    record = snapshot({"z": deep, "a": "\ud800", "b": -1.5e300})
    again = from_line(ResourceSnapshot, to_line(record))
    assert again.state == record.state
    assert list(again.state) == ["z", "a", "b"]
    assert to_line(again) == to_line(record)


@pytest.mark.parametrize(
    "state",
    [
        pytest.param({1: "a"}, id="integer-key"),
        pytest.param({"a": (1, 2)}, id="tuple"),
        pytest.param({"a": {"b": {3}}}, id="set"),
        pytest.param({"a": [b"x"]}, id="bytes"),
        pytest.param({"a": [float("nan")]}, id="nan"),
        pytest.param({"a": float("-inf")}, id="infinity"),
        pytest.param([], id="not-an-object"),
    ],
)
def test_opaque_state_that_json_would_change_is_refused(state: object) -> None:
    with pytest.raises(ValidationError):
        snapshot(state)


@pytest.mark.req("R-1")
def test_a_number_that_json_has_not_is_not_written() -> None:
    record = snapshot({"a": [1.0]})
    # Put there after the record was made.
    record.state["a"].append(float("nan"))
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_line(record)


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: dict[str, object] = {}
    loop["a"] = [loop]
    with pytest.raises(ValidationError, match="contain itself"):
        snapshot(loop)


def test_a_value_that_is_shared_is_not_a_cycle() -> None:
    shared = {"x": 1}
    assert snapshot({"a": shared, "b": [shared, shared]}).state["b"] == [shared, shared]


def test_a_record_nested_too_deep_for_json_raises_value_error() -> None:
    deep: object = 0
    for _ in range(100_000):
        deep = [deep]
    record = snapshot({"deep": deep})
    with pytest.raises(ValueError, match="cannot be written"):
        to_line(record)


def test_to_value_is_plain_json(examples: dict[str, Record]) -> None:
    record = examples["snapfmt.agent-boundary"]
    assert isinstance(record, AgentBoundaryRecord)
    value = to_value(record)
    assert list(value) == list(AgentBoundaryRecord.model_fields)
    assert isinstance(value["output_items"], list)
