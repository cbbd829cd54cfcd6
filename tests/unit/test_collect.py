"""What nothing reaches goes, and nothing else, whoever saves, copies or reads beside it."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from snapfmt import Repository
from snapfmt.errors import (
    LeaseExpired,
    RefusedError,
    SnapfmtError,
    StorageError,
    StorageUnavailable,
    UnsupportedFeature,
)
from snapfmt.format import canonical, digest, layout
from snapfmt.storage.memory import MemoryClient
from snapfmt.storage.objects import ObjectStore
from snapfmt.testing.client_faults import patient
from snapfmt.testing.forgery import seal
from snapfmt.testing.samples import all_contents, needed, save, save_on, stored
from snapfmt.testing.stores import WrappedStore, watching
from snapfmt.transfer import copy_snapshot, open_target
from snapfmt.transfer import copying as copying_module
from snapfmt.transfer.claim import Claim
from snapfmt.writing import collect as collect_module
from snapfmt.writing import lease as lease_module
from snapfmt.writing import presence as presence_module
from snapfmt.writing.attempt import Attempt
from snapfmt.writing.collect import COPY, ORPHAN, PUBLISHED, RETIRED, SAVE
from snapfmt.writing.owner import current_owner
from snapfmt.writing.presence import LATE_S, Presence
from snapfmt_schemas.attempt import Lease

HOUR_NS = 3_600_000_000_000


@pytest.fixture(params=["disk", "bucket"])
def repository(request: pytest.FixtureRequest, tmp_path: Path) -> Repository:
    """An empty one, of each kind."""
    if request.param == "disk":
        return Repository.create(tmp_path / "run")
    return Repository.open(ObjectStore(MemoryClient(), retry=patient()), create=True)


def everything(repository: Repository) -> dict[str, int]:
    return dict(repository.store.walk(""))


def write(attempt: Attempt, name: str = "lost") -> Any:
    part = attempt.part(name)
    part.stage("note", name.encode() * 10)
    return part.seal()


def forget(repository: Repository, attempt: Attempt) -> None:
    """Its lease and workspace are lost, as after a power cut; its objects are not."""
    repository.store.drop_workspace(layout.workspace_key(attempt.id))
    repository.store.delete(layout.lease_key(attempt.id))


def published(repository: Repository) -> None:
    """A snapshot without objects: where there never was one, orphans are not removed (K-19)."""
    repository.begin(number=9).publish([])


def orphan(repository: Repository) -> set[str]:
    """Objects that nothing reaches and no journal names."""
    before = stored(repository)
    attempt = repository.begin()
    write(attempt)
    forget(repository, attempt)
    return stored(repository) - before


# What goes, what stays, and why


@pytest.mark.req("K-12", "K-13")
def test_orphans_go_and_nothing_else(repository: Repository) -> None:
    save(repository, value=1)
    save_on(repository, 1, value=2)
    before, lost = all_contents(repository), orphan(repository)
    report = repository.collect()
    assert {item.key for item in report.objects if item.removed} == lost
    assert {item.reason for item in report.objects if item.removed} == {ORPHAN}
    assert report.totals(removed=False)[PUBLISHED][0] == len(needed(repository))
    assert report.bytes(removed=True) == sum(i.size for i in report.objects if i.key in lost)
    assert stored(repository) == needed(repository)
    assert all_contents(repository) == before
    assert not [key for key in everything(repository) if key.startswith("attempts/")]
    assert repository.collect().totals(removed=True) == {}


@pytest.mark.req("K-15")
def test_a_dry_run_writes_nothing_and_tells_the_same(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value in range(1, 4):
        save(repository, value=value)
    orphan(repository)
    write(repository.begin())
    repository.store.unpublish("snapshots/snapshot_000002", "manifest.json", "retiring.json")
    monkeypatch.setattr(lease_module, "is_dead", lambda owner: owner != "mine")
    before = everything(repository)
    dry = repository.collect(dry_run=True)
    assert everything(repository) == before
    assert dry.dry_run
    real = repository.collect()
    assert not real.dry_run
    assert (dry.objects, dry.attempts) == (real.objects, real.attempts)
    assert (dry.finished, dry.waiting) == (real.finished, real.waiting) == ((2,), ())
    assert set(dry.totals(removed=True)) == {ORPHAN, RETIRED, collect_module.ATTEMPT}
    assert stored(repository) == needed(repository)


@pytest.mark.req("K-15")
def test_a_dry_run_knows_that_the_save_of_a_retired_snapshot_is_over(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease was left by a crash after the publication, and holds nothing any more."""
    with monkeypatch.context() as patch:
        patch.setattr(Attempt, "_close", lambda self: setattr(self, "_closed", True))
        save(repository, value=1)
    assert len(repository.leases()) == 1
    repository.store.unpublish("snapshots/snapshot_000001", "manifest.json", "retiring.json")
    before = everything(repository)
    dry = repository.collect(dry_run=True)
    assert everything(repository) == before
    real = repository.collect()
    assert (dry.objects, dry.finished, dry.waiting) == (real.objects, (1,), ())
    assert stored(repository) == set()
    assert repository.leases() == []


@pytest.mark.req("K-13")
def test_what_a_running_save_wrote_stays_also_without_its_journal(
    repository: Repository,
) -> None:
    """A power cut takes journals, and a bucket's listing may be late."""
    save(repository, value=1)
    attempt = repository.begin()
    receipt = write(attempt)
    store: Any = type("NoJournal", (WrappedStore,), {"journal": lambda self, key: []})(
        repository.store
    )
    other = Repository(store, repository.document, limits=repository.limits)
    report = other.collect()
    assert set(report.totals(removed=False)) == {PUBLISHED, SAVE}
    # A part's object that nobody can read may be that save's, too.
    assert attempt.publish([receipt]).number == 2
    assert len(all_contents(repository)) == 2


def test_an_object_that_names_nobody_stays_while_a_save_runs(repository: Repository) -> None:
    published(repository)
    attempt = repository.begin()
    sink = repository.store.sink(layout.workspace_key(attempt.id), "x")
    data = b"neither a pack nor an index"
    sink.write(data)
    key = layout.object_key(digest.digest_of(data))
    sink.finish(key)
    forget(repository, attempt)
    running = repository.begin()
    assert repository.collect().totals(removed=False) == {SAVE: (1, 27)}
    running.abandon()
    assert repository.collect().totals(removed=True) == {ORPHAN: (1, 27)}


def test_a_save_that_began_on_what_is_retired_keeps_it(repository: Repository) -> None:
    save(repository, value=1)
    attempt = repository.begin(base=1)
    repository.store.unpublish("snapshots/snapshot_000001", "manifest.json", "retiring.json")
    report = repository.collect()
    assert report.waiting == (1,)
    assert report.totals(removed=True) == {}
    attempt.abandon()
    assert repository.collect().finished == (1,)
    assert stored(repository) == set()


def test_a_save_that_begins_after_the_list_keeps_what_it_writes(repository: Repository) -> None:
    save(repository, value=1)
    lost = orphan(repository)
    attempts: list[tuple[Attempt, Any]] = []

    def begin() -> None:
        attempt = repository.begin(base=1)
        attempts.append((attempt, write(attempt)))

    report = watching(repository, "names", layout.PINS, begin).collect()
    assert {item.key for item in report.objects if item.removed} == lost
    attempt, receipt = attempts[0]
    attempt.publish([receipt])
    assert len(all_contents(repository)) == 2


def test_a_save_that_begins_after_the_leases_were_read_keeps_what_it_writes(
    repository: Repository,
) -> None:
    """Nobody knows its lease: the list of objects is older than it."""
    published(repository)
    lost = orphan(repository)
    written: list[set[str]] = []

    def begin() -> None:
        before = stored(repository)
        write(repository.begin(), "late")
        written.append(stored(repository) - before)

    def arm() -> None:
        store.inner = watching(repository, "names", layout.PINS, begin).store

    other = watching(repository, "open_workspace", "/collect", arm)
    store: Any = other.store
    report = other.collect()
    assert {item.key for item in report.objects if item.removed} == lost
    assert written == [stored(repository)] != [set()]


def test_a_save_that_ends_during_the_looks_keeps_what_it_wrote(repository: Repository) -> None:
    save(repository, value=1)
    attempt = repository.begin()
    receipt = write(attempt)
    other = watching(repository, "names", layout.ATTEMPTS, lambda: attempt.publish([receipt]))
    other.collect()
    assert len(all_contents(repository)) == 2


# Refusals


def change(name: str, operation: str) -> Callable[[Path], object]:
    def run(root: Path) -> None:
        import json

        document = json.loads((root / name).read_bytes())
        document["features"][operation] = ["packs-elsewhere"]
        seal(root / name, document)

    return run


def overwrite(name: str) -> Callable[[Path], object]:
    def run(root: Path) -> None:
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(b"{}")

    return run


def a_retiring_one(root: Path) -> None:
    folder = root / "snapshots/snapshot_000002"
    (folder / "manifest.json").rename(folder / "retiring.json")
    (folder / "retiring.json").write_bytes(b"{}")


REFUSALS: dict[str, tuple[Callable[[Path], object], type[SnapfmtError]]] = {
    "an unknown feature": (
        change("snapshots/snapshot_000002/manifest.json", "collect"),
        UnsupportedFeature,
    ),
    "an unknown feature of the repository": (change("snapfmt.json", "collect"), UnsupportedFeature),
    "a manifest": (overwrite("snapshots/snapshot_000002/manifest.json"), RefusedError),
    "a lease": (overwrite(f"attempts/{'a' * 32}.json"), RefusedError),
    "a pin": (overwrite("pins/x.json"), RefusedError),
    "a retiring one": (a_retiring_one, RefusedError),
}


@pytest.mark.req("K-3", "K-7", "K-12")
@pytest.mark.parametrize("what", REFUSALS)
def test_what_is_unknown_is_refused_and_nothing_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    repository = Repository.create(tmp_path / "run")
    save(repository, value=1)
    save(repository, value=2)
    orphan(repository)
    write(repository.begin())
    break_it, error = REFUSALS[what]
    break_it(tmp_path / "run")
    repository = Repository.open(tmp_path / "run")
    monkeypatch.setattr(lease_module, "is_dead", lambda _: True)
    before = everything(repository)
    for dry_run in (True, False):
        with pytest.raises(error):
            repository.collect(dry_run=dry_run)
        assert everything(repository) == before


@pytest.mark.parametrize("verb", ["walk", "names", "get", "journal"])
def test_an_outage_deletes_nothing(repository: Repository, verb: str) -> None:
    save(repository, value=1)
    orphan(repository)
    running = repository.begin(base=1)
    before = stored(repository)

    def fail(self: WrappedStore, *args: Any, **kwargs: Any) -> Any:
        raise StorageUnavailable("no answer")

    store: Any = type("Failing", (WrappedStore,), {verb: fail})(repository.store)
    with pytest.raises(StorageUnavailable):
        Repository(store, repository.document, limits=repository.limits).collect()
    assert stored(repository) == before
    running.abandon()


# Who took it over, and clocks


@pytest.mark.req("K-14")
def test_a_collection_that_was_taken_over_deletes_no_more(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    published(repository)
    lost = orphan(repository)

    def take_over() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(lease_module, "is_dead", lambda _: True)
            assert len(repository.clean_up()) == 1

    first = min(lost)
    with pytest.raises(LeaseExpired, match="taken over"):
        watching(repository, "delete", first, take_over).collect()
    assert stored(repository) == lost - {first}
    monkeypatch.setattr(presence_module, "LEASE_SECONDS", -1.0)
    with pytest.raises(LeaseExpired):
        repository.collect()
    assert stored(repository) == lost - {first}


def test_a_long_collection_renews_its_lease(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    published(repository)
    orphan(repository)
    now, seen = time.time_ns(), []
    monkeypatch.setattr(time, "time_ns", lambda: now)

    def later() -> None:
        nonlocal now
        now += HOUR_NS * 2 // 3

    def look() -> None:
        seen.extend(repository.leases())

    one = watching(repository, "names", layout.PINS, lambda: None)
    one = watching(one, "delete", min(stored(repository)), later)
    watching(one, "delete", sorted(stored(repository))[1], look).collect()
    (lease,) = seen
    assert (lease.number, lease.base, lease.generation) == (0, None, 1)
    assert stored(repository) == set()


def of_another_machine(repository: Repository, attempt: Attempt) -> None:
    owner = current_owner("far").model_copy(update={"boot_id": "another"})
    lease = attempt._lease.model_copy(update={"owner": owner})
    repository.store.replace(layout.lease_key(attempt.id), canonical.encode(lease))


@pytest.mark.req("W-10")
def test_a_clock_that_is_an_hour_off_costs_no_save(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(repository, value=1)
    attempt = repository.begin(base=1, lease_seconds=600)
    receipt = write(attempt)
    of_another_machine(repository, attempt)
    last = attempt.expires_at_ns
    with monkeypatch.context() as patch:
        patch.setattr(time, "time_ns", lambda: last + HOUR_NS)
        report = repository.collect()
        assert report.attempts == ()
        assert repository.clean_up() == []
    attempt.publish([receipt])
    assert len(all_contents(repository)) == 2


@pytest.mark.req("W-10")
def test_a_clock_that_is_further_off_costs_the_publication_and_nothing_else(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in the middle of an upload: no snapshot with a hole."""
    save(repository, value=1)
    attempt = repository.begin(base=1, lease_seconds=600)
    receipt = write(attempt)
    half = attempt.part("half")
    half.stage("note", b"x" * 1000)
    of_another_machine(repository, attempt)
    last = attempt.expires_at_ns
    with monkeypatch.context() as patch:
        patch.setattr(time, "time_ns", lambda: last + HOUR_NS + 1)
        assert repository.collect().attempts == (attempt.id,)
    with pytest.raises(LeaseExpired):
        half.seal()
    with pytest.raises(LeaseExpired):
        attempt.publish([receipt])
    assert repository.numbers() == [1]
    repository.collect()
    assert stored(repository) == needed(repository)


# Copies


@pytest.mark.req("K-14")
def test_a_copy_and_a_collection_see_each_other(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Repository.open(tmp_path / "source", create=True, repository_id=repository.id)
    save(source, value=1)
    # An earlier copy sent all, and died before it published.
    with monkeypatch.context() as patch:
        patch.setattr(copying_module._Copy, "_publish", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            copy_snapshot(source, repository, 1)
    sent = stored(repository)
    assert sent == needed(source)
    # The collector runs after the copy made its workspace, before it looked what is there.
    original = Claim.check
    reports = []

    def check(claim: Claim) -> None:
        reports.append(repository.collect())
        original(claim)

    with monkeypatch.context() as patch:
        patch.setattr(Claim, "check", check)
        assert copy_snapshot(source, repository, 1).objects_sent == 0
    assert set(reports[0].totals(removed=False)) == {COPY}
    assert all_contents(repository) == all_contents(source)
    assert repository.leases() == []


@pytest.mark.req("K-14")
def test_a_copy_refuses_while_objects_are_collected(repository: Repository, tmp_path: Path) -> None:
    source = Repository.open(tmp_path / "source", create=True, repository_id=repository.id)
    save(source, value=1)
    published(repository)
    orphan(repository)
    refused: list[BaseException] = []

    def copy() -> None:
        with pytest.raises(RefusedError, match="collection runs") as caught:
            copy_snapshot(source, repository, 1)
        refused.append(caught.value)

    first = min(stored(repository))
    report = watching(repository, "delete", first, copy).collect()
    assert refused
    assert len(report.totals(removed=True)) == 1
    assert copy_snapshot(source, repository, 1).published
    assert repository.leases() == []
    assert stored(repository) == needed(repository)


@pytest.mark.req("K-14")
@pytest.mark.parametrize("error", [StorageUnavailable("no answer"), KeyboardInterrupt()], ids=repr)
def test_a_deletion_that_may_still_come_keeps_copies_out(
    repository: Repository,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
) -> None:
    source = Repository.open(tmp_path / "source", create=True, repository_id=repository.id)
    save(source, value=1)
    published(repository)
    orphan(repository)

    def unanswered() -> None:
        raise error

    with pytest.raises(type(error)):
        watching(repository, "delete", min(stored(repository)), unanswered).collect()
    with pytest.raises(RefusedError, match="collection runs"):
        copy_snapshot(source, repository, 1)
    (lease,) = repository.leases()
    assert 0 < lease.expires_at_ns - time.time_ns() <= LATE_S * 1e9
    later = time.time_ns() + int(LATE_S * 1e9)
    monkeypatch.setattr(time, "time_ns", lambda: later)
    assert copy_snapshot(source, repository, 1).published
    repository.collect()
    assert repository.leases() == []
    assert stored(repository) == needed(repository)


def test_a_deletion_that_was_refused_keeps_nobody_out(
    repository: Repository, tmp_path: Path
) -> None:
    source = Repository.open(tmp_path / "source", create=True, repository_id=repository.id)
    save(source, value=1)
    published(repository)
    orphan(repository)

    def refused() -> None:
        raise StorageError("not permitted")

    with pytest.raises(StorageError, match="not permitted"):
        watching(repository, "delete", min(stored(repository)), refused).collect()
    assert copy_snapshot(source, repository, 1).published


def test_a_collector_that_died_does_not_stop_copies(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Repository.open(tmp_path / "source", create=True, repository_id=repository.id)
    save(source, value=1)
    claim = Presence(repository.store, layout.collect_key)
    claim.__enter__()
    open_target(repository.store, source)
    with pytest.raises(RefusedError):
        copy_snapshot(source, repository, 1)
    key = layout.lease_key(claim.id)
    lease = canonical.decode(
        repository.store.get(key, limit=10_000), Lease, what=key, size_limit=10_000
    )
    over = lease.model_copy(update={"expires_at_ns": lease.started_at_ns})
    repository.store.replace(key, canonical.encode(over))
    assert copy_snapshot(source, repository, 1).published
    assert repository.leases() == []
    assert not [key for key in everything(repository) if key.startswith("attempts/")]
