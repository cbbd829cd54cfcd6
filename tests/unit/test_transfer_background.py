"""The second tier: what a run publishes reaches the other place, and no failure reaches the run."""

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from snapfmt import Repository
from snapfmt.errors import InputError, RefusedError, StorageUnavailable, StoreNotFound
from snapfmt.format import layout
from snapfmt.storage.base import Sink, Store
from snapfmt.storage.memory import MemoryClient
from snapfmt.storage.objects import ObjectStore
from snapfmt.testing.samples import everything, save, save_on
from snapfmt.testing.stores import WrappedStore
from snapfmt.transfer import BackgroundPush, copy_snapshot, open_target
from snapfmt.transfer.background import PushState


@pytest.fixture
def place() -> Store:
    """An empty bucket."""
    return ObjectStore(MemoryClient())


@pytest.fixture
def target(repository: Repository, place: Store) -> Repository:
    """The second tier of `repository`."""
    return open_target(place, repository)


class Gate(WrappedStore):
    """Lets objects be written only while it is open; fails with `error` if there is one."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.open = threading.Event()
        self.waiting = threading.Event()
        self.error: Exception | None = None
        self.tries = 0

    def sink(self, workspace: str, name: str) -> Sink:
        self.tries += 1
        if self.error is not None:
            raise self.error
        self.waiting.set()
        assert self.open.wait(30)
        return self.inner.sink(workspace, name)


@pytest.fixture
def gate(place: Store) -> Iterator[Gate]:
    """A gate before the bucket."""
    found = Gate(place)
    yield found
    found.open.set()


def until(check: Callable[[], bool], within: float = 15.0) -> None:
    """Waits until it is so."""
    deadline = time.monotonic() + within
    while not check():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


def fast(source: Repository, target: Repository | Callable[[], Repository]) -> BackgroundPush:
    """One whose pauses fit a test; it looks by itself only when it is told."""
    return BackgroundPush(source, target, poll_s=60, first_pause_s=0.02, longest_pause_s=0.1)


def test_what_is_published_is_pushed(repository: Repository, target: Repository) -> None:
    save(repository, value=1)
    with fast(repository, target) as push:
        assert push.wait(20)
        assert target.numbers() == [1]
        save_on(repository, 1, value=2)
        push.notify(2)
        assert push.wait(20)
        state = push.state()
        assert (state.running, state.pushed, state.behind) == (True, (1, 2), ())
        assert (state.failures, state.last_error, state.lag_seconds) == (0, "", 0.0)
        assert state.bytes_sent == sum(size for _, size in target.store.walk("objects"))
    assert not push.state().running
    assert everything(target) == everything(repository)
    assert target.verify().findings == []
    assert target.store.names(layout.ATTEMPTS) == []


def test_it_looks_by_itself(repository: Repository, target: Repository) -> None:
    with BackgroundPush(repository, target, poll_s=0.02):
        save(repository)
        until(lambda: target.numbers() == [1])


def test_a_notice_is_enough(repository: Repository, target: Repository) -> None:
    with fast(repository, target) as push:
        assert push.wait(20)
        save(repository)
        time.sleep(0.1)
        assert target.numbers() == []
        push.notify()
        until(lambda: target.numbers() == [1])


def test_the_newest_goes_first(repository: Repository, gate: Gate) -> None:
    target = open_target(gate, repository)
    order: list[int] = []
    for value in range(3):
        save(repository, value=value)
    with fast(repository, target) as push:
        assert gate.waiting.wait(20)
        # It is at number 3; what comes now is newer than the two that wait.
        save(repository, value=3)
        push.notify(4)
        state = push.state()
        assert (state.copying, state.behind) == (3, (4, 3, 2, 1))
        assert state.lag_seconds > 0

        def note() -> bool:
            for number in target.numbers():
                if number not in order:
                    order.append(number)
            return len(order) == 4

        gate.open.set()
        until(note)
        assert push.wait(20)
    assert order[:2] == [3, 4]
    assert target.numbers() == [1, 2, 3, 4]


def test_a_target_that_is_down_is_tried_again(repository: Repository, gate: Gate) -> None:
    target = open_target(gate, repository)
    gate.error = StorageUnavailable("the network is gone")
    save(repository)
    with fast(repository, target) as push:
        until(lambda: push.state().failures >= 3)
        state = push.state()
        assert (state.running, state.pushed, state.behind) == (True, (), (1,))
        assert state.last_error.startswith("StorageUnavailable: the network is gone")
        gate.error = None
        gate.open.set()
        assert push.wait(20)
        assert (push.state().failures, push.state().last_error) == (0, "")
    assert target.numbers() == [1]


def test_pauses_grow(repository: Repository, gate: Gate) -> None:
    target = open_target(gate, repository)
    gate.error = StorageUnavailable("gone")
    save(repository)
    push = BackgroundPush(repository, target, poll_s=0.001, first_pause_s=0.05, workers=1)
    with push:
        time.sleep(0.6)
        # 0.05, 0.1, 0.2, 0.4: with even pauses there would be a dozen.
        assert 2 <= push.state().failures <= 5


def test_a_target_that_cannot_be_opened_yet(repository: Repository, target: Repository) -> None:
    answers: list[Exception] = [StoreNotFound("no bucket"), RefusedError("no"), ValueError("odd")]

    def open_it() -> Repository:
        if answers:
            raise answers.pop(0)
        return target

    save(repository)
    with fast(repository, open_it) as push:
        assert push.wait(20)
    assert target.numbers() == [1]
    assert answers == []


def test_what_is_hopeless_is_given_up_and_the_rest_goes_on(
    repository: Repository, target: Repository
) -> None:
    save(target, value=9)
    for value in range(3):
        save(repository, value=value)
    index = repository.snapshot(3).manifest.parts[0].index_digest
    Path(repository.location, layout.object_key(index)).unlink()
    with fast(repository, target) as push:
        assert push.wait(20)
        state = push.state()
    assert state.pushed == (2,)
    assert dict(state.skipped).keys() == {1, 3}
    assert dict(state.skipped)[1].startswith("CommitConflict: ")
    assert dict(state.skipped)[3].startswith("MissingObject: ")


def test_one_that_is_refused_does_not_hold_up_the_others(
    repository: Repository, target: Repository
) -> None:
    save(repository, value=0)
    save(repository, value=1)
    save_on(repository, 1, value=2)
    copy_snapshot(repository, target, 1)
    target.store.unpublish("snapshots/snapshot_000001", layout.MANIFEST, layout.RETIRING)
    with fast(repository, target) as push:
        until(lambda: push.state().pushed == (2,))
        until(lambda: push.state().failures >= 2)
        state = push.state()
        assert state.behind == (3,)
        assert dict(state.skipped)[1].startswith("SnapshotExists: ")
        target.keep_latest(2)
        assert push.wait(20)
    assert target.numbers() == [2, 3]
    assert target.verify().findings == []


def test_retention_at_the_source_wins(repository: Repository, gate: Gate) -> None:
    target = open_target(gate, repository)
    save(repository, value=1)
    with fast(repository, target) as push:
        assert gate.waiting.wait(20)
        save(repository, value=2)
        repository.keep_latest(1)
        gate.open.set()
        push.notify(2)
        assert push.wait(20)
        assert target.numbers()[-1] == 2
        assert 1 in push.state().pushed or dict(push.state().skipped)[1].startswith("NotPublished")
    assert target.verify().findings == []


def test_a_source_that_vanishes_harms_nobody(repository: Repository, target: Repository) -> None:
    save(repository)
    with fast(repository, target) as push:
        assert push.wait(20)
        shutil.rmtree(repository.location)
        push.notify(2)
        until(lambda: bool(push.state().skipped or push.state().failures))
        assert push.state().running


def test_closing_ends_a_copy_in_the_middle(repository: Repository, gate: Gate) -> None:
    target = open_target(gate, repository)
    save(repository)
    push = fast(repository, target)
    push.start()
    push.start()
    assert gate.waiting.wait(20)
    threading.Timer(0.1, gate.open.set).start()
    assert push.close(20)
    assert target.numbers() == []
    assert target.store.names(layout.ATTEMPTS) == []
    assert push.state().behind == (1,)
    push.start()
    assert not push.state().running
    with fast(repository, target) as again:
        assert again.wait(20)
    assert target.numbers() == [1]


def test_one_that_never_began(repository: Repository, target: Repository) -> None:
    push = fast(repository, target)
    assert push.state() == PushState(False, None, (), (), (), 0, "", 0.0, 0)
    assert push.close()
    for options in ({"poll_s": 0}, {"first_pause_s": -1}, {"workers": 0}):
        with pytest.raises(InputError):
            BackgroundPush(repository, target, **options)
