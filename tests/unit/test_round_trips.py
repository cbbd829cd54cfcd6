"""How many requests to a bucket follow one another: each takes as long as some MiB."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from snapfmt import Repository
from snapfmt.storage.memory import MemoryClient
from snapfmt.storage.objects import ObjectStore
from snapfmt.testing.client_faults import FaultyClient, Request
from snapfmt.threads import REQUESTS, together
from snapfmt.transfer import copy_snapshot, moving, open_target

PARTS = 12


class CountingClient(FaultyClient):
    """Counts requests, and how many were under way at once where `wait_for` asks for some."""

    def __init__(self) -> None:
        super().__init__(MemoryClient(), before=self._wait)
        self.most = 0
        self._wanted: tuple[str, int] | None = None
        self._under_way = 0
        self._changed = threading.Condition()

    @contextmanager
    def wait_for(self, verb: str, count: int) -> Iterator[None]:
        """Within the context, requests of a verb wait until so many are under way, or a while."""
        self._wanted, self.most = (verb, count), 0
        try:
            yield
        finally:
            self._wanted = None

    def _wait(self, number: int, asked: Request) -> None:
        del number
        wanted = self._wanted
        if wanted is None or asked.verb != wanted[0]:
            return
        with self._changed:
            self._under_way += 1
            self.most = max(self.most, self._under_way)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.most >= wanted[1], timeout=0.5)
            self._under_way -= 1


@pytest.fixture
def client() -> CountingClient:
    return CountingClient()


@pytest.fixture
def repository(client: CountingClient) -> Repository:
    made = Repository.open(ObjectStore(client), create=True)
    client.requests.clear()
    return made


def verbs(client: CountingClient) -> list[str]:
    """What was asked since the last call, without keys."""
    found = [request.verb for request in client.requests]
    client.requests.clear()
    return found


def save(repository: Repository, base: int | None = None) -> None:
    with repository.begin(base=base) as attempt:
        receipts = []
        for number in range(PARTS):
            part = attempt.part(f"gym/agent/a{number}")
            with part.table(f"t{number}") as table:
                if base is not None:
                    table.carry_all()
                table.append([f"k{base}"], {"n": [np.arange(9)]})
            receipts.append(part.seal())
        attempt.publish(receipts)


def test_what_begins_a_save(repository: Repository, client: CountingClient) -> None:
    repository.begin().abandon()
    verbs(client)
    repository.begin()
    # Attempts and snapshots; the lease and the workspace, and whether the lease is still there.
    assert verbs(client) == ["list", "list", "create", "create", "head"]


def test_what_a_part_asks_for(repository: Repository, client: CountingClient) -> None:
    attempt = repository.begin()
    verbs(client)
    part = attempt.part("p")
    with part.table("t") as table:
        table.append(["a"], {"n": [np.arange(9)]})
    receipt = part.seal()
    # The marker as it begins; and before its pack and its index are sent.
    assert verbs(client) == ["get", "get", "put", "get", "put"]
    attempt.publish([receipt])
    # The marker; index and pack; the marker, the manifest and a look at it; workspace and lease.
    assert verbs(client) == ["get", "get", "head", "get", "create", "get", "delete", "delete"]


def test_a_part_of_a_process_that_began_the_save_has_its_base(
    repository: Repository, client: CountingClient
) -> None:
    save(repository)
    attempt = repository.begin(base=1)
    part = attempt.part("gym/agent/a0")
    verbs(client)
    with part.table("t0") as table:
        table.carry_all()
    # The index of the base's part.
    assert verbs(client) == ["get"]
    attempt.publish([part.seal()])
    assert repository.verify().ok


@pytest.mark.parametrize("base", [None, 1])
@pytest.mark.parametrize("verb", ["get", "head"])
def test_what_a_publication_looks_at_is_looked_at_together(
    repository: Repository, client: CountingClient, base: int | None, verb: str
) -> None:
    save(repository)
    attempt = repository.begin(base=base)
    receipts = []
    for number in range(PARTS):
        part = attempt.part(f"gym/agent/a{number}")
        with part.table(f"t{number}") as table:
            if base is not None:
                table.carry_all()
            table.append(["new"], {"n": [np.arange(9)]})
        receipts.append(part.seal())
    with client.wait_for(verb, PARTS):
        attempt.publish(receipts)
    assert client.most >= PARTS
    assert repository.verify().ok


def test_a_restore_looks_at_objects_together(
    repository: Repository, client: CountingClient
) -> None:
    save(repository)
    for verb in ("get", "head"):
        with client.wait_for(verb, PARTS):
            assert repository.latest().snapshot.number == 1
        assert client.most >= PARTS, verb


def test_small_objects_are_copied_together(repository: Repository) -> None:
    save(repository)
    far = CountingClient()
    target = open_target(ObjectStore(far), repository)
    with far.wait_for("put", PARTS):
        copy_snapshot(repository, target, 1, workers=1)
    assert far.most >= PARTS
    assert target.verify().ok


def test_large_objects_are_copied_so_many_at_a_time(
    repository: Repository, client: CountingClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(repository)
    monkeypatch.setattr(moving, "SMALL", 0)
    sending = most = 0
    send = moving.Mover._send

    def counted(mover: moving.Mover, key: str, stop: threading.Event) -> None:
        nonlocal sending, most
        sending += 1
        most = max(most, sending)
        send(mover, key, stop)
        sending -= 1

    monkeypatch.setattr(moving.Mover, "_send", counted)
    copy_snapshot(repository, open_target(tmp_path / "copy", repository), 1, workers=1)
    assert most == 1


@pytest.mark.parametrize("verb", ["get", "head", "delete"])
def test_what_is_removed_goes_together(
    repository: Repository, client: CountingClient, verb: str
) -> None:
    save(repository)
    save(repository)
    with client.wait_for(verb, PARTS):
        repository.retire(1)
    assert client.most >= PARTS
    assert repository.numbers() == [2]
    assert repository.verify().ok


def test_whose_objects_are_is_asked_together(
    repository: Repository, client: CountingClient
) -> None:
    with repository.begin() as running:
        for number in range(PARTS):
            running.part(f"p{number}").seal()
        with client.wait_for("head", PARTS):
            report = repository.collect(dry_run=True)
        assert client.most >= PARTS
        assert [item.removed for item in report.objects] == [False] * PARTS
        # Their journal tells it; without that they do themselves.
        repository.store.drop_workspace(f"attempts/{running.id}")
        with client.wait_for("get", PARTS):
            report = repository.collect(dry_run=True)
        assert client.most >= PARTS
        assert [item.removed for item in report.objects] == [False] * PARTS


def test_requests_are_many_in_a_bucket_and_one_by_one_on_a_disk(
    client: CountingClient, tmp_path: Path
) -> None:
    gate = threading.Barrier(REQUESTS, timeout=5)
    calls = [gate.wait] * REQUESTS
    assert sorted(together(calls, workers=ObjectStore(client).at_once)) == list(range(REQUESTS))
    here = threading.current_thread()
    local = Repository.open(tmp_path, create=True).store
    assert together([threading.current_thread] * 3, workers=local.at_once) == [here] * 3
