"""A small repository made through the API, and ways to run the command on it."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from snapfmt import MISSING, Repository
from snapfmt.cli import main
from snapfmt_schemas.fingerprint import Fingerprint
from snapfmt_schemas.manifest import TrainerAnchor
from snapfmt_schemas.timeline import Phase, PhaseTimeline

BINARY = bytes(range(256)) * 8
LINES = [json.dumps({"key": f"r{n}", "text": "x" * n}).encode() for n in range(20)]
ROWS = 24
TABLE = "rows/train"


def _fill(repository: Repository, *, base: int | None) -> None:
    attempt = repository.begin(base=base)
    part = attempt.part("gym/agent/swe-0")
    part.stage("notes.txt", b"hello\n", media_type="text/plain")
    part.stage("state/blob.bin", BINARY)
    part.records("continuations.jsonl", LINES, key="key")
    with part.table(TABLE) as table:
        table.append(
            keys=[f"k{n}" for n in range(ROWS)],
            columns={
                "ids": [np.arange(n, n + 100, dtype=np.int64) for n in range(ROWS)],
                "logp": [np.full(3, n / 4, np.float32) for n in range(ROWS)],
                "image": [np.zeros((2, 3), np.uint8) for _ in range(ROWS)],
                "note": [f"row {n}" for n in range(ROWS)],
                "raw": [bytes([n]) * 20 for n in range(ROWS)],
                "extra": [{"t": (1, n)} if n % 2 else MISSING for n in range(ROWS)],
            },
        )
    other = attempt.part("tq/unit-0")
    with other.table("rows/mixed") as table:
        table.append(keys=["a", "b"], columns={"value": [np.array([1.5]), "text"], "plain": [1, 2]})
    start = 1_700_000_000_000_000_000
    attempt.publish(
        [part.seal(), other.seal()],
        fingerprints=[Fingerprint.of("topology", {"world": {"size": 8}, "ranks": [0, 1]})],
        anchor=TrainerAnchor(train_step=7, trainer_version=3, epoch=1),
        timeline=PhaseTimeline(
            operation="save",
            phases=(
                Phase(
                    name="hold",
                    actor="gym",
                    started_at_ns=start,
                    ended_at_ns=start + 12_500_000,
                    waited=("trainer",),
                    counts={"rollouts": 4},
                ),
                Phase(name="encode", started_at_ns=start, ended_at_ns=start + 2_000_000_000),
            ),
        ),
        user_metadata={"run": {"name": "night"}, "odd\x1b[31m": "red"},
    )


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with two snapshots, the second on the first."""
    path = tmp_path_factory.mktemp("cli") / "run7"
    repository = Repository.open(path, create=True)
    _fill(repository, base=None)
    _fill(repository, base=1)
    return path


@pytest.fixture
def repo(original: Path, tmp_path: Path) -> str:
    """A copy that a test may damage."""
    return str(shutil.copytree(original, tmp_path / "run7"))


@pytest.fixture
def empty(tmp_path: Path) -> str:
    """A repository in which nothing was published."""
    path = tmp_path / "empty"
    Repository.open(path, create=True)
    return str(path)


class Ran:
    """One run of the command within this process."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err

    @property
    def json(self) -> Any:
        """stdout as one JSON document."""

        def refuse(name: str) -> None:
            raise AssertionError(f"{name} is not JSON")

        return json.loads(self.out, parse_constant=refuse)

    @property
    def lines(self) -> list[Any]:
        """stdout as JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]


Snapfmt = Callable[..., Ran]
Spawn = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def snapfmt(capfdbinary: pytest.CaptureFixture[bytes]) -> Snapfmt:
    """Runs `main` and gives what it printed."""

    def _run(*arguments: str) -> Ran:
        capfdbinary.readouterr()
        code = main(list(arguments))
        out, err = capfdbinary.readouterr()
        return Ran(code, out.decode(), err.decode())

    return _run


@pytest.fixture(scope="session")
def spawn() -> Spawn:
    """Starts the command as a process of its own."""

    def _spawn(*arguments: str, env: dict[str, str] | None = None, **kwargs: Any) -> Any:
        return subprocess.Popen(
            [sys.executable, "-m", "snapfmt", *arguments],
            stdin=subprocess.DEVNULL,
            env=os.environ | (env or {}),
            **kwargs,
        )

    return _spawn


def flip(repository: str, key: str, offset: int) -> None:
    """Invert one byte of a stored file."""
    path = Path(repository, key)
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[offset] ^= 0xFF
    path.write_bytes(data)


@pytest.fixture
def damage(repo: str) -> Callable[..., str]:
    """Flips a byte within an entry, a table or a manifest; gives the repository."""

    def _damage(what: str, number: int = 2) -> str:
        snapshot = Repository.open(repo).snapshot(number)
        part = snapshot.part("gym/agent/swe-0")
        if what == "manifest":
            flip(repo, f"snapshots/{snapshot.name}/manifest.json", 10)
            return repo
        if what == "index":
            name = part.receipt.index_digest
        elif what == "table":
            segment = part.segments(TABLE)[0]
            place = segment.document.data
            # Within the values of a column; the first chunk holds the keys.
            chunk = segment.index.place(0).chunks[1]
            name, offset = place.pack, place.offset + chunk.offset + chunk.size // 2
        else:
            place = part.entry(what).location
            name, offset = place.pack, place.offset
        digits = name.removeprefix("sha256:")
        flip(repo, f"objects/{digits[:2]}/{digits}", 5 if what == "index" else offset)
        return repo

    return _damage


@pytest.fixture(scope="session")
def interrupt_stuck() -> Callable[..., None]:
    """Runs a script until it says that it is stuck, then presses Ctrl-C: it must end."""

    def run(script: str, *arguments: str) -> None:
        process = subprocess.Popen(
            [sys.executable, "-c", script, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            assert process.stderr is not None
            assert process.stderr.readline() == b"stuck\n"
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 130
            assert process.communicate()[1].endswith(b"snapfmt: interrupted\n")
        finally:
            process.kill()
            process.communicate()

    return run
