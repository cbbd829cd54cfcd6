"""Token-capture rows: one for each model call, stored before the call is answered."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from snapfmt_coordinator.reference import tokens
from snapfmt_schemas.identity import capture_key
from snapfmt_schemas.lineage import ModelLineageRow
from snapfmt_schemas.rows import TEXT, TOKEN_IN

PARTITION = "rollout_staging"
"""Partition of TransferQueue that holds the rows."""


@dataclass(frozen=True, slots=True)
class CaptureRow:
    """One model call's tokens, as they are staged."""

    key: str
    """`<capture key>/<model call id>`."""
    tags: dict[str, Any]
    columns: dict[str, Any]
    """The 24 columns of `snapfmt_schemas.rows.TOKEN_CAPTURE`: vectors as arrays, the others as
    int or bool."""

    @property
    def digest(self) -> str:
        """The row's digest in hexadecimal."""
        return str(self.tags["digest"])


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCall:
    """What is known of a call once the model has replied."""

    rollout_id: str
    attempt_index: int
    model_call_id: str
    parent: ModelLineageRow | None
    prompt: tokens.Ids
    """All tokens that the model was given, from the conversation's first one."""
    generated: tokens.Ids
    weight_version: int


class CaptureSink(Protocol):
    """Where the rows go."""

    async def put(self, row: CaptureRow) -> None:
        """Returns once the row is stored; the same key again replaces it."""
        ...

    async def close(self) -> None:
        """Stores what is pending and lets go."""
        ...


class MemorySink:
    """Keeps the rows in this process, for tests without a queue."""

    def __init__(self) -> None:
        self.rows: dict[str, CaptureRow] = {}
        self.puts = 0

    async def put(self, row: CaptureRow) -> None:
        """Keeps the row."""
        self.rows[row.key] = row
        self.puts += 1

    async def close(self) -> None:
        """Nothing is pending here."""


def capture_row(call: ModelCall) -> CaptureRow:
    """The row of a call: the tokens that it added to those of its parent."""
    run = capture_key(call.rollout_id, call.attempt_index)
    parent_id = call.parent.model_call_id if call.parent else None
    before = call.parent.cum_len if call.parent else 0
    masked = len(call.prompt) - before
    ids = np.concatenate((call.prompt[before:], call.generated))
    mask = tokens.mask_of(masked, len(call.generated))
    logprobs = tokens.logprobs_of(ids, masked, before)
    chain = tokens.chain_hash(_chain_of(call.parent), ids)
    cumulative = tokens.prefix_hash(np.concatenate((call.prompt, call.generated)))
    digest = tokens.call_digest(
        rollout_id=run,
        model_call_id=call.model_call_id,
        parent_call_id=parent_id,
        prev_len=before,
        weight_version=call.weight_version,
        ids=ids,
        mask=mask,
        logprobs=logprobs,
        chain=chain,
        cumulative=cumulative,
    )
    lengths = {"prev_len": before, "delta_len": len(ids), "cum_len": before + len(ids)}
    texts = {
        "rollout_id_utf8": run.encode(),
        "model_call_id_utf8": call.model_call_id.encode(),
        "parent_call_id_utf8": (parent_id or "\0").encode(),
        "digest_bytes": digest,
        "extras_digest_bytes": tokens.NO_EXTRAS,
        "chain_hash_bytes": chain,
        "cumulative_hash_bytes": cumulative,
        "extras_metadata_json": b"null",
    }
    columns = {
        "token_ids_delta": ids,
        "token_mask_delta": mask,
        "generation_logprobs_delta": logprobs,
        "schema_version": tokens.SCHEMA_VERSION,
        "digest_version": tokens.DIGEST_VERSION,
        "extras_digest_version": tokens.EXTRAS_DIGEST_VERSION,
        "capture_mode": TEXT if parent_id is None else TOKEN_IN,
        **lengths,
        "weight_version": call.weight_version,
        "routed_len": 0,
        "routed_experts_encoding": 0,
        "parent_call_id_present": parent_id is not None,
        "chain_hash_present": True,
        "cumulative_hash_present": True,
        **{name: np.frombuffer(value, np.uint8) for name, value in texts.items()},
    }
    tags = {
        "rollout_id": run,
        "model_call_id": call.model_call_id,
        "parent_call_id": parent_id,
        **lengths,
        "weight_version": call.weight_version,
        "digest": digest.hex(),
        "schema_version": tokens.SCHEMA_VERSION,
    }
    return CaptureRow(f"{run}/{call.model_call_id}", tags, columns)


def check_digests(columns: Mapping[str, Any]) -> list[str]:
    """Every digest of a row that is not what its other columns give; needs no other row."""
    ids, parent = np.asarray(columns["token_ids_delta"]), bool(columns["parent_call_id_present"])

    def text(name: str) -> str:
        return bytes(np.asarray(columns[name], np.uint8)).decode()

    def digest(name: str) -> bytes:
        return bytes(np.asarray(columns[name], np.uint8))

    expected = tokens.call_digest(
        rollout_id=text("rollout_id_utf8"),
        model_call_id=text("model_call_id_utf8"),
        parent_call_id=text("parent_call_id_utf8") if parent else None,
        prev_len=int(columns["prev_len"]),
        weight_version=int(columns["weight_version"]),
        ids=ids,
        mask=np.asarray(columns["token_mask_delta"]),
        logprobs=np.asarray(columns["generation_logprobs_delta"]),
        chain=digest("chain_hash_bytes"),
        cumulative=digest("cumulative_hash_bytes"),
    )
    problems = []
    if digest("digest_bytes") != expected:
        problems.append("digest_bytes is not that of the row")
    if digest("extras_digest_bytes") != tokens.NO_EXTRAS:
        problems.append("extras_digest_bytes is not that of no extras")
    if not parent and digest("chain_hash_bytes") != tokens.chain_hash(None, ids):
        problems.append("chain_hash_bytes of a root call is not that of its tokens")
    if not parent and digest("cumulative_hash_bytes") != tokens.prefix_hash(ids):
        problems.append("cumulative_hash_bytes of a root call is not that of its tokens")
    return problems


def _chain_of(parent: ModelLineageRow | None) -> bytes | None:
    if parent is None or parent.chain_hash is None:
        return None
    return bytes.fromhex(parent.chain_hash)
