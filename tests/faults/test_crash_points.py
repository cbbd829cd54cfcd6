"""A save that dies at any system call leaves the old state or the new one, and no harm."""

import errno
import shutil
from pathlib import Path
from typing import Any

import pytest

from snapfmt import Repository
from snapfmt.errors import AttemptClosed, CommitOutcomeUnknown, SnapfmtError
from snapfmt.testing.crashes import Call, InjectedCrash, SystemCalls
from snapfmt.testing.samples import everything, save
from snapfmt.writing import lease as lease_module

ERRNOS = [errno.EIO, errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT, errno.ESTALE]


@pytest.fixture
def origin(fast_path: Path) -> Path:
    """A repository with one snapshot."""
    save(Repository.create(fast_path / "origin"), value=1)
    return fast_path / "origin"


def fresh(origin: Path, name: str) -> Path:
    target = origin.parent / name
    shutil.copytree(origin, target)
    return target


def count(origin: Path) -> int:
    """System calls of one save."""
    root = fresh(origin, "count")
    with pytest.MonkeyPatch.context() as patch:
        calls = SystemCalls(root).install(patch)
        save(Repository.open(root), value=2)
    assert {"open", "write", "fsync", "rename", "link", "mkdir", "unlink", "rmdir"} == set(
        calls.names()
    )
    return len(calls.calls)


def old_and_new(origin: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    old = everything(Repository.open(origin))
    root = fresh(origin, "new")
    save(Repository.open(root), value=2)
    new = everything(Repository.open(root))
    return comparable(old), comparable(new)


def comparable(found: dict[str, Any]) -> dict[str, Any]:
    """Without the manifests, which name times and attempts."""
    return {name: data for name, data in found.items() if not name.endswith("/manifest")}


def check_after(root: Path, old: dict[str, Any], new: dict[str, Any], where: str) -> bool:
    """Old or new; nothing damaged; the next save works and leaves nothing. Returns: is it new?"""
    repository = Repository.open(root)
    found = comparable(everything(repository))
    is_new = 2 in repository.numbers()
    assert found == (new if is_new else old), where
    report = repository.verify()
    assert report.ok, (where, report.damage)
    save(repository, value=2)
    after = comparable(everything(repository))
    assert {name: after[name] for name in found} == found, where
    assert repository.numbers() == ([1, 2, 3] if is_new else [1, 2]), where
    assert repository.leases() == [], where
    findings = [
        item
        for item in repository.verify().findings
        # Documents that were being written when the process died; they hold nothing.
        if not item.path.endswith(".tmp")
    ]
    assert findings == [], (where, findings)
    return is_new


@pytest.mark.parametrize("torn", [False, True])
def test_a_crash_at_any_system_call(
    origin: Path, monkeypatch: pytest.MonkeyPatch, torn: bool
) -> None:
    old, new = old_and_new(origin)
    total = count(origin)
    assert total > 50
    # The dead process of this test is this one, which lives on.
    monkeypatch.setattr(lease_module, "is_dead", lambda _: True)
    outcomes = []
    steps = range(1, total + 2)
    if torn:
        root = fresh(origin, "which")
        with pytest.MonkeyPatch.context() as patch:
            calls = SystemCalls(root).install(patch)
            save(Repository.open(root), value=2)
        steps = [step for step, name in enumerate(calls.names(), 1) if name == "write"]
    for step in steps:
        root = fresh(origin, f"crash{step}")
        with pytest.MonkeyPatch.context() as patch:
            calls = SystemCalls(root, crash_at=step, torn=torn).install(patch)
            try:
                save(Repository.open(root), value=2)
            except (InjectedCrash, AttemptClosed):
                assert calls.dead
        where = f"step {step}: {calls.calls[-1]}"
        outcomes.append(check_after(root, old, new, where))
        shutil.rmtree(root)
    # First old, then new, and at no later step old again.
    assert outcomes == sorted(outcomes)
    assert not outcomes[0]
    assert torn or outcomes[-1]
    if not torn:
        assert outcomes.index(True) > total * 0.6, "the publication comes last"


def test_an_error_at_any_system_call(origin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = old_and_new(origin)
    total = count(origin)
    monkeypatch.setattr(lease_module, "is_dead", lambda _: True)
    seen: set[str] = set()
    for step in range(1, total + 1):
        code = ERRNOS[step % len(ERRNOS)]
        root = fresh(origin, f"error{step}")
        with pytest.MonkeyPatch.context() as patch:
            calls = SystemCalls(root)

            def fail(
                call: Call, calls: SystemCalls = calls, at: int = step, code: int = code
            ) -> OSError | None:
                return OSError(code, "injected", call.path) if len(calls.calls) == at else None

            calls.fail = fail
            calls.install(patch)
            raised: Exception | None = None
            try:
                save(Repository.open(root), value=2)
            except SnapfmtError as error:
                raised = error
        where = f"step {step}: {calls.calls[step - 1]}: {raised!r}"
        published = 2 in Repository.open(root).numbers()
        if raised is None:
            assert published, where
        elif not isinstance(raised, CommitOutcomeUnknown) and published:
            # Told as an error although it happened: only what came after the publication failed.
            pytest.fail(f"published, but raised: {where}")
        seen.add(type(raised).__name__)
        check_after(root, old, new, where)
        shutil.rmtree(root)
    assert {"StorageError", "StorageFull", "StorageReadOnly", "StorageDenied"} <= seen
    assert {"CommitOutcomeUnknown", "NoneType"} <= seen
