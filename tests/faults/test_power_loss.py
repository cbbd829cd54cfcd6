"""A sample of the power cuts; all of them: `python tests/faults/power_loss.py`."""

import random
import re
from pathlib import Path

import pytest

from snapfmt.testing.crash_matrix import pairs
from snapfmt.testing.crashes import Effect
from snapfmt.testing.operations import OPERATIONS
from snapfmt.testing.power import Disk, choices
from snapfmt.testing.power_states import cut_all, cut_pair, summary

NUMBER = {operation.name: number for number, operation in enumerate(OPERATIONS)}
OBJECT = r"objects/[0-9a-f]{2}/[0-9a-f]{64}"


@pytest.mark.req("S-1")
def test_no_power_cut_harms_what_is_published(fast_path: Path) -> None:
    chosen = [pair for pair in pairs() if pair[1] in (0, 13)]
    found = summary(cut_all(chosen, str(fast_path), bound=10, recoveries=1))
    assert found["violations"] == 0, found["first_violations"]
    assert found["operations"] == len(OPERATIONS)
    assert found["states"] > 5_000
    assert found["states"] > found["distinct"] > found["opened"] > 50
    assert found["recovered"] > 10


# A sync that is missing must be noticed, or the model says nothing.

SYNCS = {
    ("save", r"attempts/\w+/\S+-pack.tmp"),
    ("save", r"attempts/\w+/\S+-document.tmp"),
    ("save", r"attempts/\w+/snapshot_\d+/manifest.json"),
    ("save", r"attempts/\w+/snapshot_\d+"),
    ("save", r"objects/\w\w"),
    ("save", "objects"),
    ("save", "snapshots"),
    ("publish", "snapshots"),
    ("compaction", r"objects/\w\w"),
    ("retire", r"snapshots/snapshot_\d+"),
    ("keep_latest", r"snapshots/snapshot_\d+"),
    ("pin", ""),
    ("pin", "pins"),
    ("pin", r"pins/\(unnamed\)"),
    ("push", r"attempts/\w+/copy/copy-\w+.tmp"),
    ("push", r"objects/\w\w"),
    ("push", "snapshots"),
    ("pull", r"attempts/\w+/copy/snapshot_\d+/manifest.json"),
    ("pull", "objects"),
    ("create", ""),
    ("create", r"\(unnamed\)"),
}


@pytest.mark.parametrize(("operation", "path"), sorted(SYNCS))
def test_a_sync_that_is_missing_is_noticed(fast_path: Path, operation: str, path: str) -> None:
    asked = re.compile(rf".*/world/run/?{path}")

    def forgets(effect: Effect) -> bool:
        return effect.name == "fsync" and asked.fullmatch(effect.path) is not None

    pair = (NUMBER[operation], 0)
    assert cut_pair(pair, str(fast_path), bound=32, forgets=forgets).violations


def test_a_new_folder_is_there_once_its_parent_was_synced(fast_path: Path) -> None:
    def forgets(effect: Effect) -> bool:
        return effect.name == "fsync" and effect.path.endswith("/world")

    assert cut_pair((NUMBER["create"], 0), str(fast_path), bound=48, forgets=forgets).violations


# The rules of the model


def effects(root: Path, *calls: tuple[str, ...]) -> list[Effect]:
    """Calls by their names and paths; a write has its bytes where another call has its target."""
    handles: dict[str, int] = {}
    found = []
    for name, path, *rest in calls:
        target = str(root / rest[0]) if rest and name != "write" else ""
        data = rest[0].encode() if name == "write" else b""
        handle = handles.setdefault(path, len(handles) + 1) if "." in path else 0
        known = handle if name in ("open", "write", "fsync") else 0
        found.append(Effect(name, str(root / path), target, known, data))
    return found


def outcomes(root: Path, *calls: tuple[str, ...]) -> set[tuple[tuple[str, bytes | None], ...]]:
    """Every tree that may be found after these calls."""
    disk = Disk(root)
    for effect in effects(root, *calls):
        disk.apply(effect)
    units = disk.units()
    return {
        tuple(sorted(disk.tree(units, choice).items()))
        for choice in choices(units, 4096, random.Random(0))
    }


MADE = (("open", "a.tmp"), ("write", "a.tmp", "data"))


def test_nothing_is_certain_without_a_sync(tmp_path: Path) -> None:
    assert outcomes(tmp_path, *MADE) == {
        (),
        (("a.tmp", b""),),
        (("a.tmp", b"\0\0\0\0"),),
        (("a.tmp", b"da"),),
        (("a.tmp", b"data"),),
    }


def test_a_file_is_there_once_its_folder_was_synced_and_whole_once_it_was(tmp_path: Path) -> None:
    assert outcomes(tmp_path, *MADE, ("fsync", "a.tmp")) == {(), (("a.tmp", b"data"),)}
    synced = (*MADE, ("fsync", "a.tmp"), ("fsync", "."))
    assert outcomes(tmp_path, *synced) == {(("a.tmp", b"data"),)}
    assert (("a.tmp", b""),) in outcomes(tmp_path, *MADE, ("fsync", "."))


def test_a_rename_to_another_folder_is_two_entries(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    (tmp_path / "old/x").write_bytes(b"x")
    both = (("new", None), ("old", None))
    old, new = ("old/x", b"x"), ("new/x", b"x")
    moved = ("rename", "old/x", "new/x")
    assert outcomes(tmp_path, moved) == {
        tuple(sorted((*both, *there))) for there in ((), (old,), (new,), (old, new))
    }
    certain = {tuple(sorted((*both, new))), tuple(sorted((*both, new, old)))}
    assert outcomes(tmp_path, moved, ("fsync", "new")) == certain


def test_a_later_entry_may_be_there_without_an_earlier_one(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"x")
    found = outcomes(tmp_path, ("link", "x", "first"), ("link", "x", "second"), ("unlink", "x"))
    assert len(found) == 8
    assert (("second", b"x"),) in found
    assert () in found


def test_what_lies_in_a_folder_is_lost_with_it(tmp_path: Path) -> None:
    calls = (("mkdir", "d"), ("open", "d/a.tmp"), ("write", "d/a.tmp", "1"), ("fsync", "d/a.tmp"))
    assert outcomes(tmp_path, *calls, ("fsync", "d")) == {
        (),
        (("d", None), ("d/a.tmp", b"1")),
    }
