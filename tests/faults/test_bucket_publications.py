"""A publication is there or not, whatever arrives late, and whoever takes the attempt over."""

import collections
import contextlib
from typing import Any

import pytest

from snapfmt import Repository
from snapfmt.errors import (
    CommitConflict,
    CommitOutcomeUnknown,
    LeaseExpired,
    OutcomeUnknownError,
    StorageUnavailable,
)
from snapfmt.storage.memory import MemoryClient
from snapfmt.storage.objects import ObjectStore
from snapfmt.testing.bucket_world import (
    found,
    repository_on,
    rows,
    save,
    whole,
    write,
)
from snapfmt.testing.client_faults import FAULTS, Fault, FaultyClient, Request, patient
from snapfmt.testing.samples import needed, stored
from snapfmt.writing import lease as lease_module

LATE = FAULTS["arrives late"]
ONE, BOTH = {1: rows(1)}, {1: rows(1), 2: rows(2)}


@pytest.fixture(autouse=True)
def all_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every owner of a lease is dead, to whoever looks; here it is this very process."""
    monkeypatch.setattr(lease_module, "is_dead", lambda _: True)


@pytest.fixture
def origin() -> MemoryClient:
    """A bucket with one snapshot."""
    client = MemoryClient()
    save(repository_on(client, create=True), 1)
    return client


def unfinished(client: FaultyClient) -> tuple[Any, Any]:
    attempt = repository_on(client).begin()
    return attempt, write(attempt, 2)


def check(client: FaultyClient, where: object) -> dict[int, Any]:
    """Published or not, never half, and so it stays; returns what is published."""
    client.heal()
    repository = repository_on(client.inner)
    repository.clean_up()
    seen = found(repository)
    assert seen in (ONE, BOTH), where
    client.deliver()
    repository.clean_up()
    assert found(repository) == seen, where
    assert repository.leases() == [], where
    assert needed(repository) <= stored(repository), where
    whole(repository, where, leftovers=bool(client.arrived))
    return seen


def sent_late(origin: MemoryClient) -> FaultyClient:
    """An attempt whose publication is on its way, while its owner hears nothing any more."""
    client = FaultyClient(origin.copy(), LATE, for_good=True, late_by=10_000)
    client.at = 10_000
    attempt, receipt = unfinished(client)

    def is_publication(number: int, asked: Request) -> None:
        if asked.verb == "create":
            client.at = min(client.at, number)

    client.before = is_publication
    with pytest.raises(CommitOutcomeUnknown):
        attempt.publish([receipt])
    client.before = None
    assert {item.verb for item in client.failed} == {"create"}
    client.heal()
    return client


def test_who_is_fenced_while_its_request_is_on_its_way_never_publishes(
    origin: MemoryClient,
) -> None:
    client = sent_late(origin)
    repository = repository_on(client.inner)
    assert [lease.number for lease in repository.leases()] == [2]
    assert repository.clean_up() != []
    client.deliver()
    assert check(client, "") == ONE
    assert stored(repository) == needed(repository)
    save(repository, 3)
    assert found(repository) == {1: rows(1), 3: rows(3)}


def test_a_request_that_arrives_before_the_fence_publishes(origin: MemoryClient) -> None:
    client = sent_late(origin)
    client.deliver()
    repository = repository_on(client.inner)
    assert [lease.number for lease in repository.leases()] == [2]
    assert found(repository) == BOTH
    assert check(client, "") == BOTH


def test_a_request_that_arrives_at_any_step_of_the_clean_up(origin: MemoryClient) -> None:
    ends = []
    for step in range(1000):
        client = sent_late(origin)

        def arrive(number: int, _: Request, client: Any = client, step: int = step) -> None:
            if number == step:
                client.deliver()

        cleaner = FaultyClient(client.inner, at=-1, before=arrive)
        repository_on(cleaner).clean_up()
        if len(cleaner.requests) <= step:
            break
        ends.append(2 in check(client, step))
    assert len(ends) > 20
    assert ends == sorted(ends, reverse=True), "before the fence it publishes, after it never"
    assert set(ends) == {True, False}


def test_an_attempt_is_taken_over_at_any_step_of_its_publication(origin: MemoryClient) -> None:
    """A whole clean-up runs between two requests of its owner."""
    ends: collections.Counter[str] = collections.Counter()
    for step in range(1000):
        client = FaultyClient(origin.copy(), at=-1)
        attempt, receipt = unfinished(client)
        at = len(client.requests) + step

        def take_over(number: int, _: Request, client: Any = client, at: int = at) -> None:
            if number == at:
                repository_on(client.inner).clean_up()

        client.before = take_over
        try:
            attempt.publish([receipt])
            end = "published"
        except (LeaseExpired, CommitConflict) as error:
            end = type(error).__name__
        if len(client.requests) <= at:
            break
        assert (2 in check(client, step)) == (end == "published"), step
        ends[end] += 1
    assert ends["LeaseExpired"] > 2
    assert ends["published"] > 2


def test_two_clean_ups_and_a_late_request(origin: MemoryClient) -> None:
    """One clean-up runs whole at any step of the other, and the request arrives in between."""
    for step in range(1000):
        client = sent_late(origin)

        def meanwhile(number: int, _: Request, client: Any = client, step: int = step) -> None:
            if number == step:
                client.deliver()
                repository_on(client.inner).clean_up()

        cleaner = FaultyClient(client.inner, at=-1, before=meanwhile)
        with contextlib.suppress(OutcomeUnknownError):
            repository_on(cleaner).clean_up()
        if len(cleaner.requests) <= step:
            break
        check(client, step)


@pytest.mark.parametrize("arrives", ["before the clean-up", "after it"])
def test_a_reset_of_every_answer_leaves_the_outcome_unknown(
    origin: MemoryClient, arrives: str
) -> None:
    """Not a definite error: one of the requests may have been carried out."""
    client = FaultyClient(origin.copy(), at=-1)
    attempt, receipt = unfinished(client)
    lost = Fault("lost", "late", FAULTS["lost"].error)

    def begin(number: int, asked: Request) -> None:
        if asked.verb == "create" and client.fault is None:
            client.fault, client.at, client.for_good, client.late_by = lost, number, True, 1000

    client.before = begin
    with pytest.raises(CommitOutcomeUnknown):
        attempt.publish([receipt])
    attempt.abandon()
    client.before = None
    if arrives == "before the clean-up":
        client.deliver()
    assert (2 in check(client, arrives)) == (arrives == "before the clean-up")


# What the store itself answers


def test_a_definite_refusal_after_a_lost_reply_is_no_definite_outcome() -> None:
    """The server cannot do it, it says, but an earlier request may still be carried out."""
    errors = iter([FAULTS["lost"], FAULTS["403"]])
    client = FaultyClient(MemoryClient(), at=-1)

    def change(number: int, asked: Request) -> None:
        if asked.verb == "create":
            client.fault, client.at = next(errors), number

    client.before = change
    with pytest.raises(OutcomeUnknownError):
        ObjectStore(client, retry=patient()).create("pins/x", b"1")


def test_a_name_that_is_never_there_though_it_is_taken_is_no_conflict() -> None:
    client = FaultyClient(MemoryClient(), FAULTS["412 for nothing"], for_good=True)
    with pytest.raises(StorageUnavailable, match="keeps reporting a conflict"):
        ObjectStore(client, retry=patient()).create("pins/x", b"1")


@pytest.mark.parametrize("name", ["409", "412 for nothing"])
def test_a_conflict_without_a_condition_is_sent_again(name: str) -> None:
    """A replaced document has no rival; the server was busy with something else."""
    client = FaultyClient(MemoryClient(), FAULTS[name])
    store = ObjectStore(client, retry=patient())
    store.replace("pins/x", b"1")
    assert store.get("pins/x", limit=9) == b"1"
    client.at, client.for_good = 0, True
    with pytest.raises(StorageUnavailable):
        store.replace("pins/x", b"2")


def test_what_was_refused_before_it_was_sent_is_a_definite_outcome(origin: MemoryClient) -> None:
    client = FaultyClient(origin.copy(), at=-1)
    attempt, receipt = unfinished(client)

    def refuse(number: int, asked: Request) -> None:
        if asked.verb == "create" and client.fault is None:
            client.fault, client.at, client.for_good = FAULTS["refused"], number, True

    client.before = refuse
    with pytest.raises(StorageUnavailable):
        attempt.publish([receipt])
    client.before = None
    client.heal()
    attempt.publish([receipt])
    assert found(Repository.open(ObjectStore(client.inner))) == BOTH
