"""Commands of other packages: found by entry point, loaded only when they are called."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from snapfmt import cli
from snapfmt.cli import plugins

Snapfmt = Callable[..., Any]
Install = Callable[..., Path]

GOOD = """
import argparse
from dataclasses import dataclass
from snapfmt.cli.command import Command
from snapfmt.cli.output import Lines, Result

@dataclass(frozen=True)
class Options:
    word: str
    loud: bool

def configure(parser):
    parser.add_argument("word")
    parser.add_argument("--loud", action="store_true")

def run(options, console):
    word = options.word.upper() if options.loud else options.word
    if word == "fail":
        raise RuntimeError("it fails")
    return Result({"ok": True, "word": word}, [Lines([f"said {word}"])])

COMMAND = Command("greet", "says a word", Options, configure, run)
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Lays a package on the path: its module, and the metadata that names the command."""
    modules = set(sys.modules)

    def run(
        source: str = GOOD,
        *,
        name: str = "greet",
        package: str = "greeter",
        value: str | None = None,
    ) -> Path:
        folder = tmp_path / package
        folder.mkdir()
        module = f"{package}_command"
        (folder / f"{module}.py").write_text(source)
        info = folder / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        entry = f"[snapfmt.commands]\n{name} = {value or module}\n"
        (info / "entry_points.txt").write_text(entry)
        monkeypatch.syspath_prepend(folder)
        return folder

    yield run
    for name in sys.modules.keys() - modules:
        if name.endswith("_command"):
            del sys.modules[name]


def test_it_runs_like_one_of_our_own(snapfmt: Snapfmt, install: Install) -> None:
    install()
    ran = snapfmt("greet", "hello")
    assert (ran.code, ran.out, ran.err) == (0, "said hello\n", "")
    assert snapfmt("greet", "hello", "--loud", "--json").json == {"ok": True, "word": "HELLO"}
    assert snapfmt("--json", "greet", "hello").json["word"] == "hello"
    told = snapfmt("greet", "--help")
    assert told.code == 0
    assert "says a word" in told.out
    assert "--loud" in told.out
    assert "exit codes:" in told.out


def test_its_errors_are_told_like_ours(snapfmt: Snapfmt, install: Install) -> None:
    install()
    ran = snapfmt("greet", "fail")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == "snapfmt: RuntimeError: it fails (--debug shows where)\n"
    assert snapfmt("greet").code == 2


def test_help_lists_it_after_ours_and_loads_nothing(snapfmt: Snapfmt, install: Install) -> None:
    install("raise RuntimeError('loaded')")
    for arguments in (["--help"], ["-h"], ["--json", "--help"], ["--help", "greet"]):
        ran = snapfmt(*arguments)
        assert (ran.code, ran.err) == (0, "")
        lines = [line.split() for line in ran.out.splitlines()]
        assert ["greet", "from", "the", "package", "greeter"] in lines
        names = [line[0] for line in lines if line]
        assert names.index("greet") > names.index("version")
    assert "greeter_command" not in sys.modules


def test_a_wrong_command_is_told_the_names(snapfmt: Snapfmt, install: Install) -> None:
    install("raise RuntimeError('loaded')")
    ran = snapfmt("great")
    assert ran.code == 2
    assert "greet" in ran.err
    assert "loaded" not in ran.err


BROKEN = {
    "raise RuntimeError('no luck')": "cannot be loaded: RuntimeError: no luck",
    "import package_that_is_not_there": "cannot be loaded: ModuleNotFoundError: No module named",
    "raise SystemExit(0)": "cannot be loaded: SystemExit: 0",
    "1 +": "cannot be loaded: SyntaxError: ",
    "": "has no COMMAND of that name",
    "COMMAND = 'greet'": "has no COMMAND of that name",
    GOOD.replace('"greet"', '"other"'): "has no COMMAND of that name",
    GOOD.replace('"--loud"', '"--json"'): "cannot be loaded: ArgumentError: ",
    GOOD.replace("add_argument(", "no_such_method("): "cannot be loaded: AttributeError: ",
}


@pytest.mark.parametrize("number", range(len(BROKEN)))
def test_a_broken_one_says_so_and_harms_no_other(
    snapfmt: Snapfmt, install: Install, repo: str, number: int
) -> None:
    source, message = list(BROKEN.items())[number]
    package = f"broken{number}"
    install(source, package=package)
    ran = snapfmt("greet", "hello")
    assert (ran.code, ran.out) == (1, "")
    start = f"snapfmt: Plugin: the command 'greet' of the package {package} ({package}_command) "
    assert ran.err.startswith(start + message)
    assert ran.err.count("\n") == 1
    told = snapfmt("greet", "--json")
    assert told.code == 1
    assert told.json["error"]["code"] == "Plugin"
    assert "Traceback" in snapfmt("greet", "--debug").err
    assert snapfmt("ls", repo).code == 0
    assert "greet" in snapfmt("--help").out


def test_a_module_that_is_not_there(snapfmt: Snapfmt, install: Install) -> None:
    install(value="greeter_of_another_name")
    ran = snapfmt("greet")
    assert ran.code == 1
    assert "No module named 'greeter_of_another_name'" in ran.err


def test_two_packages_with_one_name(snapfmt: Snapfmt, install: Install) -> None:
    install(package="first")
    install(package="second")
    assert "from the package first, second" in snapfmt("--help").out
    ran = snapfmt("greet", "x")
    assert ran.code == 1
    assert ran.err == ("snapfmt: Plugin: 'greet' is a command of several packages: first, second\n")


def test_ours_cannot_be_taken(snapfmt: Snapfmt, install: Install, repo: str) -> None:
    install("raise RuntimeError('loaded')", name="ls")
    assert snapfmt("ls", repo).code == 0
    assert snapfmt("--help").out.count("\n    ls ") == 1


@pytest.mark.parametrize("name", ["--json", "Greet", "two words", "é"])
def test_a_name_that_nobody_can_type_is_no_command(
    snapfmt: Snapfmt, install: Install, name: str
) -> None:
    install(name=name)
    assert "greeter" not in snapfmt("--help").out


def test_what_cannot_be_listed_harms_no_command_of_ours(
    snapfmt: Snapfmt, monkeypatch: pytest.MonkeyPatch, repo: str
) -> None:
    def broken(**_: str) -> None:
        raise ValueError("metadata of a package is damaged")

    monkeypatch.setattr(metadata, "entry_points", broken)
    ran = snapfmt("--help")
    assert ran.code == 0
    assert "verify" in ran.out
    assert "commands of other packages cannot be listed: ValueError: metadata" in ran.err
    assert snapfmt("ls", repo).code == 0
    assert snapfmt("greet").code == 1


def test_our_commands_look_at_no_other_package(
    snapfmt: Snapfmt, monkeypatch: pytest.MonkeyPatch, repo: str
) -> None:
    def found(_: object) -> None:
        raise AssertionError("looked")

    monkeypatch.setattr(plugins, "find", found)
    for command in cli.COMMANDS:
        assert snapfmt(command.name, "--help").code == 0
    assert snapfmt("ls", repo).code == 0
    assert snapfmt("--version").code == 0
    assert snapfmt("--json", "show", repo).code == 0
    assert snapfmt().code == 2
    assert "looked" in snapfmt("greet").err


def test_in_a_process_of_its_own(install: Install, repo: str) -> None:
    """Also: the module is not loaded for a command of ours."""
    folder = install("import sys; print('loaded', file=sys.stderr)" + GOOD)
    run = f"import sys; sys.path.insert(0, {str(folder)!r})\nfrom snapfmt.cli import main\n"
    for arguments, out, err in (
        (["greet", "hello"], "said hello\n", "loaded\n"),
        (["attempts", repo], "no unfinished attempts\n", ""),
    ):
        done = subprocess.run(
            [sys.executable, "-c", f"{run}sys.exit(main({arguments!r}))"],
            capture_output=True,
            check=False,
            text=True,
            timeout=120,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, out, err)
