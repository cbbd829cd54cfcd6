"""Disks that are full, read-only or broken; links and strangers inside the repository."""

import contextlib
import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from snapfmt import Repository
from snapfmt.errors import (
    CommitOutcomeUnknown,
    MissingObject,
    NotPublished,
    RefusedError,
    SnapfmtError,
    StorageDenied,
    StorageError,
    StorageFull,
    StorageReadOnly,
    StoreNotFound,
    UnsupportedFilesystem,
)
from snapfmt.format import layout
from snapfmt.storage import local, local_sink, posix
from snapfmt.testing.crashes import Call, SystemCalls
from snapfmt.testing.samples import contents, everything, save


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[bool]:
    """A file system of that size at the folder; yields whether this process may mount one."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        done = False
    try:
        yield done
    finally:
        if done:
            subprocess.run(["umount", str(folder)], check=True)


def fill(repository: Repository) -> None:
    """A save of about 8 MB of noise."""
    rng = np.random.default_rng(0)
    with repository.begin() as attempt:
        part = attempt.part("p")
        with part.table("t") as table:
            for number in range(80):
                table.append([f"k{number}"], {"x": [rng.integers(0, 255, 100_000, np.uint8)]})
        attempt.publish([part.seal()])


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with small_disk(tmp_path / "disk", "4m") as mounted:
        repository = Repository.create(tmp_path / "disk" / "run")
        save(repository, value=1)
        before = everything(repository)
        with monkeypatch.context() as patch:
            if not mounted:
                left = [2_000_000]

                def write_all(descriptor: int, data: bytes) -> None:
                    left[0] -= len(data)
                    if left[0] < 0:
                        raise OSError(errno.ENOSPC, "no space left on device")
                    posix.write_all(descriptor, data)

                for module in (local, local_sink):
                    patch.setattr(module, "write_all", write_all)
            with pytest.raises(StorageFull, match="no space left"):
                fill(repository)
        assert everything(repository) == before
        assert repository.numbers() == [1]
        assert repository.verify().findings == []
        # The space of the failed save is free again.
        save(repository, value=2)
        assert repository.verify().findings == []


def test_a_full_disk_by_injection(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    save(repository, value=1)
    before = everything(repository)
    real = posix.write_all
    for limit in (0, 50, 500, 5_000, 500_000, 4_000_000):
        left = [limit]

        def write_all(descriptor: int, data: bytes, left: list[int] = left) -> None:
            view = memoryview(data).cast("B")
            real(descriptor, view[: max(left[0], 0)])
            left[0] -= len(view)
            if left[0] < 0:
                raise OSError(errno.ENOSPC, "no space left on device")

        with monkeypatch.context() as patch:
            for module in (local, local_sink):
                patch.setattr(module, "write_all", write_all)
            with pytest.raises(StorageFull):
                fill(repository)
        assert everything(repository) == before
        assert repository.verify().findings == []


def test_a_read_only_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with small_disk(tmp_path / "disk", "8m") as mounted:
        root = tmp_path / "disk" / "run"
        repository = Repository.create(root)
        save(repository, value=1)
        before = everything(repository)
        attempt = repository.begin()
        part = attempt.part("p")
        part.stage("x", b"data")
        with monkeypatch.context() as patch:
            if mounted:
                remount = ["mount", "-o", "remount,ro", str(tmp_path / "disk")]
                # The open temporary file of the part keeps the mount busy for writing.
                part.abandon()
                attempt.abandon()
                subprocess.run(remount, check=True, capture_output=True)
            else:
                refuse = SystemCalls(root, fail=_read_only)
                refuse.install(patch)
            again = Repository.open(root)
            assert everything(again) == before
            assert again.verify().ok
            assert again.latest(deep=True).snapshot.number == 1
            with pytest.raises(StorageReadOnly):
                again.begin()
            with pytest.raises(StorageReadOnly):
                Repository.create(tmp_path / "disk" / "other")


def _read_only(call: Call) -> OSError | None:
    changing = call.name in ("mkdir", "open", "rename", "link", "unlink", "rmdir")
    return OSError(errno.EROFS, "read-only file system", call.path) if changing else None


def test_a_folder_without_permission(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(repository, value=1)
    for code in (errno.EACCES, errno.EPERM):
        calls = SystemCalls(
            Path(repository.location),
            fail=lambda call, code=code: OSError(code, "denied") if call.name == "mkdir" else None,  # type: ignore[misc]
        )
        with monkeypatch.context() as patch:
            calls.install(patch)
            with pytest.raises(StorageDenied):
                Repository.open(repository.location).begin()
    assert repository.verify().ok


def test_a_file_that_cannot_be_read(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(repository, value=1)

    def fail(*_: object) -> bytes:
        raise OSError(errno.EIO, "input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", fail)
        with pytest.raises(StorageError, match="input/output"):
            repository.snapshot()
        assert {item.rule for item in repository.verify().damage} == {"unreadable"}
        with pytest.raises(StorageError):
            Repository.open(repository.location)
    assert repository.verify().ok


def test_a_short_read_is_read_on(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    save(repository, value=1)
    before = everything(repository)
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, offset: real(fd, min(size, 7), offset))
    assert everything(Repository.open(repository.location)) == before


def test_a_short_write_is_written_on(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:100]))
    save(repository, value=1)
    monkeypatch.undo()
    assert repository.verify().findings == []


@pytest.mark.parametrize("lacking", ["exclusive_rename", "hard_link"])
def test_a_file_system_that_cannot_publish_safely_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    if lacking == "hard_link":

        def link(*_: object, **__: object) -> None:
            raise OSError(errno.ENOSYS, "function not implemented")

        monkeypatch.setattr(os, "link", link)
    else:
        real = os.rename

        def rename(source: Path, target: Path) -> None:
            # As some FUSE file systems do: the target is replaced, whatever it holds.
            if Path(target).is_dir():
                shutil.rmtree(target)
            real(source, target)

        monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(UnsupportedFilesystem, match=lacking):
        Repository.create(tmp_path / "run")
    assert not (tmp_path / "run" / "snapfmt.json").exists()
    assert list((tmp_path / "run").iterdir()) == []


def test_what_was_probed_is_on_record(repository: Repository) -> None:
    assert repository.document.capabilities == {
        "exclusive_rename": True,
        "hard_link": True,
        "directory_fsync": True,
    }


def plant(root: Path, name: str, outside: Path) -> None:
    """Move a file or folder out of the repository and leave a link to it."""
    outside.mkdir(exist_ok=True)
    target = outside / name.replace("/", "_")
    shutil.move(root / name, target)
    (root / name).symlink_to(target)


def test_links_to_files_are_never_followed(repository: Repository, tmp_path: Path) -> None:
    save(repository, value=1)
    root = Path(repository.location)
    shutil.copytree(root, tmp_path / "spare")
    names = [str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()]
    assert len(names) == 6
    for name in names:
        plant(root, name, tmp_path / "outside")
        if name == "snapfmt.json":
            with pytest.raises(StorageError, match="a link stands where a file must be"):
                Repository.open(root)
        elif name.startswith("snapshots/"):
            assert Repository.open(root).numbers() == []
            with pytest.raises((NotPublished, StorageError)):
                Repository.open(root).snapshot(1)
        else:
            with pytest.raises((MissingObject, StorageError)):
                everything(Repository.open(root))
            assert not Repository.open(root).verify(deep=False).ok, name
        shutil.rmtree(root)
        shutil.copytree(tmp_path / "spare", root)


@pytest.mark.parametrize("name", ["objects", "snapshots", "snapshots/snapshot_000001", "objects/*"])
def test_links_to_folders_are_never_followed(
    repository: Repository, tmp_path: Path, name: str
) -> None:
    save(repository, value=1)
    root = Path(repository.location)
    shutil.copytree(root, tmp_path / "spare")
    for folder in sorted(root.glob(name)):
        plant(root, str(folder.relative_to(root)), tmp_path / "outside")
        with pytest.raises(SnapfmtError):
            contents(Repository.open(root).snapshot(1))
        assert Repository.open(root).verify().findings
        with pytest.raises(SnapfmtError):
            Repository.open(root).latest()
        shutil.rmtree(root)
        shutil.copytree(tmp_path / "spare", root)


@pytest.mark.parametrize("name", ["objects", "snapshots"])
def test_a_save_through_a_link_is_not_called_published(
    repository: Repository, tmp_path: Path, name: str
) -> None:
    """A link that comes while a save runs; one that is there before stops it from beginning."""
    (tmp_path / "outside").mkdir()
    attempt = repository.begin()
    (Path(repository.location) / name).symlink_to(tmp_path / "outside")
    error = CommitOutcomeUnknown if name == "snapshots" else (MissingObject, StorageError)
    part = attempt.part("p")
    part.stage("x", b"data")
    receipt = part.seal()
    with pytest.raises(error):
        attempt.publish([receipt])
    with pytest.raises(RefusedError, match="no folder stands"):
        save(repository, value=1)
    with pytest.raises(SnapfmtError):
        Repository.open(repository.location).snapshot()


def test_a_link_in_place_of_a_workspace_is_cleaned_up_and_not_followed(
    repository: Repository, tmp_path: Path
) -> None:
    attempt = repository.begin(lease_seconds=-1)
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("keep me")
    workspace = Path(repository.location) / layout.workspace_key(attempt.id)
    shutil.rmtree(workspace)
    workspace.symlink_to(precious)
    save(repository, value=1)
    assert (precious / "file").read_text() == "keep me"
    assert not workspace.is_symlink()
    assert repository.leases() == []


def test_strangers_do_not_stop_readers_or_writers(repository: Repository) -> None:
    save(repository, value=1)
    before = contents(repository.snapshot(1))
    root = Path(repository.location)
    for name in (
        "README",
        "snapshots/.DS_Store",
        "snapshots/tmp/x",
        "snapshots/snapshot_000001.bak/manifest.json",
        "snapshots/snapshot_000001/.nfs0001",
        "objects/ab/short",
        "objects/zz/" + "z" * 64,
        "attempts/readme.txt",
        "attempts/" + "g" * 32 + "/x",
        "lost+found/x",
        "pins/strange",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("stranger")
    (root / "snapshots" / "snapshot_000009").symlink_to("snapshot_000001")
    assert contents(Repository.open(root).snapshot(1)) == before
    assert Repository.open(root).latest().snapshot.number == 1
    assert save(repository, value=2).number == 10
    report = repository.verify()
    found = {item.path for item in report.findings}
    for name in ("README", "objects/ab/short", "attempts/readme.txt", "snapshots/tmp"):
        assert name in found
    assert not any("lost+found" in path or ".DS_Store" in path for path in found)


def test_a_repository_that_vanished(repository: Repository) -> None:
    save(repository, value=1)
    snapshot = repository.snapshot()
    attempt = repository.begin()
    part = attempt.part("p")
    part.stage("x", b"data")
    shutil.rmtree(repository.location)
    with pytest.raises(SnapfmtError):
        part.seal()
    with pytest.raises(SnapfmtError):
        attempt.publish([])
    with pytest.raises(MissingObject):
        snapshot.part("gym/agent/a").read("notes.txt")
    with pytest.raises(StoreNotFound):
        Repository.open(repository.location)
