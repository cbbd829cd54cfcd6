"""Where the system gives no more threads, loads go on, and saves fail typed and leave nothing."""

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from snapfmt import Repository
from snapfmt.adapters.transfer_queue.hold import Gate, Lease
from snapfmt.adapters.transfer_queue.jobs import Holding
from snapfmt.errors import StorageError
from snapfmt.threads import Pool, in_order, run_for
from snapfmt.transfer import BackgroundPush, open_target
from snapfmt.transfer.parallel import run_all

ROWS = 600
KEYS = [f"k{row}" for row in range(ROWS)]
VALUES = np.arange(ROWS * 8000, dtype=np.int64).reshape(ROWS, 8000)


@pytest.fixture
def scarce(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of threads, or their beginnings, that cannot be started from now on."""
    names: list[str] = []
    start = threading.Thread.start

    def refused(self: threading.Thread) -> None:
        if self.name.startswith(tuple(names)):
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", refused)
    return names


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository.open(tmp_path / "run", create=True)


def _save(repository: Repository) -> None:
    attempt = repository.begin()
    part = attempt.part("p")
    with part.table("t") as table:
        table.append(KEYS, {"v": VALUES})
    attempt.publish([part.seal()])


def test_a_load_needs_no_thread(repository: Repository, scarce: list[str]) -> None:
    _save(repository)
    scarce.append("")
    keys, columns = repository.snapshot().table("t").to_torch()
    assert keys == KEYS
    assert (np.stack(columns["v"]) == VALUES).all()


@pytest.mark.parametrize("name", ["snapfmt-encode", "snapfmt-sync-behind", "snapfmt-pack-finish"])
def test_a_save_needs_no_thread_but_the_writers(
    repository: Repository, scarce: list[str], name: str
) -> None:
    scarce.append(name)
    _save(repository)
    assert (repository.snapshot().table("t").row("k7")["v"] == VALUES[7]).all()


def test_a_save_without_its_writer_fails_typed_and_can_be_given_up(
    tmp_path: Path, repository: Repository, scarce: list[str]
) -> None:
    scarce.append("snapfmt-pack-writer")
    attempt = repository.begin()
    part = attempt.part("p")
    with pytest.raises(StorageError, match=r"no thread could be started.*ulimit"):
        part.stage("a", b"x")
    with pytest.raises(StorageError, match="no thread could be started"):
        part.seal()
    attempt.abandon()
    assert not list((tmp_path / "run" / "attempts").iterdir())


def test_a_pool_makes_do_with_the_threads_that_there_are(scarce: list[str]) -> None:
    ran: list[str] = []
    release = threading.Event()

    def first() -> int:
        assert release.wait(60)
        return 1

    def second() -> int:
        ran.append(threading.current_thread().name)
        return 2

    with Pool(2, thread_name_prefix="scarce") as pool:
        one = pool.submit(first)
        scarce.append("scarce")
        two = pool.submit(second)
        release.set()
        assert (one.result(), two.result()) == (1, 2)
    assert ran == ["scarce_0"]
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.submit(first)


def test_a_call_without_a_thread_raises_where_it_is_asked_for(scarce: list[str]) -> None:
    scarce.append("")

    def bad() -> int:
        raise ValueError("bad")

    found = in_order([lambda: 1, bad, lambda: 3])
    assert next(found) == 1
    with pytest.raises(ValueError, match="bad"):
        next(found)


def test_copies_make_do_with_fewer_threads(scarce: list[str]) -> None:
    scarce.append("snapfmt-copy-1")
    assert run_all(lambda item, _: item, [1, 2, 3], workers=3, tick=lambda: None) == [1, 2, 3]
    scarce.append("snapfmt-copy")
    with pytest.raises(StorageError, match="no thread could be started"):
        run_all(lambda item, _: item, [1, 2, 3], workers=3, tick=lambda: None)


def test_without_a_thread_it_takes_as_long_as_it_takes(scarce: list[str]) -> None:
    scarce.append("")
    done: list[int] = []
    assert run_for(0.0, lambda: done.append(1))
    assert done == [1]
    assert run_for(0.0, lambda: done.index(2))


def test_a_background_push_that_cannot_begin_says_so(
    tmp_path: Path, repository: Repository, scarce: list[str]
) -> None:
    _save(repository)
    push = BackgroundPush(repository, lambda: open_target(tmp_path / "second", repository))
    scarce.append("snapfmt-push")
    with pytest.raises(StorageError, match="no thread could be started"):
        push.start()
    scarce.clear()
    with push:
        push.start()
        assert push.wait(60)
        scarce.append("snapfmt-push-end")
    assert not push.state().behind


def test_work_of_an_actor_that_cannot_begin_is_let_go(scarce: list[str]) -> None:
    released = threading.Event()
    holding = Holding([1], lease_s=60, release=lambda _: released.set())
    scarce.append("work")
    with pytest.raises(StorageError, match="no thread could be started"):
        holding.start(lambda: None, "work")
    holding.drop()
    assert released.is_set()


def test_a_lease_that_cannot_be_renewed_ends(scarce: list[str]) -> None:
    expired = threading.Event()
    lease = Lease(0.5, expired.set)
    scarce.append("")
    with pytest.raises(StorageError, match="no thread could be started"):
        lease.renew(3600)
    assert expired.wait(60)


def test_a_gate_without_a_lease_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: Lease, _: float) -> bool:
        raise StorageError("no thread could be started")

    gate = Gate()
    with monkeypatch.context() as patch:
        patch.setattr(Lease, "renew", refused)
        with pytest.raises(StorageError):
            gate.hold("one", lease_s=3600, timeout_s=60)
    assert gate.hold("two", lease_s=60, timeout_s=0) >= 0
    gate.release("two")


ENDING = """
import atexit, sys
import numpy as np
from snapfmt import Repository

repository = Repository.open(sys.argv[1], create=True)
rows = np.arange(600 * 8000, dtype=np.int64).reshape(600, 8000)
attempt = repository.begin()
part = attempt.part("p")
table = part.table("t")
table.append([f"k{row}" for row in range(600)], {"v": rows})

def finish():
    table.append([f"l{row}" for row in range(600)], {"v": rows})
    table.close()
    attempt.publish([part.seal()])
    print(repository.snapshot().table("t").num_rows)

atexit.register(finish)
"""


def test_a_save_is_finished_as_the_interpreter_ends(tmp_path: Path) -> None:
    """By then it has ended the threads that encode, and gives no others."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", ENDING, tmp_path / "run"],
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"1200\n", b"")
