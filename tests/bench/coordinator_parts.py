"""What every coordinator measurement needs: RL's own side of a save, and a save's times."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from snapfmt import PartWriter
from snapfmt_coordinator.protocol.v1 import Execution
from snapfmt_coordinator.sequence.save import SaveResult
from snapfmt_schemas.completion import CompletionReceipt
from snapfmt_schemas.identity import capture_key
from snapfmt_schemas.ledger import PendingAcknowledgement
from snapfmt_schemas.manifest import TrainerAnchor
from snapfmt_schemas.timeline import Phase

AGENT = "agent"
TOKEN = "of-this-benchmark-only"


@dataclass(frozen=True)
class State:
    """Implements `sequence.ports.ControllerState`: which runs are out."""

    sent: frozenset[str]
    owed: int

    def required_rows(self) -> frozenset[str]:
        return frozenset()

    def dispatched_runs(self) -> frozenset[str]:
        return self.sent

    def given_up_runs(self) -> frozenset[str]:
        return frozenset()

    def pending_acknowledgements(self) -> int:
        return self.owed

    def write(self, part: PartWriter) -> None:
        part.json("controller.json", {"sent": sorted(self.sent)})


@dataclass
class Control:
    """Implements `sequence.ports.Controller`: a trainer that stands still."""

    sent: set[str] = field(default_factory=set)
    owed: dict[str, PendingAcknowledgement] = field(default_factory=dict)
    over: list[Execution] = field(default_factory=list)
    """Runs that are acknowledged, for Gym to retire."""

    def adopt(self, receipt: CompletionReceipt) -> None:
        """A run is over; its acknowledgement is owed."""
        key = capture_key(receipt.rollout_id, receipt.attempt_index)
        self.sent.discard(key)
        self.owed[key] = PendingAcknowledgement(receipt=receipt, agent_name=AGENT)

    def skip_reason(self) -> None:
        return None

    def anchor(self) -> TrainerAnchor:
        return TrainerAnchor(train_step=0, trainer_version=0, epoch=0)

    def acknowledgements(self) -> Sequence[PendingAcknowledgement]:
        return tuple(self.owed.values())

    def acknowledged(self, done: Sequence[PendingAcknowledgement]) -> None:
        for item in done:
            receipt = item.receipt
            key = capture_key(receipt.rollout_id, receipt.attempt_index)
            if self.owed.pop(key, None) is not None:
                self.over.append(
                    Execution(rollout_id=receipt.rollout_id, attempt_index=receipt.attempt_index)
                )

    def cut(self) -> State:
        return State(frozenset(self.sent), len(self.owed))


def times_of(result: SaveResult) -> dict[str, float]:
    """Seconds of one completed save, from its timeline."""
    if result.error is not None:
        raise result.error
    prepare, commit = _phase(result, "prepare", "gym"), _phase(result, "commit", "gym")
    cut, resume = _phase(result, "cut", "coordinator"), _phase(result, "resume", "gym")
    gate, publish = _phase(result, "gate", "coordinator"), _phase(result, "publish", "coordinator")
    writes = [phase for phase in result.timeline.phases if phase.name == "write"]
    first, last = min(one.started_at_ns for one in writes), max(one.ended_at_ns for one in writes)
    return {
        "drain": _between(gate.started_at_ns, prepare.ended_at_ns),
        "drained_to_resume_sent": _between(prepare.ended_at_ns, resume.started_at_ns),
        "drained_to_gate_open": _between(prepare.ended_at_ns, resume.ended_at_ns),
        "commit": _between(commit.started_at_ns, commit.ended_at_ns),
        "cut": _between(cut.started_at_ns, cut.ended_at_ns),
        "barrier_held": 0.0 if result.hold is None else result.hold.hold_s,
        "resume": _between(resume.started_at_ns, resume.ended_at_ns),
        "write": _between(first, last),
        "publish": _between(publish.started_at_ns, publish.ended_at_ns),
        "total": result.total_s,
    }


def note(result: dict[str, Any], name: str, ours: Sequence[float], theirs: Sequence[float]) -> None:
    """Record the ratio of two medians, and the lowest and highest of the paired rounds."""
    pairs = [a / b for a, b in zip(ours, theirs, strict=True)]
    result["ratios"][name] = statistics.median(ours) / statistics.median(theirs)
    result["spread"][name] = [min(pairs), max(pairs)]


def table(rows: Sequence[dict[str, Any]], title: str) -> None:
    """Prints rows of the same names."""
    print(f"\n{title}")
    names = [*rows[0]]
    cells = [[_text(row[name]) for name in names] for row in rows]
    widths = [max(len(text) for text in column) for column in zip(names, *cells, strict=True)]
    for line in (names, *cells):
        print("  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)))


def _text(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _phase(result: SaveResult, name: str, actor: str) -> Phase:
    (found,) = [
        phase for phase in result.timeline.phases if (phase.name, phase.actor) == (name, actor)
    ]
    return found


def _between(start_ns: int, end_ns: int) -> float:
    return (end_ns - start_ns) / 1e9
