"""The numbers of a save and a restore, under upstream's names where it has one."""

from collections.abc import Mapping
from typing import Final, get_args

from snapfmt_coordinator.sequence.outcomes import Outcome, Reason
from snapfmt_coordinator.sequence.restore import RestoreResult
from snapfmt_coordinator.sequence.save import SaveResult
from snapfmt_coordinator.sequence.save_steps import CONTROLLER_PART
from snapfmt_coordinator.sequence.timeline import seconds

TIMING: Final = "timing/rollout_checkpoint"
OUTCOME: Final = "rollout/checkpoint_outcome"
REASON: Final = "rollout/checkpoint_outcome/reason"
CONTROLLER_COUNTS: Final = ("replay_groups", "ledger_groups", "replay_rows")
"""What only the controller knows of its cut."""


def save_metrics(result: SaveResult, counts: Mapping[str, int] | None = None) -> dict[str, float]:
    """Numbers of one save; times in seconds. `counts` adds those of `CONTROLLER_COUNTS`.

    Outcome and reason are 1 for what it was and 0 for all others. Of a save that published
    nothing there are these and its total time only.
    """
    found: dict[str, float] = {
        f"{OUTCOME}/{name}": float(name == result.outcome) for name in get_args(Outcome)
    }
    for reason in get_args(Reason):
        found[f"{REASON}/{reason}"] = float(reason == result.reason)
    numbers: dict[str, float] = {"total_save_seconds": result.total_s}
    if result.manifest is not None:
        numbers |= _published(result)
        numbers |= {name: float(value) for name, value in (counts or {}).items()}
    return found | {f"{TIMING}/{name}": value for name, value in numbers.items()}


def _published(result: SaveResult) -> dict[str, float]:
    timeline = result.timeline
    own = [item for item in result.receipts if item.part == CONTROLLER_PART]
    rows = sum(
        table.rows
        for item in result.receipts
        for table in item.tables
        if table.name.startswith("rows/")
    )
    return {
        "snapshot_sequence": float(result.number or 0),
        "tq_save_seconds": seconds(timeline, "write", "rl/tq"),
        "barrier_wait_seconds": 0.0 if result.hold is None else result.hold.wait_s,
        "exclusive_hold_seconds": 0.0 if result.hold is None else result.hold.hold_s,
        "sidecar_save_seconds": seconds(timeline, "write", CONTROLLER_PART),
        "snapshot_commit_seconds": seconds(timeline, "publish"),
        "staging_rows": float(result.staging_rows),
        "snapshot_rows": float(rows),
        "controller_sidecar_bytes": float(sum(item.stored_bytes for item in own)),
        # Upstream has no name for these.
        "gate_closed_seconds": 0.0 if result.gate is None else result.gate.closed_s,
        "gate_waited": 0.0 if result.gate is None else float(result.gate.waited),
        "gym_prepare_seconds": seconds(timeline, "prepare", "gym"),
        "gym_commit_seconds": seconds(timeline, "commit", "gym"),
        "gym_resume_seconds": seconds(timeline, "resume", "gym"),
        "gym_write_seconds": seconds(timeline, "write", "gym"),
        "checkpoint_lock_wait_seconds": result.lock_wait_s,
        "mutation_longest_wait_seconds": (
            0.0 if result.hold is None else result.hold.longest_wait_s
        ),
        "stored_bytes": float(sum(item.stored_bytes for item in result.receipts)),
    }


def restore_metrics(result: RestoreResult) -> dict[str, float]:
    """Numbers of one restore; times in seconds."""
    timeline = result.timeline
    prepare = sum(seconds(timeline, name, "gym") for name in ("load", "discard", "resume"))
    numbers = {
        "snapshot_sequence": float(result.number),
        "total_restore_seconds": result.total_s,
        "tq_load_seconds": seconds(timeline, "load", "rl/tq"),
        "ledger_load_seconds": seconds(timeline, "assign", "rl/controller"),
        "recovery_prepare_seconds": prepare,
        "select_seconds": seconds(timeline, "select"),
        "continued_rollouts": float(len(result.continued)),
        "restarted_rollouts": float(len(result.started_over)),
        "passed_over_snapshots": float(len(result.passed_over)),
    }
    return {f"{TIMING}/{name}": value for name, value in numbers.items()}
