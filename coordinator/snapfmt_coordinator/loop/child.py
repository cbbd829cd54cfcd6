"""A run in a child process with everything that it starts: hear it, kill all of it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import snapfmt
import snapfmt_coordinator
import snapfmt_schemas
from snapfmt.demo.processes import environment, kill_tree
from snapfmt.errors import DeadlineExceeded, ParticipantFailed
from snapfmt_coordinator.loop.config import LoopConfig
from snapfmt_coordinator.loop.run import Restore
from snapfmt_coordinator.loop.trip import EVENT

WORKER: Final = "snapfmt_coordinator.loop.worker"


class Child:
    """One run of `loop.worker`, with a Ray cluster and Gym servers below it."""

    def __init__(self, config: LoopConfig, *, restore: Restore = "latest") -> None:
        """Starts it; its log lies in the run's home."""
        home = Path(config.home)
        home.mkdir(parents=True, exist_ok=True)
        self.log = home / "worker.log"
        self._log = self.log.open("ab")
        # Our own module, no shell.
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", WORKER, config.model_dump_json(), restore],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment(snapfmt, snapfmt_schemas, snapfmt_coordinator),
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    def events(self) -> Iterator[dict[str, Any]]:
        """What it tells, until its end or until it stops at a step.

        Raises:
            ParticipantFailed: If it failed, or ended without a result.
        """
        stream = self._process.stdout
        for line in stream or ():
            if not line.startswith(b'{"event"'):
                continue
            event: dict[str, Any] = json.loads(line)
            if event["event"] == "failed":
                raise ParticipantFailed(event["what"], hint=f"its log is {self.log}")
            yield event
            if event["event"] in ("done", EVENT):
                return
        raise ParticipantFailed("the run's process ended", hint=f"its log is {self.log}")

    def until(self, event: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The first event of a name, and what came before it.

        Raises:
            ParticipantFailed: If the run ended or stopped without it.
        """
        before: list[dict[str, Any]] = []
        for found in self.events():
            if found["event"] == event:
                return found, before
            before.append(found)
        last = before[-1] if before else None
        raise ParticipantFailed(f"it never said {event!r}", what=str(last)[:200])

    def wait(self, timeout_s: float = 60.0) -> int:
        """Its exit code, once it has taken everything down that it started.

        Raises:
            DeadlineExceeded: If it takes longer.
        """
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise DeadlineExceeded(
                f"the run's process has not ended after {timeout_s} s",
                hint=f"its log is {self.log}",
            ) from None

    @property
    def pid(self) -> int:
        """Of the run's own process."""
        return self._process.pid

    def end(self) -> None:
        """SIGKILL for all of it, from another thread than the one that hears it."""
        kill_tree(self._process)

    def kill(self) -> int:
        """SIGKILL for it and all that it started, by process id; returns how many."""
        killed = kill_tree(self._process)
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._log.close()
        return killed
