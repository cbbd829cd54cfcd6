"""Of many that publish one number exactly one does, and its bytes are the ones that stay."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from snapfmt import Repository
from snapfmt.errors import CommitConflict, ConflictError, SnapfmtError, SnapshotExists
from snapfmt.storage.base import Store
from snapfmt.storage.local import LocalStore
from snapfmt.storage.memory import MemoryClient
from snapfmt.storage.objects import ObjectStore
from snapfmt.storage.s3 import S3Client
from snapfmt.testing.bucket_world import found, rows, whole, write
from snapfmt.testing.client_faults import patient
from snapfmt.testing.s3_servers import S3Server
from snapfmt.testing.samples import needed, stored


def race(open_store: Callable[[], Store], number: int, writers: int) -> None:
    """Each with a handle of its own; all begin before the first publishes."""
    outcomes: list[Any] = [None] * writers
    barrier = threading.Barrier(writers)

    def run(who: int) -> None:
        try:
            attempt = Repository.open(open_store()).begin(number=number)
            receipt = write(attempt, who)
            barrier.wait(120)
            try:
                outcomes[who] = attempt.publish([receipt], user_metadata={"who": who})
            except ConflictError as error:
                attempt.abandon()
                outcomes[who] = error
        except (SnapfmtError, threading.BrokenBarrierError) as error:
            barrier.abort()
            outcomes[who] = error

    threads = [threading.Thread(target=run, args=(who,)) for who in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
        assert not thread.is_alive()
    losers = [item for item in outcomes if isinstance(item, BaseException)]
    assert {type(item) for item in losers} <= {CommitConflict, SnapshotExists}, losers
    assert len(losers) == writers - 1, outcomes
    (winner,) = (who for who, item in enumerate(outcomes) if not isinstance(item, BaseException))
    repository = Repository.open(open_store())
    assert repository.snapshot(number).manifest == outcomes[winner]
    assert found(repository)[number] == rows(winner)


def check_all(store: Store, rounds: int) -> None:
    repository = Repository.open(store)
    assert repository.numbers() == list(range(1, rounds + 1))
    assert repository.leases() == []
    assert stored(repository) == needed(repository), "what the losers wrote is gone"
    whole(repository, "", leftovers=False)


def test_sixty_four_threads_in_memory() -> None:
    client, rounds = MemoryClient(), 4
    Repository.open(ObjectStore(client), create=True)
    for number in range(1, rounds + 1):
        race(lambda: ObjectStore(client, retry=patient()), number, 64)
    check_all(ObjectStore(client), rounds)


def test_sixty_four_threads_on_a_disk(fast_path: Path) -> None:
    """Processes: test_soak.py."""
    root, rounds = fast_path / "run", 2
    Repository.create(root)
    for number in range(1, rounds + 1):
        race(lambda: LocalStore(root), number, 64)
    check_all(LocalStore(root), rounds)


def test_eight_threads_on_a_server(s3_server: S3Server, bucket_url: Callable[[], str]) -> None:
    url, rounds = bucket_url(), 2

    def open_store() -> Store:
        return ObjectStore(S3Client(url, s3_server.options))

    Repository.open(open_store(), create=True)
    for number in range(1, rounds + 1):
        race(open_store, number, 8)
    check_all(open_store(), rounds)


def test_handles_of_one_store_race_as_well() -> None:
    """Threads that share one handle, on names that many want at once."""
    store = ObjectStore(MemoryClient(), retry=patient())
    wins: list[tuple[int, int]] = []
    barrier = threading.Barrier(32)

    def run(who: int) -> None:
        barrier.wait()
        for name in range(50):
            try:
                store.create(f"pins/{name}", b"%d" % who)
                wins.append((name, who))
            except ConflictError:
                continue

    threads = [threading.Thread(target=run, args=(who,)) for who in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(name for name, _ in wins) == list(range(50))
    for name, who in wins:
        assert store.get(f"pins/{name}", limit=9) == b"%d" % who
