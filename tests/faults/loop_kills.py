"""Kills a whole run at one step after the other, and checks what the restored run comes to.

`python tests/faults/loop_kills.py [CASE ...]` runs the named cases, or all. A case is one or more
stops `STEP@N`, joined by `+`, each ended by SIGKILL of every process; or `one:VICTIM`, where that
one process gets SIGKILL after the first snapshot. A run that does not come to its end without it
must say so, by an error or by its watchdog, and is then started anew. Prints a line per case and
one JSON object at the end. Takes about half a minute per life on two idle cores.
"""

import json
import re
import sys
import tempfile
import threading
import time
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from snapfmt import Repository
from snapfmt.errors import ParticipantFailed
from snapfmt_coordinator.loop.child import Child
from snapfmt_coordinator.loop.config import LoopConfig
from snapfmt_coordinator.loop.run import MUTATIONS
from snapfmt_coordinator.loop.saved import SavedState
from snapfmt_coordinator.loop.trip import STEPS, is_step
from snapfmt_schemas.agent import BoundaryHead

SHAPE: dict[str, Any] = {
    "prompts": 6,
    "generations": 3,
    "max_turns": 8,
    "units": 1,
    "tools": ("counter", "dice", "notes", "sandbox"),
    # Slow, so that there is time for several saves on any machine.
    "tool_s": 0.2,
    "generation_s": 0.08,
    "keep_latest": 100,
}
INTERVAL_S = 0.4
VICTIMS = {
    "policy": ("reference.policy_server",),
    "agent": ("reference.agent_server",),
    "resources": ("reference.resources_server", "counter"),
    "gym-actor": ("ray::NemoGymActor",),
    "controller": ("ray::SingleController",),
    "finalizer": ("ray::FinalizerActor",),
    "unit": ("ray::SimpleStorageUnit",),
}
"""What the command line of each single victim has."""
STALL_S = 30.0
"""Without a train step, after which the watchdog of a run that lost one process warns."""
PATIENCE_S = 150.0
"""How long such a run may take, to its end or to a warning."""
NUMBER = re.compile(r"\d+$")


def cases() -> list[str]:
    """One for every step of a save and of a restore, before and after it."""
    steps = [step for name in STEPS for step in (name, f"{name}.after") if is_step(step)]
    stops = [
        f"{step}@2" if step.startswith("save:") else f"save:write@2+{step}@1" for step in steps
    ]
    return stops + [f"one:{victim}" for victim in VICTIMS]


def config(home: Path, **changes: Any) -> LoopConfig:
    return LoopConfig(home=str(home), **{**SHAPE, **changes})


@dataclass
class Case:
    """What became of one case."""

    name: str
    problems: list[str] = field(default_factory=list)
    stopped: int = 0
    """Lives that were ended where they should be."""
    outcome: str = ""
    """What the run itself did about a single kill."""
    restored: list[int] = field(default_factory=list)
    """The snapshots from which it went on."""
    continued: int = 0
    started_over: int = 0
    seconds: float = 0.0


def in_peace(home: Path) -> dict[str, Any]:
    """What a run tells at its end that saves nothing and that nobody kills."""
    with Child(config(home, tool_s=0.05, generation_s=0.03)) as child:
        done, _ = child.until("done")
        # It takes down its cluster and its servers by itself.
        assert child.wait() == 0
    return done


def run_case(name: str, home: Path, wanted: dict[str, Any]) -> Case:
    """All stops of a case, then a life to the end."""
    case, begun = Case(name), time.monotonic()
    lives: list[int] = []
    stops = [] if name.startswith("one:") else name.split("+")
    last: dict[str, Any] = {}
    if not stops:
        lives.append(0)
        last = lose_one(name.removeprefix("one:"), home, case)
    for stop in stops:
        step, _, turn = stop.partition("@")
        options = {"stop_at": step, "stop_on": int(turn or 1)}
        lives.append(len(read(home / MUTATIONS)))
        with Child(config(home, snapshot_attempt_interval_s=INTERVAL_S, **options)) as child:
            last = hear(child, home, case)
            child.kill()
        if last["event"] == "at":
            case.stopped += 1
        else:
            case.problems.append(f"it never came to {stop}")
    if "comparable" not in last:
        lives.append(len(read(home / MUTATIONS)))
        with Child(config(home, snapshot_attempt_interval_s=INTERVAL_S)) as child:
            last = hear(child, home, case)
    if last["comparable"] != wanted:
        case.problems.append(f"another result: {differences(wanted, last['comparable'])}")
    case.problems += repeated(home, lives)
    report = Repository.open(home / "repository").verify(deep=True)
    case.problems += [f"{item.path}: {item.message}" for item in report.damage]
    case.seconds = time.monotonic() - begun
    return case


def lose_one(victim: str, home: Path, case: Case) -> dict[str, Any]:
    """A life that loses one process; what it came to, empty if it did not come to its end."""
    options = {
        "snapshot_attempt_interval_s": INTERVAL_S,
        "rollout_limit_s": STALL_S,
        "stall_timeout_s": STALL_S,
    }
    with Child(config(home, **options)) as child:
        for event in child.events():
            if event.get("outcome") == "completed":
                break
            if event["event"] == "done":
                case.problems.append("it ended before its first snapshot")
                return event
        kill_one(child.pid, VICTIMS[victim])
        case.stopped += 1
        hung = threading.Event()

        def give_up() -> None:
            hung.set()
            child.end()

        supervisor = threading.Timer(PATIENCE_S, give_up)
        supervisor.start()
        try:
            last = hear(child, home, case)
            case.outcome = "went on to its end"
            if last["event"] == "stalled":
                last, case.outcome = {}, "its watchdog warned"
        except ParticipantFailed as error:
            last = {}
            case.outcome = error.message[:160]
            if hung.is_set():
                case.problems.append(f"it hung for {PATIENCE_S} s")
        finally:
            supervisor.cancel()
    return last


def kill_one(pid: int, marks: tuple[str, ...]) -> None:
    found = [
        process
        for process in psutil.Process(pid).children(recursive=True)
        if all(mark in " ".join(process.cmdline()) for mark in marks)
    ]
    assert found, f"no process is {marks}"
    found[0].kill()


def hear(child: Child, home: Path, case: Case) -> dict[str, Any]:
    """Listens to a life to its end, its stop or its watchdog's warning; checks each restore."""
    last: dict[str, Any] = {}
    for last in child.events():
        if last["event"] == "restored" and last["report"]:
            restored(last["report"], home, case)
        if last["event"] == "stalled":
            break
    return last


def restored(report: dict[str, Any], home: Path, case: Case) -> None:
    """Remembers after which call every run goes on, for `repeated`."""
    case.restored.append(report["number"])
    case.continued += len(report["continued"])
    case.started_over += len(report["started_over"])
    snapshot = Repository.open(home / "repository").snapshot(report["number"])
    lines = snapshot.part("gym/agent/agent").records("boundaries.jsonl", BoundaryHead)
    begun = [line for line in lines if line.last_committed_model_call_id is not None]
    calls = {line.rollout_id: finished_calls(line) for line in begun}
    runs = {(line.rollout_id, line.attempt_index + 1) for line in begun}
    told = {(run[0], run[1]) for name in ("continued", "started_over") for run in report[name]}
    if not runs <= told:
        case.problems.append(f"nobody told what became of {sorted(runs - told)}")
    shape = config(home)
    saved = SavedState.read(
        snapshot, generations=shape.generations, capacity=shape.max_buffered_groups
    )
    # A cut before the first call was committed has no row, and then no table.
    staged = "rows/rollout_staging"
    there = snapshot.table(staged).keys() if staged in snapshot.table_names() else ()
    if missing := saved.required_rows() - set(there):
        case.problems.append(f"rows are missing: {sorted(missing)[:3]}")
    with (home / "continued.jsonl").open("a", encoding="utf-8") as out:
        for rollout_id, attempt in report["continued"]:
            out.write(json.dumps([rollout_id, attempt, calls[rollout_id]]) + "\n")


def finished_calls(boundary: BoundaryHead) -> int:
    """Number of the last call whose tools have run."""
    assert boundary.last_committed_model_call_id is not None
    pending = boundary.boundary_kind == "pending_model"
    return number(boundary.last_committed_model_call_id) - pending


def repeated(home: Path, lives: list[int]) -> list[str]:
    """Mutations that happened twice in one life, or again after the cut that had them.

    `lives` has the length of the log at the begin of each life. A rollout that no snapshot knew
    begins with run 0 again in the next life, so runs of different lives are not compared.
    """
    made = read(home / MUTATIONS)
    found = Counter(
        (bisect_right(lives, place), m["rollout_id"], m["attempt_index"], m["model_call_id"])
        for place, m in enumerate(made)
    )
    problems = [f"{key} was made {count} times" for key, count in found.items() if count > 1]
    for rollout_id, attempt, call in read(home / "continued.jsonl"):
        again = [
            mutation["model_call_id"]
            for mutation in made
            if mutation["rollout_id"] == rollout_id
            and mutation["attempt_index"] >= attempt
            and number(mutation["model_call_id"]) <= call
        ]
        if again:
            problems.append(f"run {attempt} of {rollout_id} made {again} again, cut after {call}")
    return problems


def read(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def number(call_id: str) -> int:
    match = NUMBER.search(call_id)
    assert match is not None, call_id
    return int(match[0])


def differences(wanted: dict[str, Any], found: dict[str, Any]) -> str:
    return str([key for key in wanted if wanted[key] != found.get(key)])[:300]


def main(names: list[str]) -> int:
    root = Path(tempfile.mkdtemp(prefix="snapfmt-kills-"))
    wanted = in_peace(root / "in-peace")["comparable"]
    results = []
    for place, name in enumerate(names or cases()):
        try:
            case = run_case(name, root / f"case-{place}", wanted)
        except Exception as error:
            case = Case(name, [f"{type(error).__name__}: {error}"])
        results.append(case)
        print(name, "ok" if not case.problems else case.problems, vars(case), flush=True)
    bad = [case.name for case in results if case.problems]
    print(json.dumps({"cases": len(results), "failed": bad, "root": str(root)}))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
