"""A disk lost the block of one folder: what is beside it is listed, verified and repaired."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from snapfmt import Repository
from snapfmt.cli import main
from snapfmt.errors import RefusedError, StorageError
from snapfmt.format import layout
from snapfmt.repair import repair
from snapfmt.storage import posix
from snapfmt.testing.samples import contents, save
from snapfmt.transfer import copy_snapshot, open_target

Spoil = Callable[[Path], None]


@pytest.fixture
def spoil(monkeypatch: pytest.MonkeyPatch) -> Spoil:
    """A call with a folder: from then on the disk gives nothing of it but an error."""
    bad: set[tuple[int, int]] = set()
    real: dict[str, Callable[..., Any]] = {
        name: getattr(os, name) for name in ("listdir", "scandir", "stat", "open")
    }

    def place(status: os.stat_result) -> tuple[int, int]:
        return status.st_dev, status.st_ino

    def check(path: Any, folder: int | None = None) -> None:
        try:
            found = real["stat"](path) if folder is None else real["stat"](path, dir_fd=folder)
        except OSError:
            return
        if place(found) in bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    def listing(name: str) -> Callable[..., Any]:
        def call(path: Any = ".") -> Any:
            check(path)
            return real[name](path)

        return call

    def looking(name: str) -> Callable[..., Any]:
        def call(path: Any, *args: Any, dir_fd: int | None = None, **options: Any) -> Any:
            # The folder of a name is what cannot be read, and not the entry of the folder itself.
            inner = os.path.dirname(path) if isinstance(path, str) else ""
            if inner or dir_fd is not None:
                check(inner or f"/proc/self/fd/{dir_fd}", dir_fd if inner else None)
            return real[name](path, *args, dir_fd=dir_fd, **options)

        return call

    def go(folder: Path) -> None:
        bad.add(place(real["stat"](folder)))
        for name in ("listdir", "scandir"):
            monkeypatch.setattr(posix.os, name, listing(name))
        for name in ("stat", "open"):
            monkeypatch.setattr(posix.os, name, looking(name))

    return go


def three(repository: Repository) -> Path:
    for value in (1, 2, 3):
        save(repository, value=value)
    return Path(repository.location)


@pytest.mark.req("V-10")
@pytest.mark.req("V-8")
@pytest.mark.req("M-8")
def test_the_folder_of_a_snapshot(
    repository: Repository, spoil: Spoil, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = three(repository)
    good = {number: contents(repository.snapshot(number)) for number in (1, 2)}
    copy = open_target(tmp_path / "copy", repository)
    assert copy_snapshot(repository, copy, 3).published
    spoil(root / "snapshots/snapshot_000003")
    again = Repository.open(root)
    report = again.verify()
    assert [(item.rule, item.snapshots) for item in report.damage] == [("unreadable", (3,))]
    assert {1, 2} <= set(report.snapshots)
    strays = [item for item in report.findings if item.path.startswith("objects/")]
    assert strays
    assert {item.rule for item in strays} == {"unreached"}, "snapshot 3 may need them"
    selection = again.latest()
    assert selection.snapshot.number == 2
    assert [number for number, _ in selection.passed_over] == [3]
    assert main(["ls", str(root)]) == 1
    shown = capsys.readouterr()
    assert [line.split()[0] for line in shown.out.splitlines()[1:4]] == ["1", "2", "3"]
    for removal in (again.collect, lambda: again.keep_latest(1), lambda: again.retire(1)):
        with pytest.raises((StorageError, RefusedError)):
            removal()
    told = repair(root, tmp_path / "mended", pieces=tmp_path / "pieces")
    assert {item.number: item.outcome for item in told.snapshots} == {
        1: "whole",
        2: "whole",
        3: "lost",
    }
    mended = Repository.open(tmp_path / "mended")
    assert {number: contents(mended.snapshot(number)) for number in (1, 2)} == good
    assert mended.begin().number > 3
    helped = repair(root, tmp_path / "helped", also=[tmp_path / "copy"])
    assert {item.outcome for item in helped.snapshots} == {"whole"}


@pytest.mark.req("V-10")
@pytest.mark.req("M-8")
def test_a_folder_of_objects(repository: Repository, spoil: Spoil, tmp_path: Path) -> None:
    root = three(repository)
    held = {
        number: {
            layout.object_key(name)[:10]
            for part in repository.snapshot(number).parts()
            for name in [
                part.receipt.index_digest,
                *[item.location.pack for item in part.entries()],
                *[item.data.pack for table in part.index.tables for item in table.segments],
            ]
        }
        for number in (1, 2, 3)
    }
    folder = min(held[3])
    harmed = {number for number, folders in held.items() if folder in folders}
    spoil(root / folder)
    report = Repository.open(root).verify()
    assert {number for item in report.damage for number in item.snapshots} == harmed
    assert (folder, "unreadable") in {(item.path, item.rule) for item in report.damage}
    told = repair(root, tmp_path / "mended", pieces=tmp_path / "pieces")
    whole = {item.number for item in told.snapshots if item.outcome == "whole"}
    assert whole == {1, 2, 3} - harmed
    assert {item.number for item in told.snapshots} == {1, 2, 3}


@pytest.mark.req("V-10")
@pytest.mark.parametrize("name", ["attempts", "pins", "objects"])
def test_one_of_the_folders_at_the_top(
    repository: Repository, spoil: Spoil, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    root = three(repository)
    repository.pin("best", 1)
    spoil(root / name)
    report = Repository.open(root).verify()
    assert report.snapshots == [1, 2, 3]
    assert (name, "unreadable") in {(item.path, item.rule) for item in report.damage}
    assert main(["ls", str(root)]) == (1 if name == "attempts" else 0)
    shown = capsys.readouterr()
    assert [line.split()[0] for line in shown.out.splitlines()[1:4]] == ["1", "2", "3"]


@pytest.mark.req("V-10")
@pytest.mark.req("M-8")
def test_the_folder_of_all_snapshots(repository: Repository, spoil: Spoil, tmp_path: Path) -> None:
    root = three(repository)
    spoil(root / "snapshots")
    again = Repository.open(root)
    report = again.verify()
    assert ("snapshots", "unreadable") in {(item.path, item.rule) for item in report.damage}
    assert {item.rule for item in report.findings} == {"unreadable", "unreached"}
    # What there was is not known, so that none of it may be called whole.
    with pytest.raises(StorageError):
        repair(root, tmp_path / "mended")
    with pytest.raises(StorageError):
        again.latest()
