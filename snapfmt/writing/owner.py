"""Who runs an attempt, and whether that process is provably dead."""

import contextlib
import os
from pathlib import Path

from snapfmt_schemas.attempt import Owner

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_TIME_SPACE = "time:[4026531834]"
"""The first time namespace of every kernel, in which start times are what they are."""


def current_owner(host: str) -> Owner:
    """This process."""
    return Owner(
        host=host, boot_id=_boot_id(), pid=os.getpid(), pid_started=_started(os.getpid()) or ""
    )


def is_dead(owner: Owner) -> bool:
    """Whether the owner ran under this kernel, in this PID namespace, and is gone.

    In doubt, no: host names and even boot ids of other machines say nothing about a process.
    """
    here, _, _ = (_started(os.getpid()) or "").rpartition(":")
    space, _, _ = owner.pid_started.rpartition(":")
    if not owner.boot_id or owner.boot_id != _boot_id() or not space or space != here:
        return False
    started = _started(owner.pid)
    return _is_gone(owner.pid) if started is None else started != owner.pid_started


def has_this_clock(owner: Owner) -> bool:
    """Whether the owner runs under this kernel, and so by the clock of this process."""
    return bool(owner.boot_id) and owner.boot_id == _boot_id()


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def _started(pid: int) -> str | None:
    """The process's PID namespace and start time, or None when they cannot be read."""
    try:
        space = _space()
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    if not space:
        return None
    # State Z is a process that ended and waits for its parent: it writes no more.
    return f"{space}:{'' if fields[0] == 'Z' else fields[19]}"


def _space() -> str:
    """This PID namespace; empty where /proc does not tell start times that others see as well.

    It may be that of another PID namespace, in which the same numbers are other processes, and
    a time namespace shifts every start time.
    """
    if os.readlink("/proc/self") != str(os.getpid()):
        return ""
    with contextlib.suppress(FileNotFoundError):
        if os.readlink("/proc/self/ns/time") != _TIME_SPACE:
            return ""
    return os.readlink("/proc/self/ns/pid")


def _is_gone(pid: int) -> bool:
    """Whether there is no such process; one may be hidden, or too many files may be open."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except OSError:
        return False
    return False
