"""Processes that work on one repository beside each other, and that are killed.

Forked, since starting an interpreter takes longer than a save. Whoever forks must have no
threads and no open repository. Each process tells what it did over one pipe, in lines that are
short enough to arrive whole; it ends when its parent does.
"""

import json
import os
import random
import select
import signal
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from snapfmt.errors import CorruptError, SnapfmtError
from snapfmt.repository import Repository

_LONGEST: Final = select.PIPE_BUF
_KEPT: Final = 1_200
"""Characters of a violation's traceback that are told."""

Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a repository is."""

    location: str
    options: Mapping[str, Any] | None = None
    """`storage_options`, of a bucket."""

    def open(self, *, create: bool = False) -> Repository:
        """The repository, through a store of its own."""
        return Repository.open(self.location, create=create, storage_options=self.options)


@dataclass(slots=True)
class Member:
    """One process, seen from inside."""

    name: str
    random: random.Random
    pipe: int

    def tell(self, kind: str, **facts: Any) -> None:
        """Say what happened; the parent hears it even if this process is killed next."""
        line = (json.dumps({"kind": kind, "who": self.name, **facts}) + "\n").encode()
        assert len(line) <= _LONGEST, "a line that long may be torn"
        os.write(self.pipe, line)


Turn = Callable[[Member], None]


def _play(member: Member, turn: Turn, parent: int) -> None:
    """Take turns for ever; what is no typed error, or says that bytes are wrong, is a violation."""
    while os.getppid() == parent:
        try:
            turn(member)
        except SnapfmtError as error:
            if isinstance(error, CorruptError):
                _violation(member, error)
            else:
                member.tell("error", code=error.code)
        except Exception as error:  # noqa: BLE001 - it is told
            _violation(member, error)


def _violation(member: Member, error: BaseException) -> None:
    shown = "".join(traceback.format_exception(error))
    member.tell("violation", text=f"{type(error).__name__}: {error}"[:300], shown=shown[-_KEPT:])


@dataclass(slots=True)
class Crew:
    """All processes, seen from their parent."""

    seed: int
    running: dict[int, str] = field(default_factory=dict)
    """Name by pid."""
    _pipe: tuple[int, int] = field(default_factory=os.pipe)
    _rest: bytes = b""
    _started: int = 0

    def start(self, name: str, turn: Turn) -> int:
        """A new process that takes turns until it is killed; returns its pid."""
        self._started += 1
        pid = os.fork()
        if pid == 0:
            parent, status = os.getppid(), 1
            try:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                seeded = random.Random(f"{self.seed}/{self._started}")  # noqa: S311 - no secret
                _play(Member(name, seeded, self._pipe[1]), turn, parent)
                status = 0
            finally:
                # Nothing of the parent is cleaned up by its child.
                os._exit(status)
        self.running[pid] = name
        return pid

    def kill(self, pid: int) -> str:
        """End a process where it stands; returns its name."""
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return self.running.pop(pid)

    def kill_all(self) -> int:
        """End all that run; returns how many."""
        pids = list(self.running)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)
        self.running.clear()
        return len(pids)

    def ended(self) -> list[str]:
        """Names of processes that ended by themselves, which none should."""
        pids = [pid for pid in self.running if os.waitpid(pid, os.WNOHANG)[0]]
        return [self.running.pop(pid) for pid in pids]

    def heard(self, seconds: float) -> list[Event]:
        """What was told, waiting so long for something."""
        until = time.monotonic() + seconds
        data = self._rest
        while select.select([self._pipe[0]], [], [], max(0.0, until - time.monotonic()))[0]:
            data += os.read(self._pipe[0], 1 << 20)
            until = 0.0
        *lines, self._rest = data.split(b"\n")
        return [json.loads(line) for line in lines]

    def ask(self, name: str, turn: Turn, *, seconds: float) -> list[Event]:
        """Have a process of its own take one turn, and hear what it tells."""

        begun: list[bool] = []

        def once(member: Member) -> None:
            if begun:
                member.tell("done")
                signal.pause()
            begun.append(True)
            turn(member)

        pid = self.start(name, once)
        told: list[Event] = []
        until = time.monotonic() + seconds
        while not any(item["kind"] == "done" and item["who"] == name for item in told):
            assert time.monotonic() < until, f"{name} took longer than {seconds} s"
            assert not self.ended(), f"{name} ended"
            told += self.heard(1.0)
        self.kill(pid)
        return told
