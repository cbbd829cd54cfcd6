"""A retirement that dies at any system call harms nothing, and the next one finishes it."""

import errno
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from snapfmt import Repository
from snapfmt.errors import SnapfmtError
from snapfmt.format import layout
from snapfmt.storage import local
from snapfmt.testing.crashes import Call, InjectedCrash, SystemCalls
from snapfmt.testing.samples import all_contents, contents, needed, save, save_on, stored
from snapfmt.writing import attempt as attempt_module
from snapfmt.writing import lease as lease_module

Spawn = Callable[..., Any]
Action = Callable[[Repository], object]
ERRNOS = [errno.EIO, errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT, errno.ESTALE]

ACTIONS: dict[str, tuple[Action, set[int]]] = {
    "the base of another": (lambda repository: repository.retire(1), {1}),
    "one that uses the packs of another": (lambda repository: repository.retire(2), {2}),
    "the newest": (lambda repository: repository.retire(3), {3}),
    "all but the newest": (lambda repository: repository.keep_latest(1), {1, 2}),
}


@pytest.fixture
def origin(fast_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Snapshot 2 uses the packs of 1, whose attempt died right after it was published."""
    repository = Repository.create(fast_path / "origin")
    with monkeypatch.context() as patch:
        patch.setattr(
            attempt_module.Attempt, "_close", lambda attempt: setattr(attempt, "_closed", True)
        )
        save(repository, value=1)
    save_on(repository, 1, value=2)
    save(repository, value=3)
    assert len(repository.leases()) == 1
    # The dead process of these tests is this one, which lives on.
    monkeypatch.setattr(lease_module, "is_dead", lambda _: True)
    return fast_path / "origin"


def fresh(origin: Path, name: str) -> Path:
    target = origin.parent / name
    shutil.copytree(origin, target)
    return target


def check_after(
    root: Path, before: dict[int, dict[str, Any]], retired: set[int], where: str
) -> int:
    """All is whole or gone; the next save and the next retirement work. Returns: how many gone."""
    repository = Repository.open(root)
    found = all_contents(repository)
    gone = before.keys() - found.keys()
    assert gone <= retired, where
    assert found == {number: before[number] for number in found}, where
    report = repository.verify(deep=False)
    assert report.ok, (where, report.damage, report.unknown)
    assert needed(repository) <= stored(repository), where
    number = save(repository, value=4).number
    assert number == 4, where
    repository.pin("after", 4)
    repository.unpin("after")
    assert all_contents(repository).items() >= found.items(), where
    assert repository.keep_latest(99) == [], where
    assert stored(repository) == needed(repository), where
    findings = [
        # A document that was being written when the process died; it holds nothing.
        item
        for item in repository.verify().findings
        if not item.path.endswith(".tmp")
    ]
    assert findings == [], where
    for number in sorted(retired - gone):
        repository.retire(number)
    expected = {number: data for number, data in before.items() if number not in retired}
    after = all_contents(repository)
    assert {number: after[number] for number in expected} == expected, where
    assert repository.leases() == [], where
    return len(gone)


def calls_of(origin: Path, action: Action) -> list[Call]:
    root = fresh(origin, "count")
    with pytest.MonkeyPatch.context() as patch:
        calls = SystemCalls(root).install(patch)
        action(Repository.open(root))
    shutil.rmtree(root)
    return calls.calls


@pytest.mark.req("K-6", "K-8")
@pytest.mark.parametrize("name", ACTIONS)
def test_a_crash_at_any_system_call(origin: Path, name: str) -> None:
    action, retired = ACTIONS[name]
    before = all_contents(Repository.open(origin))
    total = len(calls_of(origin, action))
    assert total > 15
    outcomes = []
    # Every one where two go; elsewhere every second, and all in `crash_points.py`.
    for step in sorted({*range(1, total + 2, 3 - len(retired)), total + 1}):
        root = fresh(origin, f"crash{step}")
        with pytest.MonkeyPatch.context() as patch:
            calls = SystemCalls(root, crash_at=step).install(patch)
            try:
                action(Repository.open(root))
            except InjectedCrash:
                assert calls.dead
        outcomes.append(check_after(root, before, retired, f"step {step}: {calls.calls[-1]}"))
        shutil.rmtree(root)
    assert outcomes == sorted(outcomes)
    assert (outcomes[0], outcomes[-1]) == (0, len(retired))
    assert set(outcomes) == set(range(len(retired) + 1)), "one snapshot at a time"


@pytest.mark.parametrize("name", ["the base of another", "all but the newest"])
def test_an_error_at_any_system_call(origin: Path, name: str) -> None:
    action, retired = ACTIONS[name]
    before = all_contents(Repository.open(origin))
    total = len(calls_of(origin, action))
    seen: set[str] = set()
    stride = 3 - len(retired)
    for step in range(1, total + 1, stride):
        code = ERRNOS[step // stride % len(ERRNOS)]
        root = fresh(origin, f"error{step}")
        with pytest.MonkeyPatch.context() as patch:
            calls = SystemCalls(root)

            def fail(
                call: Call, calls: SystemCalls = calls, at: int = step, code: int = code
            ) -> OSError | None:
                return OSError(code, "injected", call.path) if len(calls.calls) == at else None

            calls.fail = fail
            calls.install(patch)
            try:
                action(Repository.open(root))
            except SnapfmtError as error:
                seen.add(type(error).__name__)
        check_after(root, before, retired, f"step {step}: {calls.calls[step - 1]}")
        shutil.rmtree(root)
    assert {"StorageError", "StorageFull", "StorageReadOnly", "StorageDenied"} <= seen


# The order in which things become durable


def ordered(calls: list[Call], root: Path) -> None:
    """The discipline of spec/v1/09-retention.md, for the retirement of snapshot 3."""

    def short(path: str) -> str:
        return os.path.relpath(path, root) if path else ""

    found = [(call.name, short(call.path), short(call.target)) for call in calls]
    folder = "snapshots/snapshot_000003"
    out = found.index(("rename", f"{folder}/manifest.json", f"{folder}/retiring.json"))
    removed = [
        at
        for at, call in enumerate(found)
        if call[0] == "unlink" and call[1].startswith("objects/")
    ]
    assert len(removed) == 4, "two packs and two part indexes"

    def synced(path: str, after: int, before: int) -> bool:
        return ("fsync", path, "") in found[after:before]

    assert out < removed[0], "an object went before the snapshot was out"
    assert synced(folder, out, removed[0]), "it was not durable that the snapshot is out"

    packs, indexes = removed[:2], removed[2:]
    for at in packs:
        aisle = os.path.dirname(found[at][1])
        assert synced(aisle, at, indexes[0]), "an index went before it was durable that packs did"
    (closed,) = (at for at, call in enumerate(found) if call[2] == f"{folder}/retired.json")
    for at in indexes:
        aisle = os.path.dirname(found[at][1])
        assert synced(aisle, at, closed), "closed before it was durable that all is gone"
    last = found.index(("unlink", f"{folder}/retiring.json", ""))
    assert synced(folder, closed, last), "the number may be free for a moment"


def trace(origin: Path) -> tuple[list[Call], Path]:
    root = fresh(origin, "trace")
    with pytest.MonkeyPatch.context() as patch:
        calls = SystemCalls(root).install(patch)
        Repository.open(root).retire(3)
    return calls.calls, root


def indexes_are_last(calls: list[Call], root: Path, origin: Path) -> bool:
    removed = [call.path for call in calls if call.name == "unlink" and "/objects/" in call.path]
    receipts = Repository.open(origin).snapshot(3).manifest.parts
    last = {str(root / layout.object_key(receipt.index_digest)) for receipt in receipts}
    return set(removed[-2:]) == last


def test_a_retirement_follows_the_order(origin: Path) -> None:
    calls, root = trace(origin)
    ordered(calls, root)
    assert indexes_are_last(calls, root, origin)


def test_what_a_crash_left_is_made_durable_before_anything_of_it_goes(origin: Path) -> None:
    """The snapshot was taken out, and the process died before that was durable."""
    folder = origin / "snapshots/snapshot_000003"
    (folder / "manifest.json").rename(folder / "retiring.json")
    with pytest.MonkeyPatch.context() as patch:
        calls = SystemCalls(origin).install(patch)
        Repository.open(origin).keep_latest(9)
    synced = calls.calls.index(Call("fsync", str(folder)))
    removed = [at for at, call in enumerate(calls.calls) if call.path.startswith(f"{origin}/obj")]
    assert synced < removed[0]


OMISSIONS: dict[str, Action] = {
    "no folder is synced": lambda patch: patch.setattr(local, "fsync_directory", lambda _: None),  # type: ignore[attr-defined]
    "objects are not synced": lambda patch: patch.setattr(  # type: ignore[attr-defined]
        local.LocalStore, "sync", lambda self, keys: None
    ),
}


@pytest.mark.parametrize("omission", OMISSIONS)
def test_an_omission_is_noticed(
    origin: Path, monkeypatch: pytest.MonkeyPatch, omission: str
) -> None:
    OMISSIONS[omission](monkeypatch)  # type: ignore[arg-type]
    calls, root = trace(origin)
    with pytest.raises(AssertionError, match=r"durable|free"):
        ordered(calls, root)


# Processes that save, keep the newest, and are killed

SAVE_AND_KEEP = """
import itertools, sys
from snapfmt import Repository
from snapfmt.errors import ConflictError, NotFoundError
from snapfmt.testing.samples import save, save_on
repository = Repository.open(sys.argv[1])
print("begun", flush=True)
for value in itertools.count():
    try:
        newest = repository.snapshot()
        if len(newest.part_names()) < 6:
            save_on(repository, newest.number, value=value * 100 + int(sys.argv[2]))
        else:
            save(repository, value=value)
    except (ConflictError, NotFoundError):
        pass
    repository.keep_latest(3)
"""


def test_processes_that_save_and_keep_the_newest_are_killed(fast_path: Path, spawn: Spawn) -> None:
    root, kills = fast_path / "run", 8
    repository = Repository.create(root)
    save(repository, value=1)
    children = [spawn(SAVE_AND_KEEP, str(root), str(who)) for who in range(3)]
    for who in range(3, 3 + kills):
        victim = children.pop(0)
        assert victim.stdout.readline().strip() == "begun", victim.communicate()
        # However slow the machine is, something is published between two kills.
        seen, until = repository.numbers()[-1], time.monotonic() + 60
        while repository.numbers()[-1] < seen + 2:
            assert time.monotonic() < until, victim.communicate()
            time.sleep(0.01)
        time.sleep(0.05 * who)
        assert victim.poll() is None, victim.communicate()
        victim.send_signal(signal.SIGKILL)
        victim.communicate()
        for number in repository.numbers():
            try:
                contents(repository.snapshot(number))
            except SnapfmtError:
                assert number not in repository.numbers(), "published, and not whole"
        children.append(spawn(SAVE_AND_KEEP, str(root), str(who)))
    for child in children:
        child.send_signal(signal.SIGKILL)
        assert child.communicate()[1] == ""
    numbers = repository.numbers()
    assert numbers[-1] > kills
    for number in numbers:
        assert contents(repository.snapshot(number))
    report = repository.verify()
    assert report.ok, report.findings
    repository.keep_latest(1)
    assert repository.numbers() == numbers[-1:]
    assert stored(repository) == needed(repository)
    assert [item for item in repository.verify().findings if not item.path.endswith(".tmp")] == []
