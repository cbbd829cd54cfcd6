"""A realistic queue: multi-turn rollouts over real text, in every state that a cut can meet."""

import hashlib
import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from snapfmt_schemas.continuation import Continuation

Ids = npt.NDArray[np.int64]
PUBLISHED = (
    "input_ids",
    "input_lengths",
    "generation_logprobs",
    "token_mask",
    "sample_mask",
    "total_reward",
    "prompt_ids_for_adv",
)
"""Fields of a finished generation."""
TRAINED = ("prev_logprobs", "reference_policy_logprobs", "advantages", "value_head")
"""Fields that come later; half of the rows lack them at the cut."""
GROUP = 4


@dataclass(frozen=True, slots=True)
class Rollout:
    """One generation: its turns as (is the model's, token ids)."""

    key: str
    turns: tuple[tuple[bool, Ids], ...]


@dataclass(frozen=True, slots=True)
class Corpus:
    """Token ids of Python's own sources: one id per distinct word."""

    ids: Ids
    words: int

    @classmethod
    def load(cls, tokens: int = 400_000) -> "Corpus":
        """Reads the standard library until there are enough tokens."""
        vocabulary: dict[str, int] = {}
        ids: list[int] = []
        for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
            text = path.read_text(encoding="utf-8", errors="replace")
            words = re.findall(r"\w+|[^\w\s]|\s+", text)
            ids += [vocabulary.setdefault(word, len(vocabulary)) for word in words]
            if len(ids) >= tokens:
                break
        return cls(np.array(ids, np.int64), len(vocabulary))

    def rollouts(self, count: int, seed: int) -> Iterator[Rollout]:
        """Rollouts in groups that share a prompt; two to six turns each."""
        rng = np.random.default_rng(seed)
        for number in range(count):
            group = number // GROUP
            shared = np.random.default_rng((seed, group))
            turns = [(False, self._span(shared, 80, 400))]
            for _ in range(int(rng.integers(1, 4))):
                turns.append((True, self._span(rng, 60, 500)))
                turns.append((False, self._span(rng, 20, 200)))
            turns.append((True, self._span(rng, 40, 300)))
            name = hashlib.sha256(f"{seed}/{group}".encode()).hexdigest()[:12]
            yield Rollout(f"{name}_g{number % GROUP}", tuple(turns))

    def _span(self, rng: np.random.Generator, low: int, high: int) -> Ids:
        size = int(rng.integers(low, high))
        start = int(rng.integers(0, len(self.ids) - size))
        return self.ids[start : start + size]


def canonical_fields(rollouts: list[Rollout], seed: int) -> dict[str, Any]:
    """The published columns of rollouts, as TransferQueue takes them."""
    import torch

    rng = np.random.default_rng((seed, 1))
    masks = [_mask(rollout) for rollout in rollouts]
    return {
        "input_ids": _jagged([np.concatenate([ids for _, ids in r.turns]) for r in rollouts]),
        "input_lengths": torch.tensor([len(mask) for mask in masks]),
        "generation_logprobs": _jagged([_logprobs(rng, mask) for mask in masks]),
        "token_mask": _jagged(masks),
        "sample_mask": torch.ones(len(rollouts)),
        "total_reward": torch.tensor([float(rng.integers(0, 2)) for _ in rollouts]),
        "prompt_ids_for_adv": _jagged([rollout.turns[0][1] for rollout in rollouts]),
    }


def training_fields(rollouts: list[Rollout], seed: int) -> dict[str, Any]:
    """The columns that other workers add later; one of them in bfloat16."""
    import torch

    rng = np.random.default_rng((seed, 2))
    masks = [_mask(rollout) for rollout in rollouts]
    values = [rng.standard_normal(len(mask)).astype(np.float32) for mask in masks]
    return {
        "prev_logprobs": _jagged([_logprobs(rng, mask) for mask in masks]),
        "reference_policy_logprobs": _jagged([_logprobs(rng, mask) for mask in masks]),
        "advantages": _jagged([mask * np.float32(rng.standard_normal()) for mask in masks]),
        "value_head": torch.nested.as_nested_tensor(
            [torch.from_numpy(value).to(torch.bfloat16) for value in values],
            layout=torch.jagged,
        ),
    }


def capture_rows(rollouts: list[Rollout], seed: int) -> list[dict[str, Any]]:
    """One token-capture row per model call of unfinished rollouts: key, tag and columns."""
    rng = np.random.default_rng((seed, 3))
    rows = []
    for rollout in rollouts:
        parent, total = b"", 0
        pending: list[tuple[bool, Ids]] = []
        for turn, (generated, ids) in enumerate(rollout.turns):
            pending.append((generated, ids))
            if not generated:
                continue
            call = f"call-{turn:03d}"
            mask = _mask(Rollout(rollout.key, tuple(pending)))
            tokens = np.concatenate([part for _, part in pending])
            rows.append(
                _capture_row(rollout.key, call, parent, total, tokens, mask, _logprobs(rng, mask))
            )
            parent, total, pending = call.encode(), total + len(tokens), []
    return rows


def _capture_row(
    rollout: str, call: str, parent: bytes, previous: int, tokens: Ids, mask: Any, logprobs: Any
) -> dict[str, Any]:
    digest = hashlib.sha256(tokens.tobytes() + mask.tobytes() + logprobs.tobytes()).digest()
    scalars = {
        "schema_version": 2,
        "digest_version": 2,
        "extras_digest_version": 1,
        "capture_mode": 1 if parent else 0,
        "prev_len": previous,
        "delta_len": len(tokens),
        "cum_len": previous + len(tokens),
        "weight_version": 7,
        "routed_len": 0,
        "routed_experts_encoding": 0,
    }
    texts = {
        "rollout_id_utf8": rollout.encode(),
        "model_call_id_utf8": call.encode(),
        "parent_call_id_utf8": parent or b"\0",
        "digest_bytes": digest,
        "extras_digest_bytes": hashlib.sha256(b"extras" + digest).digest(),
        "chain_hash_bytes": hashlib.sha256(b"chain" + digest).digest(),
        "cumulative_hash_bytes": hashlib.sha256(b"prefix" + digest).digest(),
        "extras_metadata_json": b"{}",
    }
    return {
        "key": f"{rollout}/{call}",
        "tag": {
            "rollout_id": rollout,
            "model_call_id": call,
            "parent_call_id": parent.decode() or None,
            "prev_len": previous,
            "cum_len": previous + len(tokens),
            "weight_version": 7,
            "digest": digest.hex(),
        },
        "vectors": {
            "token_ids_delta": tokens,
            "token_mask_delta": mask,
            "generation_logprobs_delta": logprobs,
            **{name: np.frombuffer(value, np.uint8) for name, value in texts.items()},
        },
        "scalars": scalars,
        "flags": {
            "parent_call_id_present": bool(parent),
            "chain_hash_present": True,
            "cumulative_hash_present": True,
        },
    }


def capture_fields(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The columns of token-capture rows, as TransferQueue takes them."""
    import torch

    first = rows[0]
    fields = {name: _jagged([row["vectors"][name] for row in rows]) for name in first["vectors"]}
    for kind in ("scalars", "flags"):
        fields |= {name: torch.tensor([row[kind][name] for row in rows]) for name in first[kind]}
    return fields


def continuations(rollouts: list[Rollout]) -> list[Continuation]:
    """Where each unfinished rollout goes on: after its last model call."""
    return [
        Continuation(
            rollout_id=rollout.key,
            attempt_index=0,
            capture_key=rollout.key,
            last_committed_model_call_id=f"call-{_last_call(rollout):03d}",
            resource_state_revisions={"tools": len(rollout.turns)},
        )
        for rollout in rollouts
    ]


def _last_call(rollout: Rollout) -> int:
    return max(turn for turn, (generated, _) in enumerate(rollout.turns) if generated)


def _mask(rollout: Rollout) -> npt.NDArray[np.float32]:
    return np.concatenate(
        [np.full(len(ids), generated, np.float32) for generated, ids in rollout.turns]
    )


def _logprobs(rng: np.random.Generator, mask: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Exactly 0.0 where the token is not the model's."""
    drawn = -rng.exponential(0.7, len(mask)).astype(np.float32)
    return np.where(mask == 1.0, drawn, np.float32(0.0)).astype(np.float32)


def _jagged(rows: list[Any]) -> Any:
    import torch

    tensors = [torch.from_numpy(np.array(row)) for row in rows]
    return torch.nested.as_nested_tensor(tensors, layout=torch.jagged)
