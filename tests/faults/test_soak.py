"""Samples of the soak and of the crowd; in full: `python tests/faults/soak.py`, `crowd.py`."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def run(command: str, folder: Path, *arguments: str) -> dict[str, Any]:
    """What a command found; it ends with 0 when nothing is wrong."""
    done = subprocess.run(
        [sys.executable, str(HERE / command), f"--folder={folder}", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_nothing_is_lost_while_processes_are_killed(fast_path: Path) -> None:
    found = run("soak.py", fast_path, "--saves=15", "--few", "--seconds=600")
    assert found["saves"] >= 15
    assert found["kills"] > 0
    assert found["restores"] > 0
    assert found["saves_on_a_base"] > 0
    assert found["bytes_checked"] > 0
    assert (found["losses"], found["leaks"], found["violations"]) == (0, 0, [])


def test_of_many_processes_exactly_one_gets_each_number(fast_path: Path) -> None:
    found = run("crowd.py", fast_path, "--processes=8", "--numbers=6", "--seconds=600")
    assert found["published"] >= 6
    assert found["conflicts"] > 0
    assert found["gaps"] == 0
    assert set(found["each_conflict"]) <= {"CommitConflict", "SnapshotExists", "base"}
    assert (found["losses"], found["leaks"], found["violations"]) == (0, 0, [])
