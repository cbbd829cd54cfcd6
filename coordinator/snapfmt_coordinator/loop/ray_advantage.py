"""The advantage pool: computes per group and writes the column back; used inside an actor."""

from collections.abc import Sequence
from typing import Any

from snapfmt_coordinator.loop import ray_rows
from snapfmt_coordinator.loop.learning import advantages
from snapfmt_coordinator.loop.saved import CANONICAL_PARTITION
from snapfmt_schemas.replay import ReplayGroup


class AdvantagePool:
    """Keeps what it computed until it is told to write it."""

    def __init__(self) -> None:
        self._computed: dict[str, list[Any]] = {}

    def compute(self, groups: Sequence[ReplayGroup]) -> None:
        """Reads rewards and masks; writes nothing."""
        for group in groups:
            rows = ray_rows.get(
                CANONICAL_PARTITION, group.meta.sample_ids, ("total_reward", "token_mask")
            )
            self._computed[group.group_id] = advantages(
                [row["total_reward"] for row in rows], [row["token_mask"] for row in rows]
            )

    def write(self, groups: Sequence[ReplayGroup]) -> None:
        """Writes the column `advantages` of these groups."""
        keys = [key for group in groups for key in group.meta.sample_ids]
        columns = [column for group in groups for column in self._computed.pop(group.group_id)]
        ray_rows.put(CANONICAL_PARTITION, keys, {"advantages": columns}, {})
