"""`snapfmt report`: the steps of a save, in the order they were stored, and who waited."""

import os
import pty
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from snapfmt import Repository
from snapfmt.cli.report import steps
from snapfmt_schemas.timeline import Phase, PhaseTimeline

Snapfmt = Callable[..., Any]
Spawn = Callable[..., "subprocess.Popen[bytes]"]
START = 1_700_000_000_000_000_000
MS = 1_000_000


def phase(name: str, begin: int, end: int, *, waited: tuple[str, ...] = (), **more: Any) -> Phase:
    """A step from `begin` to `end` milliseconds after the start."""
    return Phase(
        name=name,
        started_at_ns=START + begin * MS,
        ended_at_ns=START + end * MS,
        waited=waited,
        **more,
    )


PHASES = (
    phase("prepare", 0, 400, waited=("agents",), actor="gym"),
    phase("cut", 400, 410, waited=("agents", "trainer"), actor="rl", counts={"rows": 512}),
    phase("cut model", 405, 450, waited=("agents",), actor="policy"),
    phase("write", 450, 1000),
    phase("publish", 1000, 1000),
)


def saved(path: Path, phases: tuple[Phase, ...] | None) -> str:
    """A repository with one snapshot of that timeline."""
    repository = Repository.create(path)
    timeline = None if phases is None else PhaseTimeline(operation="save", phases=phases)
    with repository.begin() as attempt:
        attempt.publish([], timeline=timeline)
    return repository.location


@pytest.fixture
def timed(tmp_path: Path) -> str:
    return saved(tmp_path / "timed", PHASES)


def test_every_step_has_a_line(snapfmt: Snapfmt, timed: str) -> None:
    ran = snapfmt("report", timed)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == (
        "The save of snapshot_000001\n"
        "  started  2023-11-14T22:13:20Z\n"
        "  took     1.00 s\n"
        "  steps    5\n"
        "\n"
        "Steps\n"
        "STEP       ACTOR       START      TOOK  WAITED          COUNTS\n"
        "prepare    gym       +0.0 ms  400.0 ms  agents          -\n"
        "cut        rl      +400.0 ms   10.0 ms  agents trainer  rows=512\n"
        "cut model  policy  +405.0 ms   45.0 ms  agents          -\n"
        "write      -       +450.0 ms  550.0 ms  -               -\n"
        "publish    -         +1.00 s    0.0 ms  -               -\n"
        "\n"
        "Who waited\n"
        "WHO        IN ALL\n"
        "agents   450.0 ms\n"
        "trainer   10.0 ms\n"
    )


def test_json_has_numbers(snapfmt: Snapfmt, timed: str) -> None:
    found = snapfmt("report", timed, "1", "--json").json
    assert {name: found[name] for name in found if name != "phases"} == {
        "ok": True,
        "name": "snapshot_000001",
        "number": 1,
        "operation": "save",
        "started_at": "2023-11-14T22:13:20Z",
        "started_at_ns": START,
        "took_ns": 1000 * MS,
        # Two steps at one time held the agents once.
        "waited_ns": {"agents": 450 * MS, "trainer": 10 * MS},
    }
    assert found["phases"][1] == {
        "name": "cut",
        "actor": "rl",
        "offset_ns": 400 * MS,
        "took_ns": 10 * MS,
        "waited": ["agents", "trainer"],
        "counts": {"rows": 512},
    }
    assert [item["name"] for item in found["phases"]] == [item.name for item in PHASES]


def test_the_newest_is_taken_and_others_by_name(snapfmt: Snapfmt, repo: str) -> None:
    assert snapfmt("report", repo).out.startswith("The save of snapshot_000002\n")
    assert snapfmt("report", repo, "latest", "--json").json["number"] == 2
    assert snapfmt("report", repo, "snapshot_000001", "--json").json["number"] == 1
    assert snapfmt("report", repo, "7").code == 4


@pytest.mark.parametrize("phases", [None, ()])
def test_a_snapshot_without_a_timeline(
    snapfmt: Snapfmt, tmp_path: Path, phases: tuple[Phase, ...] | None
) -> None:
    ran = snapfmt("report", saved(tmp_path / "plain", phases))
    assert (ran.code, ran.out) == (4, "")
    assert ran.err.startswith("snapfmt: NoMatch: no timeline was stored with this snapshot")


def test_names_cannot_talk_to_the_terminal(snapfmt: Snapfmt, tmp_path: Path) -> None:
    steps_ = (phase("a\x1b[31m", 0, 1, waited=("b\x07",), actor="c\n", counts={"d\r": 1}),)
    ran = snapfmt("report", saved(tmp_path / "odd", steps_))
    assert ran.code == 0
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", ran.out)
    assert ran.out.count("\n") == 12


def bars(phases: tuple[Phase, ...], width: int) -> list[str]:
    """The bars as a terminal of that width has them, in ASCII."""
    table = steps(PhaseTimeline(operation="save", phases=phases), width=width)
    place = list(table.columns).index("when")
    return [row[place].replace("█", "#").replace("·", ".") for row in table.rows]


def test_bars_show_when(monkeypatch: pytest.MonkeyPatch) -> None:
    assert bars(PHASES, 20) == [
        "########............",
        "........#...........",
        "........#...........",
        ".........###########",
        "...................#",
    ]
    assert "when" not in steps(PhaseTimeline(operation="save", phases=PHASES)).columns


@pytest.mark.parametrize("width", [1, 7, 40])
@pytest.mark.parametrize(
    "phases",
    [
        (phase("x", 0, 0),),
        (phase("x", 0, 1), phase("y", 1, 10**12)),
        # In another order than that of their starts.
        (phase("x", 5, 6), phase("y", 0, 1), phase("z", 6, 6)),
    ],
)
def test_every_bar_is_of_the_width_and_marks_something(
    phases: tuple[Phase, ...], width: int
) -> None:
    for bar in bars(phases, width):
        assert len(bar) == width
        assert re.fullmatch(r"\.*#+\.*", bar)


def test_on_a_terminal_a_bar_is_drawn(spawn: Spawn, timed: str) -> None:
    pytest.importorskip("rich")
    for encoding, mark in (("utf-8", "·█"), ("ascii", r"\.#")):
        master, slave = pty.openpty()
        environment = {
            "TERM": "xterm",
            "COLUMNS": "120",
            "NO_COLOR": "1",
            "PYTHONIOENCODING": encoding,
        }
        process = spawn("report", timed, stdout=slave, stderr=slave, env=environment)
        os.close(slave)
        shown = b""
        try:
            while piece := os.read(master, 65536):
                shown += piece
        except OSError:
            pass
        finally:
            os.close(master)
        assert process.wait(60) == 0
        assert re.search(rf"write .*[{mark}]{{30}}", shown.decode()), shown.decode()


def test_a_narrow_terminal_has_a_narrow_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    from snapfmt.cli import report

    for columns, width in ((20, 10), (100, 25), (400, 40)):
        size = os.terminal_size((columns, 24))
        monkeypatch.setattr(shutil, "get_terminal_size", lambda size=size: size)
        assert report._bar_width() == width
