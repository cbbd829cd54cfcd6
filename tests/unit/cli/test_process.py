"""The command as a process: signals, closed pipes, full disks, terminals, what it loads."""

import errno
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from snapfmt import Repository

Spawn = Callable[..., "subprocess.Popen[bytes]"]
PIPE = subprocess.PIPE
TIMEOUT = 300


def finish(process: "subprocess.Popen[bytes]") -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    out, err = process.communicate(timeout=TIMEOUT)
    return process.returncode, (out or b"").decode(), (err or b"").decode()


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A repository with an entry that no pipe swallows whole."""
    repository = Repository.open(tmp_path_factory.mktemp("large") / "r", create=True)
    attempt = repository.begin()
    part = attempt.part("p")
    part.stage("blob", os.urandom(8 << 20))
    part.records("lines.jsonl", [b'{"v":"%064d"}' % number for number in range(50_000)])
    with part.table("t") as table:
        table.append(keys=[f"k{n}" for n in range(20_000)], columns={"n": ["x" * 50] * 20_000})
    attempt.publish([part.seal()])
    return repository.location


def test_it_runs_as_a_module(spawn: Spawn, repo: str) -> None:
    code, out, err = finish(spawn("ls", repo, stdout=PIPE, stderr=PIPE))
    assert (code, err) == (0, "")
    assert out.startswith("NUMBER")
    done = subprocess.run(
        [sys.executable, "-m", "snapfmt.cli", "version"], capture_output=True, check=True
    )
    assert done.stdout.startswith(b"  snapfmt")


def test_exit_codes_reach_the_shell(spawn: Spawn, damage: Callable[..., str]) -> None:
    repo = damage("table")
    assert finish(spawn("verify", repo, stdout=PIPE, stderr=PIPE))[0] == 3
    assert finish(spawn("show", repo, "9", stdout=PIPE, stderr=PIPE))[0] == 4
    assert finish(spawn("show", stdout=PIPE, stderr=PIPE))[0] == 2


@pytest.mark.parametrize("arguments", [["cat", "{}", "1", "p/blob"], ["rows", "{}", "1", "t"]])
def test_an_interrupt_ends_with_130(spawn: Spawn, large: str, arguments: list[str]) -> None:
    filled = [item.format(large) for item in arguments]
    if filled[0] == "rows":
        filled += ["--limit", "0", "--json"]
    process = spawn(*filled, stdout=PIPE, stderr=PIPE)
    assert process.stdout is not None
    # The first byte says that it runs; it cannot end, because nobody empties the pipe.
    assert process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    assert process.wait(TIMEOUT) == 130
    assert process.communicate(timeout=TIMEOUT)[1] == b"snapfmt: interrupted\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["cat", "{}", "1", "p/blob"],
        ["cat", "{}", "1", "p/lines.jsonl"],
        ["rows", "{}", "1", "t", "--limit", "0"],
        ["rows", "{}", "1", "t", "--limit", "0", "--json"],
        ["cat", "{}", "1", "p/lines.jsonl", "--json"],
    ],
    ids=" ".join,
)
def test_a_reader_that_goes_away_is_no_failure(
    spawn: Spawn, large: str, arguments: list[str]
) -> None:
    filled = [item.format(large) for item in arguments]
    process = spawn(*filled, stdout=PIPE, stderr=PIPE)
    assert process.stdout is not None
    assert process.stdout.read(10)
    process.stdout.close()
    assert process.stderr is not None
    err = process.stderr.read().decode()
    process.stderr.close()
    assert process.wait(TIMEOUT) == 0
    assert err == ""


@pytest.mark.parametrize("arguments", [["ls"], ["verify"], ["ls", "--json"], ["--help"]])
def test_a_pipe_that_nobody_reads(spawn: Spawn, repo: str, arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    wanted = arguments if arguments == ["--help"] else [arguments[0], repo, *arguments[1:]]
    process = spawn(*wanted, stdout=writer, stderr=PIPE)
    os.close(writer)
    assert finish(process) == (0, "", "")


def test_a_closed_pipe_does_not_hide_damage(spawn: Spawn, damage: Callable[..., str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    process = spawn("verify", damage("table"), stdout=writer, stderr=PIPE)
    os.close(writer)
    assert finish(process) == (3, "", "")


def test_a_closed_stdout(repo: str) -> None:
    command = f'exec "{sys.executable}" -m snapfmt ls "{repo}" >&-'
    done = subprocess.run(["sh", "-c", command], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_is_a_failure(spawn: Spawn, repo: str) -> None:
    with open("/dev/full", "wb") as full:
        code, _, err = finish(spawn("ls", repo, stdout=full, stderr=PIPE))
    assert code == 1
    assert os.strerror(errno.ENOSPC) in err
    assert "Traceback" not in err


def on_terminal(spawn: Spawn, *arguments: str, **env: str) -> tuple[int, str]:
    """Exit code, and what a terminal that is stdout and stderr gets to see."""
    master, slave = pty.openpty()
    environment = {"TERM": "xterm", "COLUMNS": "160", **env}
    process = spawn(*arguments, stdout=slave, stderr=slave, env=environment)
    os.close(slave)
    shown = b""
    try:
        while piece := os.read(master, 65536):
            shown += piece
    except OSError as error:
        # Linux reports the end of a terminal this way.
        if error.errno != errno.EIO:
            raise
    finally:
        os.close(master)
    return process.wait(TIMEOUT), shown.decode()


def test_on_a_terminal_tables_are_drawn(spawn: Spawn, repo: str) -> None:
    pytest.importorskip("rich")
    code, shown = on_terminal(spawn, "ls", repo, NO_COLOR="")
    assert code == 0
    assert "\x1b[1m" in shown
    assert "───" in shown
    assert re.search(r"\d{4}-\d\d-\d\dT\S+Z \(\d+ (s|min|h|d)\)", shown)


def test_no_color_is_respected(spawn: Spawn, repo: str) -> None:
    for command in ("ls", "show"):
        code, shown = on_terminal(spawn, command, repo, NO_COLOR="1")
        assert code == 0
        assert "\x1b" not in shown


def test_progress_is_for_terminals(spawn: Spawn, large: str) -> None:
    pytest.importorskip("rich")
    code, shown = on_terminal(spawn, "verify", large)
    assert code == 0
    assert "verifying" in shown
    code, out, err = finish(spawn("verify", large, stdout=PIPE, stderr=PIPE))
    assert (code, err) == (0, "")
    assert "\x1b" not in out


def test_without_rich_everything_still_works(large: str) -> None:
    code = (
        "import sys; sys.modules['rich'] = None\n"
        "import importlib.util as u; real = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'rich' else real(name, *a)\n"
        "from snapfmt.cli import main; sys.exit(main(sys.argv[1:]))"
    )

    def spawn(*arguments: str, env: dict[str, str], **kwargs: Any) -> Any:
        command = [sys.executable, "-c", code, *arguments]
        return subprocess.Popen(command, env=os.environ | env, **kwargs)

    for arguments in (["ls", large], ["show", large]):
        status, shown = on_terminal(spawn, *arguments)
        assert status == 0
        assert "\x1b" not in shown
        assert "1" in shown
    status, shown = on_terminal(spawn, "verify", large)
    assert status == 0
    assert "\rverifying " in shown
    assert "result     good" in shown


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["rows", "--help"], ["version"]])
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom snapfmt.cli import main\n"
        f"code = main({arguments!r})\n"
        "print(code, *sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True, timeout=TIMEOUT
    )
    status, *loaded = done.stderr.split()
    assert status == "0"
    assert "snapfmt.cli.rows" in loaded
    assert not {"pyarrow", "torch", "numpy", "pydantic", "ray", "rich", "zstandard"} & set(loaded)


def test_looking_at_rows_needs_no_torch(repo: str) -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from snapfmt.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    for arguments in (["rows", repo, "1", "rows/train"], ["show", repo], ["verify", repo]):
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr
