"""Child processes that save, and that are stopped and killed on purpose."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from snapfmt import Repository

Spawn = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """An empty one."""
    return Repository.create(tmp_path / "run")


@pytest.fixture
def fast_path(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one, for tests of hundreds of saves."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """Starts `python -c code args...` with pipes; whatever still runs at the end is killed."""
    started: list[subprocess.Popen[str]] = []

    def run(code: str, *args: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", code, *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()
