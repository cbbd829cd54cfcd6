"""A pin that was reported holds, whoever retires beside it; one that was not leaves nothing."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from snapfmt import Repository
from snapfmt.errors import (
    ConflictError,
    InputError,
    LeaseExpired,
    NotPublished,
    RefusedError,
    SnapfmtError,
    SnapshotBusy,
    StorageUnavailable,
)
from snapfmt.format import layout
from snapfmt.storage.memory import MemoryClient
from snapfmt.storage.objects import ObjectStore
from snapfmt.testing.client_faults import patient
from snapfmt.testing.gc_world import save
from snapfmt.testing.samples import contents, needed, stored
from snapfmt.testing.stores import WrappedStore, watching
from snapfmt.transfer.claim import sweep
from snapfmt.writing import lease as lease_module
from snapfmt.writing import pins as pins_module
from snapfmt.writing import presence as presence_module
from snapfmt.writing.keeping import folder
from snapfmt.writing.presence import Presence

FOLDER_1 = folder(1)


@pytest.fixture(params=["disk", "bucket"])
def repository(request: pytest.FixtureRequest, tmp_path: Path) -> Repository:
    """Three snapshots, in each kind of place."""
    if request.param == "disk":
        repository = Repository.create(tmp_path / "run")
    else:
        repository = Repository.open(ObjectStore(MemoryClient(), retry=patient()), create=True)
    for _ in range(3):
        save(repository)
    return repository


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """What happens in each pause of who waits, in turn; no pause lasts."""
    acts: list[Callable[[], object]] = []

    def sleep(_: float) -> None:
        if acts:
            acts.pop(0)()

    monkeypatch.setattr(pins_module.time, "sleep", sleep)
    return acts


def announced(repository: Repository) -> Presence:
    """A retirement that has begun, and has looked at the pins."""
    return Presence(repository.store, layout.retire_key)


def attempts(repository: Repository) -> list[str]:
    return repository.store.names(layout.ATTEMPTS)


def is_dead(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clean-up that takes everybody for dead."""
    with monkeypatch.context() as patch:
        patch.setattr(lease_module, "is_dead", lambda _: True)
        repository.clean_up()


# Who pins first


@pytest.mark.req("K-17")
def test_who_retires_while_it_is_pinned_leaves_it(repository: Repository) -> None:
    seen: list[object] = []

    def retire() -> None:
        with pytest.raises(RefusedError, match="being pinned"):
            repository.retire(1)
        seen.extend([repository.surplus(1), repository.keep_latest(1)])

    watching(repository, "create", "pins/x.json", retire).pin("x", 1)
    assert seen == [[2], [2]]
    assert repository.numbers() == [1, 3]
    assert repository.pins() == {"x": 1}
    assert attempts(repository) == []


@pytest.mark.req("K-17")
def test_the_lease_goes_when_the_pin_is_there(repository: Repository) -> None:
    seen: list[dict[str, int]] = []
    watching(repository, "delete", ".json", lambda: seen.append(repository.pins())).pin("x", 1)
    assert seen == [{"x": 1}]


@pytest.mark.req("K-17")
def test_leases_are_read_before_pins(repository: Repository) -> None:
    """Or who is pinned between would be in neither: the lease goes when the pin is there."""
    began, looked, done = threading.Event(), threading.Event(), threading.Event()
    announcing, looking = threading.Event(), threading.Event()
    caught: list[BaseException] = []

    class Slow(WrappedStore):
        def open_workspace(self, key: str, *, publishes: str) -> None:
            announcing.set()
            assert looked.wait(120)
            self.inner.open_workspace(key, publishes=publishes)
            began.set()

        def names(self, prefix: str) -> list[str]:
            if began.is_set() and prefix == layout.ATTEMPTS and not looking.is_set():
                looking.set()
                assert done.wait(120)
            return self.inner.names(prefix)

    def retire() -> None:
        store: Any = Slow(repository.store)
        try:
            Repository(store, repository.document, limits=repository.limits).retire(1)
        except RefusedError as error:
            caught.append(error)

    def make() -> None:
        looked.set()
        assert looking.wait(120)

    thread = threading.Thread(target=retire)
    thread.start()
    assert announcing.wait(120)
    watching(repository, "create", "pins/x.json", make).pin("x", 1)
    done.set()
    thread.join()
    assert len(caught) == 1
    assert repository.numbers() == [1, 2, 3]


@pytest.mark.req("K-2", "K-17")
def test_one_that_was_taken_out_just_before_is_not_pinned(repository: Repository) -> None:
    with pytest.raises(NotPublished):
        watching(repository, "create", ".json", lambda: repository.retire(1)).pin("x", 1)
    assert (repository.pins(), attempts(repository)) == ({}, [])


@pytest.mark.req("K-16")
@pytest.mark.parametrize("method", ["retire", "keep_latest"])
def test_pins_are_looked_at_again_once_it_is_announced(repository: Repository, method: str) -> None:
    """Somebody pins after the first look, and finds nothing announced."""
    one = watching(repository, "open_workspace", "/retire", lambda: repository.pin("x", 1))
    if method == "retire":
        with pytest.raises(RefusedError, match="pinned by x"):
            one.retire(1)
    else:
        assert one.keep_latest(1) == [2]
    assert 1 in repository.numbers()
    assert repository.pins() == {"x": 1}
    assert attempts(repository) == []


@pytest.mark.req("K-17")
def test_while_a_retirement_may_have_looked_nothing_is_pinned(repository: Repository) -> None:
    """It looked at the pins, and its step is still to come."""
    seen: list[SnapfmtError] = []

    def try_to_pin() -> None:
        with pytest.raises(SnapshotBusy) as caught:
            repository.pin("x", 1)
        seen.append(caught.value)
        assert repository.pins() == {}

    watching(repository, "unpublish", FOLDER_1, try_to_pin).retire(1)
    assert [error.code for error in seen] == ["SnapshotBusy"]
    assert repository.numbers() == [2, 3]
    with pytest.raises(NotPublished):
        repository.pin("x", 1)
    assert (repository.pins(), attempts(repository)) == ({}, [])
    assert stored(repository) == needed(repository)


@pytest.mark.req("K-17")
def test_a_retirement_that_looked_before_the_lease_is_seen(repository: Repository) -> None:
    """Who looks for it first, and makes the lease then, meets neither."""
    seen = announced(repository)
    with pytest.raises(SnapshotBusy):
        watching(repository, "create", ".json", seen.__enter__).pin("x", 1)
    assert repository.pins() == {}
    seen.__exit__()


# Who waits


@pytest.mark.req("K-17")
@pytest.mark.parametrize("out", [False, True])
def test_a_pin_waits_for_a_retirement_to_end(
    repository: Repository, pauses: list[Callable[[], object]], out: bool
) -> None:
    seen = announced(repository)
    seen.__enter__()
    if out:
        unpublish = lambda: repository.store.unpublish(  # noqa: E731
            FOLDER_1, layout.MANIFEST, layout.RETIRING
        )
        pauses += [lambda: None, unpublish]
    pauses += [lambda: None, seen.__exit__]
    if out:
        with pytest.raises(NotPublished):
            repository.pin("x", 1)
        assert repository.pins() == {}
    else:
        assert repository.pin("x", 1).number == 1
        assert repository.pins() == {"x": 1}
    assert pauses == []
    assert attempts(repository) == []


@pytest.mark.req("K-17")
def test_who_is_announced_later_is_not_waited_for(
    repository: Repository, pauses: list[Callable[[], object]]
) -> None:
    """It sees the lease. Else one retirement after another would keep a pin from being made."""
    first, second = announced(repository), announced(repository)
    first.__enter__()
    pauses += [second.__enter__, first.__exit__]
    assert repository.pin("x", 1).number == 1
    second.__exit__()
    assert attempts(repository) == []


@pytest.mark.req("K-17")
def test_a_pin_that_was_there_stays_when_it_cannot_be_made_again(repository: Repository) -> None:
    repository.pin("x", 1)
    with announced(repository), pytest.raises(SnapshotBusy):
        repository.pin("x", 1)
    assert repository.pins() == {"x": 1}
    assert repository.pin("x", 1).number == 1


@pytest.mark.req("K-17")
def test_a_pin_that_another_one_made_meanwhile_is_not_taken_back(repository: Repository) -> None:
    """Two give one name to one snapshot; the first gives up, the second is told that it holds."""
    seen = announced(repository)
    seen.__enter__()

    def other() -> None:
        seen.__exit__()
        assert repository.pin("x", 1).number == 1

    with pytest.raises(SnapshotBusy):
        watching(repository, "delete", ".json", other).pin("x", 1)
    assert repository.pins() == {"x": 1}
    with pytest.raises(RefusedError, match="pinned by x"):
        repository.retire(1)


def test_the_wait_is_bounded() -> None:
    assert 5 < sum(pins_module.PAUSES_S) < 15


# Who died, or was taken for dead


@pytest.mark.req("K-16", "K-17")
def test_a_retirement_that_died_does_not_block_pins(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = announced(repository)
    seen.__enter__()
    monkeypatch.setattr(lease_module, "is_dead", lambda owner: True)
    assert repository.pin("x", 1).number == 1
    with pytest.raises(LeaseExpired):
        seen.check()
    assert attempts(repository) == []


@pytest.mark.req("K-16", "K-17")
def test_an_announcement_without_a_lease_does_not_block_pins(repository: Repository) -> None:
    seen = announced(repository)
    seen.__enter__()
    repository.store.delete(layout.lease_key(seen.id))
    assert repository.pin("x", 1).number == 1
    assert attempts(repository) == []


@pytest.mark.req("K-16")
@pytest.mark.parametrize("method", ["retire", "keep_latest"])
def test_a_retirement_that_was_taken_for_dead_takes_nothing_out(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """It stood still between its look at the pins and its step."""
    looks: list[int] = []

    def second() -> None:
        is_dead(repository, monkeypatch)
        repository.pin("x", 1)

    class Slow(WrappedStore):
        def names(self, prefix: str) -> list[str]:
            found = self.inner.names(prefix)
            if prefix == layout.PINS:
                looks.append(1)
                if len(looks) == 2:
                    second()
            return found

    store: Any = Slow(repository.store)
    slow = Repository(store, repository.document, limits=repository.limits)
    with pytest.raises(LeaseExpired, match="taken over"):
        slow.retire(1) if method == "retire" else slow.keep_latest(1)
    assert repository.numbers() == [1, 2, 3]
    assert repository.pins() == {"x": 1}
    assert attempts(repository) == []


@pytest.mark.req("K-16")
def test_it_looks_before_each_step(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    def meanwhile() -> None:
        is_dead(repository, monkeypatch)
        repository.pin("x", 2)

    with pytest.raises(LeaseExpired):
        watching(repository, "unpublish", FOLDER_1, meanwhile).keep_latest(1)
    assert repository.numbers() == [2, 3]
    assert contents(repository.snapshot(2))
    # What is out already is removed by the next one.
    assert repository.keep_latest(1) == []
    assert stored(repository) == needed(repository)


@pytest.mark.req("K-16")
def test_a_retirement_whose_lease_ran_out_takes_nothing_out(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence_module, "LEASE_SECONDS", -1.0)
    with pytest.raises(LeaseExpired):
        repository.keep_latest(1)
    assert repository.numbers() == [1, 2, 3]


@pytest.mark.req("K-17")
def test_a_pin_whose_lease_was_taken_away_is_not_reported(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A retirement may have looked at leases after that, and at pins before."""

    def take_away() -> None:
        is_dead(repository, monkeypatch)

    with pytest.raises(LeaseExpired):
        watching(repository, "create", "pins/x.json", take_away).pin("x", 1)
    assert repository.pin("x", 1).number == 1
    assert attempts(repository) == []


@pytest.mark.req("K-16", "W-9")
@pytest.mark.parametrize("who", ["clean_up", "begin", "retire", "keep_latest", "collect", "sweep"])
def test_what_dead_ones_left_is_reclaimed(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    """Of a retirement, and of a pin that was not made."""

    class Killed(BaseException):
        pass

    def die() -> None:
        raise Killed

    dying = watching(repository, "create", "pins/x.json", die)
    with pytest.raises(Killed):
        watching(dying, "delete", ".json", die).pin("x", 3)
    announced(repository).__enter__()
    assert len(repository.leases()) == 2
    monkeypatch.setattr(lease_module, "is_dead", lambda _: True)
    acts: dict[str, Callable[[], object]] = {
        "clean_up": repository.clean_up,
        "begin": lambda: repository.begin().abandon(),
        "retire": lambda: repository.retire(1),
        "keep_latest": lambda: repository.keep_latest(9),
        "collect": repository.collect,
        "sweep": lambda: sweep(repository),
    }
    acts[who]()
    assert attempts(repository) == []
    assert repository.pins() == {}


# What is written


def writes(repository: Repository) -> tuple[Repository, list[str]]:
    """The repository, and what is written in it from now on."""
    found: list[str] = []

    class Noting(WrappedStore):
        def create(self, key: str, data: Any) -> None:
            found.append(key)
            self.inner.create(key, data)

        def open_workspace(self, key: str, *, publishes: str) -> None:
            found.append(key)
            self.inner.open_workspace(key, publishes=publishes)

    store: Any = Noting(repository.store)
    return Repository(store, repository.document, limits=repository.limits), found


@pytest.mark.req("K-16")
def test_where_nothing_goes_nothing_is_announced(repository: Repository) -> None:
    repository.pin("x", 1)
    noting, found = writes(repository)
    assert noting.keep_latest(3) == []
    assert noting.surplus(1) == [2]
    with pytest.raises(RefusedError):
        noting.retire(1)
    with pytest.raises(NotPublished):
        noting.retire(7)
    with pytest.raises(InputError):
        noting.keep_latest(0)
    assert found == []
    assert noting.keep_latest(1) == [2]
    assert [key.rpartition("/")[2] for key in found if key.startswith("attempts/")][1] == "retire"


def test_a_pin_that_is_refused_writes_nothing(repository: Repository) -> None:
    noting, found = writes(repository)
    with pytest.raises(NotPublished):
        noting.pin("x", 7)
    with pytest.raises(InputError):
        noting.pin("/", 1)
    assert found == []
    repository.pin("x", 2)
    with pytest.raises(ConflictError):
        noting.pin("x", 1)
    assert repository.pins() == {"x": 2}
    assert attempts(repository) == []


# A request that is still on its way


@pytest.mark.req("K-17")
@pytest.mark.parametrize("late", [False, True])
def test_a_retirement_that_died_between_its_two_requests(
    pauses: list[Callable[[], object]], late: bool
) -> None:
    """The copy is there. Whether the name will be closed is not known, so the pin waits."""
    client = MemoryClient()
    repository = Repository.open(ObjectStore(client, retry=patient()), create=True)
    save(repository)
    manifest, copy = (layout.snapshot_key(1, name) for name in (layout.MANIFEST, layout.RETIRING))
    data = client.get(manifest, 0, 10**6)

    def put(key: str, body: bytes) -> None:
        client.put(key, body, exclusive=False, metadata={})

    put(copy, data)
    if late:
        pauses += [lambda: None, lambda: put(manifest, b'{"closed":true}\n')]
        with pytest.raises(NotPublished):
            repository.pin("x", 1)
        assert repository.pins() == {}
        assert pauses == []
        return
    pauses += [lambda: None] * len(pins_module.PAUSES_S)
    assert repository.pin("x", 1).number == 1
    assert pauses == []
    assert repository.keep_latest(9) == []
    assert contents(repository.snapshot(1))


def test_an_outage_leaves_a_lease_that_runs_out(repository: Repository) -> None:
    class Out(WrappedStore):
        def create(self, key: str, data: Any) -> None:
            if key.startswith("pins/"):
                raise StorageUnavailable("out", what=key)
            self.inner.create(key, data)

        def delete(self, key: str) -> None:
            raise StorageUnavailable("out", what=key)

    store: Any = Out(repository.store)
    with pytest.raises(StorageUnavailable):
        Repository(store, repository.document, limits=repository.limits).pin("x", 1)
    (lease,) = repository.leases()
    assert (lease.number, lease.base) == (0, 1)
    assert 0 < lease.expires_at_ns - time.time_ns() <= 3600 * 10**9
    assert repository.pins() == {}
