"""The report says what was measured, and of what; nothing else becomes a figure."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

FIGURES = {
    **dict.fromkeys(("states", "cuts", "violations", "distinct", "opened"), 1),
    **dict.fromkeys(("recovered", "operations", "shapes", "seconds"), 2),
}


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The program in a tree of its own, of one commit, with one command."""
    here = tmp_path / "tree" / "tests" / "faults"
    here.mkdir(parents=True)
    (here / "REPORT.md").write_text("# old\n\n<!-- power_loss -->\n## Power loss\n\nOld.\n")
    (here / "power_loss.py").write_text(f"print({json.dumps(FIGURES)!r})\n")
    git(tmp_path / "tree", "init", "-q")
    commit(here)
    path = Path(__file__).with_name("report.py")
    spec = importlib.util.spec_from_file_location("report", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "HERE", here)
    monkeypatch.setattr(module, "ROOT", tmp_path / "tree")
    monkeypatch.setattr(module, "COMMANDS", {"power_loss": ["power_loss.py"]})
    return module


def git(here: Path, *arguments: str) -> str:
    names = ("-c", "user.name=x", "-c", "user.email=x@example.org")
    done = subprocess.run(["git", *names, *arguments], cwd=here, check=True, capture_output=True)
    return done.stdout.decode().strip()


def commit(here: Path) -> str:
    git(here, "add", "-A")
    git(here, "commit", "-q", "--allow-empty", "-m", "x")
    return git(here, "describe", "--always")


def told(
    report: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *arguments: str
) -> tuple[int, str]:
    figures = str(tmp_path / "figures")
    monkeypatch.setattr(sys, "argv", ["report.py", "--figures", figures, *arguments])
    code = report.main()
    return code, (report.ROOT / report.REPORT).read_text()


def test_a_section_is_of_the_tree_that_it_ran_on(
    report: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = git(report.HERE, "describe", "--always")
    code, text = told(report, monkeypatch, tmp_path, "--run")
    assert (code, f"Of commit {first}, " in text) == (0, True)
    # The report itself has changed since, and is no code.
    code, text = told(report, monkeypatch, tmp_path, "--run")
    assert (code, f"Of commit {first}, " in text) == (0, True)
    # Figures that lie there are not of the tree of today.
    second = commit(report.HERE)
    code, text = told(report, monkeypatch, tmp_path)
    assert (code, first in text, second in text) == (0, True, False)


@pytest.mark.parametrize("name", ["power_loss.py", "new.py"])
def test_changes_are_told(
    report: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    with (report.HERE / name).open("a") as file:
        file.write("# changed\n")
    code, text = told(report, monkeypatch, tmp_path, "--run")
    assert (code, "with changes, " in text) == (0, True)


def test_changes_meanwhile_are_told(
    report: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = report.HERE / "power_loss.py"
    text = program.read_text()
    program.write_text(text + "open(__file__, 'a').write('# more')\n")
    commit(report.HERE)
    code, text = told(report, monkeypatch, tmp_path, "--run")
    assert (code, "while it ran, " in text) == (0, True)


@pytest.mark.parametrize(
    "program",
    [
        "raise SystemExit(2)\n",
        "print('{')\n",
        "import os\nos.kill(os.getpid(), 9)\n",
        "print('{}')\n",
    ],
)
def test_a_command_that_dies_changes_nothing_and_is_told(
    report: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    program: str,
) -> None:
    before = (report.ROOT / report.REPORT).read_text()
    (report.HERE / "power_loss.py").write_text(program)
    assert told(report, monkeypatch, tmp_path, "--run") == (1, before)
    assert "figures" in capsys.readouterr().err
