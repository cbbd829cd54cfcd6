"""The system calls that durability rests on, each in one place, and the probe of them."""

import contextlib
import errno
import os
import shutil
import stat
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from snapfmt.storage.base import Buffer
from snapfmt.storage.probes import left_behind, probe_name

_NO_DIRECTORY_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP})
"""What file systems answer that keep directory entries durable by themselves, or cannot."""

NOT_A_FILE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
"""How a look beneath a folder says that no regular file is at a path, or a link is on the way."""

_TROUBLE = frozenset(
    {
        *(errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.ESTALE),
        *(errno.EMFILE, errno.ENFILE, errno.ENOMEM),
    }
)


def write_all(descriptor: int, data: Buffer) -> None:
    """Write every byte, however many calls it takes."""
    view = memoryview(data).cast("B")
    while view:
        view = view[os.write(descriptor, view) :]


def fsync_file(descriptor: int) -> None:
    """Make a file's bytes and size durable."""
    os.fsync(descriptor)


def sync_data(descriptor: int) -> None:
    """Make durable what a file has so far; who asks has to keep the error for the fsync later."""
    getattr(os, "fdatasync", os.fsync)(descriptor)


def fsync_directory(path: Path) -> None:
    """Make a folder's entries durable; tolerates, with a warning, that it is not supported."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_DIRECTORY_SYNC:
            raise
        warnings.warn(
            f"this file system cannot sync a directory: {path}", RuntimeWarning, stacklevel=2
        )
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _folder_beneath(root: Path, folders: Sequence[str]) -> Iterator[int]:
    """A descriptor of a folder below `root`; no step of the path may be a link."""
    current = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for folder in folders:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            following = os.open(folder, flags, dir_fd=current)
            os.close(current)
            current = following
        yield current
    finally:
        os.close(current)


def size_beneath(root: Path, key: str) -> int | None:
    """Size of a regular file below `root`, or None; no step of the path may be a link."""
    *folders, name = key.split("/")
    try:
        with _folder_beneath(root, folders) as folder:
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        if error.errno in NOT_A_FILE:
            return None
        raise
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def names_beneath(root: Path, folders: Sequence[str]) -> list[str]:
    """Names in a folder below `root`, in order; empty where no step of the path is one."""
    try:
        with _folder_beneath(root, folders) as folder:
            return sorted(os.listdir(folder))
    except OSError as error:
        if error.errno in NOT_A_FILE:
            return []
        raise


def not_folders(root: Path, folders: Sequence[str]) -> list[str]:
    """Names in a folder below `root` of what is no folder, in order; a link never is one."""
    try:
        with _folder_beneath(root, folders) as folder, os.scandir(folder) as entries:
            return sorted(item.name for item in entries if not item.is_dir(follow_symlinks=False))
    except OSError as error:
        if error.errno in NOT_A_FILE:
            return []
        raise


def holders(root: Path, prefix: str, name: str) -> Iterator[tuple[str, int]]:
    """Folders directly below one that hold a regular file of a name, and its size; no links.

    One that cannot be looked into may hold it: its size is -1 then.
    """
    try:
        with _folder_beneath(root, prefix.split("/")) as above, os.scandir(above) as entries:
            for entry in entries:
                if not entry.is_dir(follow_symlinks=False):
                    continue
                try:
                    status = os.stat(f"{entry.name}/{name}", dir_fd=above, follow_symlinks=False)
                except OSError as error:
                    if error.errno not in NOT_A_FILE:
                        yield entry.name, -1
                    continue
                if stat.S_ISREG(status.st_mode):
                    yield entry.name, status.st_size
    except OSError as error:
        if error.errno not in NOT_A_FILE:
            raise


def create_unnamed(target: Path, data: Buffer) -> bool:
    """Create a file through one that has no name yet, so that a crash leaves nothing behind.

    Returns False, with nothing done, where the file system has no such files.

    Raises:
        FileExistsError: If the target exists.
    """
    if not hasattr(os, "O_TMPFILE"):
        return False
    try:
        descriptor = os.open(target.parent, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o644)
    except OSError as error:
        if error.errno in (*_NO_DIRECTORY_SYNC, errno.EISDIR, errno.ENOENT):
            return False
        raise
    try:
        write_all(descriptor, data)
        fsync_file(descriptor)
        # With a directory the call follows the link in /proc to the file itself.
        os.link(f"/proc/self/fd/{descriptor}", target, src_dir_fd=descriptor, follow_symlinks=True)
    except FileNotFoundError:
        return False
    finally:
        os.close(descriptor)
    return True


def open_beneath(root: Path, key: str) -> int:
    """Open a regular file below `root` for reading; no step of the path may be a link."""
    *folders, name = key.split("/")
    with _folder_beneath(root, folders) as folder:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(name, flags, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.ENOENT, "not a regular file", key)
    return descriptor


def probe(root: Path) -> dict[str, bool]:
    """What the file system below `root` really does.

    `exclusive_rename`: renaming a folder onto one that holds a file fails. `hard_link`: a link to
    a name that exists fails. `directory_fsync`: a directory can be synced.
    """
    folder = root / probe_name()
    folder.mkdir()
    try:
        _remove_left(root, folder.name)
        return {
            "exclusive_rename": _refuses_rename(folder),
            "hard_link": _refuses_link(folder),
            "directory_fsync": _syncs_directory(folder),
        }
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_left(root: Path, own: str) -> None:
    """Remove the probes of processes that were killed in them; not needed for this one."""
    modified = {}
    for name in os.listdir(root):
        with contextlib.suppress(OSError):
            modified[name] = os.lstat(root / name).st_mtime_ns
    for name in left_behind(modified, own):
        shutil.rmtree(root / name, ignore_errors=True)


def _refuses_rename(folder: Path) -> bool:
    for name in ("old", "new"):
        (folder / name).mkdir()
        (folder / name / "file").write_text(name)
    try:
        (folder / "new").rename(folder / "old")
    except OSError as error:
        _raise_trouble(error)
        return error.errno in (errno.ENOTEMPTY, errno.EEXIST)
    return False


def _refuses_link(folder: Path) -> bool:
    (folder / "first").write_text("1")
    (folder / "second").write_text("2")
    try:
        os.link(folder / "second", folder / "third")
        os.link(folder / "second", folder / "first")
    except FileExistsError:
        return (folder / "first").read_text() == "1"
    except OSError as error:
        _raise_trouble(error)
    return False


def _raise_trouble(error: OSError) -> None:
    """Raise an error that says nothing about what the file system can do."""
    if error.errno in _TROUBLE:
        raise error


def _syncs_directory(folder: Path) -> bool:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fsync_directory(folder)
    return not caught
