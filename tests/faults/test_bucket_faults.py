"""A server that fails at any request, in any way, costs a snapshot at most, and harms none."""

import collections
import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from snapfmt import Repository
from snapfmt.errors import (
    NotPublished,
    OutcomeUnknownError,
    SnapfmtError,
    StorageError,
)
from snapfmt.reading import segment, table, verify
from snapfmt.storage.memory import MemoryClient
from snapfmt.testing.bucket_world import (
    count,
    found,
    repository_on,
    rows,
    run,
    save,
    settle_save,
    whole,
    write,
)
from snapfmt.testing.client_faults import FAULTS, Fault, FaultyClient, Request
from snapfmt.testing.samples import contents, needed, save_on, stored
from snapfmt.threads import Begun
from snapfmt.writing import lease as lease_module
from snapfmt.writing import pins

T = TypeVar("T")
Action = Callable[[Repository], Any]
INTERRUPT = Fault("interrupt", "late", KeyboardInterrupt, recovers=False)
TIMES = {"once": False, "for good": True}
SAME = {
    "409",
    "500",
    "500 after it was done",
    "503",
    "body cut",
    "stalls",
    "stalls after it was done",
}
"""To a client they differ in their text only: a sample of the requests is enough."""


def places(requests: list[Request], name: str) -> list[tuple[int, Request]]:
    step = 5 if name in SAME else 1
    return list(enumerate(requests))[len(name) % step :: step]


@pytest.fixture
def all_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every owner of a lease is dead, as it is after a crash; here it is this very process."""
    monkeypatch.setattr(lease_module, "is_dead", lambda _: True)


@pytest.fixture
def origin() -> MemoryClient:
    """A bucket with one snapshot."""
    client = MemoryClient()
    save(repository_on(client, create=True), 1)
    return client


# A whole save


def saving(repository: Repository) -> Any:
    return save(repository, 2)


@pytest.mark.usefixtures("all_dead")
@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("name", FAULTS)
def test_a_save_at_any_request(origin: MemoryClient, name: str, times: str) -> None:
    fault, requests = FAULTS[name], count(origin, saving)
    assert {item.verb for item in requests} == {"create", "put", "get", "head", "list", "delete"}
    ends: collections.Counter[str] = collections.Counter()
    for at, request in places(requests, name):
        for late_first in {True, fault.applied != "late"}:
            client = FaultyClient(origin.copy(), fault, at, TIMES[times])
            if fault.applied == "late" and TIMES[times]:
                client.late_by = 1000
            outcome = run(client, saving)
            assert [item.verb for item in client.failed[:1]] == [request.verb]
            ends[settle_save(client, outcome, (at, request), late_first=late_first)] += 1
    if (fault.recovers and not TIMES[times]) or name == "applied twice":
        assert set(ends) == {"Manifest"}
        return
    if name in SAME:
        return
    assert "StorageDenied" in ends if name == "403" else "StorageUnavailable" in ends
    assert ends["Manifest"] > 0, "what follows the publication is no part of it"
    unknown = {end for end in ends if end.startswith("unknown")}
    if fault.error is not None and times == "for good":
        assert "unknown, and it was" in unknown, "it could not be read back"
    if fault.applied == "late":
        assert "unknown, and it was not" in unknown


@pytest.mark.usefixtures("all_dead")
@pytest.mark.parametrize("late_by", [1, 6, 1000])
def test_an_interrupt_at_any_request_of_a_save(origin: MemoryClient, late_by: int) -> None:
    """What was sent goes on its way, in another thread, while the attempt is abandoned."""
    for at, request in enumerate(count(origin, saving)):
        client = FaultyClient(origin.copy(), INTERRUPT, at, late_by=late_by)
        with contextlib.suppress(KeyboardInterrupt, SnapfmtError):
            saving(repository_on(client))
        client.heal()
        client.deliver()
        repository = repository_on(client.inner)
        seen = found(repository)
        assert seen in ({1: rows(1)}, {1: rows(1), 2: rows(2)}), (at, request)
        repository.clean_up()
        assert found(repository) == seen, (at, request)
        whole(repository, (at, request))
        assert repository.leases() == []


# Reading


def reading(repository: Repository) -> Any:
    snapshot = repository.snapshot()
    report = repository.verify(2, deep=True)
    data = {name: data for name, data in contents(snapshot).items() if name != "manifest"}
    return snapshot.number, data, report


class AtOnce(Begun[T]):
    """Calls that end where they begin."""

    def begin(self, name: str, call: Callable[[], T]) -> None:
        """Begin a call and wait for it."""
        super().begin(name, call)
        with contextlib.suppress(Exception):
            self.result(name)


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("name", FAULTS)
def test_a_read_at_any_request(
    origin: MemoryClient, name: str, times: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One after the other: a request's number must mean the same request in every run.
    for module in (segment, table):
        monkeypatch.setattr(module, "in_order", lambda calls: (call() for call in calls))
    monkeypatch.setattr(verify, "Begun", AtOnce)
    fault = FAULTS[name]
    save(repository_on(origin), 2)
    requests, ends = count(origin, reading), collections.Counter[str]()
    assert {item.verb for item in requests} == {"get", "head", "list"}
    for at, request in places(requests, name):
        client = FaultyClient(origin.copy(), fault, at, TIMES[times])
        outcome = run(client, reading)
        assert client.failed[:1] == [request]
        ends[type(outcome).__name__] += 1
        if not isinstance(outcome, tuple):
            continue
        number, data, report = outcome
        assert number == 2
        assert data == rows(2), (at, request)
        if fault.recovers and times == "once":
            assert report.findings == []
        # Not that something is missing, or that it was changed.
        assert {item.rule for item in report.findings} <= {"unreadable", "unreached"}, (at, request)
    recovers = (fault.recovers and times == "once") or name == "applied twice"
    assert set(ends) == {"tuple"} if recovers else ends.total() > ends["tuple"]


# Retirement


RETIREMENTS: dict[str, tuple[Action, set[int]]] = {
    "the base of another": (lambda repository: repository.retire(1), {1}),
    "all but the newest": (lambda repository: repository.keep_latest(1), {1, 2}),
}


@pytest.mark.usefixtures("all_dead")
@pytest.mark.parametrize("action", RETIREMENTS)
@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("name", FAULTS)
def test_a_retirement_at_any_request(
    origin: MemoryClient, name: str, times: str, action: str
) -> None:
    fault, (retire, retired) = FAULTS[name], RETIREMENTS[action]
    built = repository_on(origin)
    save_on(built, 1, value=2)
    save(built, 3)
    before, requests = found(built), count(origin, retire)
    assert {item.verb for item in requests} == {"create", "put", "get", "head", "list", "delete"}
    ends: collections.Counter[str] = collections.Counter()
    # Other requests for each way, so that together they meet all of them.
    step = 2 if times == "for good" and action == "all but the newest" else 5
    for at, request in places(requests, name)[list(FAULTS).index(name) % step :: step]:
        client = FaultyClient(origin.copy(), fault, at, TIMES[times])
        outcome = run(client, retire)
        assert [item.verb for item in client.failed[:1]] == [request.verb]
        failed = isinstance(outcome, BaseException)
        ends["failed" if failed else "done"] += 1
        client.heal()
        check_retirement(client, before, retired, (at, request, outcome), done=not failed)
    if name == "applied twice" or (fault.recovers and times == "once"):
        assert set(ends) == {"done"}
    else:
        assert ends["failed"] > 0


def check_retirement(
    client: FaultyClient, before: dict[int, Any], retired: set[int], where: object, *, done: bool
) -> None:
    repository = repository_on(client.inner)
    seen = found(repository)
    gone = before.keys() - seen.keys()
    assert gone == retired if done else gone <= retired, where
    assert seen == {number: before[number] for number in seen}, where
    assert needed(repository) <= stored(repository), where
    # What is still on its way arrives, and the next call finishes all.
    client.deliver()
    seen = found(repository)
    assert seen == {number: before[number] for number in seen}, where
    repository.keep_latest(99)
    for number in sorted(retired.intersection(repository.numbers())):
        repository.retire(number)
    assert found(repository) == {
        number: data for number, data in before.items() if number not in retired
    }, where
    assert repository.leases() == [], where
    whole(repository, where, leftovers=bool(client.arrived))


# Pins


@pytest.mark.req("K-17")
@pytest.mark.usefixtures("all_dead")
@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("name", sorted(FAULTS.keys() - SAME))
def test_a_pin_after_a_retirement_that_failed_at_any_write(
    origin: MemoryClient, monkeypatch: pytest.MonkeyPatch, name: str, times: str
) -> None:
    """What is on its way arrives while the pin waits, and then the pin holds or was not made."""
    retire, _ = RETIREMENTS["the base of another"]
    save(repository_on(origin), 2)
    made: collections.Counter[bool] = collections.Counter()
    for at, request in enumerate(count(origin, retire)):
        if request.verb not in ("create", "put", "delete"):
            continue
        client = FaultyClient(origin.copy(), FAULTS[name], at, TIMES[times], late_by=1000)
        run(client, retire)
        client.heal()
        monkeypatch.setattr(pins.time, "sleep", lambda _, late=client: late.deliver())
        repository = repository_on(client)
        with contextlib.suppress(NotPublished):
            repository.pin("x", 1)
        pinned = repository.pins() == {"x": 1}
        made[pinned] += 1
        client.deliver()
        assert (1 in repository.numbers()) == pinned, (at, request)
        repository.keep_latest(1)
        assert repository.numbers() == ([1, 2] if pinned else [2]), (at, request)
        whole(repository, (at, request), leftovers=pinned or bool(client.arrived))
    assert made[True] or (FAULTS[name].recovers and times == "once") or name == "applied twice"


@pytest.mark.req("K-17")
@pytest.mark.usefixtures("all_dead")
@pytest.mark.parametrize("name", sorted(FAULTS.keys() - SAME))
def test_a_pin_at_any_request(origin: MemoryClient, name: str) -> None:
    save(repository_on(origin), 2)
    for at, request in enumerate(count(origin, pin_1)):
        client = FaultyClient(origin.copy(), FAULTS[name], at, for_good=True)
        outcome = run(client, pin_1)
        client.heal()
        repository = repository_on(client)
        if not isinstance(outcome, BaseException):
            assert repository.keep_latest(1) == [], (at, request)
        client.deliver()
        repository.pin("x", 1)
        assert repository.keep_latest(1) == [], (at, request)
        assert repository.numbers() == [1, 2]
        assert repository.pins() == {"x": 1}
        repository.clean_up()
        assert repository.leases() == [], (at, request)


def pin_1(repository: Repository) -> Any:
    return repository.pin("x", 1)


# Attempts that are given up, by their owner or by others


def unfinished(client: FaultyClient) -> Any:
    """An attempt with a part that is sealed."""
    attempt = repository_on(client).begin()
    return attempt, write(attempt, 2)


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("by_owner", [True, False])
def test_an_attempt_is_given_up_at_any_request(
    origin: MemoryClient,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    times: str,
    by_owner: bool,
) -> None:
    fault = FAULTS[name]

    def give_up(client: FaultyClient, at: int) -> tuple[Any, Any, bool]:
        attempt, receipt = unfinished(client)
        with monkeypatch.context() as patch:
            patch.setattr(lease_module, "is_dead", lambda _: True)
            client.fault, client.for_good, client.at = fault, TIMES[times], len(client.requests)
            client.at += at
            try:
                # It passes over a lease that it cannot read.
                given_up = by_owner or attempt.id in repository_on(client).clean_up()
                attempt.abandon() if by_owner else None
            except (StorageError, OutcomeUnknownError):
                return attempt, receipt, False
        return attempt, receipt, given_up

    def total() -> int:
        client = FaultyClient(origin.copy())
        give_up(client, 10_000)
        return len(client.requests) - begun

    counted = FaultyClient(origin.copy())
    unfinished(counted)
    begun = len(counted.requests)
    requests = [Request("", "")] * total()
    assert len(requests) > 10
    for at, _ in places(requests, name)[list(FAULTS).index(name) % 2 :: 2]:
        client = FaultyClient(origin.copy())
        attempt, receipt, given_up = give_up(client, at)
        assert client.failed, at
        recovers = name == "applied twice" or (fault.recovers and times == "once")
        assert given_up or not recovers, at
        client.heal()
        # The owner goes on, if it still can.
        with contextlib.suppress(SnapfmtError):
            attempt.publish([receipt])
            assert not given_up, at
        client.deliver()
        repository = repository_on(client.inner)
        seen = found(repository)
        assert seen in ({1: rows(1)}, {1: rows(1), 2: rows(2)}), at
        assert 2 not in seen or not given_up, at
        with monkeypatch.context() as patch:
            patch.setattr(lease_module, "is_dead", lambda _: True)
            repository.clean_up()
        assert found(repository) == seen, at
        assert repository.leases() == []
        # Where it could not be seen that the attempt was not published, its objects stay.
        whole(repository, at, leftovers=bool(client.arrived) or not recovers)
