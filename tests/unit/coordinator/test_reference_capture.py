"""Token-capture rows: they keep the rules of their schema, and their digests are upstream's."""

import hashlib
import struct
from typing import Any

import numpy as np
import pytest

from snapfmt.errors import ControlRefused
from snapfmt_coordinator.protocol.v1 import CallIdentity
from snapfmt_coordinator.reference import policy, tokens
from snapfmt_coordinator.reference.capture import CaptureRow, ModelCall, capture_row, check_digests
from snapfmt_coordinator.reference.chat import ChatRequest, completion, lineage_row
from snapfmt_schemas.lineage import ModelLineageRow
from snapfmt_schemas.rows import TOKEN_CAPTURE, check_capture_row

TOOLS = [policy.definition(tool) for tool in policy.TOOLS]


def calls(count: int, attempt: int = 0) -> list[tuple[CaptureRow, ModelLineageRow]]:
    """Rows of the first calls of a rollout that takes more."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "do it"}]
    parent: ModelLineageRow | None = None
    found = []
    for number in range(1, count + 1):
        who = CallIdentity(rollout_id="p_g3", attempt_index=attempt, model_call_id=f"call-{number}")
        metadata = {"seed": "5", "max_turns": "64"}
        body = {"messages": messages, "tools": TOOLS, "metadata": metadata}
        asked = ChatRequest.read(who, parent.model_call_id if parent else None, body)
        message = policy.reply(asked.ask)
        row = capture_row(
            ModelCall(
                rollout_id="p_g3",
                attempt_index=attempt,
                model_call_id=f"call-{number}",
                parent=parent,
                prompt=tokens.token_ids(asked.prompt),
                generated=tokens.token_ids(tokens.body(message)),
                weight_version=4,
            )
        )
        parent = lineage_row(asked, message, row, admitted_at=12.0)
        assert completion("m", message, parent)
        found.append((row, parent))
        messages += [message, {"role": "tool", "tool_call_id": "t", "content": f"{number}"}]
    return found


def test_every_row_keeps_the_rules_and_has_the_24_columns() -> None:
    assert policy.turn_count(5, "p_g3", 64) >= 6
    names = {rule.name for rule in TOKEN_CAPTURE.columns if rule.required == "publish"}
    for row, _ in calls(6):
        assert check_capture_row(row.columns) == []
        assert check_digests(row.columns) == []
        assert set(row.columns) == names
        assert len(names) == 24


def test_rows_chain_from_call_to_call() -> None:
    found = calls(6)
    total = 0
    for (row, line), before in zip(found, [None, *(line for _, line in found)], strict=False):
        assert (line.prev_len, line.cum_len) == (total, total + line.delta_len)
        assert line.parent_call_id == (before.model_call_id if before else None)
        assert line.mode == ("token_in" if before else "text")
        assert row.key == line.staging_key == f"p_g3/{line.model_call_id}"
        assert row.tags == {
            "rollout_id": "p_g3",
            "model_call_id": line.model_call_id,
            "parent_call_id": line.parent_call_id,
            "prev_len": line.prev_len,
            "delta_len": line.delta_len,
            "cum_len": line.cum_len,
            "weight_version": 4,
            "digest": line.staging_digest,
            "schema_version": 2,
        }
        total = line.cum_len
    ids = np.concatenate([row.columns["token_ids_delta"] for row, _ in found])
    assert tokens.prefix_hash(ids).hex() == found[-1][1].cumulative_hash


def test_a_later_run_makes_the_same_tokens_under_its_own_name() -> None:
    for (row, line), (other, later) in zip(calls(3), calls(3, attempt=2), strict=True):
        assert other.key == f"p_g3-a2/{line.model_call_id}"
        assert line.fingerprint == later.fingerprint
        assert line.digest != later.digest
        for name in ("token_ids_delta", "token_mask_delta", "generation_logprobs_delta"):
            assert row.columns[name].tobytes() == other.columns[name].tobytes()


def text(value: str) -> bytes:
    return struct.pack(">Q", len(value.encode())) + value.encode()


def numbers(code: str, values: Any) -> bytes:
    packed = b"".join(struct.pack(code, value) for value in values)
    return struct.pack(">Q", len(values)) + packed


def test_digests_are_those_of_the_written_rule() -> None:
    """A second reading of the rule, value by value and without numpy."""
    chain = b""
    everything: list[int] = []
    for row, line in calls(4):
        columns = row.columns
        ids = [int(value) for value in columns["token_ids_delta"]]
        everything += ids
        chain = hashlib.sha256(
            b"nemo-gym-staging-chain-v1"
            + (b"\x01" + chain if line.parent_call_id else b"\x00")
            + numbers(">Q", ids)
        ).digest()
        prefix = b"nemo-gym-staging-prefix-v2" + numbers(">Q", everything)
        extras = hashlib.sha256(b"nemo-gym-staging-extras-v1\x01N").digest()
        floats = [
            numbers(">f", [float(value) for value in columns[name]])
            for name in ("token_mask_delta", "generation_logprobs_delta")
        ]
        payload = b"nemo-gym-staging-call-v2\x02\x02\x01" + text("p_g3") + text(line.model_call_id)
        parent = line.parent_call_id
        payload += b"\x01" + text(parent) if parent else b"\x00"
        payload += text("token_in" if parent else "text")
        payload += struct.pack(">QQQQ", line.prev_len, len(ids), line.cum_len, 4)
        for block in (numbers(">Q", ids), *floats):
            payload += struct.pack(">Q", len(block)) + block
        payload += extras + b"\x01" + chain + b"\x01" + hashlib.sha256(prefix).digest()
        assert columns["digest_bytes"].tobytes() == hashlib.sha256(payload).digest()
        assert columns["chain_hash_bytes"].tobytes() == chain
        assert columns["extras_digest_bytes"].tobytes() == extras


@pytest.mark.parametrize(
    "name", ["token_ids_delta", "generation_logprobs_delta", "digest_bytes", "chain_hash_bytes"]
)
def test_a_changed_row_is_found(name: str) -> None:
    columns = dict(calls(1)[0][0].columns)
    changed = columns[name].copy()
    changed[-1] = changed[-1] + 1
    columns[name] = changed
    assert check_digests(columns)


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": 1}], "metadata": {"seed": "1"}}, ""),
        ({"messages": [{"role": "user", "content": "x"}]}, "metadata.seed"),
        (
            {
                "messages": [{"role": "user", "content": "x"}],
                "metadata": {"seed": "1", "max_turns": "many"},
            },
            "metadata.max_turns",
        ),
    ],
)
def test_a_request_that_is_none_is_refused_by_name(body: dict[str, Any], what: str) -> None:
    who = CallIdentity(rollout_id="p_g0", attempt_index=0, model_call_id="call-1")
    with pytest.raises(ControlRefused) as caught:
        ChatRequest.read(who, None, body)
    assert (caught.value.reason, caught.value.what) == ("invalid_request", what)
