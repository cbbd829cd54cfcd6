"""What the front page says is so: the example runs, links lead somewhere, targets exist."""

import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from snapfmt.cli.exitcodes import ExitCode

Run = Callable[..., subprocess.CompletedProcess[str]]
PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "coordinator/README.md")


def text(root: Path, page: str) -> str:
    """Text of a page."""
    return (root / page).read_text("utf-8")


def example(root: Path) -> str:
    """Source of the one example of README.md."""
    (source,) = runpy.run_path(str(root / ".ci/readme.py"))["examples"](text(root, "README.md"))
    return str(source)


def test_the_example_runs(run: Run, root: Path) -> None:
    done = run([sys.executable, str(root / ".ci/readme.py")])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 example(s) ran" in done.stdout


def test_the_example_shows_what_it_prints(run: Run, root: Path, tmp_path: Path) -> None:
    """The comment on the last line is what that line prints."""
    source = example(root)
    promised = source.rstrip().splitlines()[-1].partition("# prints ")[2]
    assert promised
    done = run([sys.executable, "-c", source], cwd=tmp_path)
    assert done.stdout.strip().splitlines()[-1] == promised, done.stdout + done.stderr


def test_the_example_is_ten_lines(root: Path) -> None:
    lines = [line for line in example(root).splitlines() if line.strip()]
    code = [line for line in lines if not line.startswith(("#", "import ", "from "))]
    assert len(code) <= 10


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(root: Path, page: str) -> None:
    here = (root / page).parent
    links = re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", text(root, page))
    assert [link for link in links if not (here / link).exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_make_targets_exist(root: Path, page: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):.*?## ", text(root, "Makefile"), re.MULTILINE))
    assert len(targets) > 10
    named = set(re.findall(r"^make ([a-z-]+)|`make ([a-z-]+)", text(root, page), re.MULTILINE))
    assert {a or b for a, b in named} <= targets


def test_paths_of_the_tree_exist(root: Path) -> None:
    fence = re.compile(r"^```text title=\"tree\"\n(.*?)^```", re.MULTILINE | re.DOTALL)
    (tree,) = fence.findall(text(root, "README.md"))
    paths = [line.split("  ")[0].strip() for line in tree.splitlines() if line.strip()]
    assert len(paths) > 10
    assert [path for path in paths if not (root / path).exists()] == []


def test_the_commands_are_those_of_the_command_line(run: Run, root: Path) -> None:
    table = text(root, "README.md").partition("<!-- commands -->")[2].partition("\n\n")[0]
    named = re.findall(r"^\| `snapfmt ([\w-]+)", table, re.MULTILINE)
    code = "import sys; from snapfmt.cli import main; sys.exit(main())"
    done = run([sys.executable, "-c", code, "--help"], COLUMNS="200")
    assert done.returncode == 0, done.stderr
    # argparse puts the help of a long name on a line of its own.
    list_ = done.stdout.partition("options:")[0]
    listed = re.findall(r"^    ([a-z-]+)(?:  +\S|$)", list_, re.MULTILINE)
    assert sorted(named) == sorted(listed)
    for command in named:
        assert run([sys.executable, "-c", code, command, "--help"]).returncode == 0, command


def test_the_exit_codes_are_those_of_the_command_line(root: Path) -> None:
    named = re.findall(r"^\| (\d+) \|", text(root, "README.md"), re.MULTILINE)
    assert [int(number) for number in named] == [int(code) for code in ExitCode]


def test_make_help_lists_the_targets(run: Run, root: Path) -> None:
    done = run(["make", "help"], cwd=root)
    assert done.returncode == 0
    targets = ("demo", "test", "check", "lint", "types", "contracts", "schemas", "bench-quick")
    for target in targets:
        assert f"make {target} " in done.stdout
