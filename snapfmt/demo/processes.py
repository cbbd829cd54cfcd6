"""A child process with everything it starts: run it, hear it, kill all of it."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import snapfmt
import snapfmt_schemas
from snapfmt.errors import ParticipantFailed

_KILL_WAIT_S = 15.0


class Child:
    """One run of `snapfmt.demo.worker`, with a Ray cluster of its own below it."""

    def __init__(self, work: str, config: dict[str, Any], log: Path) -> None:
        self._log_path = log
        self._log = log.open("ab")
        self._process = subprocess.Popen(  # noqa: S603 - our own module, no shell
            [sys.executable, "-m", "snapfmt.demo.worker", work, json.dumps(config)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment(snapfmt, snapfmt_schemas),
            start_new_session=True,
        )

    def events(self) -> Iterator[dict[str, Any]]:
        """What the child tells, until it ends.

        Raises:
            ParticipantFailed: If it ended without having said that it was done.
        """
        stream = self._process.stdout
        if stream is None:
            return
        done = False
        for line in stream:
            if not line.startswith(b'{"event"'):
                continue
            event: dict[str, Any] = json.loads(line)
            if event["event"] == "failed":
                raise ParticipantFailed(event["what"], hint=f"its log is {self._log_path}")
            done = event["event"] in ("ready", "done")
            yield event
        if not done:
            raise ParticipantFailed("the child process ended", hint=f"its log is {self._log_path}")

    def kill(self) -> int:
        """SIGKILL for it and all that it started, by process id; returns how many."""
        killed = kill_tree(self._process)
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._log.close()
        return killed


def kill_tree(process: subprocess.Popen[bytes]) -> int:
    """SIGKILL for a process and all below it, by process id; returns how many."""
    psutil: Any = import_module("psutil")

    victims: list[Any] = []
    try:
        parent = psutil.Process(process.pid)
        # Some below it may have sessions of their own, but they are its descendants.
        victims = [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        pass
    # First it cannot react, then nothing below it can start anything anew.
    for victim in victims:
        try:
            victim.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(victims, timeout=_KILL_WAIT_S)
    process.wait()
    return len(victims)


def environment(*modules: ModuleType) -> dict[str, str]:
    """Ours, with the import paths of these very packages first."""
    paths = [str(Path(str(module.__file__)).parents[1]) for module in modules]
    paths += [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "RAY_USAGE_STATS_ENABLED": "0",
        "TQ_LOGGING_LEVEL": "ERROR",
    }
