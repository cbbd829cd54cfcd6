"""The trainer actor: advantages and steps of claimed groups, checkpoints beside them."""

import time
from collections.abc import Sequence

import numpy as np
import ray

from snapfmt.errors import ConflictError
from snapfmt_coordinator.loop import ray_rows
from snapfmt_coordinator.loop.checkpoints import TrainerCheckpoints
from snapfmt_coordinator.loop.learning import TrainerState, TrainRow, learn
from snapfmt_coordinator.loop.ray_advantage import AdvantagePool
from snapfmt_coordinator.loop.saved import CANONICAL_PARTITION
from snapfmt_coordinator.reference import ray_session
from snapfmt_schemas.replay import ReplayGroup

_FIELDS = ("input_ids", "token_mask", "generation_logprobs", "advantages", "total_reward")


@ray.remote(max_concurrency=4)
class TrainerActor:
    """One thread steps, another writes checkpoints; a state is never changed, only replaced.

    The advantage pool lives here too: a process of its own would start longer than it works.
    """

    def __init__(self, root: str, step_s: float) -> None:
        self._checkpoints = TrainerCheckpoints(root)
        self._step_s = step_s
        self._state = TrainerState()
        self._computed: TrainerState | None = None
        self._unsaved: dict[int, TrainerState] = {}
        self._advantages = AdvantagePool()

    def ready(self) -> None:
        """Attaches to the cluster's queue, as soon as it is there."""
        ray_session.join_queue()

    def compute_advantages(self, groups: Sequence[ReplayGroup]) -> None:
        """See `AdvantagePool.compute`."""
        self._advantages.compute(groups)

    def write_advantages(self, groups: Sequence[ReplayGroup]) -> None:
        """See `AdvantagePool.write`."""
        self._advantages.write(groups)

    def load(self, step: int) -> None:
        """Goes on from the checkpoint of a step."""
        self._state = self._checkpoints.load(step)

    def step(self, number: int, groups: Sequence[ReplayGroup]) -> None:
        """Forward, backward and the optimizer's arithmetic; nothing counts yet.

        Raises:
            ConflictError: If it is not the next step.
        """
        if number != self._state.steps + 1:
            raise ConflictError(f"step {number} after step {self._state.steps}")
        began = time.monotonic()
        self._computed = learn(self._state, [row for group in groups for row in _rows(group)])
        # A real step takes longer than ours.
        time.sleep(max(0.0, self._step_s - (time.monotonic() - began)))

    def commit(self, number: int) -> None:
        """The computed step counts.

        Raises:
            ConflictError: If it was not computed.
        """
        if self._computed is None or self._computed.steps != number:
            raise ConflictError(f"step {number} was not computed")
        self._state = self._unsaved[number] = self._computed
        self._computed = None

    def save(self, number: int) -> None:
        """Makes the state after a step durable."""
        self._checkpoints.save(self._unsaved[number])
        del self._unsaved[number]

    def prune(self, keep: Sequence[int]) -> list[int]:
        """Removes checkpoints that no snapshot needs."""
        return self._checkpoints.prune(keep)

    def steps(self) -> list[int]:
        """Steps with a durable checkpoint."""
        return self._checkpoints.steps()

    def state(self) -> TrainerState:
        """What it has learnt so far."""
        return self._state


def _rows(group: ReplayGroup) -> list[TrainRow]:
    keys = group.meta.sample_ids
    return [
        TrainRow(
            key=key,
            group_id=group.group_id,
            input_ids=np.asarray(row["input_ids"], np.int64),
            token_mask=np.asarray(row["token_mask"], np.float32),
            logprobs=np.asarray(row["generation_logprobs"], np.float32),
            advantages=np.asarray(row["advantages"], np.float32),
            reward=float(row["total_reward"]),
            tag=tag,
        )
        for key, tag, row in zip(
            keys,
            group.meta.tags or (),
            ray_rows.get(CANONICAL_PARTITION, keys, _FIELDS),
            strict=True,
        )
    ]
