"""The finalizer actor: token-capture rows in, canonical rows out."""

import time
from collections.abc import Sequence

import numpy as np
import ray

from snapfmt_coordinator.loop import ray_rows
from snapfmt_coordinator.loop.assembly import (
    NEEDED,
    Canonical,
    assemble,
    replay_group,
    sealed_runs,
)
from snapfmt_coordinator.loop.saved import CANONICAL_PARTITION, STAGING_PARTITION
from snapfmt_coordinator.reference import ray_session
from snapfmt_schemas.ledger import LedgerGroup
from snapfmt_schemas.replay import ReplayGroup


@ray.remote(concurrency_groups={"rows": 2})
class FinalizerActor:
    """Keeps the rows that it made until it is told to put them.

    Puts and clears have threads of their own: they run inside mutations, and a cut that waits
    for them must not wait for a group that is being assembled.
    """

    def __init__(self, least_s: float) -> None:
        self._least_s = least_s
        self._made: dict[str, list[Canonical]] = {}

    def ready(self) -> None:
        """Attaches to the cluster's queue, as soon as it is there."""
        ray_session.join_queue()

    def prepare(self, group: LedgerGroup) -> ReplayGroup:
        """Reads and assembles; writes nothing."""
        began = time.monotonic()
        runs = sealed_runs(group)
        keys = [key for _, run in runs for key in run.staging_keys]
        found = dict(zip(keys, ray_rows.get(STAGING_PARTITION, keys, NEEDED), strict=True))
        rows = [
            assemble(rollout_id, run, [found[key] for key in run.staging_keys])
            for rollout_id, run in runs
        ]
        self._made[group.group_id] = rows
        # A real group takes longer than ours.
        time.sleep(max(0.0, self._least_s - (time.monotonic() - began)))
        return replay_group(group, rows)

    @ray.method(concurrency_group="rows")  # type: ignore[untyped-decorator]
    def put(self, group_id: str) -> None:
        """Writes the canonical rows of a prepared group."""
        rows = self._made.pop(group_id)
        ray_rows.put(
            CANONICAL_PARTITION,
            [row.key for row in rows],
            {
                "input_ids": [row.input_ids for row in rows],
                "generation_logprobs": [row.logprobs for row in rows],
                "token_mask": [row.token_mask for row in rows],
                "prompt_ids_for_adv": [row.prompt for row in rows],
            },
            {
                "input_lengths": np.array([len(row.input_ids) for row in rows], np.int64),
                "sample_mask": np.ones(len(rows), np.float32),
                "total_reward": np.array([row.reward for row in rows], np.float32),
            },
            [row.tag for row in rows],
        )

    @ray.method(concurrency_group="rows")  # type: ignore[untyped-decorator]
    def clear(self, group_ids: Sequence[str]) -> int:
        """Clears all rows of these groups, also those of runs that were given up."""
        starts = tuple(f"{group_id}_g" for group_id in group_ids)
        cleared = 0
        for partition in (CANONICAL_PARTITION, STAGING_PARTITION):
            keys = [key for key in ray_rows.tags(partition) if key.startswith(starts)]
            ray_rows.clear(partition, keys)
            cleared += len(keys)
        return cleared
