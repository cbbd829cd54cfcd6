"""The second tier: what a run publishes reaches the other place, and no failure reaches the run."""

import math
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from snapfmt import Repository
from snapfmt.errors import (
    InputError,
    StorageUnavailable,
    StoreNotFound,
    UnsupportedFilesystem,
)
from snapfmt.format import layout
from snapfmt.storage.base import Buffer, Sink, Store
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
        self.tried_at: list[float] = []
        self.published: list[str] = []

    def sink(self, workspace: str, name: str) -> Sink:
        self.tried_at.append(time.monotonic())
        if self.error is not None:
            raise self.error
        self.waiting.set()
        assert self.open.wait(120)
        return self.inner.sink(workspace, name)

    def publish(self, workspace: str, folder: str, name: str, data: Buffer) -> None:
        self.inner.publish(workspace, folder, name, data)
        self.published.append(folder)


@pytest.fixture
def gate(place: Store) -> Iterator[Gate]:
    """A gate before the bucket."""
    found = Gate(place)
    yield found
    found.open.set()


def until(check: Callable[[], bool], within: float = 60.0) -> None:
    """Waits until it is so."""
    deadline = time.monotonic() + within
    while not check():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


def fast(source: Repository, target: Repository | Callable[[], Repository]) -> BackgroundPush:
    """One whose pauses fit a test; it looks by itself only when it is told."""
    return BackgroundPush(
        source, target, poll_s=60, first_pause_s=0.02, longest_pause_s=0.1, drain_s=5
    )


def test_what_is_published_is_pushed(repository: Repository, target: Repository) -> None:
    save(repository, value=1)
    with fast(repository, target) as push:
        assert push.wait(120)
        assert target.numbers() == [1]
        save_on(repository, 1, value=2)
        push.notify(2)
        assert push.wait(120)
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
        assert push.wait(120)
        save(repository)
        time.sleep(0.1)
        assert target.numbers() == []
        push.notify()
        until(lambda: target.numbers() == [1])


def test_the_newest_goes_first(repository: Repository, gate: Gate) -> None:
    target, order = open_target(gate, repository), gate.published
    for value in range(3):
        save(repository, value=value)
    with fast(repository, target) as push:
        assert gate.waiting.wait(120)
        # It is at number 3; what comes now is newer than the two that wait.
        save(repository, value=3)
        push.notify(4)
        state = push.state()
        assert (state.copying, state.behind) == (3, (4, 3, 2, 1))
        assert state.lag_seconds > 0
        gate.open.set()
        assert push.wait(120)
    assert order[:2] == ["snapshots/snapshot_000003", "snapshots/snapshot_000004"]
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
        assert push.wait(120)
        assert (push.state().failures, push.state().last_error) == (0, "")
    assert target.numbers() == [1]


def test_pauses_grow(repository: Repository, gate: Gate) -> None:
    target = open_target(gate, repository)
    gate.error = StorageUnavailable("gone")
    save(repository)
    with BackgroundPush(repository, target, poll_s=0.001, first_pause_s=0.05, workers=1, drain_s=0):
        until(lambda: len(gate.tried_at) >= 4)
    pauses = [later - earlier for earlier, later in pairwise(gate.tried_at)]
    assert all(pause >= least for pause, least in zip(pauses, (0.05, 0.1, 0.2), strict=False))


def test_a_target_that_cannot_be_opened_yet(repository: Repository, target: Repository) -> None:
    answers: list[Exception] = [StoreNotFound("no bucket"), ValueError("odd")]

    def open_it() -> Repository:
        if answers:
            raise answers.pop(0)
        return target

    save(repository)
    with fast(repository, open_it) as push:
        assert push.wait(120)
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
        assert push.wait(120)
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
        assert push.wait(120)
    assert target.numbers() == [2, 3]
    assert target.verify().findings == []


def test_retention_at_the_source_wins(repository: Repository, gate: Gate) -> None:
    target = open_target(gate, repository)
    save(repository, value=1)
    with fast(repository, target) as push:
        assert gate.waiting.wait(120)
        save(repository, value=2)
        repository.keep_latest(1)
        gate.open.set()
        push.notify(2)
        assert push.wait(120)
        assert target.numbers()[-1] == 2
        assert 1 in push.state().pushed or dict(push.state().skipped)[1].startswith("NotPublished")
    assert target.verify().findings == []


def test_a_source_that_vanishes_harms_nobody(repository: Repository, target: Repository) -> None:
    save(repository)
    with fast(repository, target) as push:
        assert push.wait(120)
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
    assert gate.waiting.wait(120)
    end = push._end

    def ended() -> None:
        end()
        gate.open.set()

    push._end = ended  # type: ignore[method-assign]
    assert push.close(20)
    assert target.numbers() == []
    assert target.store.names(layout.ATTEMPTS) == []
    assert push.state().behind == (1,)
    push.start()
    assert not push.state().running
    with fast(repository, target) as again:
        assert again.wait(120)
    assert target.numbers() == [1]


def test_one_that_never_began(repository: Repository, target: Repository) -> None:
    push = fast(repository, target)
    assert push.state() == PushState(False, None, (), (), (), 0, "", 0.0, 0)
    assert push.close()
    assert not push.wait(0)


# The end of a `with` block


def test_a_clean_end_waits_for_what_was_saved(repository: Repository, target: Repository) -> None:
    with BackgroundPush(repository, target) as push:
        save(repository)
        push.notify()
    assert target.numbers() == [1]
    assert (push.state().pushed, push.state().behind, push.state().running) == ((1,), (), False)


def test_a_clean_end_waits_only_so_long(repository: Repository, gate: Gate) -> None:
    target = open_target(gate, repository)
    push = BackgroundPush(repository, target, drain_s=0.3)
    with push:
        save(repository)
        began = time.monotonic()
    assert 0.3 <= time.monotonic() - began < 60
    assert (push.state().behind, push.state().running) == ((1,), False)


def test_a_clean_end_does_not_sit_out_a_pause(repository: Repository, gate: Gate) -> None:
    target = open_target(gate, repository)
    gate.error = StorageUnavailable("gone")
    save(repository)
    with BackgroundPush(repository, target, first_pause_s=60) as push:
        until(lambda: push.state().failures == 1)
        gate.error = None
        gate.open.set()
        began = time.monotonic()
    assert time.monotonic() - began < 20
    assert target.numbers() == [1]


@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt])
def test_an_end_by_an_error_does_not_wait(
    repository: Repository, gate: Gate, kind: type[BaseException]
) -> None:
    target = open_target(gate, repository)
    # As long as a clean end would wait.
    push = BackgroundPush(repository, target, poll_s=60, drain_s=3600)

    def run() -> None:
        with push:
            save(repository)
            push.notify()
            assert gate.waiting.wait(120)
            save(repository, value=2)
            ended.append(time.monotonic())
            raise kind

    ended: list[float] = []
    with pytest.raises(kind):
        run()
    (began,) = ended
    assert time.monotonic() - began < 60
    # Also the one that it had not seen yet.
    assert push.state().behind == (2, 1)


def test_an_interrupt_of_the_wait_ends_it(
    repository: Repository, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(BackgroundPush, "wait", interrupted)
    push = fast(repository, open_target(gate, repository))
    save(repository)
    with pytest.raises(KeyboardInterrupt), push:
        assert gate.waiting.wait(120)
    assert (push.state().running, push.state().behind) == (False, (1,))


STUCK = """
import sys, threading, time
from snapfmt import Repository
from snapfmt.storage.memory import MemoryClient
from snapfmt.storage.objects import ObjectStore
from snapfmt.testing.samples import save
from snapfmt.testing.stores import WrappedStore
from snapfmt.transfer import BackgroundPush, open_target

entered = threading.Event()

class Stuck(WrappedStore):
    def sink(self, workspace, name):
        entered.set()
        threading.Event().wait()

    def delete(self, key):
        threading.Event().wait()

source = Repository.create(sys.argv[1])
save(source)
push = BackgroundPush(source, open_target(Stuck(ObjectStore(MemoryClient())), source), drain_s=0.2)
if sys.argv[2] == "with":
    with push:
        assert entered.wait(120)
else:
    push.start()
    assert entered.wait(120)
    if sys.argv[2] == "close":
        began = time.monotonic()
        push.close(0.1)
        assert time.monotonic() - began < 60
print(push.state().behind, flush=True)
"""


@pytest.mark.parametrize("how", ["with", "close", "left running"])
def test_a_stuck_push_keeps_no_process(tmp_path: Path, how: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", STUCK, str(tmp_path / "run"), how], stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"(1,)\n"
        # From here on, nothing is left but the end of the interpreter.
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.communicate()


# What cannot be mended


def other_run(tmp_path: Path) -> Repository:
    return Repository.create(tmp_path / "other")


@pytest.mark.parametrize("opened", [True, False])
def test_a_target_of_another_run_is_given_up(
    repository: Repository, tmp_path: Path, opened: bool
) -> None:
    other = other_run(tmp_path)
    tries: list[int] = []

    def open_it() -> Repository:
        tries.append(1)
        return open_target(other.location, repository)

    save(repository)
    with fast(repository, other if opened else open_it) as push:
        until(lambda: not push.state().running)
        began = time.monotonic()
        assert not push.wait(60)
        save(repository, value=2)
    assert time.monotonic() - began < 20
    state = push.state()
    assert state.given_up == state.last_error
    assert state.given_up.startswith("Refused: the target is another repository")
    assert (state.behind, state.pushed, state.failures) == ((2, 1), (), 1)
    assert len(tries) == (not opened)
    assert other.numbers() == []


def test_a_target_of_another_run_is_told_before_the_first_save(
    repository: Repository, tmp_path: Path
) -> None:
    with fast(repository, other_run(tmp_path)) as push:
        until(lambda: bool(push.state().given_up))


@pytest.mark.parametrize("answer", [None, InputError("not a URL of a bucket")])
def test_an_input_error_is_given_up(repository: Repository, answer: InputError | None) -> None:
    def open_it() -> Any:
        if answer is not None:
            raise answer

    save(repository)
    with fast(repository, open_it) as push:
        until(lambda: not push.state().running)
    assert push.state().given_up.startswith("Input: ")


def test_an_input_error_of_one_copy_is_not_tried_again(repository: Repository, gate: Gate) -> None:
    target = open_target(gate, repository)
    gate.error = InputError("odd")
    save(repository)
    with fast(repository, target) as push:
        assert push.wait(120)
        assert push.state().skipped[0][1].startswith("Input: odd")
        assert push.state().given_up == ""


def test_a_place_that_cannot_publish_is_given_up(repository: Repository, gate: Gate) -> None:
    target = open_target(gate, repository)
    gate.error = UnsupportedFilesystem("no conditional writes")
    save(repository)
    with fast(repository, target) as push:
        until(lambda: not push.state().running)
    assert push.state().given_up.startswith("UnsupportedFilesystem: no conditional writes")
    assert f"at the target {gate.location}" in push.state().given_up


@pytest.mark.parametrize(
    "options",
    [
        {"poll_s": 0},
        {"poll_s": math.nan},
        {"poll_s": math.inf},
        {"poll_s": "10"},
        {"first_pause_s": -1},
        {"first_pause_s": math.inf},
        {"first_pause_s": True},
        {"longest_pause_s": 0},
        {"longest_pause_s": math.nan},
        {"longest_pause_s": None},
        {"longest_pause_s": 10**400},
        {"drain_s": -0.1},
        {"drain_s": math.inf},
        {"workers": 0},
        {"workers": True},
        {"target": None},
        {"target": "s3://bucket/run"},
        {"source": "/nvme/run"},
    ],
)
def test_what_does_not_fit(
    repository: Repository, target: Repository, options: dict[str, Any]
) -> None:
    given = {"source": repository, "target": target, **options}
    with pytest.raises(InputError):
        BackgroundPush(**given)
    BackgroundPush(repository, target, drain_s=0)
