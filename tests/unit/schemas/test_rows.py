"""Row schemas, their Arrow form, and the rules of token-capture rows."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from snapfmt.format.arrow_stream import field
from snapfmt.format.columns import Signature
from snapfmt.format.dtypes import LOGICAL
from snapfmt_schemas.rows import (
    CANONICAL,
    ROW_SCHEMAS,
    TOKEN_CAPTURE,
    arrow_schema,
    check_capture_row,
)


def test_token_capture_has_upstreams_24_columns_and_one_more() -> None:
    required = [rule.name for rule in TOKEN_CAPTURE.columns if rule.required == "publish"]
    assert len(required) == 24
    assert [rule.name for rule in TOKEN_CAPTURE.columns][24:] == ["routed_experts"]


def test_bytes_per_token_are_upstreams() -> None:
    def per_token(moments: set[str]) -> int:
        return sum(
            np.dtype(rule.dtype).itemsize
            for rule in CANONICAL.columns
            if rule.ragged and rule.required in moments and rule.name != "prompt_ids_for_adv"
        )

    assert per_token({"publish"}) == 16
    assert per_token({"publish", "train"}) == 28


@pytest.mark.parametrize("name", sorted(ROW_SCHEMAS))
def test_fields_are_those_of_a_segment(name: str) -> None:
    schema = arrow_schema(name)
    expected: list[pa.Field] = []
    for rule in ROW_SCHEMAS[name].columns:
        expected += field(
            rule.name, Signature("tensor", rule.dtype, rule.ndim), LOGICAL[rule.dtype]
        )
    assert [f.name for f in schema] == [f.name for f in expected]
    for found, wanted in zip(schema, expected, strict=True):
        assert found.type == wanted.type
        assert found.metadata == wanted.metadata


def test_what_is_required_is_not_nullable() -> None:
    schema = arrow_schema("canonical")
    assert not schema.field("input_ids").nullable
    assert schema.field("advantages").nullable
    assert schema.metadata == {b"snapfmt.schema": b"snapfmt.rows.canonical.v1"}


def test_an_unknown_row_schema_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        arrow_schema("other")


def test_a_good_child_row(capture_row: dict[str, Any]) -> None:
    assert check_capture_row(capture_row) == []


ROOT = {
    "parent_call_id_present": False,
    "parent_call_id_utf8": b"\0",
    "capture_mode": 0,
    "prev_len": 0,
    "cum_len": 3,
}
CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "root": (ROOT, ""),
    "root of lists": (ROOT | {"token_mask_delta": [0.0, 1.0, 1.0]}, ""),
    "scalar as vector of one": ({"weight_version": np.array([4])}, ""),
    "minus zero under the mask": ({"generation_logprobs_delta": [-0.0, -1.0, -1.0]}, ""),
    "mask 0.5": ({"token_mask_delta": [0.0, 0.5, 1.0]}, "other than 0.0 and 1.0"),
    "mask nan": ({"token_mask_delta": [0.0, float("nan"), 1.0]}, "other than 0.0"),
    "masked logprob": ({"generation_logprobs_delta": [1e-30, -1.0, -1.0]}, "masked"),
    "masked nan": ({"generation_logprobs_delta": [float("nan"), -1.0, -1.0]}, "masked"),
    "nan logprob": ({"generation_logprobs_delta": [0.0, float("nan"), -1.0]}, "NaN"),
    "cum_len": ({"cum_len": 14}, "prev_len + delta_len"),
    "delta_len": ({"delta_len": 4, "cum_len": 14}, "token_ids_delta has 3 tokens"),
    "root with a past": (ROOT | {"prev_len": 1, "cum_len": 4}, "root call has"),
    "root from tokens": (ROOT | {"capture_mode": 1}, "root call has"),
    "root with a parent": (ROOT | {"parent_call_id_utf8": b"c1"}, "one zero byte"),
    "child from text": ({"capture_mode": 0}, "child call has"),
    "child without a past": ({"prev_len": 0, "cum_len": 3}, "child call has"),
    "child without a parent": ({"parent_call_id_utf8": b"\0"}, "is empty"),
    "digest of 31 bytes": ({"digest_bytes": bytes(31)}, "31 bytes, not 32"),
    "schema_version": ({"schema_version": 1}, "schema_version is 1"),
    "negative": ({"routed_len": -1}, "routed_len is negative"),
    "encoding": ({"routed_experts_encoding": 3}, "routed_experts_encoding"),
    "float scalar": ({"prev_len": 10.0}, "must be one int64"),
    "bool as int": ({"prev_len": True}, "must be one int64"),
    "int as bool": ({"chain_hash_present": 2}, "must be one bool"),
    "matrix": ({"token_ids_delta": [[1, 2, 3]]}, "must be a vector"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_capture_row_rules(name: str, capture_row: dict[str, Any]) -> None:
    change, expected = CHANGES[name]
    problems = check_capture_row(capture_row | change)
    if expected:
        assert any(expected in problem for problem in problems), problems
    else:
        assert problems == []


def test_missing_columns_are_all_named(capture_row: dict[str, Any]) -> None:
    del capture_row["cum_len"], capture_row["digest_bytes"]
    assert check_capture_row(capture_row) == [
        "column 'cum_len' is missing",
        "column 'digest_bytes' is missing",
    ]


def test_torch_values_are_read(capture_row: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    row = {
        name: torch.from_numpy(np.array(value)) if isinstance(value, np.ndarray) else value
        for name, value in capture_row.items()
    }
    row["chain_hash_present"] = torch.tensor(False)
    assert check_capture_row(row) == []
    row["token_mask_delta"] = torch.tensor([0.0, 2.0, 1.0])
    assert check_capture_row(row) != []
