"""Publishing: exactly once, exclusively, with three outcomes."""

import errno
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from snapfmt import Repository
from snapfmt.errors import (
    AttemptClosed,
    CommitConflict,
    CommitOutcomeUnknown,
    CorruptObject,
    InputError,
    LeaseExpired,
    LimitExceeded,
    MissingObject,
    NotPublished,
    SnapfmtError,
    StorageError,
    StorageFull,
)
from snapfmt.format import layout
from snapfmt.limits import Limits
from snapfmt.storage import local
from snapfmt.testing.corruption import flip, truncate
from snapfmt.testing.samples import contents, everything, save
from snapfmt.testing.stores import FaultyStore, WrappedStore
from snapfmt.writing.attempt import Attempt
from snapfmt.writing.reclaim import reclaim
from snapfmt_schemas.attempt import Receipt
from snapfmt_schemas.fingerprint import Fingerprint
from snapfmt_schemas.manifest import TrainerAnchor
from snapfmt_schemas.timeline import Phase, PhaseTimeline

PassTime = Callable[[float], None]


def receipt_of(attempt: Attempt, name: str = "p", data: bytes = b"data") -> Receipt:
    part = attempt.part(name)
    part.stage("x", data)
    return part.seal()


def faulty(attempt: Attempt, *, applied: bool, **errors: Exception) -> FaultyStore:
    store = FaultyStore(attempt._store, errors=errors, applied=applied)
    attempt._store = store
    return store


def object_path(repository: Repository, digest: str) -> Path:
    return Path(repository.location) / layout.object_key(digest)


def test_a_manifest_holds_what_was_given(repository: Repository) -> None:
    attempt = repository.begin()
    timeline = PhaseTimeline(
        operation="save", phases=(Phase(name="cut", started_at_ns=1, ended_at_ns=2),)
    )
    anchor = TrainerAnchor(train_step=3, trainer_version=4, epoch=5)
    prints = [Fingerprint.of("recipe", {"a": [1, {"b": None}]})]
    metadata = {"é": [1, 2.5, None, True, {"deep": []}], "": "😀"}
    receipts = [receipt_of(attempt, "b"), receipt_of(attempt, "a")]
    manifest = attempt.publish(
        receipts,
        fingerprints=prints,
        anchor=anchor,
        timeline=timeline,
        user_metadata=metadata,
        write_id="ab" * 16,
    )
    found = Repository.open(repository.location).snapshot().manifest
    assert found == manifest
    assert [receipt.part for receipt in found.parts] == ["a", "b"]
    assert found.user_metadata == metadata
    assert (found.anchor, found.timeline) == (anchor, timeline)
    assert found.fingerprints == tuple(prints)
    assert found.write_id == "ab" * 16
    assert found.attempt_id == attempt.id
    assert found.checksum == found.content_digest()
    assert abs(found.created_at_ns - time.time_ns()) < 60e9


def test_an_attempt_is_over_once_published(repository: Repository) -> None:
    with repository.begin() as attempt:
        attempt.publish([])
        for call in (
            lambda: attempt.publish([]),
            lambda: attempt.part("p"),
            lambda: attempt.ticket("p"),
            lambda: attempt.renew(5),
        ):
            with pytest.raises(AttemptClosed):
                call()
    assert repository.numbers() == [1], "leaving the context takes nothing back"
    attempt.abandon()
    assert repository.numbers() == [1]
    assert list((Path(repository.location) / "attempts").iterdir()) == []


def test_an_abandoned_attempt_leaves_nothing(repository: Repository) -> None:
    save(repository, value=1)
    before = everything(repository)
    files = sorted(Path(repository.location).rglob("*"))
    with repository.begin() as attempt:
        receipt_of(attempt)
        part = attempt.part("q")
        part.stage("x", b"1" * 100_000)
    assert sorted(Path(repository.location).rglob("*")) == files or all(
        path.is_dir() for path in set(Path(repository.location).rglob("*")) - set(files)
    )
    assert everything(repository) == before
    assert repository.verify().findings == []


@pytest.mark.parametrize(
    "metadata",
    [
        {"x": float("nan")},
        {"x": float("inf")},
        {"x": object()},
        {1: 2},
        {"x": {1: 2}},
        {"x": "\ud800"},
        {"x": 10**5000},
    ],
    ids=["nan", "inf", "object", "number key", "inner number key", "surrogate", "huge"],
)
def test_metadata_that_is_not_strict_json_publishes_nothing(
    repository: Repository, metadata: Any
) -> None:
    attempt = repository.begin()
    with pytest.raises(InputError):
        attempt.publish([], user_metadata=metadata)
    assert repository.numbers() == []
    attempt.publish([], user_metadata={"x": 1})


def test_metadata_that_no_reader_would_take_publishes_nothing(repository: Repository) -> None:
    deep: Any = 1
    for _ in range(100):
        deep = [deep]
    attempt = repository.begin()
    with pytest.raises(LimitExceeded, match="nested"):
        attempt.publish([], user_metadata={"x": deep})
    with pytest.raises((InputError, LimitExceeded)):
        attempt.publish([], user_metadata={"x": 10**4400})
    small = Repository.open(repository.location, limits=Limits(manifest_size=2000))
    with pytest.raises(LimitExceeded):
        small.begin().publish([], user_metadata={"x": "y" * 2000})
    assert repository.numbers() == []


def test_manifests_that_break_their_own_schema_publish_nothing(repository: Repository) -> None:
    attempt = repository.begin()
    twice = [Fingerprint.of("recipe", {"a": 1}), Fingerprint.of("recipe", {"a": 2})]
    with pytest.raises(InputError):
        attempt.publish([], fingerprints=twice)
    with pytest.raises(InputError):
        attempt.publish([], write_id="short")
    assert repository.numbers() == []


def test_receipts_must_be_of_this_attempt_each_part_once(repository: Repository) -> None:
    other = repository.begin(number=9)
    foreign = receipt_of(other)
    attempt = repository.begin()
    own = receipt_of(attempt, "p")
    again = receipt_of(attempt, "P")
    for receipts in ([foreign], [own, own], [own, again]):
        with pytest.raises(InputError):
            attempt.publish(receipts)
    renamed = own.model_copy(update={"part": "another"})
    with pytest.raises(InputError, match="points at part"):
        attempt.publish([renamed])
    assert repository.numbers() == []
    attempt.publish([own])
    assert contents(repository.snapshot())["p/x"] == b"data"


@pytest.mark.parametrize("damage", ["index gone", "index flipped", "pack gone", "pack short"])
def test_a_part_that_is_not_whole_is_not_published(repository: Repository, damage: str) -> None:
    attempt = repository.begin()
    receipt = receipt_of(attempt, data=b"data" * 100)
    index = object_path(repository, receipt.index_digest)
    (pack,) = [
        path
        for path in (Path(repository.location) / "objects").rglob("*")
        if path.is_file() and path != index
    ]
    if damage == "index flipped":
        flip(index, 20)
    elif damage == "pack short":
        truncate(pack, 100)
    else:
        (index if damage == "index gone" else pack).unlink()
    with pytest.raises((MissingObject, CorruptObject)):
        attempt.publish([receipt])
    assert repository.numbers() == []
    with pytest.raises(NotPublished):
        repository.snapshot()


def test_the_second_of_two_attempts_conflicts_and_the_first_stays(
    repository: Repository,
) -> None:
    first, second = repository.begin(), repository.begin()
    assert first.number == second.number == 1
    receipts = [receipt_of(first, data=b"first"), receipt_of(second, data=b"second")]
    first.publish([receipts[0]])
    before = everything(repository)
    for _ in range(2):
        with pytest.raises(CommitConflict):
            second.publish([receipts[1]])
    second.abandon()
    assert everything(repository) == before
    assert repository.snapshot().part("p").read("x") == b"first"
    assert repository.verify().findings == []
    assert repository.begin().number == 2


LOST = [
    StorageError("connection reset"),
    StorageFull("late"),
    MissingObject("stale handle"),
    LeaseExpired("looks gone, was moved"),
]


@pytest.mark.parametrize("error", LOST, ids=lambda error: type(error).__name__)
def test_a_lost_reply_to_ones_own_write_is_success(
    repository: Repository, error: SnapfmtError
) -> None:
    attempt = repository.begin()
    receipt = receipt_of(attempt)
    faulty(attempt, applied=True, publish=error)
    manifest = attempt.publish([receipt])
    assert repository.snapshot().manifest == manifest
    assert contents(repository.snapshot())["p/x"] == b"data"
    assert repository.verify().findings == []


def test_a_lost_reply_that_may_not_be_durable_is_unknown(repository: Repository) -> None:
    attempt = repository.begin()
    receipt = receipt_of(attempt)
    errors = {"publish": StorageError("reset"), "sync": StorageError("input/output error")}
    faulty(attempt, applied=True, **errors)
    with pytest.raises(CommitOutcomeUnknown, match="durable"):
        attempt.publish([receipt])
    attempt.abandon()
    assert contents(repository.snapshot())["p/x"] == b"data"


@pytest.mark.parametrize("error", LOST[:2], ids=lambda error: type(error).__name__)
def test_a_failed_write_is_not_published_and_can_be_tried_again(
    repository: Repository, error: SnapfmtError
) -> None:
    attempt = repository.begin()
    receipt = receipt_of(attempt)
    store = faulty(attempt, applied=False, publish=error)
    with pytest.raises(type(error)):
        attempt.publish([receipt])
    assert repository.numbers() == []
    store.errors.clear()
    attempt.publish([receipt])
    assert contents(repository.snapshot())["p/x"] == b"data"


def test_a_failure_after_somebody_elses_publication_is_a_conflict(repository: Repository) -> None:
    attempt = repository.begin()
    receipt = receipt_of(attempt)
    save(repository, value=1)
    before = everything(repository)
    faulty(attempt, applied=False, publish=StorageError("timeout"))
    with pytest.raises(CommitConflict):
        attempt.publish([receipt])
    assert everything(repository) == before


def test_an_outcome_that_cannot_be_read_back_is_unknown_and_deletes_nothing(
    repository: Repository,
) -> None:
    attempt = repository.begin()
    receipt = receipt_of(attempt)
    store = faulty(attempt, applied=True, publish=StorageError("timeout"))
    check = attempt._check_receipts

    def then_blind(receipts: Any) -> None:
        check(receipts)
        store.errors["get"] = StorageError("unreachable")

    attempt._check_receipts = then_blind  # type: ignore[method-assign]
    with pytest.raises(CommitOutcomeUnknown):
        attempt.publish([receipt])
    attempt.abandon()
    assert contents(repository.snapshot())["p/x"] == b"data"
    assert repository.verify().ok


def test_a_folder_that_cannot_be_synced_after_the_rename_leaves_the_outcome_unknown(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = repository.begin()
    receipt = receipt_of(attempt)
    snapshots = Path(repository.location) / "snapshots"
    real: Callable[[Path], None] = local.fsync_directory

    def fail(path: Path) -> None:
        if path == snapshots:
            raise OSError(errno.EIO, "input/output error")
        real(path)

    with monkeypatch.context() as patch:
        patch.setattr(local, "fsync_directory", fail)
        with pytest.raises(CommitOutcomeUnknown):
            attempt.publish([receipt])
        with pytest.raises(AttemptClosed):
            attempt.publish([receipt])
        attempt.abandon()
    # Nothing was deleted, and here the rename did last.
    assert contents(repository.snapshot())["p/x"] == b"data"
    assert repository.verify().ok
    assert save(repository, value=2).number == 2
    assert contents(repository.snapshot(1))["p/x"] == b"data"


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP])
def test_a_file_system_without_directory_sync_is_tolerated_with_a_warning(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(code, "not supported")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.warns(RuntimeWarning, match="cannot sync a directory"):
        save(repository)
    assert repository.verify().findings == []


def test_an_attempt_that_was_taken_over_cannot_publish(
    repository: Repository, pass_time: PassTime
) -> None:
    paused = repository.begin(lease_seconds=60)
    receipt = receipt_of(paused)
    pass_time(61)
    successor = repository.begin()
    # Its clock may be behind: the fence, not the clock, decides.
    paused._lease = paused._lease.model_copy(update={"expires_at_ns": time.time_ns() + 10**12})
    for call in (
        lambda: paused.publish([receipt]),
        lambda: paused.publish([]),
        lambda: paused.part("late"),
        lambda: paused.renew(100),
    ):
        with pytest.raises(LeaseExpired):
            call()
    assert repository.numbers() == []
    successor.publish([receipt_of(successor, data=b"mine")])
    with pytest.raises((LeaseExpired, CommitConflict)):
        paused.publish([])
    paused.abandon()
    assert contents(repository.snapshot())["p/x"] == b"mine"
    assert repository.verify().findings == []


def test_a_take_over_between_the_last_check_and_the_rename_wins(
    repository: Repository,
) -> None:
    paused = repository.begin()
    receipt = receipt_of(paused)
    commit = paused._commit

    def late(*args: Any) -> None:
        Repository.open(repository.location)._store.fence_workspace(layout.workspace_key(paused.id))
        commit(*args)

    paused._commit = late  # type: ignore[method-assign]
    with pytest.raises(LeaseExpired):
        paused.publish([receipt])
    assert repository.numbers() == []


def test_an_owner_that_publishes_in_mid_clean_up_does_so_before_or_never(
    repository: Repository,
) -> None:
    """The clean-up looked, found nothing published, and is about to remove the objects."""
    attempt = repository.begin(lease_seconds=60)
    receipt = receipt_of(attempt)
    outcomes: list[str] = []

    class Racing(WrappedStore):
        def journal(self, key: str) -> list[str]:
            try:
                attempt.publish([receipt])
                outcomes.append("published")
            except LeaseExpired:
                outcomes.append("refused")
            return self.inner.journal(key)

    reclaim(Racing(repository.store), attempt.id)
    assert outcomes == ["refused"]
    assert repository.numbers() == []
    assert repository.verify().findings == []


def test_clean_up_keeps_what_a_published_attempt_left_behind(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, pass_time: PassTime
) -> None:
    """A crash right after the publication: lease and workspace are still there."""
    attempt = repository.begin(lease_seconds=60)
    receipt = receipt_of(attempt)
    monkeypatch.setattr(attempt, "_close", lambda: None)
    attempt.publish([receipt])
    assert repository.leases()
    pass_time(61)
    assert repository.clean_up() == [attempt.id]
    assert repository.leases() == []
    assert contents(repository.snapshot())["p/x"] == b"data"
    assert repository.verify().findings == []


def test_in_doubt_whether_an_attempt_was_published_its_objects_stay(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, pass_time: PassTime
) -> None:
    attempt = repository.begin(lease_seconds=60)
    receipt = receipt_of(attempt)
    monkeypatch.setattr(attempt, "_close", lambda: None)
    attempt.publish([receipt])
    manifest = Path(repository.location) / layout.manifest_key(1)
    data = manifest.read_bytes()
    manifest.unlink()
    manifest.symlink_to("elsewhere")
    pass_time(61)
    repository.clean_up()
    manifest.unlink()
    manifest.write_bytes(data)
    assert contents(repository.snapshot())["p/x"] == b"data"


def test_leases_tell_when_they_end(repository: Repository) -> None:
    attempt = repository.begin(lease_seconds=100)
    assert 0 < attempt.expires_at_ns - time.time_ns() <= 100e9
    attempt.renew(1000)
    assert attempt.expires_at_ns - time.time_ns() > 900e9
    (lease,) = repository.leases()
    assert lease.expires_at_ns == attempt.expires_at_ns
    assert lease.generation == 1
