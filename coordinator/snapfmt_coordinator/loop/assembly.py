"""Canonical rows out of token-capture rows: the calls of a run, put end to end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from snapfmt.errors import CutInconsistent, FormatError
from snapfmt_coordinator.loop.saved import CANONICAL_PARTITION
from snapfmt_schemas.ledger import LedgerGroup, RolloutAttempt, logical_rollout_id
from snapfmt_schemas.replay import KVBatchMeta, ReplayGroup

NEEDED: Final = (
    "token_ids_delta",
    "token_mask_delta",
    "generation_logprobs_delta",
    "prev_len",
    "cum_len",
    "weight_version",
)
"""Columns of a token-capture row that a canonical row is made of."""


@dataclass(frozen=True, slots=True)
class Canonical:
    """The canonical row of one rollout."""

    key: str
    input_ids: npt.NDArray[np.int64]
    token_mask: npt.NDArray[np.float32]
    logprobs: npt.NDArray[np.float32]
    prompt: npt.NDArray[np.int64]
    reward: float
    tag: dict[str, Any]
    weight_versions: tuple[int, ...]


def sealed_runs(group: LedgerGroup) -> list[tuple[str, RolloutAttempt]]:
    """The finished run of every generation, by its rollout's id.

    Raises:
        CutInconsistent: If one is not finished.
    """
    found = []
    for sibling in group.siblings:
        run = sibling.attempts[-1]
        rollout_id = logical_rollout_id(group.group_id, sibling.generation_index)
        if run.status != "sealed" or run.receipt is None or run.reward is None:
            raise CutInconsistent(f"the run is {run.status}, not sealed", what=rollout_id)
        found.append((rollout_id, run))
    return found


def assemble(rollout_id: str, run: RolloutAttempt, calls: Sequence[Mapping[str, Any]]) -> Canonical:
    """One canonical row; `calls` has the needed columns of its calls, in order.

    Raises:
        FormatError: If a call does not continue the one before it.
    """
    length = 0
    for number, call in enumerate(calls):
        size = len(call["token_ids_delta"])
        if int(call["prev_len"]) != length or int(call["cum_len"]) != length + size:
            raise FormatError(
                f"call {number} covers {int(call['prev_len'])} to {int(call['cum_len'])},"
                f" {length} tokens came before its {size}",
                what=rollout_id,
            )
        length += size
    if not calls or run.receipt is None:
        raise FormatError("a run without a model call", what=rollout_id)
    mask = _joined(calls, "token_mask_delta", np.float32)
    ids = _joined(calls, "token_ids_delta", np.int64)
    generated = np.flatnonzero(mask)
    extensions = run.receipt.extensions
    return Canonical(
        key=rollout_id,
        input_ids=ids,
        token_mask=mask,
        logprobs=_joined(calls, "generation_logprobs_delta", np.float32),
        prompt=ids[: generated[0] if len(generated) else len(ids)],
        reward=float(run.reward or 0.0),
        tag={
            "turns": extensions.get("turns", len(calls)),
            "tools": extensions.get("tools", ""),
            "attempt_index": run.attempt_index,
        },
        weight_versions=tuple(int(call["weight_version"]) for call in calls),
    )


def replay_group(group: LedgerGroup, rows: Sequence[Canonical]) -> ReplayGroup:
    """What the replay index says of a group whose rows are these."""
    versions = [version for row in rows for version in row.weight_versions]
    return ReplayGroup(
        meta=KVBatchMeta(
            partition_id=CANONICAL_PARTITION,
            task_name="train",
            sample_ids=tuple(row.key for row in rows),
            fields=(
                "generation_logprobs",
                "input_ids",
                "input_lengths",
                "prompt_ids_for_adv",
                "sample_mask",
                "token_mask",
                "total_reward",
            ),
            sequence_lengths=tuple(len(row.input_ids) for row in rows),
            extra_info={"prompt_index": group.prompt_id},
            tags=tuple(row.tag for row in rows),
        ),
        start_weight=min(versions, default=-1),
        end_weight=max(versions, default=-1),
        group_id=group.group_id,
    )


def _joined(calls: Sequence[Mapping[str, Any]], name: str, kind: Any) -> npt.NDArray[Any]:
    return np.concatenate([np.asarray(call[name], dtype=kind) for call in calls])
