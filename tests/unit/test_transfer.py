"""Copies between repositories: the same bytes, the same snapshot, whatever happens on the way."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from snapfmt import Repository
from snapfmt.errors import (
    CommitConflict,
    CommitOutcomeUnknown,
    CorruptObject,
    FormatError,
    InputError,
    LeaseExpired,
    MissingObject,
    NotPublished,
    OutcomeUnknownError,
    RefusedError,
    SnapfmtError,
    SnapshotExists,
    StorageFull,
    StorageUnavailable,
)
from snapfmt.format import layout
from snapfmt.storage.base import CLOSED, Buffer, Sink, Store
from snapfmt.storage.local import LocalStore
from snapfmt.storage.memory import MemoryClient
from snapfmt.storage.objects import ObjectStore
from snapfmt.testing.samples import everything, save, save_on
from snapfmt.testing.stores import CountingStore, FaultyStore, WrappedStore
from snapfmt.transfer import copy_snapshot, open_target, parallel
from snapfmt.transfer.claim import Claim
from snapfmt.transfer.ground import Ground
from snapfmt.transfer.parallel import Bound, Stopped, run_all

PassTime = Callable[[float], None]

NewStore = Callable[[], Store]


@pytest.fixture(params=["local", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """An empty place of each kind."""
    if request.param == "memory":
        return ObjectStore(MemoryClient())
    return LocalStore(tmp_path / "copy", create=True)


@pytest.fixture
def source(repository: Repository) -> Repository:
    """Two snapshots; the second uses the packs of the first."""
    save(repository, value=1)
    save_on(repository, 1, value=2)
    return repository


def stored(store: Store, *folders: str) -> dict[str, bytes]:
    """What lies under these folders."""
    return {
        key: store.get(key, limit=1 << 30)
        for folder in folders or ("objects", "snapshots")
        for key, _ in store.walk(folder)
    }


def assert_clean(repository: Repository) -> None:
    """Nothing is wrong and nothing is left over."""
    assert repository.verify().findings == []
    assert repository.store.names(layout.ATTEMPTS) == []


def big(repository: Repository, objects: int = 8) -> int:
    """One snapshot with at least so many objects; returns how many."""
    with repository.begin() as attempt:
        receipts = []
        for number in range(objects // 2):
            part = attempt.part(f"p/{number}")
            part.stage("data", os.urandom(300_000))
            receipts.append(part.seal())
        attempt.publish(receipts)
    return objects


@pytest.mark.req("C-1", "C-4")
def test_a_copy_is_the_same_snapshot(source: Repository, place: Store) -> None:
    target = open_target(place, source)
    reports = [copy_snapshot(source, target, number) for number in (1, 2)]
    assert stored(target.store) == stored(source.store)
    assert everything(Repository.open(place)) == everything(source)
    assert target.id == source.id
    assert_clean(target)
    first, second = reports
    assert (first.number, first.published, first.objects_skipped) == (1, True, 0)
    assert first.write_id == source.snapshot(1).manifest.write_id
    sizes = {key: len(data) for key, data in stored(source.store, "objects").items()}
    assert first.objects_sent + second.objects_sent == len(sizes)
    assert first.bytes_sent + second.bytes_sent == sum(sizes.values())
    # The packs of the first are there: only indexes and the new pack go.
    assert (second.objects_sent, second.objects_skipped) == (4, 2)


def test_a_copy_goes_back(source: Repository, place: Store, tmp_path: Path) -> None:
    there = open_target(place, source)
    copy_snapshot(source, there, 2)
    back = open_target(tmp_path / "back", there)
    copy_snapshot(there, back, 2)
    assert back.numbers() == [2]
    assert stored(back.store) == stored(there.store)
    assert_clean(back)
    # And a save goes on from it.
    save_on(back, 2, value=3)
    assert back.numbers() == [2, 3]


@pytest.mark.req("C-2")
def test_what_is_there_is_success(source: Repository, place: Store) -> None:
    target = open_target(place, source)
    copy_snapshot(source, target, 1)
    before = stored(place, "")
    again = copy_snapshot(source, target, 1)
    assert (again.published, again.objects_sent, again.bytes_sent) == (False, 0, 0)
    assert stored(place, "") == before
    # Nothing but the two manifests is looked at.
    watched = CountingStore(place)
    copy_snapshot(source, Repository.open(watched), 1)
    assert {key for key, _, _ in watched.reads} == {"snapfmt.json", layout.manifest_key(1)}


@pytest.mark.req("C-4")
def test_all_is_durable_before_it_is_published(source: Repository, place: Store) -> None:
    """Also what was there: who sent it may have died before its folder was synced."""
    target = open_target(place, source)
    keys = copyable(source, 2)
    for key in sorted(keys)[:3]:
        put(place, key, source.store.get(key, limit=1 << 30))
    steps: list[str] = []

    class Noting(WrappedStore):
        def sync(self, keys: Any) -> None:
            steps.append("sync")
            assert set(keys) == copyable(source, 2)
            assert {key for key, _ in place.walk("objects")} == set(keys)
            self.inner.sync(keys)

        def publish(self, workspace: str, folder: str, name: str, data: Buffer) -> None:
            steps.append("publish")
            self.inner.publish(workspace, folder, name, data)

    copy_snapshot(source, Repository.open(Noting(place)), 2)
    assert steps == ["sync", "publish"]
    assert_clean(target)


def test_wrong_arguments(source: Repository, place: Store) -> None:
    target = open_target(place, source)
    with pytest.raises(NotPublished):
        copy_snapshot(source, target, 9)
    with pytest.raises(InputError):
        copy_snapshot(source, target, 1, workers=0)
    assert_clean(target)


@pytest.mark.req("C-1")
def test_another_repository_is_refused(source: Repository, place: Store) -> None:
    target = Repository.open(place, create=True)
    with pytest.raises(RefusedError, match="another repository"):
        copy_snapshot(source, target, 1)
    with pytest.raises(RefusedError, match="another repository"):
        open_target(place, source)
    assert target.numbers() == []


@pytest.mark.req("C-2")
def test_another_snapshot_of_the_number_is_a_conflict(source: Repository, place: Store) -> None:
    target = open_target(place, source)
    save(target, value=9)
    before = stored(place)
    with pytest.raises(CommitConflict):
        copy_snapshot(source, target, 1)
    assert stored(place) == before
    assert_clean(target)


@pytest.mark.req("C-2")
def test_a_snapshot_that_the_target_retired_stays_away(source: Repository, place: Store) -> None:
    target = open_target(place, source)
    copy_snapshot(source, target, 1)
    copy_snapshot(source, target, 2)
    target.retire(1)
    with pytest.raises(SnapshotExists, match="retired"):
        copy_snapshot(source, target, 1)
    assert target.numbers() == [2]
    assert_clean(target)


def test_a_name_that_is_closed_is_a_conflict(source: Repository) -> None:
    store = ObjectStore(MemoryClient())
    target = open_target(store, source)
    store.replace(layout.manifest_key(1), CLOSED)
    with pytest.raises(CommitConflict):
        copy_snapshot(source, target, 1)
    assert store.names(layout.ATTEMPTS) == []


@pytest.mark.req("C-3")
def test_a_damaged_source_publishes_nothing(source: Repository, place: Store) -> None:
    target = open_target(place, source)
    pack = source.snapshot(1).part("gym/agent/a").entry("notes.txt").location.pack
    path = Path(source.location, layout.object_key(pack))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptObject) as caught:
        copy_snapshot(source, target, 1)
    assert caught.value.what == layout.object_key(pack)
    assert target.numbers() == []
    assert place.size(layout.object_key(pack)) is None
    assert place.names(layout.ATTEMPTS) == []
    path.write_bytes(data[:-1])
    with pytest.raises(CorruptObject, match="truncated"):
        copy_snapshot(source, target, 1)
    path.unlink()
    with pytest.raises(MissingObject):
        copy_snapshot(source, target, 1)
    assert target.numbers() == []


def test_a_damaged_manifest_is_not_copied(source: Repository, place: Store) -> None:
    target = open_target(place, source)
    path = Path(source.location, layout.manifest_key(1))
    path.write_bytes(path.read_bytes() + b"\n")
    with pytest.raises(FormatError):
        copy_snapshot(source, target, 1)
    assert target.numbers() == []


@pytest.mark.req("C-5")
def test_deep_finds_and_mends_what_is_wrong_at_the_target(source: Repository, place: Store) -> None:
    target = open_target(place, source)
    copy_snapshot(source, target, 1)
    good = stored(place)
    pack = layout.object_key(
        source.snapshot(1).part("rl/tq/train").segments("rows/train")[0].document.data.pack
    )
    place.replace(pack, bytes(len(good[pack])))
    assert copy_snapshot(source, target, 1).objects_sent == 0
    assert target.verify().damage
    report = copy_snapshot(source, target, 1, deep=True)
    assert (report.published, report.objects_sent, report.objects_skipped) == (False, 1, 3)
    assert stored(place) == good
    assert_clean(target)


@pytest.mark.req("C-5")
def test_an_object_of_the_wrong_size_is_sent_again(source: Repository, place: Store) -> None:
    target = open_target(place, source)
    objects = stored(source.store, "objects")
    (short, *rest) = [key for key in sorted(objects) if key in copyable(source, 1)]
    put(place, short, objects[short][:-1])
    put(place, rest[0], objects[rest[0]])
    report = copy_snapshot(source, target, 1)
    assert (report.objects_sent, report.objects_skipped) == (3, 1)
    assert_clean(target)


def copyable(source: Repository, number: int) -> set[str]:
    """Keys that a snapshot reaches."""
    from snapfmt.writing.keeping import reached

    return set(reached(source.store, source.snapshot(number).manifest, source.limits))


def put(store: Store, key: str, data: bytes) -> None:
    """An object as a tool would leave it."""
    if isinstance(store, LocalStore):
        path = Path(store.location, key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    else:
        store.replace(key, data)


# Failures in the middle


class Failing(WrappedStore):
    """Fails when the object number `after` is finished; counts them."""

    def __init__(self, inner: Store, after: int, error: Exception | None = None) -> None:
        super().__init__(inner)
        self.room = threading.Semaphore(after)
        self.error = error or StorageFull("no space left")
        self.finished: list[str] = []

    def sink(self, workspace: str, name: str) -> Sink:
        return _FailingSink(self, self.inner.sink(workspace, name))


class _FailingSink:
    def __init__(self, store: Failing, inner: Sink) -> None:
        self._store = store
        self._inner = inner

    def write(self, data: Buffer) -> None:
        self._inner.write(data)

    def finish(self, key: str) -> None:
        if not self._store.room.acquire(blocking=False):
            raise self._store.error
        self._inner.finish(key)
        self._store.finished.append(key)

    def discard(self) -> None:
        self._inner.discard()


@pytest.mark.req("C-3", "C-5")
@pytest.mark.parametrize("after", [0, 1, 5])
def test_a_target_that_fails_in_the_middle(
    repository: Repository, place: Store, after: int
) -> None:
    total = big(repository)
    failing = Failing(place, after)
    target = open_target(failing, repository)
    with pytest.raises(StorageFull):
        copy_snapshot(repository, target, 1, workers=1)
    assert target.numbers() == []
    assert place.names(layout.ATTEMPTS) == []
    assert set(stored(place, "objects")) == set(failing.finished)
    report = copy_snapshot(repository, Repository.open(place), 1)
    assert (report.objects_sent, report.objects_skipped) == (total - after, after)
    assert_clean(Repository.open(place))


def test_the_error_of_one_thread_ends_the_others(repository: Repository, place: Store) -> None:
    big(repository)
    failing = Failing(place, 2, StorageUnavailable("gone"))
    # Copies of other tests that are stuck have theirs.
    before = set(threading.enumerate())
    with pytest.raises(StorageUnavailable):
        copy_snapshot(repository, open_target(failing, repository), 1, workers=4)
    assert place.names(layout.ATTEMPTS) == []
    left = [thread.name for thread in threading.enumerate() if thread not in before]
    assert not [name for name in left if "snapfmt-copy" in name]


KILLED = """
import os, signal, sys
from snapfmt import Repository
from snapfmt.transfer import copy_snapshot, open_target
source = Repository.open(sys.argv[1])
target = open_target(sys.argv[2], source)
seen = []
def progress(count, key):
    seen.append(key)
    if len(seen) == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
copy_snapshot(source, target, 1, workers=1, progress=progress)
"""


@pytest.mark.req("C-5", "C-6")
@pytest.mark.parametrize("cleaned", [False, True])
def test_a_killed_copy_goes_on(repository: Repository, tmp_path: Path, cleaned: bool) -> None:
    total = big(repository)
    place = tmp_path / "copy"
    done = subprocess.run(
        [sys.executable, "-c", KILLED, repository.location, str(place), "5"], check=False
    )
    assert done.returncode == -signal.SIGKILL
    target = Repository.open(place)
    assert target.numbers() == []
    there = set(stored(target.store, "objects"))
    assert len(there) == 4
    (lease,) = target.leases()
    assert list(place.rglob("*.tmp"))
    if cleaned:
        # As a save at the target would: the copier is dead, what it sent stays.
        assert target.clean_up() == [lease.attempt_id]
        assert set(stored(target.store, "objects")) == there
    report = copy_snapshot(repository, target, 1)
    assert (report.objects_sent, report.objects_skipped) == (total - 4, 4)
    assert stored(target.store) == stored(repository.store)
    assert list(place.rglob("*.tmp")) == []
    assert_clean(target)


@pytest.mark.req("C-6")
def test_a_copier_that_ran_out_closes_no_name_and_takes_no_object(
    repository: Repository, place: Store
) -> None:
    """A save's workspace would do both when it is fenced."""
    total = big(repository)
    target = open_target(place, repository)
    claim = Claim(place, 1, lease_seconds=0.0)
    keys = sorted(stored(repository.store, "objects"))
    for key in keys[:3]:
        sink = place.sink(claim.workspace, key[-8:])
        sink.write(repository.store.get(key, limit=1 << 30))
        sink.finish(key)
    assert target.clean_up() == [claim.id]
    assert sorted(stored(place, "objects")) == keys[:3]
    report = copy_snapshot(repository, target, 1)
    assert (report.objects_sent, report.objects_skipped) == (total - 3, 3)
    # Also the marker that the clean-up of saves does not know.
    assert_clean(target)
    with pytest.raises(LeaseExpired):
        claim.check()


def test_a_sweep_leaves_saves_and_running_copies_alone(
    repository: Repository, place: Store
) -> None:
    big(repository)
    target = open_target(place, repository)
    running = Claim(place, 1)
    save_running = target.begin(number=7)
    dead_save = target.begin(number=8, lease_seconds=0.0)
    copy_snapshot(repository, target, 1)
    running.check()
    assert {lease.attempt_id for lease in target.leases()} == {
        running.id,
        save_running.id,
        dead_save.id,
    }
    running.close()
    save_running.abandon()
    dead_save.abandon()
    assert_clean(target)


class Meddling(WrappedStore):
    """Runs something once, before a method of the store."""

    def __init__(self, inner: Store, method: str, act: Callable[[], object]) -> None:
        super().__init__(inner)
        self._method = method
        self._act: Callable[[], object] | None = act

    def _before(self, method: str) -> None:
        if method == self._method and self._act is not None:
            act, self._act = self._act, None
            act()

    def sink(self, workspace: str, name: str) -> Sink:
        self._before("sink")
        return self.inner.sink(workspace, name)

    def sync(self, keys: Any) -> None:
        self._before("sync")
        self.inner.sync(keys)

    def publish(self, workspace: str, folder: str, name: str, data: Buffer) -> None:
        self._before("publish")
        self.inner.publish(workspace, folder, name, data)

    def get_range(self, key: str, offset: int, size: int) -> bytes:
        self._before("get_range")
        return self.inner.get_range(key, offset, size)

    def create(self, key: str, data: Buffer) -> None:
        if key.startswith("attempts/"):
            self._before("lease")
        self.inner.create(key, data)


def test_a_copy_that_was_taken_over_publishes_nothing(repository: Repository, place: Store) -> None:
    big(repository)

    def take_over() -> None:
        target = Repository.open(place)
        for lease in target.leases():
            place.delete(layout.lease_key(lease.attempt_id))

    target = open_target(Meddling(place, "sync", take_over), repository)
    with pytest.raises(LeaseExpired):
        copy_snapshot(repository, target, 1)
    assert target.numbers() == []
    assert place.names(layout.ATTEMPTS) == []


def test_leases_are_renewed_when_half_of_their_time_is_over(
    repository: Repository, place: Store, pass_time: PassTime
) -> None:
    target = open_target(place, repository)
    claim = Claim(place, 1, lease_seconds=600.0)
    claim.hold(4)
    claim.renew_if_due()
    assert {lease.generation for lease in target.leases()} == {0}
    pass_time(301.0)
    claim.renew_if_due()
    assert {lease.generation for lease in target.leases()} == {1}
    assert all(lease.expires_at_ns > time.time_ns() + 450e9 for lease in target.leases())
    pass_time(301.0)
    place.delete(layout.lease_key(claim.id))
    with pytest.raises(LeaseExpired):
        claim.renew_if_due()
    claim.close()
    assert place.names(layout.ATTEMPTS) == []


# Retirement at either end


@pytest.mark.req("C-7")
def test_what_a_copy_relies_on_is_held(source: Repository, place: Store) -> None:
    target = open_target(place, source)
    copy_snapshot(source, target, 1)
    refused: list[str] = []

    def retire() -> None:
        try:
            Repository.open(place).retire(1)
        except RefusedError as error:
            refused.append(str(error))

    copy_snapshot(source, open_target(Meddling(place, "sink", retire), source), 2)
    assert len(refused) == 1
    assert "base of the running save" in refused[0]
    assert_clean(target)
    target.retire(1)
    assert everything(target) == {
        key: value for key, value in everything(source).items() if key.startswith("2/")
    }
    assert_clean(target)


@pytest.mark.req("C-7")
def test_what_was_retired_before_it_was_held_is_sent_again(
    source: Repository, place: Store
) -> None:
    target = open_target(place, source)
    copy_snapshot(source, target, 1)
    calls: list[str] = []

    class Late(WrappedStore):
        def create(self, key: str, data: Buffer) -> None:
            # The second lease is the one that holds snapshot 1: it comes too late.
            if key.endswith(".json") and key.startswith("attempts/"):
                calls.append(key)
                if len(calls) == 2:
                    Repository.open(place).retire(1)
            self.inner.create(key, data)

        def publish(self, workspace: str, folder: str, name: str, data: Buffer) -> None:
            assert copyable(source, 2) == {key for key, _ in place.walk("objects")}
            self.inner.publish(workspace, folder, name, data)

    report = copy_snapshot(source, open_target(Late(place), source), 2)
    assert len(calls) == 2
    assert report.objects_sent == 6
    assert target.numbers() == [2]
    assert_clean(target)


@pytest.mark.req("C-7")
def test_what_another_copy_publishes_meanwhile_is_held_too(
    source: Repository, place: Store
) -> None:
    target = open_target(place, source)
    refused: list[RefusedError] = []

    def retire() -> None:
        with pytest.raises(RefusedError, match="base of the running save") as caught:
            target.retire(1)
        refused.append(caught.value)

    def other() -> None:
        copy_snapshot(source, target, 1)

    meddling = Meddling(Meddling(place, "sink", other), "sync", retire)
    copy_snapshot(source, Repository.open(meddling), 2)
    assert len(refused) == 1
    assert target.numbers() == [1, 2]
    assert_clean(target)


@pytest.mark.req("C-7")
def test_a_retirement_that_is_not_finished_is_in_the_way(source: Repository, place: Store) -> None:
    target = open_target(place, source)
    copy_snapshot(source, target, 1)
    place.unpublish("snapshots/snapshot_000001", layout.MANIFEST, layout.RETIRING)
    with pytest.raises(RefusedError, match="not finished to retire") as caught:
        copy_snapshot(source, target, 2)
    assert caught.value.what == "snapshot_000001"
    assert target.numbers() == []
    assert place.names(layout.ATTEMPTS) == []
    index = source.snapshot(1).manifest.parts[0].index_digest
    place.delete(layout.object_key(index))
    with pytest.raises(RefusedError, match="not finished to retire"):
        copy_snapshot(source, target, 2)


def test_another_snapshot_is_not_hindered_by_a_retirement(
    repository: Repository, place: Store
) -> None:
    save(repository, value=1)
    save(repository, value=2)
    target = open_target(place, repository)
    copy_snapshot(repository, target, 1)
    place.unpublish("snapshots/snapshot_000001", layout.MANIFEST, layout.RETIRING)
    copy_snapshot(repository, target, 2)
    assert target.numbers() == [2]
    assert target.verify().damage == []


@pytest.mark.req("C-8")
def test_what_goes_at_the_last_moment_is_sent_again(source: Repository, place: Store) -> None:
    target = open_target(place, source)
    pack = layout.object_key(
        source.snapshot(1).part("gym/agent/a").entry("notes.txt").location.pack
    )
    meddling = Meddling(place, "publish", lambda: place.delete(pack))
    copy_snapshot(source, open_target(meddling, source), 1)
    assert place.size(pack) is not None
    assert_clean(target)


def test_a_save_at_the_target_that_claims_the_objects(source: Repository, tmp_path: Path) -> None:
    """A plain copy of a repository in which a save ran brings the save's journal along."""
    attempt = source.begin()
    part = attempt.part("p")
    part.stage("x", b"x")
    receipt = part.seal()
    shutil.copytree(source.location, tmp_path / "copy")
    attempt.publish([receipt])
    target = Repository.open(tmp_path / "copy")
    with pytest.raises(RefusedError, match="unfinished save"):
        copy_snapshot(source, target, 3)
    for lease in target.leases():
        target.store.delete(layout.lease_key(lease.attempt_id))
    target.clean_up()
    copy_snapshot(source, target, 3)
    assert stored(target.store) == stored(source.store)
    assert_clean(target)


def test_a_source_that_retires_it_meanwhile(repository: Repository, place: Store) -> None:
    big(repository)
    save(repository)
    other = Repository.open(repository.location)
    source = Repository.open(Meddling(repository.store, "get_range", lambda: other.retire(1)))
    target = open_target(place, repository)
    with pytest.raises(NotPublished, match="retired at the source"):
        copy_snapshot(source, target, 1)
    assert target.numbers() == []
    assert place.names(layout.ATTEMPTS) == []


# Publication


@pytest.mark.req("C-6")
@pytest.mark.parametrize("applied", [True, False])
def test_an_outcome_that_nobody_knows(source: Repository, place: Store, applied: bool) -> None:
    lost: dict[str, Exception] = {"publish": OutcomeUnknownError("no answer")}
    target = open_target(place, source)
    faulty = Repository.open(FaultyStore(place, errors=lost, applied=applied))
    if applied:
        # It is there, so the reply does not matter.
        assert copy_snapshot(source, faulty, 1).published
        assert_clean(target)
        return
    with pytest.raises(CommitOutcomeUnknown):
        copy_snapshot(source, faulty, 1)
    assert len(target.leases()) == 1
    report = copy_snapshot(source, target, 1)
    assert (report.published, report.objects_sent) == (True, 0)
    assert len(target.leases()) == 1
    place.drop_workspace(layout.copy_key(target.leases()[0].attempt_id))


def test_a_publication_that_cannot_be_read_back(source: Repository, place: Store) -> None:
    target = Repository.open(open_target(place, source).store)

    class Blind(WrappedStore):
        def publish(self, workspace: str, folder: str, name: str, data: Buffer) -> None:
            del workspace, folder, name, data

    with pytest.raises(CommitOutcomeUnknown, match="reading it back"):
        copy_snapshot(source, Repository.open(Blind(place)), 1)
    assert target.numbers() == []


@pytest.mark.req("C-6")
def test_two_copiers_at_once(repository: Repository, place: Store) -> None:
    total = big(repository, 16)
    open_target(place, repository)
    reports: list[Any] = []
    line = threading.Barrier(2)

    def run() -> None:
        target = Repository.open(Meddling(place, "publish", lambda: line.wait(120)))
        reports.append(copy_snapshot(repository, target, 1))

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert len(reports) == 2
    assert sorted(report.published for report in reports) == [False, True]
    assert total <= sum(report.objects_sent for report in reports) <= 2 * total
    assert stored(place) == stored(repository.store)
    assert_clean(Repository.open(place))


def test_two_processes_at_once(repository: Repository, tmp_path: Path) -> None:
    big(repository, 16)
    place = tmp_path / "copy"
    code = KILLED.replace("len(seen) == int(sys.argv[3])", "False")
    running = [
        subprocess.Popen([sys.executable, "-c", code, repository.location, str(place), "0"])
        for _ in range(2)
    ]
    assert [process.wait(60) for process in running] == [0, 0]
    target = Repository.open(place)
    assert stored(target.store) == stored(repository.store)
    assert_clean(target)


# Plain tools


@pytest.mark.req("L-6")
def test_a_copy_made_by_a_plain_tool(source: Repository, tmp_path: Path) -> None:
    shutil.copytree(source.location, tmp_path / "copy")
    target = Repository.open(tmp_path / "copy")
    assert everything(target) == everything(source)
    assert_clean(target)
    save(source, value=5)
    report = copy_snapshot(source, target, 3)
    assert report.published
    assert_clean(target)


def test_a_bucket_brought_down_by_a_plain_tool(source: Repository, tmp_path: Path) -> None:
    store = ObjectStore(MemoryClient())
    copy_snapshot(source, open_target(store, source), 2)
    for key, _ in store.walk(""):
        path = tmp_path / "copy" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(store.get(key, limit=1 << 30))
    target = Repository.open(tmp_path / "copy")
    assert target.numbers() == [2]
    assert_clean(target)


# Threads


def test_bytes_in_flight_are_bounded() -> None:
    bound, lock = Bound(100), threading.Lock()
    held = most = 0

    def work(size: int, _: threading.Event) -> None:
        nonlocal held, most
        with bound.taking(size):
            with lock:
                held += min(size, 100)
                most = max(most, held)
            time.sleep(0.002)
            with lock:
                held -= min(size, 100)

    run_all(work, [30, 60, 500, 10, 40, 70] * 5, workers=8, tick=lambda: None)
    assert 0 < most <= 100
    assert held == 0


def test_progress_tells_every_byte(repository: Repository, place: Store) -> None:
    big(repository)
    target = open_target(place, repository)
    told: list[int] = []
    failing = Repository.open(Failing(place, 3))
    with contextlib.suppress(StorageFull):
        copy_snapshot(repository, failing, 1, workers=1)
    report = copy_snapshot(repository, target, 1, progress=lambda count, _: told.append(count))
    assert sum(told) == report.bytes_sent + report.bytes_skipped
    assert report.objects_skipped == 3


def test_an_error_begins_no_other_job() -> None:
    begun: list[int] = []

    def work(number: int, _: threading.Event) -> None:
        begun.append(number)
        raise ValueError(number)

    with pytest.raises(ValueError, match="0"):
        run_all(work, range(50), workers=1, tick=lambda: None)
    assert begun == [0]


def test_an_interrupt_does_not_wait_for_a_job_that_is_stuck(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The patience that an error has must not be that of an interrupt.
    monkeypatch.setattr(parallel, "_PATIENCE_S", 3600.0)
    release, stopped = threading.Event(), threading.Event()

    def work(_: int, stop: threading.Event) -> None:
        release.wait(600)
        if stop.is_set():
            stopped.set()

    def interrupt() -> None:
        raise KeyboardInterrupt

    before, began = set(threading.enumerate()), time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_all(work, [1, 2], workers=2, tick=interrupt)
    assert time.monotonic() - began < 60
    mine = [
        item
        for item in threading.enumerate()
        if item.name.startswith("snapfmt-copy-") and item not in before
    ]
    assert mine
    assert all(item.daemon for item in mine)
    release.set()
    assert stopped.wait(60)


def test_an_interrupt_while_a_thread_starts_is_an_interrupt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such a thread has a number, and cannot be joined: as an error that would be waited for."""
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        if thread.name != "snapfmt-copy-1":
            start(thread)
            return
        thread._ident = 1  # type: ignore[attr-defined]
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_all(lambda *_: None, [1, 2, 3], workers=3, tick=lambda: None)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, Stopped, RuntimeError])
def test_the_caller_ends_a_copy(
    source: Repository, place: Store, kind: type[BaseException]
) -> None:
    target = open_target(place, source)
    asked: list[int] = []

    def check() -> None:
        asked.append(1)
        if len(target.leases()):
            raise kind

    with pytest.raises(kind):
        copy_snapshot(source, target, 1, check=check)
    assert asked
    assert target.numbers() == []
    assert place.names(layout.ATTEMPTS) == []
    copy_snapshot(source, target, 1, check=lambda: None)
    assert target.numbers() == [1]


# Arguments, and which side an error is about


@pytest.mark.parametrize(
    "wrong",
    [
        {"source": "run7"},
        {"target": "s3://bucket/run7"},
        {"number": "1"},
        {"number": True},
        {"number": None},
        {"number": 1.0},
        {"deep": 1},
        {"workers": 0},
        {"workers": 2.0},
        {"progress": "bar"},
        {"check": 5},
        {"ground": "ground"},
        {"ground": 0},
    ],
)
def test_arguments_of_the_wrong_type(
    source: Repository, place: Store, wrong: dict[str, Any]
) -> None:
    target = open_target(place, source)
    with pytest.raises(InputError):
        copy_snapshot(**{"source": source, "target": target, "number": 1, **wrong})
    assert target.numbers() == []


def test_ground_of_another_target(source: Repository, place: Store, tmp_path: Path) -> None:
    ground = Ground(open_target(tmp_path / "other", source))
    with pytest.raises(InputError, match="Ground of this target"):
        copy_snapshot(source, open_target(place, source), 1, ground=ground)


@pytest.mark.parametrize("location", [5, None, object()])
def test_a_target_that_is_no_place(source: Repository, location: Any) -> None:
    with pytest.raises(InputError, match="not a path, a URL or a store"):
        open_target(location, source)
    with pytest.raises(InputError, match="source is an open Repository"):
        open_target("x", location)


class Broken(WrappedStore):
    """One of its calls fails."""

    def __init__(self, inner: Store, call: str, error: Exception) -> None:
        self.call = call
        self.error = error
        super().__init__(inner)

    def __getattribute__(self, name: str) -> Any:
        if name == object.__getattribute__(self, "call"):
            raise object.__getattribute__(self, "error")
        return object.__getattribute__(self, name)


@pytest.mark.parametrize("call", ["get", "get_range", "size"])
def test_an_error_of_the_source_says_so(source: Repository, place: Store, call: str) -> None:
    target = open_target(place, source)
    lost = Broken(source.store, call, StorageUnavailable("gone", what="x", hint="try again"))
    opened = Repository(lost, source.document, limits=source.limits)
    with pytest.raises(StorageUnavailable) as caught:
        copy_snapshot(opened, target, 1)
    assert caught.value.hint == f"try again; at the source {source.location}"
    assert str(caught.value) == f"gone: 'x' ({caught.value.hint})"
    assert isinstance(caught.value, OSError)
    # What pickling does, without pickle.
    rebuild, arguments = caught.value.__reduce__()[:2]
    again = rebuild(*arguments)  # type: ignore[operator, misc]
    assert (str(again), again.sent) == (str(caught.value), True)


@pytest.mark.parametrize("call", ["get", "size", "walk", "sink", "prepare", "open_workspace"])
def test_an_error_of_the_target_says_so(source: Repository, place: Store, call: str) -> None:
    open_target(place, source)
    faulty = Broken(place, call, StorageFull("no space", what=place.location))
    target = Repository(faulty, Repository.open(place).document, limits=source.limits)
    with pytest.raises(StorageFull) as caught:
        copy_snapshot(source, target, 1)
    # It is named already.
    assert caught.value.hint == "at the target"


def test_a_target_that_cannot_be_opened_says_so(source: Repository, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(SnapfmtError) as caught:
        open_target(tmp_path / "file", source)
    assert caught.value.hint.endswith("at the target")
