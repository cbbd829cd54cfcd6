"""Which runs of which rollouts are over for good."""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

MAX_TOMBSTONES: Final = 65_536
"""Rollouts that are remembered; of more, the oldest is forgotten."""


class Tombstones:
    """The highest closed run of each rollout; all runs up to it are refused.

    Run numbers of a rollout only rise, so one number per rollout is enough.
    """

    def __init__(self, limit: int = MAX_TOMBSTONES) -> None:
        self._limit = limit
        self._closed: OrderedDict[str, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._closed)

    def __iter__(self) -> Iterator[tuple[str, int]]:
        return iter(self._closed.items())

    def close(self, rollout_id: str, attempt_index: int) -> None:
        """Refuse this run and the runs before it."""
        known = self._closed.pop(rollout_id, -1)
        self._closed[rollout_id] = max(known, attempt_index)
        if len(self._closed) > self._limit:
            self._closed.popitem(last=False)

    def covers(self, rollout_id: str, attempt_index: int) -> bool:
        """Whether a run is closed."""
        return self._closed.get(rollout_id, -1) >= attempt_index

    def forget(self, rollout_id: str, attempt_index: int) -> None:
        """Know nothing of a rollout any more, unless a later run than this one is closed."""
        if self._closed.get(rollout_id, attempt_index + 1) <= attempt_index:
            del self._closed[rollout_id]
