"""Exports the numbers of saves and restores through Ray's own metrics."""

import re
from collections.abc import Mapping
from typing import Any, Final

from snapfmt_coordinator.sequence.metrics import OUTCOME

_OTHER: Final = re.compile(r"[^A-Za-z0-9_:]")


def ray_name(name: str) -> str:
    """A name as Ray allows it: letters, digits, `_` and `:`, not beginning with a digit."""
    plain = _OTHER.sub("_", name)
    return plain if plain[:1].isalpha() or plain[:1] in ("_", ":") else f"_{plain}"


class RayMetrics:
    """Gauges for the newest numbers, counters for outcomes; one of it per process.

    A gauge shows its newest value until the next save; a counter counts saves per outcome and
    per reason.
    """

    def __init__(self, tags: Mapping[str, str] | None = None) -> None:
        """`tags` go with every number, such as the run's name."""
        self._tags = dict(tags or {})
        self._known: dict[str, Any] = {}

    def export(self, numbers: Mapping[str, float]) -> None:
        """Sends what `save_metrics` or `restore_metrics` gave."""
        for name, value in numbers.items():
            metric = self._metric(name)
            if not name.startswith(OUTCOME):
                metric.set(value, tags=self._tags)
            elif value:
                metric.inc(value, tags=self._tags)

    def _metric(self, name: str) -> Any:
        if name not in self._known:
            from ray.util.metrics import Counter, Gauge

            kind = Counter if name.startswith(OUTCOME) else Gauge
            self._known[name] = kind(ray_name(name), description=name, tag_keys=tuple(self._tags))
        return self._known[name]
