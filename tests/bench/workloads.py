"""Rows as an RL run holds them: train-ready long rows and token-capture short rows."""

import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tensordict import TensorDict

GROUP = 8
BATCH = 256
LAYERS, TOPK, EXPERTS = 24, 8, 128
SIDE = 224
FLOATS = ("generation_logprobs", "prev_logprobs", "reference_policy_logprobs", "advantages")


@dataclass(frozen=True)
class Workload:
    """Batches of keyed rows for one partition."""

    name: str
    partition: str
    rows: int
    tokens: int
    ids: str

    def batches(self) -> Iterator[tuple[list[str], TensorDict, list[dict[str, int]]]]:
        """Keys, fields and tags, `BATCH` rows at a time."""
        source = IdSource(self.ids)
        make = MAKERS[self.partition]
        for start in range(0, self.rows, BATCH):
            numbers = range(start, min(start + BATCH, self.rows))
            rows = [make(source, number, self.tokens) for number in numbers]
            batch = self.partition == "dense"
            fields = {name: _column([row[name] for row in rows], batch) for name in rows[0]}
            keys = [f"p{number // GROUP}_g{number % GROUP}" for number in numbers]
            tags = [{"weight_version": number // 512} for number in numbers]
            yield keys, TensorDict(fields, batch_size=len(keys)), tags


class IdSource:
    """Token ids: `text` from real sources, `uniform` from an even draw."""

    def __init__(self, kind: str) -> None:
        self._rng = np.random.default_rng(0)
        self._text = _text_ids() if kind == "text" else None

    def take(self, start: int, count: int) -> np.ndarray:
        """`count` ids from a place that `start` picks."""
        if self._text is None:
            return self._rng.integers(0, 151_936, count)
        at = start % (len(self._text) - count)
        return self._text[at : at + count]


def _text_ids() -> np.ndarray:
    vocabulary: dict[str, int] = {}
    ids: list[int] = []
    folder = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(folder.glob("*.py")) + sorted(folder.glob("*/*.py")):
        if "site-packages" in path.parts:
            continue
        text = path.read_text(errors="ignore")
        ids += [
            vocabulary.setdefault(piece, len(vocabulary))
            for piece in re.findall(r" ?[A-Za-z]{1,6}|\d{1,3}|\s+|[^\sA-Za-z\d]", text)
        ]
        if len(ids) > 6_000_000:
            break
    return np.array(ids, np.int64)


def train_ready(source: IdSource, number: int, tokens: int) -> dict[str, torch.Tensor]:
    """One canonical row with everything a train step reads; 28 bytes a token."""
    prompt = tokens // 4
    ids = np.concatenate(
        [
            source.take(number // GROUP * 104_729, prompt),
            source.take(number * 15_485_863, tokens - prompt),
        ]
    )
    generator = torch.Generator().manual_seed(number)
    mask = torch.zeros(tokens)
    mask[prompt:] = 1.0
    row = {"input_ids": torch.from_numpy(ids), "token_mask": mask}
    base = -(torch.rand(tokens, generator=generator) ** 4) * mask
    for place, name in enumerate(FLOATS):
        noise = torch.rand(tokens, generator=generator) * 1e-3 * place
        row[name] = (base + noise) * mask if name != "advantages" else mask * (number % 13 / 7)
    row["input_lengths"] = torch.tensor(tokens)
    row["sample_mask"] = torch.tensor(1.0)
    row["total_reward"] = torch.tensor(float(number % 2))
    return row


def capture(source: IdSource, number: int, tokens: int) -> dict[str, torch.Tensor]:
    """One token-capture row of one model call: 24 columns of about `tokens` tokens."""
    generator = torch.Generator().manual_seed(number)
    count = tokens // 2 + int(torch.randint(tokens, (1,), generator=generator))
    row = {
        "token_ids_delta": torch.from_numpy(source.take(number * 7_919, count).copy()),
        "token_mask_delta": torch.ones(count),
        "generation_logprobs_delta": -torch.rand(count, generator=generator),
    }
    for name, value in {
        "schema_version": 2, "digest_version": 2, "extras_digest_version": 1, "capture_mode": 1,
        "prev_len": count * 3, "delta_len": count, "cum_len": count * 4, "weight_version": 7,
        "routed_len": 0, "routed_experts_encoding": 0,
    }.items():  # fmt: skip
        row[name] = torch.tensor(value)
    for name in ("parent_call_id_present", "chain_hash_present", "cumulative_hash_present"):
        row[name] = torch.tensor(True)
    for name in ("rollout_id", "model_call_id", "parent_call_id"):
        text = f"{name}-{number // 64}-{number % 64:04d}".encode()
        row[f"{name}_utf8"] = torch.tensor(list(text), dtype=torch.uint8)
    for name in ("digest", "extras_digest", "chain_hash", "cumulative_hash"):
        row[f"{name}_bytes"] = torch.randint(256, (32,), generator=generator, dtype=torch.uint8)
    row["extras_metadata_json"] = torch.tensor(list(b'{"finish_reason":"stop"}'), dtype=torch.uint8)
    return row


def dense(source: IdSource, number: int, tokens: int) -> dict[str, torch.Tensor]:
    """One row of a padded batch: every row is a view of the whole of it."""
    return {"input_ids": torch.from_numpy(source.take(number * 104_729, tokens).copy())}


def generation(source: IdSource, number: int, tokens: int) -> dict[str, torch.Tensor]:
    """One canonical row as it is published, before a train step; 16 bytes a token."""
    row = train_ready(source, number, tokens)
    later = ("prev_logprobs", "reference_policy_logprobs", "advantages")
    return {name: value for name, value in row.items() if name not in later}


def ragged(source: IdSource, number: int, tokens: int) -> dict[str, torch.Tensor]:
    """As `train_ready`, of 128 to `tokens` tokens."""
    return train_ready(source, number, _some(number, tokens))


def published_ragged(source: IdSource, number: int, tokens: int) -> dict[str, torch.Tensor]:
    """As `generation`, of 128 to `tokens` tokens."""
    return generation(source, number, _some(number, tokens))


def _some(number: int, tokens: int) -> int:
    generator = torch.Generator().manual_seed(number)
    return int(torch.randint(128, tokens + 1, (1,), generator=generator))


def experts(source: IdSource, number: int, tokens: int) -> dict[str, torch.Tensor]:
    """One row with the experts that each token was sent to, int16 [tokens, layers, topk]."""
    generator = torch.Generator().manual_seed(number)
    shape = (tokens, LAYERS, TOPK)
    # A token's experts of one layer differ, and some are chosen more often than others.
    favour = torch.arange(EXPERTS, 0, -1, dtype=torch.float32).sqrt()
    noise = torch.rand(tokens * LAYERS, EXPERTS, generator=generator)
    chosen = (favour * noise).topk(TOPK, dim=1).indices
    return {
        "input_ids": torch.from_numpy(source.take(number * 15_485_863, tokens).copy()),
        "routed_experts": chosen.to(torch.int16).reshape(shape),
    }


def images(source: IdSource, number: int, tokens: int) -> dict[str, torch.Tensor]:
    """One row of `tokens` ids and an image, as bytes and as the model's patches."""
    generator = torch.Generator().manual_seed(number)
    slope = torch.arange(SIDE, dtype=torch.float32)
    shade = (slope[:, None] * (number % 7) + slope * (number % 5))[..., None] / 12
    noise = torch.randint(16, (SIDE, SIDE, 3), generator=generator)
    image = (shade.expand(SIDE, SIDE, 3) + noise).clamp(0, 255).to(torch.uint8)
    patches = (image.float() / 127.5 - 1.0).reshape(-1, 3 * 14 * 14)
    return {
        "input_ids": torch.from_numpy(source.take(number * 15_485_863, tokens).copy()),
        "image": image,
        "pixel_values": patches,
    }


MAKERS = {
    "train": train_ready,
    "generation": generation,
    "ragged": ragged,
    "generation-ragged": published_ragged,
    "staging": capture,
    "dense": dense,
    "experts": experts,
    "images": images,
}
"""Partition -> what makes one of its rows."""


def _column(values: list[torch.Tensor], batch: bool) -> torch.Tensor:
    alike = values[0].dim() > 1 and len({value.shape for value in values}) == 1
    if values[0].dim() == 0 or batch or alike:
        return torch.stack(values)
    return torch.nested.as_nested_tensor(values, layout=torch.jagged)
