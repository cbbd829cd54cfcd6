"""A repository in a bucket that was used in a parent works in its children, and never hangs."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from snapfmt import Repository
from snapfmt.errors import SnapfmtError
from snapfmt.testing.bucket_world import found, rows, save, whole, write
from snapfmt.testing.s3_servers import S3Server

WAIT_S = 300.0
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")


@pytest.fixture(autouse=True)
def forking() -> Iterator[None]:
    """The parent has threads, of fsspec and of this test: that is what is tested."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
        yield


def in_a_fork(work: Callable[[], object]) -> int:
    """Exit code of a child that does this; 99 if it hung."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except SnapfmtError:
            code = 3
        finally:
            os._exit(code)
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return 99


def opened(server: S3Server, url: str, *, create: bool = False) -> Repository:
    return Repository.open(url, create=create, storage_options=server.options)


def save_in_child(repository: Repository, value: int) -> None:
    assert save(repository, value).user_metadata == {"value": value}
    assert rows(value) in found(repository).values()


def test_a_forked_child_saves_and_reads(s3_server: S3Server, bucket_url: Callable[[], str]) -> None:
    """With the very object of its parent, which goes on using it."""
    repository = opened(s3_server, bucket_url(), create=True)
    save(repository, 1)
    for value in (2, 3):
        assert in_a_fork(lambda value=value: save_in_child(repository, value)) == 0  # type: ignore[misc]
        assert rows(value) in found(repository).values()
    save(repository, 4)
    assert found(repository) == {number: rows(number) for number in (1, 2, 3, 4)}
    whole(repository, "", leftovers=False)


def test_a_child_of_a_busy_parent_never_hangs(
    seaweedfs: S3Server, bucket_url: Callable[[], str]
) -> None:
    """Forked in the middle of requests of other threads, and before the first of all."""
    url = bucket_url()
    opened(seaweedfs, url, create=True)
    repository = opened(seaweedfs, url)
    save(repository, 1)
    stop = threading.Event()
    failures: list[BaseException] = []

    def read() -> None:
        try:
            while not stop.is_set():
                # A new handle as well: a fork may come while it is being opened.
                for handle in (repository, opened(seaweedfs, url)):
                    assert found(handle)[1] == rows(1)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        codes = [
            in_a_fork(lambda value=value: save_in_child(repository, value))  # type: ignore[misc]
            for value in range(2, 5)
        ]
    finally:
        stop.set()
        for thread in threads:
            thread.join(WAIT_S)
    assert codes == [0] * 3
    assert failures == []
    assert found(repository) == {number: rows(number) for number in range(1, 5)}


QUIET = """
import gc, os, sys
from snapfmt import Repository
repository = Repository.open(sys.argv[1])
repository.numbers()
if (pid := os.fork()) == 0:
    # Its own session takes the place of the parent's, which nothing holds any more.
    repository.numbers()
    gc.collect()
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
repository.numbers()
"""


def test_a_child_says_nothing_about_its_parents_sessions(
    seaweedfs: S3Server, bucket_url: Callable[[], str]
) -> None:
    """In a process of its own: pytest would hear it before anybody else."""
    url = bucket_url()
    opened(seaweedfs, url, create=True)
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", QUIET, url],
        env={**os.environ, **seaweedfs.environment},
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_the_attempt_of_a_parent_is_not_its_childs(
    seaweedfs: S3Server, bucket_url: Callable[[], str]
) -> None:
    """A child that leaves the context abandons nothing of its parent's."""
    repository = opened(seaweedfs, bucket_url(), create=True)
    with repository.begin() as attempt:
        receipt = write(attempt, 1)
        assert in_a_fork(attempt.abandon) == 0
        attempt.publish([receipt])
    assert found(repository) == {1: rows(1)}


@pytest.mark.parametrize("warm", [True, False])
def test_the_part_of_a_parent_is_not_its_childs(tmp_path: Path, warm: bool) -> None:
    """Its threads are not there: a child is told so at once."""
    repository = Repository.open(tmp_path / "run", create=True)
    with repository.begin() as attempt, attempt.part("p", workers=1) as part:
        table = part.table("t")
        if warm:
            table.append(["a1", "b1"], {"x": [1, 2]})
            part.stage("note", b"note 1")
        for work in (
            lambda: part.stage("other", b"of the child"),
            lambda: table.append(["c"], {"x": [3]}),
            table.close,
            part.seal,
        ):
            assert in_a_fork(work) == 3
        if not warm:
            table.append(["a1", "b1"], {"x": [1, 2]})
            part.stage("note", b"note 1")
        attempt.publish([part.seal()])
    assert found(repository) == {1: rows(1)}


def _join(ticket: str, options: dict[str, Any], answers: Any) -> None:
    with Repository.join(ticket, storage_options=options) as part:
        part.stage("note", part.name.encode())
        answers.put(part.seal().model_dump_json())


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_children_write_parts_from_their_tickets(
    s3_server: S3Server, bucket_url: Callable[[], str], method: str
) -> None:
    from snapfmt_schemas.attempt import Receipt

    context: Any = multiprocessing.get_context(method)
    repository = opened(s3_server, bucket_url(), create=True)
    attempt = repository.begin()
    answers = context.Queue()
    children = [
        context.Process(
            target=_join,
            args=(attempt.ticket(f"p{number}").model_dump_json(), s3_server.options, answers),
        )
        for number in range(2)
    ]
    for child in children:
        child.start()
    receipts = [Receipt.model_validate_json(answers.get(timeout=WAIT_S)) for _ in children]
    for child in children:
        child.join(WAIT_S)
        assert child.exitcode == 0
    attempt.publish(receipts)
    snapshot = repository.snapshot()
    assert [snapshot.part(name).read("note") for name in snapshot.part_names()] == [b"p0", b"p1"]
    assert repository.verify().findings == []
