"""What a parent heard from the processes of a soak or a crowd."""

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from snapfmt.testing.crew import Event


@dataclass(slots=True)
class Told:
    """What was heard so far."""

    counts: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    """Numbers that another process got, by what was said."""
    saved: dict[int, str] = field(default_factory=dict)
    on_a_base: int = 0
    pinned: dict[str, int] = field(default_factory=dict)
    pushed: int = 0
    bytes: int = 0
    violations: list[str] = field(default_factory=list)

    def figures(self, ends: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """What a soak and a crowd both report; `ends` is what was found in each place at last."""
        return {
            "saves_on_a_base": self.on_a_base,
            "reads": self.counts["read"],
            "verified": self.counts["verified"],
            "collections": self.counts["collected"],
            "bytes_checked": self.bytes + sum(item["bytes"] for item in ends),
            "losses": sum(item["losses"] for item in ends),
            "leaks": sum(item["leaks"] for item in ends),
            "typed_errors": dict(sorted(self.errors.items())),
        }

    def hear(self, events: Sequence[Event]) -> None:
        """Count them, and notice what must not be."""
        for event in events:
            kind = event["kind"]
            self.counts[kind] += 1
            self.bytes += event.get("bytes", 0) if kind in ("read", "restored") else 0
            if kind == "saved":
                if event["number"] in self.saved:
                    self.violations.append(f"two published {event['number']}")
                self.saved[event["number"]] = event["write_id"]
                self.on_a_base += event["base"] is not None
            elif kind == "pushed":
                self.pushed = max(self.pushed, event["number"])
            elif kind == "error":
                self.errors[f"{event['who'].split()[0]}: {event['code']}"] += 1
            elif kind == "lost":
                self.lost[event["code"]] += 1
            elif kind == "fault":
                self.faults[event["name"]] += 1
            elif kind == "pinned":
                self.pinned[event["name"]] = event["number"]
            elif kind == "unpinning":
                self.pinned.pop(event["name"], None)
            elif kind == "violation":
                self.violations.append(f"{event['who']}: {event['text']}")
                sys.stderr.write(event["shown"])
