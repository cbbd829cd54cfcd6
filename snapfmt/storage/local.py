"""A POSIX file system: temporary file, fsync, rename, directory fsync (spec/v1/02-storage.md).

Holds at any time, also after a crash or a power cut:
  * a file under its final name is whole: it was fsynced before the rename;
  * a snapshot's folder holds a whole manifest: file and folder were fsynced before the rename;
  * whatever a workspace held is reachable only through that workspace.
"""

import contextlib
import errno
import os
import secrets
import shutil
import stat
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from snapfmt.errors import (
    ConflictError,
    LimitExceeded,
    MissingObject,
    OutcomeUnknownError,
    StoreNotFound,
    UnsupportedFilesystem,
)
from snapfmt.storage.base import CLOSED, PUBLISHED, Buffer, Store, check_key, may_be_closed
from snapfmt.storage.faults import truncated, typed, workspace_gone
from snapfmt.storage.local_sink import JOURNAL, LocalSink
from snapfmt.storage.posix import (
    NOT_A_FILE,
    create_unnamed,
    fsync_directory,
    fsync_file,
    holders,
    names_beneath,
    not_folders,
    open_beneath,
    probe,
    size_beneath,
    write_all,
)

_FENCED = ".fenced"


class LocalStore:
    """Objects and documents as files below one folder; implements `storage.base.Store`."""

    at_once: Final = 1
    """A thread takes longer to start than a small file to read."""

    def __init__(self, root: Path, *, create: bool = False) -> None:
        """With `create`, `prepare` makes a folder that is missing."""
        self._root = Path(root)
        self._create = create
        self._capabilities: dict[str, bool] | None = None
        try:
            if not self._root.is_dir() and (self._root.exists() or not create):
                there = self._root.exists()
                text = "a file stands where a folder must be" if there else "no such folder"
                raise StoreNotFound(text, what=str(root), hint="check the path")
        except OSError as error:
            raise typed(error, str(root)) from error

    @property
    def location(self) -> str:
        """Absolute path of the root."""
        return str(self._root.absolute())

    def parents(self) -> list[Store]:
        """All folders up to the root of the file system, links resolved."""
        above = Path(os.path.realpath(self._root)).parents
        return [LocalStore(parent) for parent in above if parent.is_dir()]

    @property
    def capabilities(self) -> dict[str, bool]:
        """What the last `prepare` found."""
        return dict(self._capabilities or {})

    @property
    def max_object(self) -> int:
        """No bound of its own."""
        return sys.maxsize

    @property
    def read_size(self) -> int:
        """None: the kernel reads ahead."""
        return 0

    def prepare(self) -> None:
        """Probe the file system for what a safe publication needs; before the first write.

        Raises:
            UnsupportedFilesystem: If it lacks something.
            StorageError: If it cannot be written.
        """
        if self._capabilities is not None:
            return
        try:
            if self._create:
                self._root.mkdir(parents=True, exist_ok=True)
            found = probe(self._root)
        except (FileExistsError, NotADirectoryError) as error:
            raise StoreNotFound(
                "a file stands where a folder must be", what=str(self._root)
            ) from error
        except OSError as error:
            raise typed(error, str(self._root)) from error
        lacking = [name for name in ("exclusive_rename", "hard_link") if not found[name]]
        if lacking:
            raise UnsupportedFilesystem(
                f"the file system lacks {', '.join(lacking)}",
                what=str(self._root),
                hint="use a local, NFS or Lustre folder; object stores have their own backend",
            )
        self._capabilities = found

    def get(self, key: str, *, limit: int) -> bytes:
        """The whole file."""
        with self._reading(key) as descriptor:
            size = os.fstat(descriptor).st_size
            if size > limit:
                raise LimitExceeded(f"object of {size} bytes, limit {limit}", what=key)
            return _read(descriptor, 0, size, key)

    def get_range(self, key: str, offset: int, size: int) -> bytes:
        """Exactly these bytes of the file."""
        with self._reading(key) as descriptor:
            # The size is checked first, so that a lie about it never becomes an allocation.
            if offset + size > os.fstat(descriptor).st_size:
                raise truncated(key, offset + size, os.fstat(descriptor).st_size)
            return _read(descriptor, offset, size, key)

    def size(self, key: str) -> int | None:
        """Size of the regular file, or None."""
        self._path(key)
        size = self._size(key)
        return None if size is None or self._is_closed(key, size) else size

    def _size(self, key: str) -> int | None:
        try:
            return size_beneath(self._root, key)
        except OSError as error:
            raise typed(error, key) from error

    def walk(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Every regular file below a folder, in order; links are listed and never followed."""
        for name in self.names(prefix):
            key = f"{prefix}/{name}" if prefix else name
            try:
                status = os.lstat(self._path(key))
            except FileNotFoundError:
                continue
            except OSError as error:
                raise typed(error, key) from error
            if stat.S_ISDIR(status.st_mode):
                yield from self.walk(key)
            elif not (stat.S_ISREG(status.st_mode) and self._is_closed(key, status.st_size)):
                yield key, status.st_size

    def names(self, prefix: str) -> list[str]:
        """Names directly under a folder; none through a link."""
        found = self._listed(names_beneath, prefix)
        if PUBLISHED in found and prefix:
            key = f"{prefix}/{PUBLISHED}"
            size = self._size(key)
            if size is not None and self._is_closed(key, size):
                found.remove(PUBLISHED)
        return found

    def _listed(self, look: Callable[[Path, Sequence[str]], list[str]], prefix: str) -> list[str]:
        try:
            return look(self._root, check_key(prefix) if prefix else ())
        except OSError as error:
            raise typed(error, prefix) from error

    def not_folders(self, prefix: str) -> list[str]:
        """Files, links and whatever else."""
        return self._listed(not_folders, prefix)

    def holding(self, prefix: str, name: str) -> list[str]:
        """By a look at each, without opening any."""
        try:
            found = sorted(holders(self._root, prefix, name))
        except OSError as error:
            raise typed(error, prefix) from error
        return [at for at, size in found if not self._is_closed(f"{prefix}/{at}/{name}", size)]

    def folders(self, prefix: str, *, but: Collection[str] = ()) -> dict[str, frozenset[str]]:
        """One after the other."""
        inner = [name for name in self.names(prefix) if name not in but]
        return {name: frozenset(self.names(f"{prefix}/{name}")) for name in inner}

    def _is_closed(self, key: str, size: int) -> bool:
        """Looks into it, since a file may have been cut to any size."""
        if not may_be_closed(key, size):
            return False
        try:
            descriptor = open_beneath(self._root, key)
        except OSError as error:
            if error.errno in NOT_A_FILE:
                return False
            raise typed(error, key) from error
        try:
            return _says_closed(descriptor, key, size)
        finally:
            os.close(descriptor)

    def create(self, key: str, data: Buffer) -> None:
        """Write a document unless it exists: a hard link from a finished file without a name."""
        self._document(key, data, exclusive=True)

    def replace(self, key: str, data: Buffer) -> None:
        """Write a document over an older one."""
        self._document(key, data, exclusive=False)

    def _document(self, key: str, data: Buffer, *, exclusive: bool) -> None:
        target = self._path(key)
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
        try:
            target.parent.mkdir(exist_ok=True)
            if not exclusive or not create_unnamed(target, data):
                try:
                    _write_file(temporary, data)
                    if exclusive:
                        os.link(temporary, target)
                    else:
                        temporary.rename(target)
                finally:
                    temporary.unlink(missing_ok=True)
            fsync_directory(target.parent)
            fsync_directory(target.parent.parent)
        except FileExistsError as error:
            raise ConflictError("exists already", what=key) from error
        except OSError as error:
            raise typed(error, key) from error

    def delete(self, key: str) -> None:
        """Remove a file if it is there."""
        try:
            self._path(key).unlink(missing_ok=True)
        except OSError as error:
            raise typed(error, key) from error

    def open_workspace(self, key: str, *, publishes: str) -> None:
        """Make the folder of one attempt; a fence moves it, so nothing else need be known."""
        path = self._path(key)
        try:
            path.parent.mkdir(exist_ok=True)
            path.mkdir()
            (path / JOURNAL).mkdir()
        except FileExistsError as error:
            raise ConflictError("exists already", what=key) from error
        except OSError as error:
            raise typed(error, key) from error

    def has_workspace(self, key: str) -> bool:
        """Whether the folder is there."""
        try:
            return self._path(key).is_dir()
        except OSError as error:
            raise typed(error, key) from error

    def fence_workspace(self, key: str, *, by_owner: bool = False) -> bool:
        """Rename the folder: every later open, rename or publication through it fails."""
        path = self._path(key)
        try:
            path.rename(path.with_name(path.name + _FENCED))
            fsync_directory(path.parent)
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                return False
            raise typed(error, key) from error
        return True

    def drop_workspace(self, key: str) -> None:
        """Remove the folder, fenced or not."""
        path = self._path(key)
        for folder in (path, path.with_name(path.name + _FENCED)):
            try:
                if folder.is_symlink() or folder.is_file():
                    folder.unlink()
                else:
                    shutil.rmtree(folder)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise typed(error, key) from error

    def journal(self, key: str) -> list[str]:
        """Keys of the objects finished through this workspace."""
        folders = (f"{key}/{JOURNAL}", f"{key}{_FENCED}/{JOURNAL}")
        return sorted({name.replace("=", "/") for at in folders for name in self.names(at)})

    def sink(self, workspace: str, name: str) -> LocalSink:
        """A temporary file in the workspace."""
        return LocalSink(self._root, self._path(workspace), name)

    def sync(self, keys: Iterable[str]) -> None:
        """fsync the folders of these keys and their parents, once each."""
        folders = {self._path(key).parent for key in keys}
        try:
            for folder in sorted(folders | {folder.parent for folder in folders}):
                fsync_directory(folder)
        except OSError as error:
            raise typed(error, self.location) from error

    def publish(self, workspace: str, folder: str, name: str, data: Buffer) -> None:
        """Stage the folder inside the workspace, make it durable, rename it into place."""
        target = self._path(folder)
        staged = self._path(workspace) / target.name
        try:
            target.parent.mkdir(exist_ok=True)
            staged.mkdir()
            _write_file(staged / name, data)
            fsync_directory(staged)
            # The entry of the parent itself, should this be the first snapshot ever.
            fsync_directory(self._root)
        except FileNotFoundError as error:
            raise workspace_gone(workspace) from error
        except OSError as error:
            shutil.rmtree(staged, ignore_errors=True)
            raise typed(error, folder) from error
        try:
            staged.rename(target)
        except FileNotFoundError as error:
            raise workspace_gone(workspace) from error
        except OSError as error:
            shutil.rmtree(staged, ignore_errors=True)
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise ConflictError("exists already", what=folder) from error
            raise typed(error, folder) from error
        try:
            fsync_directory(target.parent)
        except OSError as error:
            raise OutcomeUnknownError(
                f"renamed into place, but the folder could not be synced: {error.strerror}",
                what=folder,
                hint="look again after the file system is well; nothing was deleted",
            ) from error

    def unpublish(self, folder: str, name: str, kept_as: str) -> None:
        """Rename the file within its folder, and make that durable."""
        path = self._path(folder)
        try:
            (path / name).rename(path / kept_as)
            fsync_directory(path)
        except OSError as error:
            raise typed(error, f"{folder}/{name}") from error

    def _path(self, key: str) -> Path:
        return self._root.joinpath(*check_key(key))

    @contextlib.contextmanager
    def _reading(self, key: str) -> Iterator[int]:
        self._path(key)
        try:
            descriptor = open_beneath(self._root, key)
        except OSError as error:
            raise typed(error, key) from error
        try:
            if _says_closed(descriptor, key, os.fstat(descriptor).st_size):
                raise MissingObject("not there", what=key)
            yield descriptor
        finally:
            os.close(descriptor)


def _says_closed(descriptor: int, key: str, size: int) -> bool:
    return may_be_closed(key, size) and _read(descriptor, 0, size, key) == CLOSED


def _write_file(path: Path, data: Buffer) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o644)
    try:
        write_all(descriptor, data)
        fsync_file(descriptor)
    finally:
        os.close(descriptor)


def _read(descriptor: int, offset: int, size: int, key: str) -> bytes:
    try:
        first = os.pread(descriptor, size, offset)
        if len(first) == size:
            return first
        pieces = [first]
        while (done := sum(map(len, pieces))) < size:
            piece = os.pread(descriptor, size - done, offset + done)
            if not piece:
                raise truncated(key, offset + size, offset + done)
            pieces.append(piece)
    except OSError as error:
        raise typed(error, key) from error
    return b"".join(pieces)
