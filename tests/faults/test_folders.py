"""What stands in the place of a folder hides what is behind it; nothing is removed then."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from snapfmt import Repository
from snapfmt.errors import RefusedError
from snapfmt.format import layout
from snapfmt.storage.base import CLOSED
from snapfmt.testing.samples import contents, everything, save
from snapfmt.transfer import copy_snapshot
from snapfmt.writing.reclaim import reclaim

IN_THE_WAY: dict[str, Callable[[Path, Path], object]] = {
    "link to where it went": lambda path, moved: path.symlink_to(moved),
    "link to nothing": lambda path, _: path.symlink_to("nowhere"),
    "link to itself": lambda path, _: path.symlink_to(path.name),
    "link to its parent": lambda path, _: path.symlink_to(".."),
    "file": lambda path, _: path.write_bytes(b"x"),
    "fifo": lambda path, _: os.mkfifo(path),
}


def two(repository: Repository) -> Path:
    """Two snapshots, one of them pinned."""
    save(repository, value=1)
    save(repository, value=2)
    repository.pin("best", 1)
    return Path(repository.location)


def tree(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def removals(repository: Repository) -> list[Callable[[], object]]:
    return [
        repository.collect,
        lambda: repository.collect(dry_run=True),
        lambda: repository.keep_latest(1),
        lambda: repository.surplus(1),
        lambda: repository.retire(2),
    ]


@pytest.mark.req("K-18")
@pytest.mark.parametrize("kind", IN_THE_WAY)
@pytest.mark.parametrize("name", sorted(layout.FOLDERS))
def test_one_of_the_four_folders_is_none(
    repository: Repository, tmp_path: Path, name: str, kind: str
) -> None:
    root, moved = two(repository), tmp_path / "moved"
    whole = shutil.copytree(root, tmp_path / "whole")
    shutil.move(root / name, moved)
    IN_THE_WAY[kind](root / name, moved)
    again = Repository.open(root)
    newer = Repository.open(shutil.copytree(whole, tmp_path / "newer"))
    save(newer, value=3)
    before = tree(tmp_path)
    writes: list[Callable[[], object]] = [
        again.begin,
        again.clean_up,
        lambda: again.pin("other", 2),
        lambda: copy_snapshot(newer, again, 3),
    ]
    for call in removals(again) + writes:
        with pytest.raises(RefusedError, match="no folder stands"):
            call()
    assert tree(tmp_path) == before
    assert ("unreadable", name) in {(item.rule, item.path) for item in again.verify().damage}
    (root / name).unlink()
    shutil.move(moved, root / name)
    assert again.collect().bytes(removed=True) == 0
    assert again.verify().findings == []
    assert again.pins() == {"best": 1}


@pytest.mark.req("K-18")
@pytest.mark.parametrize("kind", IN_THE_WAY)
def test_a_snapshots_folder_is_none(repository: Repository, tmp_path: Path, kind: str) -> None:
    root, moved = two(repository), tmp_path / "moved"
    repository.unpin("best")
    folder = root / "snapshots" / "snapshot_000001"
    shutil.move(folder, moved)
    IN_THE_WAY[kind](folder, moved)
    before = tree(tmp_path)
    again = Repository.open(root)
    for call in removals(again):
        with pytest.raises(RefusedError, match="no folder stands"):
            call()
    assert tree(tmp_path) == before
    report = again.verify()
    assert [(item.rule, item.path) for item in report.damage] == [
        ("unreadable", "snapshots/snapshot_000001")
    ]
    # What it reached must not be called a leftover, which may be deleted.
    assert {item.severity for item in report.findings if item.rule != "unreadable"} == {"unknown"}
    assert save(again, value=3).number == 3
    folder.unlink()
    shutil.move(moved, folder)
    assert again.verify().findings == []


@pytest.mark.parametrize("kind", IN_THE_WAY)
def test_a_stranger_among_the_folders_is_listed_and_passed_over(
    repository: Repository, kind: str
) -> None:
    root = two(repository)
    places = ("snapshots", "objects", "attempts", "objects/zz")
    for place in places:
        (root / place).mkdir(exist_ok=True)
        IN_THE_WAY[kind](root / place / "stranger", root / "snapshots")
    before = everything(repository)
    report = repository.verify()
    assert {(item.rule, item.path) for item in report.findings} == {
        ("extra", f"{place}/stranger") for place in places
    }
    assert repository.collect().bytes(removed=True) == 0
    assert everything(repository) == before
    assert save(repository, value=3).number == 3
    assert repository.keep_latest(1) == [2]


@pytest.mark.req("K-18")
def test_a_link_into_another_repository_does_not_lead_a_collector_there(
    repository: Repository, tmp_path: Path
) -> None:
    save(repository, value=1)
    before = everything(repository)
    other = Repository.create(tmp_path / "other")
    for name in ("objects", "attempts"):
        (tmp_path / "other" / name).symlink_to(Path(repository.location) / name)
    for call in (other.collect, other.clean_up, other.begin):
        with pytest.raises(RefusedError, match="no folder stands"):
            call()
    assert everything(repository) == before
    assert repository.verify().findings == []


@pytest.mark.req("W-9", "K-18")
def test_a_clean_up_is_in_doubt_where_a_snapshots_folder_is_none(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process died after the publication, before it gave its workspace back."""
    with monkeypatch.context() as patch:
        patch.setattr("snapfmt.writing.attempt.Attempt._close", lambda self: None)
        patch.setattr("snapfmt.writing.attempt.Attempt.abandon", lambda self: None)
        save(repository, value=1)
    (lease,) = repository.leases()
    assert repository.store.journal(layout.workspace_key(lease.attempt_id))
    before = contents(repository.snapshot(1))
    folder = Path(repository.location, "snapshots", "snapshot_000001")
    shutil.move(folder, tmp_path / "moved")
    folder.symlink_to(tmp_path / "moved")
    assert reclaim(repository.store, lease.attempt_id) == 0
    folder.unlink()
    shutil.move(tmp_path / "moved", folder)
    assert contents(repository.snapshot(1)) == before


@pytest.mark.req("K-7")
@pytest.mark.parametrize("lost", ["snapshots", "snapshots/snapshot_000001"])
def test_a_pinned_snapshot_that_is_gone_without_a_word(
    repository: Repository, tmp_path: Path, lost: str
) -> None:
    """Its folder was deleted, or was not restored yet: what it reached is not known."""
    root = two(repository)
    shutil.move(root / lost, tmp_path / "moved")
    before = tree(root)
    again = Repository.open(root)
    for call in (again.collect, lambda: again.collect(dry_run=True), lambda: again.keep_latest(1)):
        with pytest.raises(RefusedError, match=r"pinned by best.*nothing tells what it reached"):
            call()
    assert tree(root) == before
    shutil.move(tmp_path / "moved", root / lost)
    assert again.collect().bytes(removed=True) == 0
    assert again.verify().findings == []
    repository.unpin("best")
    repository.retire(1)
    # One that is gone for good says so, whoever pins it by hand.
    (root / "pins" / "late.json").write_text('{"number": 1}')
    assert again.collect().bytes(removed=True) == 0


@pytest.mark.req("K-7")
def test_a_base_that_is_gone_without_a_word(repository: Repository, tmp_path: Path) -> None:
    root = two(repository)
    repository.unpin("best")
    attempt = repository.begin(base=1)
    shutil.move(root / "snapshots" / "snapshot_000001", tmp_path / "moved")
    for call in (repository.collect, lambda: repository.retire(2)):
        with pytest.raises(RefusedError, match="nothing tells what it reached"):
            call()
    assert repository.numbers() == [2]
    shutil.move(tmp_path / "moved", root / "snapshots" / "snapshot_000001")
    attempt.abandon()
    assert repository.collect().bytes(removed=True) == 0
    assert repository.verify().findings == []


LOST = {
    "one document": lambda root, moved: shutil.move(
        root / "snapshots/snapshot_000001/manifest.json", moved
    ),
    "what is in the folder of all": lambda root, moved: (
        shutil.copytree(root / "snapshots", moved)
        and [shutil.rmtree(path) for path in (root / "snapshots").iterdir()]
    ),
    "the folder of all": lambda root, moved: shutil.move(root / "snapshots", moved),
}


@pytest.mark.req("K-19")
@pytest.mark.parametrize("lost", LOST)
def test_snapshots_that_are_gone_without_a_word(
    repository: Repository, tmp_path: Path, lost: str
) -> None:
    """A mount that is not there, a folder that a disk check moved, a file deleted by hand."""
    root, moved = two(repository), tmp_path / "moved"
    repository.unpin("best")
    whole = tree(shutil.copytree(root, tmp_path / "whole"))
    LOST[lost](root, moved)
    before = tree(root)
    again = Repository.open(root)
    calls = [again.collect, lambda: again.collect(dry_run=True)]
    if lost == "one document":
        calls = removals(again)
    for call in calls:
        with pytest.raises(RefusedError, match=r"document|no snapshot"):
            call()
    assert tree(root) == before
    if lost == "one document":
        shutil.move(moved, root / "snapshots/snapshot_000001/manifest.json")
    else:
        shutil.copytree(moved, root / "snapshots", dirs_exist_ok=True)
    assert again.collect().bytes(removed=True) == 0
    assert tree(root) == {
        name.replace(str(tmp_path / "whole"), str(root)): data for name, data in whole.items()
    }
    assert again.verify().findings == []


@pytest.mark.req("K-19")
def test_who_takes_the_empty_folder_away_has_its_objects_collected(
    repository: Repository,
) -> None:
    root = two(repository)
    repository.unpin("best")
    (root / "snapshots/snapshot_000001/manifest.json").unlink()
    with pytest.raises(RefusedError):
        repository.collect()
    (root / "snapshots/snapshot_000001").rmdir()
    assert repository.collect().bytes(removed=True) > 0
    assert repository.numbers() == [2]
    assert repository.verify().findings == []


@pytest.mark.req("K-19")
def test_a_first_save_that_died_is_cleaned_up_all_the_same(repository: Repository) -> None:
    attempt = repository.begin()
    part = attempt.part("a")
    part.stage("x", b"1")
    part.seal()
    root = Path(repository.location)
    (root / layout.lease_key(attempt.id)).unlink()
    assert repository.collect().attempts == (attempt.id,)
    assert list(repository.store.walk(layout.OBJECTS)) == []


@pytest.mark.req("K-19")
def test_a_closed_number_is_no_lost_document(repository: Repository) -> None:
    root = two(repository)
    repository.store.create(layout.manifest_key(3), CLOSED)
    assert repository.collect().bytes(removed=True) == 0
    repository.unpin("best")
    assert repository.keep_latest(1) == [1]
    assert Repository.open(root).begin().number == 4
