"""The system calls of a save: recorded, and cut off at any of them.

`SystemCalls` stands between the local backend and the operating system. Once its crash has
happened every later call fails as well, also those of clean-up code: the process counts as dead.
"""

import itertools
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest


class InjectedCrash(BaseException):
    """The process is dead; not an Exception, so that no handler takes it for an error."""


@dataclass(frozen=True, slots=True)
class Call:
    """One system call: its name, and the paths it touched."""

    name: str
    path: str
    target: str = ""


@dataclass(frozen=True, slots=True)
class Effect:
    """One system call that succeeded, with what is needed to carry it out again."""

    name: str
    path: str
    target: str = ""
    handle: int = 0
    """Which opening of a file it went through; 0 for calls by path."""
    data: bytes = b""
    """Bytes that were written."""


CHANGING = ("open", "write", "fsync", "rename", "link", "mkdir", "unlink", "rmdir")
"""Calls after which the disk may look different, or may be more durable."""


@dataclass(slots=True)
class SystemCalls:
    """Records every changing call below a folder; crashes at call number `crash_at`."""

    root: Path
    crash_at: int | None = None
    torn: bool = False
    """A write that is cut off leaves half of its bytes."""
    fail: Callable[[Call], OSError | None] | None = None
    """Gives the error that a call meets, or None."""
    record: list[Effect] | None = None
    """Where every call that succeeded is noted, with its bytes."""
    calls: list[Call] = field(default_factory=list)
    dead: bool = False
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _paths: dict[int, str] = field(default_factory=dict)
    _handles: dict[int, int] = field(default_factory=dict)
    _fresh: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def install(self, patch: pytest.MonkeyPatch) -> "SystemCalls":
        """Stand in for the functions of `os` until the patch is undone."""
        real = {name: getattr(os, name) for name in (*CHANGING, "close")}

        def opened(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            shown = self._shown(path, dir_fd)
            if flags & os.O_TMPFILE == os.O_TMPFILE:
                shown += "/(unnamed)"
            # Only what makes a file changes the disk.
            call = Call("open", shown) if flags & os.O_CREAT else None
            run = partial(real["open"], path, flags, mode, dir_fd=dir_fd)
            handle = next(self._fresh)
            descriptor = int(self._do(call, run, handle))
            self._paths[descriptor] = shown
            self._handles[descriptor] = handle
            return descriptor

        def closed(descriptor: int) -> None:
            self._paths.pop(descriptor, None)
            real["close"](descriptor)

        def by_descriptor(name: str) -> Callable[..., Any]:
            def run(descriptor: int, *args: Any) -> Any:
                call = Call(name, self._paths.get(descriptor, ""))
                if self.torn and name == "write" and self.crash_at == len(self.calls) + 1:
                    real[name](descriptor, args[0][: len(args[0]) // 2])
                handle = self._handles.get(descriptor, 0)
                data = bytes(args[0]) if self.record is not None and args else b""
                return self._do(call, partial(real[name], descriptor, *args), handle, data)

            return run

        def by_path(name: str) -> Callable[..., Any]:
            def run(path: Any, *args: Any, **kwargs: Any) -> Any:
                target = str(args[0]) if args and name in ("rename", "link") else ""
                call = Call(name, self._shown(path, kwargs.get("dir_fd")), target)
                handle = self._handles.get(_descriptor(path) or -1, 0)
                return self._do(call, partial(real[name], path, *args, **kwargs), handle)

            return run

        patch.setattr(os, "open", opened)
        patch.setattr(os, "close", closed)
        for name in ("write", "fsync"):
            patch.setattr(os, name, by_descriptor(name))
        for name in ("rename", "link", "mkdir", "unlink", "rmdir"):
            patch.setattr(os, name, by_path(name))
        return self

    def _shown(self, path: Any, dir_fd: int | None) -> str:
        open_file = _descriptor(path)
        if open_file is not None:
            return self._paths.get(open_file, str(open_file))
        folder = "" if dir_fd is None else self._paths.get(dir_fd, "")
        return os.path.join(folder, os.fspath(path))

    def _do(
        self, call: Call | None, run: Callable[[], Any], handle: int = 0, data: bytes = b""
    ) -> Any:
        if call is None or not self._concerns(call):
            if self.dead:
                raise InjectedCrash
            return run()
        with self._lock:
            if self.dead:
                raise InjectedCrash
            self.calls.append(call)
            if self.crash_at == len(self.calls):
                self.dead = True
                raise InjectedCrash
            if self.fail is not None and (error := self.fail(call)) is not None:
                raise error
            result = run()
            if self.record is not None:
                done = data[:result] if call.name == "write" else b""
                self.record.append(Effect(call.name, call.path, call.target, handle, done))
            return result

    def _concerns(self, call: Call) -> bool:
        return call.path.startswith(str(self.root)) or call.target.startswith(str(self.root))

    def names(self) -> list[str]:
        """Names of the calls, in order."""
        return [call.name for call in self.calls]


def _descriptor(path: Any) -> int | None:
    """The open file that a path names, if it does."""
    name = str(os.fspath(path)).removeprefix("/proc/self/fd/")
    return int(name) if name.isdigit() else None
