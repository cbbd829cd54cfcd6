"""What runs out or gets in the way: files, names, quota, time. Typed, nothing lost, and over."""

import errno
import os
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from snapfmt import Repository
from snapfmt.errors import (
    AttemptError,
    ConflictError,
    MissingObject,
    SnapfmtError,
    StorageDenied,
    StorageError,
    StorageFull,
    StorageReadOnly,
)
from snapfmt.storage import local, posix
from snapfmt.storage.base import CLOSED
from snapfmt.testing.crashes import Call, SystemCalls
from snapfmt.testing.samples import everything, save
from snapfmt.transfer import copy_snapshot
from snapfmt.writing import attempt as attempt_module

Spawn = Callable[..., "subprocess.Popen[str]"]
BEGIN = """
import sys
from snapfmt import Repository
attempt = Repository.open(sys.argv[1]).begin()
print("begun", flush=True)
sys.stdin.readline()
"""


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


@contextmanager
def few_files(more: int) -> Iterator[None]:
    """This process may open only so many files more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = {int(name) for name in descriptors()}
    # The limit is on the number of a descriptor, not on how many there are.
    free = [number for number in range(max(used) + more + 2) if number not in used]
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[more] if more < len(free) else hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EIO, errno.EACCES])
def test_a_look_that_fails_is_a_typed_error(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Also at a number that a copy closed, where what there is must be read."""
    save(repository, value=1)
    store, closed = repository.store, Path(repository.location, "snapshots/snapshot_000002")
    closed.mkdir()
    (closed / "manifest.json").write_bytes(CLOSED)
    key = "snapshots/snapshot_000002/manifest.json"
    assert (repository.numbers(), store.size(key)) == ([1], None)
    looks: list[Callable[[], object]] = [
        repository.numbers,
        lambda: store.names("snapshots/snapshot_000001"),
        lambda: store.names("snapshots/snapshot_000002"),
        lambda: list(store.walk("")),
        lambda: store.size(key),
        lambda: store.get(key, limit=100),
        lambda: store.has_workspace("attempts/" + "0" * 32),
    ]

    def fail(*_: object, **__: object) -> int:
        raise OSError(code, os.strerror(code))

    for name in ("open", "pread", "stat"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, fail)
            failed = 0
            for look in looks:
                try:
                    look()
                except StorageError:
                    failed += 1
                except MissingObject:
                    # Of the closed one, as without the error.
                    continue
        assert failed > 0, name
    assert (repository.numbers(), store.size(key)) == ([1], None)


def give_up(repository: Repository) -> None:
    """End what failed saves left, of which this process, which lives, is the owner."""
    for lease in repository.leases():
        attempt_module.reclaim(repository.store, lease.attempt_id)
    repository.clean_up()
    assert repository.verify().findings == []


def test_too_many_open_files(repository: Repository) -> None:
    """However many may still be opened; none stays open after an error."""
    save(repository, value=1)
    save(repository, value=1)
    before, refused, worked = everything(repository), 0, 0
    for more in range(0, 12, 2):
        opened = len(descriptors())
        with few_files(more):
            try:
                save(Repository.open(repository.location), value=2)
                worked += 1
            except StorageError:
                refused += 1
        assert len(descriptors()) <= opened, f"with {more} files more"
        seen = everything(repository)
        assert {key: seen[key] for key in before} == before
        # This process lives, so that a lease which is left would stand for an hour.
        assert repository.leases() == [], f"with {more} files more"
        repository.clean_up()
        assert repository.verify().findings == []
    assert refused > 0
    assert worked > 0
    with few_files(0), pytest.raises(StorageError):
        everything(Repository.open(repository.location))
    with few_files(0), pytest.raises(StorageError):
        repository.snapshot()
    assert save(repository, value=3).number == len(repository.numbers())


@pytest.mark.parametrize("what", ["save", "pin", "retire", "collect", "copy"])
def test_the_lease_of_a_process_that_lives_does_not_stay(
    repository: Repository, tmp_path: Path, what: str
) -> None:
    """However many files may still be opened when it begins, and when it ends."""
    for value in (1, 2, 3):
        save(repository, value=value)
    root = Path(repository.location)
    whole = shutil.copytree(root, tmp_path / "whole")
    newer = Repository.open(shutil.copytree(root, tmp_path / "newer"))
    save(newer, value=4)
    calls: dict[str, Callable[[Repository], object]] = {
        "save": lambda place: place.begin(base=1).abandon(),
        "pin": lambda place: place.pin("best", 1),
        "retire": lambda place: place.retire(1),
        "collect": Repository.collect,
        "copy": lambda place: copy_snapshot(newer, place, 4, workers=1),
    }
    refused = 0
    for more in range(12):
        shutil.rmtree(root)
        shutil.copytree(whole, root)
        place = Repository.open(root)
        place.store.prepare()
        with few_files(more):
            try:
                calls[what](place)
            except SnapfmtError:
                refused += 1
        assert place.leases() == [], f"with {more} files more"
        place.clean_up()
        place.collect()
        assert place.verify().findings == []
    assert refused > 0
    # One that is another's stays.
    held = repository.begin()
    with pytest.raises(ConflictError):
        repository.begin(attempt_id=held.id)
    assert [lease.attempt_id for lease in repository.leases()] == [held.id]


def test_a_lease_whose_folder_cannot_be_synced_does_not_stay(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is there when the error comes; and so it is when its attempt cannot be cleaned up."""
    save(repository, value=1)
    attempt = repository.begin()

    def fail(path: Path) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(local, "fsync_directory", fail)
        for call in (repository.begin, lambda: repository.pin("best", 1), attempt.abandon):
            with pytest.raises(StorageError):
                call()
    assert repository.leases() == []
    assert repository.clean_up() == [attempt.id]
    assert repository.verify().findings == []


def publishes(call: Call) -> bool:
    """Whether it makes the snapshot appear."""
    return call.name == "rename" and "snapshots/snapshot_" in call.target


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.EDQUOT, StorageFull),
        (errno.ENOSPC, StorageFull),
        (errno.EROFS, StorageReadOnly),
        (errno.EACCES, StorageDenied),
        (errno.EIO, StorageError),
        (errno.ENAMETOOLONG, StorageError),
    ],
)
def test_a_save_after_which_the_disk_says_no(
    repository: Repository,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    kind: type[StorageError],
) -> None:
    """At the first call, in the probe, in a part, at the manifest, and from there on."""
    root = Path(repository.location)
    save(repository, value=1)
    calls = SystemCalls(root)
    with monkeypatch.context() as patch:
        calls.install(patch)
        save(Repository.open(root), value=1)
    last = next(number for number, call in enumerate(calls.calls) if publishes(call))
    before = everything(repository)
    # By its kind and not by its number: two objects in one folder are a sync less.
    for first in [*range(0, 6, 2), *range(6, last - 6, last // 3), None]:
        seen, failing = [0], [False]

        def fail(
            call: Call,
            first: int | None = first,
            seen: list[int] = seen,
            failing: list[bool] = failing,
        ) -> OSError | None:
            seen[0] += 1
            failing[0] |= publishes(call) if first is None else seen[0] > first
            return OSError(code, os.strerror(code), call.path) if failing[0] else None

        with monkeypatch.context() as patch:
            SystemCalls(root, fail=fail).install(patch)
            with pytest.raises(kind, match=os.strerror(code).split()[0]):
                save(Repository.open(root), value=2)
        assert everything(repository) == before, first
        assert failing[0]
        repository.clean_up()
    assert save(repository, value=3).number == 3
    give_up(repository)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE])
@pytest.mark.req("S-8")
def test_a_probe_that_fails_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """And not that the file system lacks something."""
    for name in ("rename", "link", "mkdir"):
        with monkeypatch.context() as patch:
            SystemCalls(
                tmp_path,
                fail=lambda call, name=name: OSError(code, "no") if call.name == name else None,  # type: ignore[misc]
            ).install(patch)
            with pytest.raises(OSError, match="no") as caught:
                posix.probe(tmp_path)
        assert caught.value.errno == code
        assert list(tmp_path.iterdir()) == []


@pytest.mark.req("W-12")
def test_an_owner_that_cannot_be_looked_at_lives(
    repository: Repository, spawn: Spawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too many files are open, or /proc hides the processes of others."""
    child = spawn(BEGIN, repository.location)
    assert child.stdout is not None
    assert child.stdout.readline().strip() == "begun"
    real, code = Path.read_text, 0

    def read_text(path: Path, *args: Any, **options: Any) -> str:
        if path == Path(f"/proc/{child.pid}/stat"):
            raise OSError(code, os.strerror(code))
        return real(path, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", read_text)
        for code in (errno.EMFILE, errno.EACCES, errno.ENOENT):
            assert repository.clean_up() == [], os.strerror(code)
        child.kill()
        child.wait()
        assert len(repository.clean_up()) == 1


def test_names_that_are_too_long(tmp_path: Path, repository: Repository) -> None:
    for folder in (tmp_path / ("x" * 300), tmp_path.joinpath(*["y" * 200] * 30)):
        for create in (True, False):
            with pytest.raises(SnapfmtError):
                Repository.open(folder, create=create)
    save(repository)
    longest = "a" * 200
    assert repository.pin(longest, 1).number == 1
    repository.unpin(longest)
    with repository.begin() as attempt:
        part = attempt.part("p" * 255)
        part.stage("/".join(["e" * 200] * 5), b"x")
        attempt.publish([part.seal()])
    assert repository.verify().findings == []


def test_signals_that_interrupt_system_calls(repository: Repository) -> None:
    hits = [0]

    def note(*_: object) -> None:
        hits[0] += 1

    before = signal.signal(signal.SIGALRM, note)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        saved = 0
        # On a machine that stands still, many signals come as one.
        while saved < 3 or hits[0] <= 10:
            save(repository, value=saved)
            saved += 1
        assert repository.verify().findings == []
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(repository.numbers()) == saved


def save_within(repository: Repository, seconds: float) -> None:
    with repository.begin(lease_seconds=seconds) as attempt:
        part = attempt.part("p")
        part.stage("x", b"data")
        attempt.publish([part.seal()])


def test_a_disk_that_is_slower_than_the_lease(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(repository, value=1)
    before = everything(repository)
    real = os.fsync

    def slow(descriptor: int) -> None:
        time.sleep(0.05)
        real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", slow)
        with pytest.raises(AttemptError):
            save_within(repository, 0.2)
        assert everything(repository) == before
        save(repository, value=2)
    assert repository.numbers() == [1, 2]
    assert repository.verify().findings == []
