"""A snapshot is taken out in one step, and with it goes what nothing else reaches."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from snapfmt import Repository
from snapfmt.errors import (
    InputError,
    LeaseExpired,
    MissingObject,
    NotPublished,
    RefusedError,
    SnapfmtError,
    SnapshotExists,
    StorageDenied,
    UnsupportedFeature,
)
from snapfmt.format import canonical, compat, layout
from snapfmt.limits import DEFAULT_LIMITS
from snapfmt.testing.forgery import seal
from snapfmt.testing.samples import all_contents, contents, needed, save, save_on, stored
from snapfmt.testing.stores import WrappedStore, watching
from snapfmt.writing import attempt as attempt_module
from snapfmt.writing import lease as lease_module
from snapfmt.writing import retire as retire_module
from snapfmt.writing.keeping import reached
from snapfmt.writing.retire import Retirement
from snapfmt_schemas.manifest import Manifest

PassTime = Callable[[float], None]

LIMITS = DEFAULT_LIMITS


def root(repository: Repository) -> Path:
    return Path(repository.location)


def files(repository: Repository) -> dict[str, bytes]:
    """Everything below the root."""
    return {
        str(path.relative_to(root(repository))): path.read_bytes()
        for path in root(repository).rglob("*")
        if path.is_file()
    }


def edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a root document and give it the checksum that it then has."""
    document = json.loads(path.read_bytes())
    change(document)
    seal(path, document)


def three(repository: Repository) -> dict[int, dict[str, Any]]:
    """Snapshot 2 uses what 1 wrote, 3 stands alone."""
    save(repository, value=1)
    save_on(repository, 1, value=2)
    save(repository, value=3)
    return all_contents(repository)


# What goes, and what stays


@pytest.mark.req("K-6", "K-7", "K-8")
def test_what_only_the_retired_one_reaches_goes_and_nothing_else(repository: Repository) -> None:
    before = three(repository)
    assert stored(repository) == needed(repository)
    alone = needed(repository)
    repository.retire(3)
    assert repository.numbers() == [1, 2]
    assert all_contents(repository) == {1: before[1], 2: before[2]}
    assert stored(repository) == needed(repository) < alone
    assert repository.verify().findings == []


def test_packs_go_with_the_last_snapshot_that_uses_them(repository: Repository) -> None:
    before = three(repository)
    first = set(reached(repository.store, repository.snapshot(1).manifest, LIMITS))
    shared = first & set(reached(repository.store, repository.snapshot(2).manifest, LIMITS))
    assert len(shared) == 2, "two packs"
    repository.retire(1)
    assert all_contents(repository) == {2: before[2], 3: before[3]}
    assert stored(repository) & first == shared
    repository.retire(2)
    assert all_contents(repository) == {3: before[3]}
    assert stored(repository) & first == set()
    assert stored(repository) == needed(repository)
    assert repository.verify().findings == []


def test_the_only_snapshot_may_be_retired(repository: Repository) -> None:
    save(repository, value=1)
    repository.retire(1)
    assert (repository.numbers(), stored(repository)) == ([], set())
    assert repository.verify().findings == []
    with pytest.raises(NotPublished):
        repository.snapshot()


@pytest.mark.req("K-9")
def test_a_number_is_never_used_again(repository: Repository) -> None:
    attempt = repository.begin(number=2)
    part = attempt.part("p")
    part.stage("x", b"late")
    receipt = part.seal()
    save(repository, value=1)
    with repository.begin(number=2) as faster:
        faster.publish([])
    repository.retire(2)
    with pytest.raises(SnapfmtError, match="another attempt published this number"):
        attempt.publish([receipt])
    attempt.abandon()
    for number in (1, 2):
        with pytest.raises(SnapshotExists):
            repository.begin(number=number)
    assert save(repository, value=3).number == 3
    repository.retire(3)
    repository.retire(1)
    assert save(repository, value=4).number == 4
    assert repository.numbers() == [4]


@pytest.mark.req("K-9")
def test_what_is_left_is_small_and_names_the_attempt(repository: Repository) -> None:
    manifest = save(repository, value=1)
    repository.retire(1)
    (name,) = repository.store.names("snapshots/snapshot_000001")
    assert name == "retired.json"
    data = repository.store.get(layout.snapshot_key(1, name), limit=2000)
    left = compat.decode_root(data, Manifest, what=name, size_limit=2000)
    assert data == canonical.encode(left)
    assert left.attempt_id == manifest.attempt_id
    assert left.write_id == manifest.write_id
    assert left.anchor == manifest.anchor
    assert left.parts == ()


@pytest.mark.parametrize("number", [0, 2, 999_999_999])
def test_what_was_not_published_cannot_be_retired(repository: Repository, number: int) -> None:
    save(repository, value=1)
    with pytest.raises(NotPublished):
        repository.retire(number)
    assert repository.numbers() == [1]


@pytest.mark.parametrize("value", [True, "1", 1.0, None])
def test_a_number_is_a_whole_number(repository: Repository, value: Any) -> None:
    with pytest.raises(InputError):
        repository.retire(value)
    with pytest.raises(InputError):
        repository.keep_latest(value)


# Keeping the newest


@pytest.mark.req("K-10")
def test_the_newest_stay(repository: Repository) -> None:
    for value in range(1, 6):
        save(repository, value=value)
    before = all_contents(repository)
    assert repository.keep_latest(7) == []
    assert repository.keep_latest(5) == []
    assert repository.keep_latest(2) == [1, 2, 3]
    assert all_contents(repository) == {4: before[4], 5: before[5]}
    assert repository.keep_latest(2) == []
    assert repository.keep_latest(1) == [4]
    assert stored(repository) == needed(repository)
    for count in (0, -1):
        with pytest.raises(InputError, match="at least one"):
            repository.keep_latest(count)
    assert repository.numbers() == [5]


def test_what_is_gone_for_good_is_looked_at_once(repository: Repository) -> None:
    for value in range(1, 7):
        save(repository, value=value)
    looked: list[str] = []

    class Noting(WrappedStore):
        def names(self, prefix: str) -> list[str]:
            looked.append(prefix)
            return self.inner.names(prefix)

        def size(self, key: str) -> int | None:
            looked.append(key)
            return self.inner.size(key)

    store: Any = Noting(repository.store)
    noting = Repository(store, repository.document, limits=LIMITS)
    assert noting.keep_latest(2) == [1, 2, 3, 4]
    assert noting.keep_latest(2) == []
    looked.clear()
    assert noting.keep_latest(1) == [5]
    assert noting.numbers() == [6]
    for number in range(1, 5):
        assert not [name for name in looked if f"snapshot_00000{number}" in name]
    assert Repository.open(repository.location).numbers() == [6]


@pytest.mark.req("K-10")
def test_a_snapshot_that_lost_an_object_does_not_count(repository: Repository) -> None:
    """Else the last good one would be given up for it."""
    for value in range(1, 5):
        save(repository, value=value)
    place = repository.snapshot(4).part("gym/agent/a").entry("notes.txt").location
    pack = root(repository) / layout.object_key(place.pack)
    data = pack.read_bytes()
    pack.write_bytes(data[:70])
    assert repository.keep_latest(1) == [1, 2]
    pack.unlink()
    assert repository.keep_latest(1) == []
    assert repository.numbers() == [3, 4]
    pack.write_bytes(data)
    assert repository.keep_latest(1) == [3]


def test_what_is_held_stays_and_more_goes_later(repository: Repository) -> None:
    for value in range(1, 5):
        save(repository, value=value)
    repository.store.create("pins/best.json", b'{"number": 2, "by": "somebody"}')
    attempt = repository.begin(base=1)
    assert repository.keep_latest(1) == [3]
    attempt.abandon()
    assert repository.keep_latest(1) == [1]
    (root(repository) / "pins/best.json").unlink()
    assert repository.keep_latest(1) == [2]
    assert stored(repository) == needed(repository)


# Refusals: nothing changes


def damage_index(repository: Repository, number: int, *, remove: bool) -> None:
    receipt = repository.snapshot(number).part("gym/agent/a").receipt
    path = root(repository) / layout.object_key(receipt.index_digest)
    if remove:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1] + b" ")


def write(name: str, data: bytes) -> Callable[[Repository], object]:
    def run(repository: Repository) -> None:
        path = root(repository) / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)

    return run


def feature(name: str, operation: str) -> Callable[[Repository], object]:
    def change(document: dict[str, Any]) -> None:
        document["features"][operation] = ["packs-elsewhere"]

    return lambda repository: edit(root(repository) / name, change)


def link(name: str) -> Callable[[Repository], object]:
    def run(repository: Repository) -> None:
        path = root(repository) / name
        path.unlink()
        path.symlink_to("elsewhere")

    return run


LEASE = "attempts/" + "a" * 32 + ".json"
MANIFEST = "snapshots/snapshot_000002/manifest.json"
REFUSALS: dict[str, tuple[Callable[[Repository], object], type[SnapfmtError]]] = {
    "another snapshot has an unknown feature": (feature(MANIFEST, "collect"), UnsupportedFeature),
    "another snapshot cannot be read at all": (feature(MANIFEST, "read"), UnsupportedFeature),
    "the repository has one": (feature("snapfmt.json", "collect"), UnsupportedFeature),
    "another manifest is damaged": (write(MANIFEST, b"{}"), RefusedError),
    "another manifest is that of another number": (
        lambda repository: edit(root(repository) / MANIFEST, lambda found: found.update(number=7)),
        RefusedError,
    ),
    "another manifest is a link": (link(MANIFEST), SnapfmtError),
    "another part index is lost": (
        lambda repository: damage_index(repository, 2, remove=True),
        RefusedError,
    ),
    "another part index is damaged": (
        lambda repository: damage_index(repository, 2, remove=False),
        RefusedError,
    ),
    "a lease cannot be read": (write(LEASE, b"{}"), RefusedError),
    "a lease is a link": (
        lambda repository: (root(repository) / LEASE).symlink_to("elsewhere"),
        SnapfmtError,
    ),
    "a lease is a folder": (
        lambda repository: (root(repository) / LEASE).mkdir(),
        RefusedError,
    ),
    "a pin is no JSON": (write("pins/x.json", b"{"), RefusedError),
    "a pin says nothing": (write("pins/x.json", b'{"name": "x"}'), RefusedError),
    "a pin says something else": (write("pins/x.json", b'{"number": true}'), RefusedError),
    "a pin says no number of a snapshot": (write("pins/x.json", b'{"number": -1}'), RefusedError),
    "a pin has another name": (write("pins/x", b'{"number": 1}'), RefusedError),
    "a pin is too large": (write("pins/x.json", b" " * 70_000), RefusedError),
}


@pytest.mark.req("K-3", "K-7")
@pytest.mark.parametrize("why", REFUSALS)
def test_as_long_as_something_is_unknown_nothing_is_removed(
    repository: Repository, why: str
) -> None:
    three(repository)
    break_it, error = REFUSALS[why]
    break_it(repository)
    repository = Repository.open(repository.location)
    before = files(repository)
    for call in (lambda: repository.retire(3), lambda: repository.keep_latest(2)):
        with pytest.raises(error):
            call()
        assert files(repository) == before


@pytest.mark.parametrize("why", [name for name in REFUSALS if name != "the repository has one"])
def test_what_becomes_unknown_on_the_way_stops_the_removal(
    repository: Repository, why: str
) -> None:
    """After the snapshot was taken out, but before its objects went."""
    three(repository)
    break_it, error = REFUSALS[why]
    before = stored(repository)

    class Breaking(WrappedStore):
        def unpublish(self, folder: str, name: str, kept_as: str) -> None:
            self.inner.unpublish(folder, name, kept_as)
            break_it(repository)

    # A look of its own for the removal, as that of a later call is.
    look = Retirement(Breaking(repository.store), repository_id=repository.id, limits=LIMITS)
    assert look._unpublish(3)
    with pytest.raises(error):
        look.finish()
    kept = stored(repository)
    assert before - kept <= ({index_key(repository, 2)} if "index is lost" in why else set())


def index_key(repository: Repository, number: int) -> str:
    receipts = repository.snapshot(number).manifest.parts
    return next(layout.object_key(r.index_digest) for r in receipts if r.part == "gym/agent/a")


def test_what_a_running_save_builds_on_is_not_retired(repository: Repository) -> None:
    three(repository)
    attempt = repository.begin(base=1)
    before = files(repository)
    with pytest.raises(RefusedError, match="base of the running save"):
        repository.retire(1)
    assert files(repository) == before
    repository.retire(3)
    attempt.abandon()
    repository.retire(1)
    assert repository.numbers() == [2]


def test_what_is_pinned_is_not_retired(repository: Repository) -> None:
    three(repository)
    repository.store.create("pins/best.json", b'{"number": 3}')
    (root(repository) / "pins/.best.json.0123456789abcdef.tmp").write_bytes(b"{")
    with pytest.raises(RefusedError, match=r"pinned by best\.json"):
        repository.retire(3)
    repository.retire(2)
    assert repository.numbers() == [1, 3]


def test_a_damaged_snapshot_may_be_retired_itself(repository: Repository) -> None:
    before = three(repository)
    damage_index(repository, 3, remove=False)
    repository.retire(3)
    assert all_contents(repository) == {1: before[1], 2: before[2]}
    report = repository.verify()
    assert report.ok
    # The packs that the damaged index named: nobody knows them any more.
    assert {item.rule for item in report.findings} == {"leftover"}
    assert len(report.findings) == 1


def test_a_snapshot_whose_manifest_is_damaged_is_not_touched(repository: Repository) -> None:
    three(repository)
    write("snapshots/snapshot_000003/manifest.json", b"{}")(repository)
    before = files(repository)
    with pytest.raises(RefusedError, match="cannot be read"):
        repository.retire(3)
    assert files(repository) == before


def test_a_manifest_that_claims_what_is_anothers_removes_nothing_of_it(
    repository: Repository,
) -> None:
    """Intact by every digest, hostile in its content: a part of 3 is that of 2."""
    before = three(repository)
    theirs = json.loads((root(repository) / MANIFEST).read_bytes())["parts"]
    path = root(repository) / "snapshots/snapshot_000003/manifest.json"
    edit(path, lambda found: found.update(parts=theirs))
    repository.retire(3)
    assert all_contents(repository) == {1: before[1], 2: before[2]}


def test_what_a_running_save_wrote_stays_whatever_a_manifest_says(repository: Repository) -> None:
    three(repository)
    attempt = repository.begin()
    part = attempt.part("p")
    part.stage("x", b"data")
    receipt = part.seal()
    path = root(repository) / "snapshots/snapshot_000003/manifest.json"
    stolen = json.loads(receipt.model_dump_json())
    edit(path, lambda found: found["parts"].append(stolen))
    repository.retire(3)
    attempt.publish([receipt])
    assert contents(repository.snapshot())["p/x"] == b"data"
    assert repository.keep_latest(3) == []
    assert stored(repository) == needed(repository)


# Leftovers of the attempts that wrote what is still used


def left_behind(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> str:
    """Snapshot 1, whose attempt crashed right after the publication, and 2, which uses it."""
    with monkeypatch.context() as patch:
        patch.setattr(attempt_module.Attempt, "_close", lambda _: None)
        attempt = repository.begin()
        part = attempt.part("p")
        part.stage("x", b"data")
        attempt.publish([part.seal()])
    save_on(repository, 1)
    (lease,) = repository.leases()
    assert repository.store.journal(layout.workspace_key(attempt.id))
    assert lease.attempt_id == attempt.id
    return attempt.id


@pytest.mark.req("W-9")
@pytest.mark.parametrize("when", ["published", "retiring", "retired", "gone"])
def test_clean_up_never_takes_what_a_newer_snapshot_uses(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    attempt_id = left_behind(repository, monkeypatch)
    before = contents(repository.snapshot(2))
    if when == "retiring":
        repository.store.unpublish("snapshots/snapshot_000001", "manifest.json", "retiring.json")
    if when == "retired":
        with monkeypatch.context() as patch:
            patch.setattr(retire_module, "reclaim", lambda *_: 0)
            look = Retirement(repository.store, repository_id=repository.id, limits=LIMITS)
            assert look._unpublish(1)
            retire_module._close(repository.store, 1, look._keeping._manifest(1, layout.RETIRING))
    if when == "gone":
        repository.retire(1)
        assert repository.leases() == []
        assert repository.store.journal(layout.workspace_key(attempt_id)) == []
    monkeypatch.setattr(lease_module, "is_dead", lambda _: True)
    assert repository.clean_up() == ([] if when == "gone" else [attempt_id])
    assert contents(repository.snapshot(2)) == before
    assert repository.verify().ok


@pytest.mark.req("W-9")
@pytest.mark.parametrize("number", [0, 2, 9])
def test_clean_up_does_not_trust_the_number_of_a_lease(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """One flipped bit of it, and what is published would go."""
    attempt_id = left_behind(repository, monkeypatch)
    before = contents(repository.snapshot(1))
    (lease,) = repository.leases()
    damaged = canonical.encode(lease.model_copy(update={"number": number}))
    repository.store.replace(layout.lease_key(attempt_id), damaged)
    monkeypatch.setattr(lease_module, "is_dead", lambda _: True)
    assert repository.clean_up() == [attempt_id]
    assert contents(repository.snapshot(1)) == before
    assert repository.verify().ok


def test_in_doubt_whether_it_was_retired_its_objects_stay(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt_id = left_behind(repository, monkeypatch)
    repository.store.unpublish("snapshots/snapshot_000001", "manifest.json", "retired.json")
    path = root(repository) / "snapshots/snapshot_000001/retired.json"
    path.write_bytes(path.read_bytes().replace(attempt_id.encode(), b"0" * 32))
    monkeypatch.setattr(lease_module, "is_dead", lambda _: True)
    assert repository.clean_up() == [attempt_id]
    assert contents(repository.snapshot(2))["p/x"] == b"data"


def test_a_workspace_without_a_lease_is_taken_away(repository: Repository) -> None:
    save(repository, value=1)
    attempt = repository.begin(base=1)
    (root(repository) / layout.lease_key(attempt.id)).unlink()
    look = Retirement(repository.store, repository_id=repository.id, limits=LIMITS)
    with pytest.raises(RefusedError, match="nobody knows its base"):
        look.retire(1)
    assert repository.numbers() == [1]
    assert repository.clean_up() == [attempt.id]
    with pytest.raises(LeaseExpired):
        attempt.publish([])
    repository.retire(1)
    assert stored(repository) == set()


def test_an_attempt_that_began_while_they_were_listed_is_left_alone(
    repository: Repository,
) -> None:
    """No listing is one moment: one may have the workspace without the lease that came before."""

    class Torn(WrappedStore):
        def names(self, prefix: str) -> list[str]:
            found = self.inner.names(prefix)
            listings.append(prefix)
            first = listings.count(layout.ATTEMPTS) == 1
            return [name for name in found if not (first and name.endswith(".json"))]

    listings: list[str] = []
    with repository.begin() as attempt:
        assert Repository.open(Torn(repository.store)).clean_up() == []
        assert listings.count(layout.ATTEMPTS) == 2
        attempt.publish([])


@pytest.mark.req("W-1")
def test_an_attempt_that_is_taken_over_as_it_begins_does_not_begin(repository: Repository) -> None:
    """By somebody whose clock is ahead, after its lease was made and before its workspace was."""
    save(repository, value=1)
    mine = "a" * 32
    late = watching(
        repository, "open_workspace", "", lambda: attempt_module.reclaim(repository.store, mine)
    )
    with pytest.raises(LeaseExpired, match="as it began"):
        late.begin(base=1, attempt_id=mine)
    assert not repository.store.has_workspace(layout.workspace_key(mine))
    repository.retire(1)
    assert stored(repository) == set()


# At the same time


def test_a_save_that_begins_during_a_retirement_finds_its_base_gone(
    repository: Repository,
) -> None:
    """The lease is there, the base is being looked at: the retirement comes in between."""
    three(repository)
    other = Repository.open(repository.location)
    late = watching(repository, "open_workspace", "", lambda: finish_before_lease(other))
    with pytest.raises(NotPublished):
        late.begin(base=3)
    assert repository.leases() == []
    assert repository.keep_latest(2) == []
    assert stored(repository) == needed(repository)
    assert repository.verify().findings == []


def finish_before_lease(repository: Repository) -> None:
    """A retirement that looked at the leases before there was one."""
    look = Retirement(repository.store, repository_id=repository.id, limits=LIMITS)
    assert look._unpublish(3)


def test_a_save_that_begins_before_the_step_keeps_its_base_to_its_end(
    repository: Repository,
) -> None:
    """The retirement saw no lease, then one came, then the snapshot went out."""
    before = three(repository)
    attempts: list[Any] = []
    other = Repository.open(repository.location)
    watching(repository, "unpublish", "", lambda: attempts.append(other.begin(base=3))).retire(3)
    assert repository.numbers() == [1, 2]
    (attempt,) = attempts
    assert set(reached(repository.store, look_at(repository, 3), LIMITS)) <= stored(repository)
    report = repository.verify()
    assert report.ok
    assert "snapshots/snapshot_000003/retiring.json" in {item.path for item in report.findings}
    # What it writes may use the packs of its base.
    entry = before[3]["gym/agent/a/notes.txt"]
    attempt.publish([])
    assert entry == b"note 3"
    assert repository.keep_latest(9) == []
    assert stored(repository) == needed(repository)
    assert repository.verify().findings == []


@pytest.mark.parametrize("what", ["document", "part index"])
def test_a_base_that_went_out_must_be_readable_to_its_end(
    repository: Repository, what: str
) -> None:
    """2 goes, and 1 is still the base of a save: what 1 reached must be known."""
    three(repository)
    attempt = repository.begin(base=1)
    index = root(repository) / index_key(repository, 1)
    look = Retirement(repository.store, repository_id=repository.id, limits=LIMITS)
    assert look._unpublish(1)
    path = root(repository) / layout.snapshot_key(1, layout.RETIRING)
    broken = path if what == "document" else index
    data = broken.read_bytes()
    broken.write_bytes(data[:-2])
    before = stored(repository)
    with pytest.raises(RefusedError, match="base of the running save"):
        repository.retire(2)
    assert stored(repository) == before
    broken.write_bytes(data)
    assert repository.keep_latest(9) == []
    assert len(stored(repository)) < len(before)
    assert look_at(repository, 1).number == 1
    attempt.abandon()
    assert repository.keep_latest(9) == []
    assert stored(repository) == needed(repository)


def look_at(repository: Repository, number: int) -> Manifest:
    key = layout.snapshot_key(number, layout.RETIRING)
    data = repository.store.get(key, limit=1 << 20)
    return compat.decode_root(data, Manifest, what=key, size_limit=1 << 20)


def test_a_save_that_ends_during_a_retirement_keeps_what_it_uses(repository: Repository) -> None:
    """It publishes after the retirement looked at the leases, before it looks for snapshots."""
    save(repository, value=1)
    before = contents(repository.snapshot(1))
    other = Repository.open(repository.location)
    save_on(other, 1)
    hidden = repository.snapshot(2).manifest
    # Snapshot 2 is hidden until the removal has read the leases.
    path = root(repository) / "snapshots/snapshot_000002"
    aside = root(repository) / "aside"
    path.rename(aside)
    look = Retirement(
        watching(repository, "names", "pins", lambda: aside.rename(path)).store,
        repository_id=repository.id,
        limits=LIMITS,
    )
    assert look._unpublish(1)
    look.finish()
    assert repository.numbers() == [2]
    assert repository.snapshot(2).manifest == hidden
    found = contents(repository.snapshot(2))
    assert {name: found[name] for name in before if name != "manifest"} == {
        name: data for name, data in before.items() if name != "manifest"
    }


@pytest.mark.parametrize("verb", ["unpublish", "delete"])
def test_two_that_retire_the_same_one(repository: Repository, verb: str) -> None:
    before = three(repository)
    other = Repository.open(repository.location)
    watching(repository, verb, "", lambda: try_retire(other, 3)).retire(3)
    assert all_contents(repository) == {1: before[1], 2: before[2]}
    assert stored(repository) == needed(repository)
    assert repository.verify().findings == []


def try_retire(repository: Repository, number: int) -> None:
    """As another process; it may come too late."""
    try:
        repository.retire(number)
    except NotPublished:
        repository.keep_latest(99)


def test_two_that_share_objects_do_not_leave_them_to_each_other(repository: Repository) -> None:
    """Each is taken out while the other one is still there; one of the two removes the packs."""
    before = three(repository)
    other = Repository.open(repository.location)
    watching(repository, "unpublish", "_000001", lambda: other.retire(2)).retire(1)
    assert all_contents(repository) == {3: before[3]}
    assert stored(repository) == needed(repository)


def test_threads_that_keep_the_newest(repository: Repository) -> None:
    for value in range(8):
        save(repository, value=value)
    before = all_contents(repository)
    errors: list[BaseException] = []

    def run() -> None:
        try:
            for count in (6, 4, 2):
                Repository.open(repository.location).keep_latest(count)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert all_contents(repository) == {7: before[7], 8: before[8]}
    assert stored(repository) == needed(repository)
    assert repository.verify().findings == []


# Readers


@pytest.mark.req("K-11")
def test_who_reads_it_is_told(repository: Repository) -> None:
    save(repository, value=1)
    save(repository, value=2)
    opened, fresh = repository.snapshot(1), repository.snapshot(1)
    assert opened.part("gym/agent/a").index
    repository.retire(1)
    with pytest.raises(MissingObject):
        opened.part("gym/agent/a").read("notes.txt")
    with pytest.raises(MissingObject):
        opened.table("rows/train")
    with pytest.raises(MissingObject):
        assert fresh.part("gym/agent/a").index
    with pytest.raises(NotPublished):
        repository.snapshot(1)
    assert repository.latest().snapshot.number == 2
    assert [item.rule for item in repository.verify(1).damage] == ["missing"]


def test_a_selection_passes_over_one_that_goes_meanwhile(repository: Repository) -> None:
    save(repository, value=1)
    save(repository, value=2)
    other = Repository.open(repository.location)
    selection = watching(
        repository, "get", "_000002/manifest.json", lambda: other.retire(2)
    ).latest()
    assert selection.snapshot.number == 1
    assert [number for number, _ in selection.passed_over] == [2]


@pytest.mark.parametrize(
    ("verb", "ending"),
    [
        ("get", "_000001/manifest.json"),
        ("size", ""),
        ("walk", ""),
        ("names", "attempts"),
    ],
)
def test_an_audit_does_not_call_it_damage(repository: Repository, verb: str, ending: str) -> None:
    """It is retired while the audit looks at it."""
    save(repository, value=1)
    save(repository, value=2)
    other = Repository.open(repository.location)
    report = watching(repository, verb, ending, lambda: try_retire(other, 1)).verify()
    assert repository.numbers() == [2]
    assert report.findings == []


def test_an_audit_tells_what_a_crash_left(repository: Repository) -> None:
    three(repository)
    look = Retirement(repository.store, repository_id=repository.id, limits=LIMITS)
    assert look._unpublish(3)
    report = repository.verify()
    assert report.ok
    assert {(item.rule, item.severity) for item in report.findings} == {("leftover", "leftover")}
    assert len(report.findings) == 1 + 4
    assert repository.keep_latest(9) == []
    assert repository.verify().findings == []


@pytest.mark.parametrize("name", ["retiring.json", "retired.json"])
def test_an_audit_tells_of_damage_to_what_is_left(repository: Repository, name: str) -> None:
    save(repository, value=1)
    save(repository, value=2)
    repository.store.unpublish("snapshots/snapshot_000001", "manifest.json", name)
    path = root(repository) / "snapshots/snapshot_000001" / name
    data = path.read_bytes()
    path.write_bytes(data.replace(b"note", b"nope").replace(b'"number":1', b'"number":2'))
    assert [(item.rule, item.path) for item in repository.verify().damage] == [
        ("format", f"snapshots/snapshot_000001/{name}")
    ]
    # Nobody knows what it reached, so nothing of it goes; the others may.
    before = stored(repository)
    assert repository.keep_latest(1) == []
    assert stored(repository) == before
    path.with_name("manifest.json").write_bytes(data)
    # Beside a manifest only a copy for a retirement may stand, and a damaged one is told.
    expected = "extra" if name == "retired.json" else "format"
    assert [item.rule for item in repository.verify().damage] == [expected]


def test_the_second_reader_agrees(repository: Repository) -> None:
    three(repository)
    reader = Path(__file__).parents[2] / "spec/minireader/minireader.py"
    repository.retire(1)
    repository.store.unpublish("snapshots/snapshot_000003", "manifest.json", "retiring.json")
    done = subprocess.run(
        [sys.executable, str(reader), "verify", repository.location],
        capture_output=True,
        check=False,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "whole\n"), done.stdout + done.stderr


# Storage


def test_a_folder_that_cannot_be_read_is_no_empty_one(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    three(repository)

    class Denied(WrappedStore):
        def names(self, prefix: str) -> list[str]:
            if prefix.endswith("snapshot_000002"):
                raise StorageDenied("permission denied", what=prefix)
            return self.inner.names(prefix)

    before = files(repository)
    store: Any = Denied(repository.store)
    with pytest.raises(StorageDenied):
        Repository(store, repository.document, limits=LIMITS).retire(3)
    assert files(repository) == before


def test_leases_that_ran_out_hold_nothing(repository: Repository, pass_time: PassTime) -> None:
    save(repository, value=1)
    save(repository, value=2)
    repository.begin(base=1, lease_seconds=60)
    pass_time(61)
    repository.retire(1)
    assert repository.leases() == []
    assert stored(repository) == needed(repository)
