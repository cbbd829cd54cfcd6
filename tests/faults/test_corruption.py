"""Every kind of damage to every file: reported by the audit, and never wrong data."""

import os
from pathlib import Path
from typing import Any

import pytest

from snapfmt import Repository
from snapfmt.errors import SnapfmtError
from snapfmt.testing.corruption import Tree, copy, flip, swap, truncate
from snapfmt.testing.samples import contents, everything, save

POSITIONS = 120
"""Positions at which a bit is flipped, over all files."""


@pytest.fixture
def tree(fast_path: Path) -> Tree:
    """Two snapshots; nothing but files that readers use."""
    repository = Repository.create(fast_path / "run")
    save(repository, value=1)
    save(repository, value=2)
    return Tree.take(fast_path / "run")


def read(tree: Tree) -> dict[str, Any] | SnapfmtError:
    """All data, or the typed error that reading met; any other exception escapes."""
    try:
        return everything(Repository.open(tree.root))
    except SnapfmtError as error:
        return error


def read_each(tree: Tree) -> dict[str, Any]:
    """What can be read of each snapshot by itself; what raises is left out."""
    found: dict[str, Any] = {}
    try:
        repository = Repository.open(tree.root)
        numbers = repository.numbers()
    except SnapfmtError:
        return found
    for number in numbers:
        try:
            snapshot = repository.snapshot(number)
            manifest = snapshot.manifest.model_dump_json()
        except SnapfmtError:
            continue
        found[f"{number}/manifest"] = manifest
        for part in snapshot.parts():
            try:
                entries = part.entries()
            except SnapfmtError:
                continue
            for entry in entries:
                try:
                    found[f"{number}/{part.name}/{entry.path}"] = part.read(entry.path)
                except SnapfmtError:
                    continue
    return found


def reported(tree: Tree) -> bool:
    """Whether the deep audit, or opening, tells of the damage."""
    try:
        return not Repository.open(tree.root).verify(deep=True).ok
    except SnapfmtError:
        return True


def never_wrong(tree: Tree, whole: dict[str, Any], where: str, *, select: bool = True) -> bool:
    """Exactly the saved data or a typed error, also piece by piece; returns: an error."""
    found = read(tree)
    if not isinstance(found, SnapfmtError):
        assert found == whole, where
    for name, data in read_each(tree).items():
        assert whole[name] == data, (where, name)
    if not select:
        return isinstance(found, SnapfmtError)
    try:
        chosen = Repository.open(tree.root).latest(deep=True).snapshot
    except SnapfmtError:
        return True
    # What the deep selection picks is whole.
    prefix = f"{chosen.number}/"
    assert everything_of(chosen, prefix) == {
        name: data for name, data in whole.items() if name.startswith(prefix)
    }, where
    return isinstance(found, SnapfmtError)


def everything_of(snapshot: Any, prefix: str) -> dict[str, Any]:
    return {f"{prefix}{name}": data for name, data in contents(snapshot).items()}


def test_the_intact_repository_is_clean(tree: Tree) -> None:
    assert not reported(tree)
    assert Repository.open(tree.root).verify().findings == []
    assert not isinstance(read(tree), SnapfmtError)
    assert len(tree.files) == 3 + 2 * 4


def test_one_flipped_bit_anywhere(tree: Tree) -> None:
    whole = read(tree)
    assert isinstance(whole, dict)
    size = sum(map(len, tree.files.values()))
    stride = max(1, size // POSITIONS)
    position = harmless = tried = 0
    for name, data in tree.files.items():
        # Small documents byte by byte a little denser: they steer everything else.
        step = max(1, stride // 3) if name.endswith(".json") else stride
        for offset in range(position % step, len(data), step):
            where = f"{name}: bit {offset % 8} of byte {offset}"
            with tree.damaged() as root:
                flip(root / name, offset, offset % 8)
                assert reported(tree), f"not reported: {where}"
                # The deep selection repeats what the audit did: now and then is enough.
                harmless += not never_wrong(tree, whole, where, select=tried % 5 == 0)
            tried += 1
        position += len(data)
    assert tried > POSITIONS / 2
    assert harmless < tried, "padding may be harmless to read, not everything is"


def test_a_truncated_file(tree: Tree) -> None:
    whole = read(tree)
    assert isinstance(whole, dict)
    for name, data in tree.files.items():
        for size in sorted({0, 1, 7, 63, 64, 65, len(data) // 2, len(data) - 64, len(data) - 1}):
            if 0 <= size < len(data):
                with tree.damaged() as root:
                    truncate(root / name, size)
                    assert reported(tree), (name, size)
                    error = never_wrong(tree, whole, f"{name} cut to {size}")
                    # Only the final newline of a document may be gone without harm.
                    assert error or (size == len(data) - 1 and name.endswith(".json")), name


def test_a_file_that_grew(tree: Tree) -> None:
    whole = read(tree)
    assert isinstance(whole, dict)
    for name, data in tree.files.items():
        for more in (b"\0", b"\n", b"x" * 100, data):
            with tree.damaged() as root:
                (root / name).write_bytes(data + more)
                assert reported(tree), (name, more[:5])
                never_wrong(tree, whole, name)


def test_a_missing_file(tree: Tree) -> None:
    whole = read(tree)
    assert isinstance(whole, dict)
    for name in tree.files:
        with tree.damaged() as root:
            (root / name).unlink()
            found = read(tree)
            if name.startswith("snapshots/"):
                # Without its manifest a snapshot was never published: the others are whole.
                assert isinstance(found, dict)
                assert found.items() < whole.items()
            else:
                assert isinstance(found, SnapfmtError), name
                assert reported(tree), name
            for piece, data in read_each(tree).items():
                assert whole[piece] == data


def test_two_files_that_were_swapped(tree: Tree) -> None:
    whole = read(tree)
    assert isinstance(whole, dict)
    names = list(tree.files)
    for number, first in enumerate(names):
        for second in names[number + 1 :]:
            with tree.damaged() as root:
                swap(root / first, root / second)
                assert reported(tree), (first, second)
                assert never_wrong(tree, whole, f"{first} <-> {second}"), (first, second)


def test_a_file_replaced_by_other_bytes(tree: Tree) -> None:
    whole = read(tree)
    assert isinstance(whole, dict)
    for name, data in tree.files.items():
        for other in (os.urandom(len(data)), bytes(len(data)), b"{}\n", b"null", b"[" * len(data)):
            with tree.damaged() as root:
                (root / name).write_bytes(other)
                assert reported(tree), name
                assert never_wrong(tree, whole, name), name


def test_a_copy_under_another_name(tree: Tree) -> None:
    whole = read(tree)
    assert isinstance(whole, dict)
    for name in tree.files:
        for target in (
            "objects/aa/aa" + "0" * 62,
            "snapshots/snapshot_000003/manifest.json",
            "snapshots/snapshot_000001/copy.json",
            "notes.txt",
            "objects/copy",
            "attempts/copy",
        ):
            with tree.damaged() as root:
                copy(root / name, root / target)
                assert reported(tree), (name, target)
                never_wrong(tree, whole, f"{name} as {target}")


def test_a_file_that_became_a_folder(tree: Tree) -> None:
    whole = read(tree)
    assert isinstance(whole, dict)
    for name in tree.files:
        with tree.damaged() as root:
            (root / name).unlink()
            (root / name).mkdir()
            assert name.startswith("snapshots/") or reported(tree), name
            for piece, data in read_each(tree).items():
                assert whole[piece] == data


def test_a_file_that_became_a_pipe(tree: Tree) -> None:
    whole = read(tree)
    assert isinstance(whole, dict)
    for name in tree.files:
        with tree.damaged() as root:
            (root / name).unlink()
            os.mkfifo(root / name)
            # Nobody waits for a writer that never comes.
            assert name.startswith("snapshots/") or reported(tree), name
            for piece, data in read_each(tree).items():
                assert whole[piece] == data


def test_findings_name_the_file_and_the_snapshots_that_are_harmed(tree: Tree) -> None:
    repository = Repository.open(tree.root)
    entry = repository.snapshot(2).part("gym/agent/a").entry("notes.txt")
    name = next(path for path in tree.files if path.endswith(entry.location.pack[7:]))
    with tree.damaged() as root:
        flip(root / name, entry.location.offset)
        report = repository.verify()
        assert {(item.path, item.snapshots) for item in report.damage} == {(name, (2,))}
        assert {item.rule for item in report.damage} == {"digest"}
        assert repository.verify(1).ok
        assert not repository.verify(2).ok
        assert repository.verify(2, deep=False).ok, "a shallow look reads no pack"
    with tree.damaged() as root:
        (root / name).unlink()
        assert {item.rule for item in repository.verify(deep=False).damage} == {"missing"}
    with tree.damaged() as root:
        truncate(root / name, 100)
        assert "truncated" in {item.rule for item in repository.verify(deep=False).damage}
    report = repository.verify()
    assert (report.snapshots, report.objects) == ([1, 2], 8)
    assert report.bytes > 0
    assert report.as_json()["ok"] is True
