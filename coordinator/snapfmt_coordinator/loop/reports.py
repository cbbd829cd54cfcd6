"""What a run tells of its saves and its restore, as JSON values."""

import json
from typing import Any

from snapfmt_coordinator.sequence.metrics import save_metrics
from snapfmt_coordinator.sequence.restore import RestoreResult
from snapfmt_coordinator.sequence.save import SaveResult
from snapfmt_schemas.lines import to_value
from snapfmt_schemas.timeline import PhaseTimeline


def save_report(result: SaveResult) -> dict[str, Any]:
    """One save that was tried."""
    return {
        "outcome": result.outcome,
        "reason": result.reason,
        "number": result.number,
        "total_s": result.total_s,
        "gate_closed_s": None if result.gate is None else result.gate.closed_s,
        "held_s": None if result.hold is None else result.hold.hold_s,
        "waited_for_mutations_s": None if result.hold is None else result.hold.wait_s,
        "staging_rows": result.staging_rows,
        "retired": list(result.retired),
        "notes": list(result.notes),
        "error": None if result.error is None else f"{result.error.code}: {result.error}",
        "metrics": save_metrics(result),
        "timeline": to_value(result.timeline),
    }


def restore_report(result: RestoreResult) -> dict[str, Any]:
    """The restore that a run began with."""
    return {
        "number": result.number,
        "train_step": None if result.manifest.anchor is None else result.manifest.anchor.train_step,
        "total_s": result.total_s,
        "continued": [[item.rollout_id, item.attempt_index] for item in result.continued],
        "started_over": [[item.rollout_id, item.attempt_index] for item in result.started_over],
        "reasons": list(result.reasons),
        "passed_over": [[number, why] for number, why in result.passed_over],
        "timeline": to_value(result.timeline),
    }


def span(
    report: dict[str, Any], first: str, last: str | None = None, *, actor: str | None = None
) -> tuple[float, float]:
    """From the begin of one phase to the end of another (of an actor), in Unix seconds.

    Raises:
        KeyError: If the timeline has no such phase.
    """
    timeline = PhaseTimeline.model_validate_json(json.dumps(report["timeline"]))
    phases = [phase for phase in timeline.phases if actor in (None, phase.actor)]
    begins = [phase.started_at_ns for phase in phases if phase.name == first]
    ends = [phase.ended_at_ns for phase in phases if phase.name == (last or first)]
    if not begins or not ends:
        raise KeyError(f"no phase {first!r} to {last or first!r}")
    return min(begins) / 1e9, max(ends) / 1e9
