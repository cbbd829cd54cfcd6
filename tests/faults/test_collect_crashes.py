"""A collection that dies or meets an error at a system call harms nothing; the next goes on.

Here at some calls of each kind; `crash_points.py` does both at all of them.
"""

import errno
import itertools
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from snapfmt import Repository
from snapfmt.errors import SnapfmtError
from snapfmt.format import layout
from snapfmt.testing.crashes import Call, InjectedCrash, SystemCalls
from snapfmt.testing.samples import all_contents, needed, save, save_on, stored
from snapfmt.writing import lease as lease_module

ERRNOS = [errno.EIO, errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT, errno.ESTALE]


@pytest.fixture
def origin(fast_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Snapshot 2 carries 1, 3 is half retired, a save died, and another lost its journal."""
    repository = Repository.create(fast_path / "origin")
    save(repository, value=1)
    save_on(repository, 1, value=2)
    save(repository, value=3)
    repository.pin("kept", 1)
    dead, lost = repository.begin(), repository.begin()
    for attempt in (dead, lost):
        part = attempt.part("p")
        part.stage("note", b"lost")
        part.seal()
    repository.store.drop_workspace(layout.workspace_key(lost.id))
    repository.store.delete(layout.lease_key(lost.id))
    repository.store.unpublish("snapshots/snapshot_000003", layout.MANIFEST, layout.RETIRING)
    # The dead process of these tests is this one, which lives on.
    monkeypatch.setattr(lease_module, "is_dead", lambda _: True)
    return fast_path / "origin"


def fresh(origin: Path, name: str) -> Path:
    target = origin.parent / name
    shutil.copytree(origin, target)
    return target


def calls_of(origin: Path) -> list[Call]:
    root = fresh(origin, "count")
    with pytest.MonkeyPatch.context() as patch:
        calls = SystemCalls(root).install(patch)
        Repository.open(root).collect()
    shutil.rmtree(root)
    return calls.calls


def steps_of(calls: list[Call], root: Path) -> list[int]:
    """Numbers of the first and the last call of each kind: of one name, in one place."""
    kinds: dict[tuple[str, str, bool], list[int]] = {}
    for step, call in enumerate(calls, 1):
        place = os.path.relpath(call.path, root).partition("/")[0]
        kinds.setdefault((call.name, place, "/collect" in call.path), []).append(step)
    return sorted(
        set(itertools.chain.from_iterable((all_[0], all_[-1]) for all_ in kinds.values()))
    )


def check_after(root: Path, before: dict[int, dict[str, Any]], where: str) -> None:
    """All is whole, the next save works, and the next collection leaves what is needed."""
    repository = Repository.open(root)
    assert all_contents(repository) == before, where
    report = repository.verify(deep=False)
    assert report.ok, (where, report.damage, report.unknown)
    number = save(repository, value=4).number
    assert number == 4, where
    done = repository.collect()
    assert done.waiting == (), where
    assert stored(repository) == needed(repository), where
    after = all_contents(repository)
    assert {key: data for key, data in after.items() if key != 4} == before, where
    assert repository.leases() == [], where
    names = repository.store.names("snapshots/snapshot_000003")
    assert names == [layout.RETIRED], where
    findings = [
        # A document that was being written when the process died; it holds nothing.
        item
        for item in repository.verify().findings
        if not item.path.endswith(".tmp")
    ]
    assert findings == [], where
    assert repository.pins() == {"kept": 1}


@pytest.mark.req("K-12")
def test_a_crash_at_a_system_call_of_a_collection(origin: Path) -> None:
    before = all_contents(Repository.open(origin))
    steps = steps_of(calls_of(origin), origin.parent / "count")
    assert len(steps) > 20
    for step in steps:
        root = fresh(origin, f"crash{step}")
        with pytest.MonkeyPatch.context() as patch:
            calls = SystemCalls(root, crash_at=step, torn=bool(step % 2)).install(patch)
            with pytest.raises(InjectedCrash):
                Repository.open(root).collect()
            assert calls.dead
        check_after(root, before, f"step {step}: {calls.calls[-1]}")
        shutil.rmtree(root)


def test_an_error_at_a_system_call_of_a_collection(origin: Path) -> None:
    before = all_contents(Repository.open(origin))
    steps = steps_of(calls_of(origin), origin.parent / "count")
    seen: set[str] = set()
    for step, code in zip(steps, itertools.cycle(ERRNOS), strict=False):
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
                Repository.open(root).collect()
            except SnapfmtError as error:
                seen.add(type(error).__name__)
        check_after(root, before, f"step {step}: {calls.calls[step - 1]}")
        shutil.rmtree(root)
    assert {"StorageError", "StorageFull", "StorageReadOnly", "StorageDenied"} <= seen


@pytest.mark.req("K-12")
def test_that_a_snapshot_is_out_is_durable_before_the_order_of_a_collection_goes_on(
    origin: Path,
) -> None:
    """The retirement that died may have died before it was."""
    calls = calls_of(origin)
    synced = next(
        at
        for at, call in enumerate(calls)
        if (call.name, call.path)
        == ("fsync", str(origin.parent / "count/snapshots/snapshot_000003"))
    )
    made = next(at for at, call in enumerate(calls) if call.path.endswith("/collect"))
    removed = [
        at for at, call in enumerate(calls) if call.name == "unlink" and "/objects/" in call.path
    ]
    assert made < synced < min(at for at in removed if at > made)


@pytest.mark.req("K-12", "K-14")
def test_the_order_of_a_collection(origin: Path) -> None:
    """Its own lease and workspace come before the first object goes, and go after the last."""
    calls = [
        call for call in calls_of(origin) if "objects/" in call.path or "attempts/" in call.path
    ]
    removed = [
        at for at, call in enumerate(calls) if call.name == "unlink" and "/objects/" in call.path
    ]
    made = [at for at, call in enumerate(calls) if call.path.endswith("/collect")]
    synced = [
        at for at, call in enumerate(calls) if call.name == "fsync" and "/objects" in call.path
    ]
    assert calls[made[0]].name == "mkdir"
    assert calls[made[-1]].name == "rmdir"
    # Two are the clean-up's, which comes first.
    first = [calls[at].path for at in removed if at < made[0]]
    assert len(first) == 2
    later = [calls[at].path for at in removed if made[0] < at < made[-1]]
    assert len(later) == 8
    # Those of the dead save are gone already.
    assert len({path for path in later if path not in first}) == 6
    assert max(removed) < max(synced) < made[-1]
    lease = calls[-1]
    assert (lease.name, lease.path.endswith(".json")) == ("unlink", True)
