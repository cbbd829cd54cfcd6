"""One object while it is written on a POSIX file system (spec/v1/02-storage.md, S-3)."""

import contextlib
import os
import threading
from pathlib import Path

from snapfmt.storage.base import Buffer
from snapfmt.storage.faults import typed, workspace_gone
from snapfmt.storage.posix import fsync_file, sync_data, write_all

JOURNAL = "journal"
BUFFER = 256 * 1024
"""Bytes that are written at once, at least."""
WRITE_BEHIND = 8 * 1024 * 1024
"""Bytes after which a thread syncs what there is, so that little is left to the last fsync."""


class LocalSink:
    """One object while it is written, as a temporary file; implements `storage.base.Sink`."""

    def __init__(self, root: Path, workspace: Path, name: str) -> None:
        self._root = root
        self._workspace = workspace
        self._path = workspace / f"{name}.tmp"
        self._buffer, self._filled = bytearray(BUFFER), 0
        self._size = self._begun = 0
        self._syncing: threading.Thread | None = None
        self._failed: Exception | None = None
        """What an early sync met: the kernel does not tell the last one again."""
        self.held = 0
        self.is_sent = False
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
            self._descriptor = os.open(self._path, flags, 0o644)
        except FileNotFoundError as error:
            raise workspace_gone(workspace.name) from error
        except OSError as error:
            raise typed(error, str(self._path)) from error

    def write(self, data: Buffer) -> None:
        """Append bytes to the temporary file; small ones wait for others."""
        if self._filled + len(data) > len(self._buffer):
            self._flush()
        if len(data) > len(self._buffer):
            self._write(data)
        else:
            self._buffer[self._filled : self._filled + len(data)] = data
            self._filled += len(data)

    def _flush(self) -> None:
        filled, self._filled = self._filled, 0
        self._write(memoryview(self._buffer)[:filled])

    def _write(self, data: Buffer) -> None:
        try:
            write_all(self._descriptor, data)
            self._size += len(data)
            if self._size - self._begun >= WRITE_BEHIND:
                self._begun = self._size
                self._sync_behind()
        except OSError as error:
            raise typed(error, str(self._path)) from error

    def _sync_behind(self) -> None:
        """Have a thread sync what was written, unless one is at it still."""
        if self._syncing is not None and self._syncing.is_alive():
            return
        self._check_synced()
        # A daemon: a disk that is stuck keeps no process from its end.
        thread = threading.Thread(target=self._sync, name="snapfmt-sync-behind", daemon=True)
        # Without a thread the last fsync has more to do.
        with contextlib.suppress(RuntimeError):
            thread.start()
            self._syncing = thread

    def _sync(self) -> None:
        try:
            sync_data(self._descriptor)
        except Exception as error:  # noqa: BLE001 - handed to the writer
            self._failed = error

    def _check_synced(self) -> None:
        if self._failed is not None:
            raise self._failed

    def _wait(self) -> None:
        """Until no thread uses the descriptor."""
        if self._syncing is not None:
            self._syncing.join()

    def finish(self, key: str) -> None:
        """fsync, note the key in the journal, rename to the content's name."""
        target = self._root.joinpath(*key.split("/"))
        self._flush()
        self._wait()
        try:
            self._check_synced()
            fsync_file(self._descriptor)
            self._close()
            target.parent.mkdir(parents=True, exist_ok=True)
            note = self._workspace / JOURNAL / key.replace("/", "=")
            os.close(os.open(note, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
            self._path.rename(target)
        except FileNotFoundError as error:
            raise workspace_gone(self._workspace.name) from error
        except OSError as error:
            raise typed(error, key) from error

    def discard(self) -> None:
        """Close and remove the temporary file."""
        self._wait()
        try:
            try:
                self._close()
            finally:
                self._path.unlink(missing_ok=True)
        except OSError as error:
            raise typed(error, str(self._path)) from error

    def _close(self) -> None:
        """At most once: also where it fails, another file may have the descriptor then."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
