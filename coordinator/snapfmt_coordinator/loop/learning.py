"""The trainer's arithmetic: exact integers, so that the order of the steps does not matter."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from snapfmt.errors import InvalidRecord
from snapfmt_schemas._base import Record
from snapfmt_schemas.identity import Count
from snapfmt_schemas.opaque import Items

WEIGHTS: Final = 64
REWARD_UNITS: Final = 1000
"""A reward counts as a whole number of thousandths."""


class RolloutFacts(Record):
    """What a run is compared by: one trained rollout."""

    reward: float
    turns: Count
    tokens: Annotated[str, Field(description="Sha256 of the canonical row's columns.")]
    tools: Annotated[str, Field(description="Sha256 of what its tools held at the end.")]


class TrainerState(Record):
    """Everything that the trainer has learnt."""

    SCHEMA: ClassVar[str] = "snapfmt.loop-trainer"

    schema_version: Literal[1] = 1
    steps: Count = 0
    weights: Items[int] = (0,) * WEIGHTS
    groups: Annotated[Items[str], Field(description="Trained groups, sorted.")] = ()
    rollouts: dict[str, RolloutFacts] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TrainRow:
    """One canonical row as the trainer reads it."""

    key: str
    group_id: str
    input_ids: npt.NDArray[np.int64]
    token_mask: npt.NDArray[np.float32]
    logprobs: npt.NDArray[np.float32]
    advantages: npt.NDArray[np.float32]
    reward: float
    tag: Mapping[str, Any]


def reward_units(reward: float) -> int:
    """The reward in whole units."""
    return round(reward * REWARD_UNITS)


def advantages(
    rewards: Sequence[float], masks: Sequence[npt.NDArray[np.float32]]
) -> list[npt.NDArray[np.float32]]:
    """One advantage per token for the rows of one group.

    It is the group's size times the distance from the group's mean, in reward units: a whole
    number, and so exact in float32.
    """
    units = [reward_units(reward) for reward in rewards]
    return [
        (mask * np.float32(len(units) * own - sum(units))).astype(np.float32)
        for own, mask in zip(units, masks, strict=True)
    ]


def learn(state: TrainerState, rows: Sequence[TrainRow]) -> TrainerState:
    """The state after one step.

    Raises:
        InvalidRecord: If a group was trained before.
    """
    fresh = sorted({row.group_id for row in rows})
    if twice := set(fresh) & set(state.groups):
        raise InvalidRecord("a group is trained twice", what=", ".join(sorted(twice)))
    gradient = np.zeros(WEIGHTS, np.int64)
    for row in rows:
        products = row.input_ids * row.advantages.astype(np.int64)
        np.add.at(gradient, row.input_ids % WEIGHTS, products)
    return TrainerState(
        steps=state.steps + 1,
        weights=tuple(
            own + more for own, more in zip(state.weights, gradient.tolist(), strict=True)
        ),
        groups=tuple(sorted((*state.groups, *fresh))),
        rollouts={**state.rollouts, **{row.key: _facts(row) for row in rows}},
    )


def _facts(row: TrainRow) -> RolloutFacts:
    return RolloutFacts(
        reward=row.reward,
        turns=int(row.tag["turns"]),
        tokens=row_digest(row.input_ids, row.token_mask, row.logprobs),
        tools=str(row.tag["tools"]),
    )


def row_digest(*columns: npt.NDArray[Any]) -> str:
    """Sha256 of columns, each with its type and length."""
    running = hashlib.sha256()
    for column in columns:
        running.update(f"{column.dtype}:{column.shape};".encode())
        running.update(np.ascontiguousarray(column).tobytes())
    return running.hexdigest()
