"""One way to run a command, for tests that look at the house from outside."""

import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def run() -> Run:
    """Runs a command to its end and returns its exit code, stdout and stderr as text."""

    def _run(
        command: Sequence[str], *, cwd: Path | None = None, **env: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=cwd,
            # What a user's shell may hold must not decide the bytes of a wheel.
            env={k: v for k, v in os.environ.items() if k != "SOURCE_DATE_EPOCH"} | env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            text=True,
            timeout=180,
        )

    return _run
