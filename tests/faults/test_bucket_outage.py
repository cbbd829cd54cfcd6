"""While a bucket cannot be reached, nothing is taken for granted and nothing is given up."""

from collections.abc import Callable

import pytest

from snapfmt.errors import StorageUnavailable
from snapfmt.format import canonical, layout
from snapfmt.repository import Repository
from snapfmt.storage.memory import MemoryClient
from snapfmt.testing.bucket_world import found, repository_on, rows, save, write
from snapfmt.testing.client_faults import FaultyClient, Request


@pytest.fixture
def client() -> FaultyClient:
    """A bucket with two snapshots."""
    client = FaultyClient(MemoryClient())
    repository = repository_on(client, create=True)
    save(repository, 1)
    save(repository, 2)
    return client


def fail(client: FaultyClient, wanted: Callable[[str], bool]) -> None:
    """From now on requests for such keys get no answer."""

    def before(_: int, request: Request) -> None:
        if wanted(request.key):
            raise StorageUnavailable("planned", what=request.key)

    client.before = before


def newest_manifest(key: str) -> bool:
    return key == layout.manifest_key(2)


def test_a_run_does_not_go_back_to_an_older_snapshot(client: FaultyClient) -> None:
    repository = repository_on(client)
    fail(client, newest_manifest)
    with pytest.raises(StorageUnavailable):
        repository.latest()
    client.before = None
    assert repository.latest().snapshot.number == 2


def test_an_outage_is_no_damage(client: FaultyClient) -> None:
    repository = repository_on(client)
    fail(client, lambda key: key.startswith("objects/"))
    with pytest.raises(StorageUnavailable):
        repository.verify()
    client.before = None
    assert not repository.verify().damage


def test_leases_that_cannot_be_read_are_not_passed_over(client: FaultyClient) -> None:
    repository = repository_on(client)
    attempt = repository.begin()
    fail(client, lambda key: key == layout.lease_key(attempt.id))
    for ask in (repository.leases, repository.clean_up):
        with pytest.raises(StorageUnavailable):
            ask()
    client.before = None
    assert [lease.attempt_id for lease in repository.leases()] == [attempt.id]
    attempt.abandon()


def test_a_dead_attempt_is_cleaned_up_after_the_outage(client: FaultyClient) -> None:
    repository = repository_on(client)
    attempt = repository.begin()
    write(attempt, 3)
    expired(repository, attempt.id)
    before = set(objects(client))
    fail(client, lambda key: key == layout.snapshot_key(attempt.number, layout.RETIRING))
    with pytest.raises(StorageUnavailable):
        repository.clean_up()
    client.before = None
    assert set(objects(client)) == before, "whether it was published was not known"
    assert repository.clean_up() == [attempt.id]
    assert len(objects(client)) == len(before) - 2
    assert found(repository) == {1: rows(1), 2: rows(2)}


def test_a_retirement_whose_second_step_failed_leaves_the_snapshot(client: FaultyClient) -> None:
    """Its copy is there already; the snapshot counts as published until the name is closed."""
    repository = repository_on(client)

    def second(key: str) -> bool:
        retiring = layout.snapshot_key(1, layout.RETIRING)
        return key == layout.manifest_key(1) and client.inner.head(retiring) is not None

    fail(client, second)
    with pytest.raises(StorageUnavailable):
        repository.retire(1)
    client.before = None
    assert repository.numbers() == [1, 2]
    # Nothing of it goes, whoever finishes what was left.
    save(repository, 3)
    repository.keep_latest(3)
    assert found(repository) == {1: rows(1), 2: rows(2), 3: rows(3)}
    assert not repository.verify().damage
    repository.retire(1)
    assert found(repository) == {2: rows(2), 3: rows(3)}


def objects(client: FaultyClient) -> list[str]:
    return [info.key for info in client.inner.list("objects/", deep=True)]


def expired(repository: Repository, attempt_id: str) -> None:
    """Its lease has run out."""
    (lease,) = [item for item in repository.leases() if item.attempt_id == attempt_id]
    over = lease.model_copy(update={"expires_at_ns": lease.started_at_ns})
    repository.store.replace(layout.lease_key(attempt_id), canonical.encode(over))
