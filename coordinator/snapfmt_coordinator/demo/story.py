"""One run left in peace, one run killed and restored: both must come to the same result."""

import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from snapfmt import Repository
from snapfmt.errors import CorruptError, InputError, ParticipantFailed
from snapfmt_coordinator.loop.child import Child
from snapfmt_coordinator.loop.config import RESTART_ONLY, LoopConfig
from snapfmt_coordinator.sequence.timeline import render
from snapfmt_schemas.continuation import Continuation
from snapfmt_schemas.timeline import PhaseTimeline

Say = Callable[[str], object]
AGENT_PART: Final = "gym/agent/agent"
SHOWN: Final = 6
"""Rollouts that are named one by one."""
SKIPPED: Final = {
    "missing_trainer_anchor": "the checkpoint of the newest train step is not on disk yet",
    "optimizer_commit_in_progress": "a train step is being committed",
    "trainer_state_changed": "a train step ended meanwhile, its checkpoint is not on disk yet",
}
"""Why a save waits for the trainer; it is tried again at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoryOptions:
    """How large the run is. Times in seconds."""

    prompts: int = 6
    generations: int = 4
    max_turns: int = 10
    units: int = 2
    kills: int = 1
    interval_s: float = 1.0
    tool_s: float = 0.25
    """Least time of a tool call: with it a rollout is longer than what a save waits for."""
    generation_s: float = 0.1
    seed: int = 7

    def config(self, home: Path, *, snapshots: bool) -> LoopConfig:
        """The configuration of one of the two runs."""
        return LoopConfig(
            home=str(home),
            seed=self.seed,
            prompts=self.prompts,
            generations=self.generations,
            max_turns=self.max_turns,
            units=self.units,
            tools=("counter", "dice", "notes", RESTART_ONLY),
            tool_s=self.tool_s,
            generation_s=self.generation_s,
            snapshot_attempt_interval_s=self.interval_s if snapshots else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoryReport:
    """What the demonstration did.

    It exists only when both runs came to the same result, and rollouts went on in the middle.
    """

    repository: Path
    rollouts: int
    turns: int
    kills: int
    saves: int
    longest_pause_s: float
    """From the last parked rollout to the order to go on, over all saves."""
    continued: int
    started_over: int
    seconds: float


def run(directory: str | Path, options: StoryOptions, *, out: Say = print) -> StoryReport:
    """Tells the story in a folder, which keeps the repository and the logs.

    Raises:
        ParticipantFailed: If one of its processes failed; says where its log is.
        CorruptError: If the restored run came to another result, or started all rollouts over.
        InputError: If there is nothing to kill, or the run was over before a snapshot held
            rollouts in the middle.
    """
    if options.kills < 1:
        raise InputError("the demonstration kills at least once", what=str(options.kills))
    return _Story(Path(directory).resolve(), options, out).tell()


class _Story:
    def __init__(self, home: Path, options: StoryOptions, out: Say) -> None:
        self._home = home
        self._options = options
        self._out = out
        self._started = time.monotonic()
        self._random = random.Random(options.seed)  # noqa: S311 - chooses a moment
        self._kills = 0
        self._saves: list[dict[str, Any]] = []
        self._continued = 0
        self._over = 0

    def tell(self) -> StoryReport:
        options = self._options
        rollouts = options.prompts * options.generations
        self._out(f"A run of {rollouts} rollouts of up to {options.max_turns} turns, in peace.")
        with Child(options.config(self._home / "in-peace", snapshots=False)) as child:
            wanted = self._until_done(child)["comparable"]
        self._out(f"The same run, with a snapshot every {options.interval_s:g} s.")
        found = self._lives()["comparable"]
        self._compare(wanted, found)
        if not self._kills:
            raise InputError(
                "the run was over before a snapshot held rollouts in the middle",
                what=f"{rollouts} rollouts of up to {options.max_turns} turns",
                hint="more of both: --prompts, --turns",
            )
        if not self._continued:
            raise CorruptError("the snapshot held rollouts in the middle, and none went on")
        facts = wanted["rollouts"].values()
        report = StoryReport(
            repository=self._home / "run" / "repository",
            rollouts=len(wanted["rollouts"]),
            turns=sum(item["turns"] for item in facts),
            kills=self._kills,
            saves=sum(save["outcome"] == "completed" for save in self._saves),
            longest_pause_s=max((pause_s(save) for save in self._saves), default=0.0),
            continued=self._continued,
            started_over=self._over,
            seconds=time.monotonic() - self._started,
        )
        self._summary(report)
        return report

    def _config(self) -> LoopConfig:
        return self._options.config(self._home / "run", snapshots=True)

    def _lives(self) -> dict[str, Any]:
        """One life after another, each but the last one killed; what the last one tells."""
        for number in range(self._options.kills):
            done = self._killed()
            if done is not None:
                self._out(f"The run came to its end before kill -9, number {number + 1}.")
                return done
        with Child(self._config()) as child:
            return self._until_done(child)

    def _killed(self) -> dict[str, Any] | None:
        """One life of the run, ended by SIGKILL while rollouts are in flight.

        No clock says when: it is after a snapshot that holds rollouts in the middle, and before
        more than half of these have ended. What it tells when it came to its end without.
        """
        middle, over, last = 0, 0, 0
        with Child(self._config()) as child:
            for event in child.events():
                self._hear(event)
                if event["event"] == "done":
                    return event
                if event["event"] == "save" and event["outcome"] == "completed" and not middle:
                    middle = len(self._middle(event["number"]))
                    last = self._random.randint(0, middle // 2)
                over += bool(middle) and event["event"] == "adopted"
                if middle and over == last:
                    break
            processes = child.kill()
        self._kills += 1
        self._out(
            f"kill -9, number {self._kills}: the run and its {processes - 1} processes are gone,"
            f" {over} results after a snapshot with {middle} rollouts in the middle."
        )
        return None

    def _until_done(self, child: Child) -> dict[str, Any]:
        for event in child.events():
            self._hear(event)
            if event["event"] == "done":
                return event
        raise ParticipantFailed("the run ended without a result", hint=f"its log is {child.log}")

    def _hear(self, event: dict[str, Any]) -> None:
        if event["event"] == "save":
            self._saves.append(event)
            self._saved(event)
        elif event["event"] == "restored" and event["report"]:
            self._restored(event["report"])

    def _saved(self, save: dict[str, Any]) -> None:
        if save["outcome"] != "completed":
            why = SKIPPED.get(save["reason"], save["error"] or "")
            self._out(f"  save: {save['outcome']}, {save['reason']}: {why}")
            return
        first = sum(item["outcome"] == "completed" for item in self._saves) == 1
        self._out(
            f"  snapshot {save['number']}: rollouts stood for {_ms(pause_s(save))} after they had"
            f" parked, rows for {_ms(save['held_s'])}; published after {save['total_s']:.2f} s"
        )
        if first:
            self._out(render(PhaseTimeline.model_validate_json(json.dumps(save["timeline"]))))

    def _restored(self, report: dict[str, Any]) -> None:
        self._out(
            f"  restored snapshot {report['number']} (train step {report['train_step']})"
            f" in {report['total_s']:.2f} s"
        )
        for number, why in report["passed_over"]:
            self._out(f"    passed over snapshot {number}: {why}")
        calls = self._middle(report["number"])
        self._continued += len(report["continued"])
        self._over += len(report["started_over"])
        for rollout, attempt in report["continued"][:SHOWN]:
            self._out(f"    {rollout}, run {attempt}: goes on after {calls.get(rollout, '?')}")
        self._more(report["continued"])
        for rollout, attempt in report["started_over"][:SHOWN]:
            self._out(f"    {rollout}, run {attempt}: starts over, its {RESTART_ONLY} is gone")
        self._more(report["started_over"])

    def _middle(self, number: int) -> dict[str, str]:
        """Last finished model call of every rollout that goes on from the snapshot."""
        repository = Repository.open(self._home / "run" / "repository")
        part = repository.snapshot(number).part(AGENT_PART)
        return {
            line.rollout_id: line.last_committed_model_call_id
            for line in part.records("continuations.jsonl", Continuation)
            if RESTART_ONLY not in (line.resource_state_revisions or (RESTART_ONLY,))
        }

    def _more(self, items: list[Any]) -> None:
        if len(items) > SHOWN:
            self._out(f"    and {len(items) - SHOWN} more")

    def _compare(self, wanted: dict[str, Any], found: dict[str, Any]) -> None:
        differences = [
            f"{name}: {_short(wanted.get(name))} != {_short(found.get(name))}"
            for name in sorted(wanted.keys() | found.keys())
            if wanted.get(name) != found.get(name)
        ]
        if differences:
            raise CorruptError(f"the restored run came to another result: {differences}")

    def _summary(self, report: StoryReport) -> None:
        self._out("")
        self._out(
            f"Equal: {report.rollouts} rollouts, {report.turns} turns: every reward, token row and"
            " tool state, and every group was trained exactly once."
        )
        self._out(
            f"{report.saves} snapshots, {report.continued} rollouts went on in the middle,"
            f" {report.started_over} started over; the longest pause was"
            f" {_ms(report.longest_pause_s)}; {report.seconds:.0f} s in all."
        )
        self._out("")
        self._out("Try next:")
        for command in ("ls {}", "report {}", "tree {} latest", "verify {}"):
            self._out(f"  snapfmt {command.format(report.repository)}")


def pause_s(save: dict[str, Any]) -> float:
    """Seconds from `drained` to `resume sent` of one save; 0 for one that got not so far."""
    phases = (save["timeline"] or {}).get("phases", ())
    ends = [phase["ended_at_ns"] for phase in phases if phase["name"] == "prepare"]
    begins = [phase["started_at_ns"] for phase in phases if phase["name"] == "resume"]
    return max((min(begins) - max(ends)) / 1e9, 0.0) if ends and begins else 0.0


def _short(value: Any) -> str:
    return str(value)[:200]


def _ms(seconds: float | None) -> str:
    return "?" if seconds is None else f"{seconds * 1000:.0f} ms"
