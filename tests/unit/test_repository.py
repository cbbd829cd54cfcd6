"""Repositories: opening, numbers, the newest that fits, leases and clean-up."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from snapfmt import Repository
from snapfmt.errors import (
    ConflictError,
    FingerprintMismatch,
    FormatError,
    InputError,
    LeaseExpired,
    LimitExceeded,
    NoMatch,
    NotPublished,
    SnapshotExists,
    StoreNotFound,
    UnsupportedFeature,
    UnsupportedVersion,
)
from snapfmt.format import layout
from snapfmt.limits import Limits
from snapfmt.testing.corruption import flip, truncate
from snapfmt.testing.samples import RECIPE, contents, everything, save
from snapfmt.testing.stores import CountingStore
from snapfmt_schemas.fingerprint import Fingerprint

PassTime = Callable[[float], None]


def manifest(repository: Repository, number: int) -> Path:
    return Path(repository.location) / layout.manifest_key(number)


def rewrite(path: Path, **changes: object) -> None:
    """Change members of a JSON document that has a checksum, as another writer would."""
    value = json.loads(path.read_bytes())
    value.update(changes)
    value.pop("checksum", None)
    text = json.dumps(value, sort_keys=True, separators=(",", ":")) + "\n"
    value["checksum"] = "sha256:" + hashlib.sha256(text.encode()).hexdigest()
    path.write_text(json.dumps(value, sort_keys=True, separators=(",", ":")) + "\n")


def test_create_and_open(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFound):
        Repository.open(tmp_path / "none")
    assert not (tmp_path / "none").exists(), "looking for one makes none"
    with pytest.raises(StoreNotFound):
        Repository.open(tmp_path)
    made = Repository.create(tmp_path / "a" / "b")
    assert Repository.open(tmp_path / "a" / "b").id == made.id
    assert Repository.open(tmp_path / "a" / "b", create=True).id == made.id
    assert Repository.open(f"file://{tmp_path}/a/b").id == made.id
    assert Repository.open(os.fspath(tmp_path / "a/b")).location == str(tmp_path / "a/b")
    with pytest.raises(ConflictError):
        Repository.create(tmp_path / "a" / "b")
    assert Repository.create(tmp_path / "c").id != made.id
    with pytest.raises(StoreNotFound):
        Repository.open(tmp_path / "a" / "b" / "snapfmt.json")
    with pytest.raises(UnsupportedFeature):
        Repository.open("gs://bucket/run")


@pytest.mark.parametrize("location", ["", "file://", "file:run", "FILE:/run", "s3:/bucket/run"])
def test_a_location_that_is_not_meant_is_refused(
    location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of them makes a folder in the one that somebody happens to be in."""
    monkeypatch.chdir(tmp_path)
    for opened in (Repository.open, Repository.create):
        with pytest.raises(InputError):
            opened(location, **({"create": True} if opened == Repository.open else {}))
    assert list(tmp_path.iterdir()) == []
    assert Repository.open(f"FILE://{tmp_path}/run", create=True).location == f"{tmp_path}/run"


def test_a_relative_location_names_the_same_repository_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    repository = Repository.create("run")
    ticket = repository.begin().ticket("p")
    assert Path(ticket.location).is_absolute()
    monkeypatch.chdir("/")
    part = Repository.join(ticket)
    part.stage("x", b"1")
    assert part.seal().entries == 1


def test_numbers_count_what_is_published_and_nothing_else(repository: Repository) -> None:
    assert repository.numbers() == []
    with pytest.raises(NotPublished):
        repository.snapshot()
    with pytest.raises(NoMatch):
        repository.latest()
    attempt = repository.begin()
    assert repository.numbers() == []
    attempt.abandon()
    assert save(repository).number == 1
    assert save(repository).number == 2
    root = Path(repository.location) / "snapshots"
    (root / "snapshot_3").mkdir()
    (root / "snapshot_0000003").mkdir()
    shutil.copytree(root / "snapshot_000001", root / "other")
    shutil.copytree(root / "snapshot_000001", root / "snapshot_٠٠٠٠٠٣")
    (root / "LATEST").write_text("snapshot_000001")
    assert repository.numbers() == [1, 2]
    assert repository.snapshot().number == 2
    assert repository.snapshot(1).number == 1
    for number in (0, 3, -1, 10**20):
        with pytest.raises(NotPublished):
            repository.snapshot(number)


def test_numbers_may_be_chosen(repository: Repository) -> None:
    repository.begin(number=7).publish([])
    with pytest.raises(SnapshotExists):
        repository.begin(number=7)
    repository.begin(number=3).publish([])
    assert repository.begin().number == 8
    assert repository.numbers() == [3, 7]
    assert repository.begin(number=10**12 - 1).number == 10**12 - 1
    repository.begin(number=1_234_567).publish([])
    assert repository.snapshot().number == 1_234_567
    for number in (-1, 10**12, 2**70):
        with pytest.raises(InputError):
            repository.begin(number=number)


@pytest.mark.parametrize("planted", ["file", "folder", "folder with a file", "link"])
def test_something_in_the_way_of_a_number_costs_the_number_and_not_the_run(
    repository: Repository, planted: str, tmp_path: Path
) -> None:
    save(repository, value=1)
    target = Path(repository.location) / "snapshots" / "snapshot_000002"
    if planted == "file":
        target.write_text("x")
    elif planted == "link":
        target.symlink_to(tmp_path)
    else:
        target.mkdir()
        if planted == "folder with a file":
            (target / "left-over").write_text("x")
    assert repository.numbers() == [1]
    assert repository.snapshot().number == 1
    assert repository.latest().snapshot.number == 1
    assert save(repository, value=2).number == 3
    assert repository.latest().snapshot.manifest.user_metadata == {"value": 2}


def test_the_newest_that_fits_and_why_newer_ones_do_not(repository: Repository) -> None:
    for value in range(1, 5):
        save(repository, value=value)
    attempt = repository.begin()
    attempt.publish(
        [], fingerprints=[Fingerprint.of("recipe", {"model": "other", "steps": [1, 2]})]
    )
    truncate(manifest(repository, 4), 10)
    flip(manifest(repository, 3), 50)
    index = repository.snapshot(2).manifest.parts[0].index_digest
    (Path(repository.location) / layout.object_key(index)).unlink()
    chosen = repository.latest(fingerprints=[RECIPE])
    assert chosen.snapshot.number == 1
    assert chosen.snapshot.manifest.user_metadata == {"value": 1}
    assert [number for number, _ in chosen.passed_over] == [5, 4, 3, 2]
    reasons = dict(chosen.passed_over)
    assert "recipe.model" in reasons[5]
    assert "'other' != 'm'" in reasons[5]
    assert "manifest.json" in reasons[4]
    assert layout.object_key(index) in reasons[2]


def test_fingerprints_that_differ_are_told_field_by_field(repository: Repository) -> None:
    topology = Fingerprint.of("topology", {"agents": ["a", "b"]})
    save(repository, value=1)
    with pytest.raises(FingerprintMismatch) as caught:
        repository.latest(fingerprints=[Fingerprint.of("recipe", {"model": "m", "steps": [1, 3]})])
    assert any("steps" in line for line in caught.value.differences)
    with pytest.raises(FingerprintMismatch, match="topology"):
        repository.latest(fingerprints=[topology])
    with pytest.raises(FingerprintMismatch):
        repository.snapshot().require([topology])
    repository.snapshot().require([RECIPE])
    assert repository.latest(fingerprints=[RECIPE]).passed_over == ()
    truncate(manifest(repository, 1), 5)
    with pytest.raises(NoMatch, match="snapshot 1"):
        repository.latest(fingerprints=[topology])


def test_a_deep_look_finds_what_a_shallow_one_cannot(repository: Repository) -> None:
    save(repository, value=1)
    save(repository, value=2)
    entry = repository.snapshot(2).part("gym/agent/a").entry("notes.txt")
    pack = Path(repository.location) / layout.object_key(entry.location.pack)
    flip(pack, entry.location.offset)
    assert repository.latest().snapshot.number == 2
    chosen = repository.latest(deep=True)
    assert chosen.snapshot.number == 1
    assert "notes.txt" in chosen.passed_over[0][1] or pack.name in chosen.passed_over[0][1]


def test_a_copy_made_with_any_tool_is_valid(repository: Repository, tmp_path: Path) -> None:
    save(repository, value=1)
    save(repository, value=2)
    shutil.copytree(repository.location, tmp_path / "copy")
    copy = Repository.open(tmp_path / "copy")
    assert everything(copy) == everything(repository)
    assert copy.verify().findings == []
    save(copy, value=3)
    assert copy.numbers() == [1, 2, 3]
    assert repository.numbers() == [1, 2]


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"format_version": 2}, UnsupportedVersion),
        ({"format_version": "1"}, UnsupportedVersion),
        ({"features": {"read": ["shards"], "write": [], "collect": []}}, UnsupportedFeature),
        ({"features": []}, FormatError),
        ({"features": None}, FormatError),
        ({"features": {"read": ["Not A Name"]}}, (FormatError, UnsupportedFeature)),
        ({"unknown": 1}, FormatError),
        ({"repository_id": "x"}, FormatError),
        ({"created_at_ns": -1}, FormatError),
        ({"created_at_ns": 1.5}, FormatError),
        ({"checksum": "sha256:" + "0" * 64}, FormatError),
    ],
)
def test_root_documents_of_another_version_or_shape_are_refused(
    repository: Repository, changes: dict[str, object], error: type[Exception]
) -> None:
    save(repository)
    path = manifest(repository, 1)
    before = path.read_bytes()
    value = json.loads(before) | {"checksum": None} | changes
    path.write_text(json.dumps(value))
    with pytest.raises(error):
        repository.snapshot()
    assert not repository.verify().ok
    with pytest.raises(NoMatch):
        repository.latest()
    path.write_bytes(before)
    root = Path(repository.location) / "snapfmt.json"
    root.write_text(json.dumps(json.loads(root.read_bytes()) | {"checksum": None} | changes))
    with pytest.raises(error):
        Repository.open(repository.location)


def test_a_feature_that_only_writing_needs_lets_readers_in(repository: Repository) -> None:
    save(repository)
    path = Path(repository.location) / "snapfmt.json"
    rewrite(path, features={"read": [], "write": ["locks"], "collect": []})
    again = Repository.open(repository.location)
    assert contents(again.snapshot())
    with pytest.raises(UnsupportedFeature, match="locks"):
        again.begin()


def test_a_manifest_under_a_false_number_or_of_another_repository(
    repository: Repository, tmp_path: Path
) -> None:
    save(repository)
    root = Path(repository.location) / "snapshots"
    shutil.copytree(root / "snapshot_000001", root / "snapshot_000002")
    with pytest.raises(FormatError, match="snapshot 1"):
        repository.snapshot(2)
    shutil.rmtree(root / "snapshot_000002")
    other = Repository.create(tmp_path / "other")
    other.begin(number=2).publish([])
    shutil.copytree(Path(other.location) / "snapshots/snapshot_000002", root / "snapshot_000002")
    with pytest.raises(FormatError, match="another repository"):
        repository.snapshot(2)
    assert repository.latest().snapshot.number == 1


def test_a_manifest_past_the_limit_is_not_read(repository: Repository) -> None:
    save(repository)
    size = manifest(repository, 1).stat().st_size
    for limits, error in [
        (Limits(manifest_size=size - 1), LimitExceeded),
        (Limits(parts=1), LimitExceeded),
        (Limits(tables=0), LimitExceeded),
        (Limits(json_depth=2), LimitExceeded),
    ]:
        with pytest.raises(error):
            Repository.open(repository.location, limits=limits).snapshot()
    assert Repository.open(repository.location, limits=Limits(manifest_size=size)).snapshot()


def test_a_part_index_past_a_limit_is_not_read(repository: Repository) -> None:
    save(repository)
    name = "rl/tq/train"
    for limits in (
        Limits(part_index_size=100),
        Limits(segments=0),
        Limits(columns=2),
    ):
        snapshot = Repository.open(repository.location, limits=limits).snapshot()
        with pytest.raises(LimitExceeded):
            assert snapshot.part(name).index
    snapshot = Repository.open(repository.location, limits=Limits(entries=1)).snapshot()
    with pytest.raises(LimitExceeded, match="entries"):
        assert snapshot.part("gym/agent/a").index


def test_an_expired_attempt_is_cleaned_up_by_the_next_save(
    repository: Repository, pass_time: PassTime
) -> None:
    attempt = repository.begin(lease_seconds=60)
    part = attempt.part("p")
    part.stage("x", b"data")
    part.seal()
    assert [lease.attempt_id for lease in repository.leases()] == [attempt.id]
    pass_time(61)
    repository.begin()
    assert attempt.id not in [lease.attempt_id for lease in repository.leases()]
    objects = Path(repository.location) / "objects"
    assert [path for path in objects.rglob("*") if path.is_file()] == []
    assert not (Path(repository.location) / "attempts" / attempt.id).exists()
    with pytest.raises(LeaseExpired):
        attempt.publish([])


def test_two_live_attempts_do_not_disturb_each_other(repository: Repository) -> None:
    first, second = repository.begin(), repository.begin(number=2)
    parts = [first.part("p"), second.part("p")]
    for number, part in enumerate(parts):
        part.stage("x", b"same bytes")
        part.stage("n", bytes([number]))
    receipts = [part.seal() for part in parts]
    first.abandon()
    second.publish([receipts[1]])
    assert repository.snapshot().part("p").read("n") == b"\x01"
    assert repository.numbers() == [2]
    assert repository.verify().findings == []


def test_a_renewed_lease_lasts(repository: Repository, pass_time: PassTime) -> None:
    attempt = repository.begin(lease_seconds=60)
    attempt.renew(600)
    pass_time(61)
    assert repository.clean_up() == []
    attempt.publish([])
    assert repository.numbers() == [1]
    assert repository.leases() == []


def test_a_lease_that_ran_out_publishes_nothing(
    repository: Repository, pass_time: PassTime
) -> None:
    attempt = repository.begin(lease_seconds=60)
    pass_time(61)
    with pytest.raises(LeaseExpired):
        attempt.publish([])
    assert repository.numbers() == []
    # Nobody took it over yet: it may still be renewed.
    attempt.renew(60)
    attempt.publish([])
    assert repository.numbers() == [1]


def test_damaged_leases_do_not_stop_a_save(repository: Repository) -> None:
    attempts = Path(repository.location) / "attempts"
    attempts.mkdir(exist_ok=True)
    for number, text in enumerate(["", "{", "[]", '{"schema_version": 2}', "x" * 100_000]):
        (attempts / (f"{number:032x}.json")).write_text(text)
    (attempts / "notes.txt").write_text("x")
    (attempts / ("f" * 32 + ".json")).mkdir()
    save(repository)
    assert repository.numbers() == [1]


def test_a_base_is_recorded_and_must_be_there(repository: Repository) -> None:
    first = save(repository)
    second = save(repository, base=1)
    assert second.base is not None
    assert second.base.write_id == first.write_id
    with pytest.raises(NotPublished):
        repository.begin(base=9)


@pytest.mark.req("W-9")
def test_an_attempt_is_given_up_without_a_look_at_every_snapshot(repository: Repository) -> None:
    """A long run has thousands; without a lease that can be read, all of them are asked."""
    for value in range(3):
        save(repository, value=value)
    for damaged in (False, True):
        watched = CountingStore(repository.store)
        again = Repository(watched, repository.document, limits=repository.limits)
        attempt = again.begin()
        with attempt.part("p", workers=1) as part:
            part.stage("note", b"written")
            part.seal()
        if damaged:
            (Path(repository.location) / layout.lease_key(attempt.id)).write_bytes(b"{}")
        watched.reads.clear()
        attempt.abandon()
        looked = {key for key, _, _ in watched.reads if key.endswith(layout.MANIFEST)}
        assert looked == ({layout.manifest_key(n) for n in (1, 2, 3)} if damaged else set())
        assert repository.store.names(layout.ATTEMPTS) == []
