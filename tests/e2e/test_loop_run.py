"""Whole training runs with real Ray actors, TransferQueue and Gym servers, each in a process.

Runs that are killed are in `faults/loop_kills.py`.
"""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from snapfmt_coordinator.loop import activity
from snapfmt_coordinator.loop.activity import Interval, from_rows, share
from snapfmt_coordinator.loop.child import Child
from snapfmt_coordinator.loop.prompts import prompt_of
from snapfmt_coordinator.loop.reports import span
from snapfmt_coordinator.reference.policy import turn_count

pytestmark = pytest.mark.cluster


def test_a_run_in_peace_trains_every_rollout_once(
    kills: ModuleType, run_in_peace: dict[str, Any]
) -> None:
    found, shape = run_in_peace["comparable"], kills.SHAPE
    groups = sorted(prompt_of(7, index).group_id for index in range(shape["prompts"]))
    assert found["groups"] == groups
    assert found["steps"] == len(groups) / 2
    runs = [f"{group}_g{i}" for group in groups for i in range(shape["generations"])]
    assert sorted(found["rollouts"]) == runs
    for rollout_id, facts in found["rollouts"].items():
        # The last reply is no turn with a tool, but a turn.
        assert facts["turns"] == turn_count(7, rollout_id, 8), rollout_id
        assert 0.0 < facts["reward"] < 1.0
    assert len({facts["tokens"] for facts in found["rollouts"].values()}) == len(runs)
    assert any(found["weights"])
    assert run_in_peace["saves"] == []
    assert run_in_peace["restored"] is None


GYM_S, CUT_S, WRITE_S = 2.0, 0.5, 0.6


def test_who_waits_for_whom_in_each_phase_of_a_save(
    kills: ModuleType, run_in_peace: dict[str, Any], tmp_path: Path
) -> None:
    """The table of ten parts and three phases; each phase is held open for a while."""
    holds = {"save:prepare.after": GYM_S, "save:take_cut": CUT_S, "save:write": WRITE_S}
    options = {
        "snapshot_attempt_interval_s": 0.3,
        "holds": holds,
        "tool_s": 0.05,
        "generation_s": 0.03,
        # A group that is finished between two saves is put together and trained in the Gym
        # phase of the second one; since the buffer is small, that brings new runs to the gate.
        "batch_groups": 1,
        "max_buffered_groups": 3,
        "finalize_s": 1.0,
        "step_s": 0.3,
    }
    with Child(kills.config(tmp_path, **options)) as child:
        done, _ = child.until("done")
    log = from_rows(done["activity"])
    over = max(one.end or 0.0 for one in log if one.part == activity.WATCHDOG)
    # A save that outlives the training finds nobody who could wait.
    saves = [save for save in done["saves"] if ended(save) <= over]
    completed = [save for save in saves if save["outcome"] == "completed"]
    assert completed, json.dumps([save["reason"] for save in saves])
    assert {save["reason"] for save in saves} <= {
        "completed",
        "trainer_state_changed",
        "missing_trainer_anchor",
        "optimizer_commit_in_progress",
    }
    gym = [span(save, "prepare", "commit") for save in saves if has(save, "commit")]
    cut = [span(save, "cut", actor="rl/tq") for save in completed]
    write = [span(save, "write", "publish") for save in completed]
    in_gym, in_cut, in_write = (Phases(log, spans) for spans in (gym, cut, write))
    report(in_gym, in_cut, in_write)

    # Gym phase: rollouts stand, training does not.
    assert in_gym.seconds(activity.ROLLOUT_PUMP, "waiting", activity.GATE) > 0
    assert in_gym.seconds(activity.GYM, "parked") >= 0.9 * GYM_S * len(gym)
    assert in_gym.idle(activity.REASSEMBLER, activity.TRAINER, activity.ADVANTAGE) == []
    # Better than upstream: refit and trainer checkpoint do not wait for the Gym phase.
    assert in_gym.idle(activity.REFIT, activity.CHECKPOINT) == []
    for part in activity.PARTS:
        assert in_gym.seconds(part, "waiting", activity.BARRIER) == 0, part

    # Cut: nothing that changes rows or ledger; what only computes goes on.
    assert in_cut.seconds(activity.GYM, "parked") >= 0.9 * CUT_S * len(cut)
    for part, work in (
        (activity.REASSEMBLER, "puts canonical rows"),
        (activity.ADVANTAGE, "writes back"),
        (activity.TRAINER, "commits and cleans up"),
    ):
        assert in_cut.seconds(part, "working", work) == 0, (part, work)
    assert in_cut.finished(activity.ENGINES) == 0
    assert in_cut.finished(activity.REFIT) == 0

    # Write: everybody runs, and nobody waits for the disk.
    soon = 0.05 * len(write)
    assert in_write.seconds(activity.ROLLOUT_PUMP, "waiting", activity.GATE) <= soon
    assert in_write.seconds(activity.GYM, "parked") == 0
    assert in_write.finished(activity.ENGINES) > 0
    for part in activity.PARTS:
        assert in_write.seconds(part, "waiting", activity.BARRIER) <= soon, part

    # The watchdog counts through all of it, the limits of rollouts only where they run.
    for phases in (in_gym, in_cut, in_write):
        assert phases.seconds(activity.WATCHDOG, "working") >= 0.95 * phases.total
    for phases in (in_gym, in_cut):
        assert phases.seconds(activity.TIME_LIMITS, "paused") >= 0.9 * phases.total
    assert in_write.seconds(activity.TIME_LIMITS, "working") >= 0.95 * in_write.total

    rollouts = done["comparable"]["rollouts"]
    assert rollouts == run_in_peace["comparable"]["rollouts"], "saves change no rollout"
    assert done["comparable"]["weights"] == run_in_peace["comparable"]["weights"]


def ended(save: dict[str, Any]) -> float:
    return max((phase["ended_at_ns"] for phase in save["timeline"]["phases"]), default=0) / 1e9


def has(save: dict[str, Any], name: str) -> bool:
    return any(phase["name"] == name for phase in save["timeline"]["phases"])


class Phases:
    """One phase of several saves, together. Times are of the clock, not of all who wait."""

    def __init__(self, log: list[Interval], spans: list[tuple[float, float]]) -> None:
        self.log = log
        self.spans = spans
        self.total = sum(end - start for start, end in spans)

    def seconds(self, part: str, doing: str, what: str | None = None) -> float:
        return sum(
            covered(
                [
                    (max(one.start, start), min(one.end or end, end))
                    for one in self.log
                    if (one.part, one.doing) == (part, doing) and what in (None, one.what)
                ]
            )
            for start, end in self.spans
        )

    def finished(self, part: str) -> int:
        return sum(share(self.log, part, start, end).finished for start, end in self.spans)

    def idle(self, *parts: str) -> list[str]:
        """Which of them did nothing."""
        return [part for part in parts if self.seconds(part, "working") == 0]


def covered(pieces: list[tuple[float, float]]) -> float:
    """Length of what the pieces cover together."""
    total, reached = 0.0, 0.0
    for start, end in sorted(pieces):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def report(*phases: Phases) -> None:
    """The measured table, for whoever reads the test's output."""
    for part in activity.PARTS:
        cells = []
        for one in phases:
            states = {
                doing: one.seconds(part, doing)
                for doing in ("working", "waiting", "parked", "paused")
            }
            cells.append(" ".join(f"{k} {v:.2f}" for k, v in states.items() if v) or "idle")
        print(f"{part:22} | {cells[0]:40} | {cells[1]:40} | {cells[2]}")
