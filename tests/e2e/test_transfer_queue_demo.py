"""The demonstration does what it says, from a fill to a restore after kill -9."""

from pathlib import Path

import psutil
import pytest

from snapfmt import Repository
from snapfmt.demo import run
from snapfmt.errors import InputError

pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("ignore")]


def test_the_demo_restores_what_it_saved(tmp_path: Path) -> None:
    lines: list[str] = []
    before = {process.pid for process in psutil.process_iter()}
    report = run(tmp_path / "demo", rows=64, out=lines.append)
    text = "\n".join(lines)
    assert "kill -9" in text
    assert "bit for bit" in text
    assert f"snapfmt verify {report.repository}" in text
    # How long it takes is told and not judged: that depends on what else the machine does.
    assert report.seconds >= max(seconds for _, seconds in report.steps) > 0
    snapshot = Repository.open(report.repository).snapshot()
    assert snapshot.number == report.snapshot
    assert "gym/agent/demo" in snapshot.part_names()
    left = [
        process.name()
        for process in psutil.process_iter()
        if process.pid not in before and "snapfmt.demo.worker" in " ".join(process.cmdline())
    ]
    assert left == []


def test_the_demo_refuses_a_queue_that_is_too_small(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at least 48"):
        run(tmp_path, rows=8)
