"""Collections and retirements in a bucket whose server fails at any request, in any way.

What must hold after each: every published snapshot is whole and what a running save has written
is there; nothing else went than what may go; the running save publishes; and the next collection
finishes all of it (spec/v1/09-retention.md, K-6, K-12).
"""

import collections
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from snapfmt.errors import AttemptError, OutcomeUnknownError, StorageError
from snapfmt.format import canonical, layout
from snapfmt.repository import Repository
from snapfmt.storage.memory import MemoryClient
from snapfmt.testing.bucket_world import Data, count, found, repository_on, rows, save, write
from snapfmt.testing.client_faults import FAULTS, FaultyClient
from snapfmt.testing.samples import needed, save_on, stored
from snapfmt.writing.attempt import Attempt
from snapfmt.writing.lease import renewed
from snapfmt_schemas.attempt import Lease, Receipt

Action = Callable[[Repository], object]
TIMES: Final = {"once": False, "for good": True}
RUNNING: Final = 7
"""Value of the rows of the save that runs meanwhile."""
OUT: Final = 3
"""The snapshot whose retirement was cut short."""


@dataclass(frozen=True, slots=True)
class World:
    """A bucket to collect in, of which each case gets a copy."""

    client: MemoryClient
    before: dict[int, Data]
    lease: Lease
    receipt: Receipt
    written: frozenset[str]
    """What the save that runs has written."""

    def running(self, repository: Repository) -> Attempt:
        """The save that runs, in a copy."""
        return Attempt(repository.store, self.lease, repository_id=repository.id)


@dataclass(frozen=True, slots=True)
class Case:
    """One fault at one request of an action."""

    action: str
    fault: str
    times: str
    at: int


def world() -> World:
    """2 carries what is in 1, 3 is half retired, 4 is pinned, 5 is of its own.

    One save died, another one lost its marker, a third one runs and has sealed its part.
    """
    client = MemoryClient()
    repository = repository_on(client, create=True)
    save(repository, 1)
    save_on(repository, 1, value=2)
    for value in (OUT, 4, 5):
        save(repository, value)
    repository.pin("kept", 4)
    # Whoever fences the dead one closes its number.
    dead, lost, running = repository.begin(), repository.begin(), repository.begin(number=7)
    write(dead, 8)
    write(lost, 9)
    receipt = write(running, RUNNING)
    repository.store.drop_workspace(layout.workspace_key(lost.id))
    repository.store.delete(layout.lease_key(lost.id))
    dead.renew(-1.0)
    repository.store.unpublish(
        f"{layout.SNAPSHOTS}/{layout.snapshot_name(OUT)}", layout.MANIFEST, layout.RETIRING
    )
    lease = next(item for item in repository.leases() if item.attempt_id == running.id)
    written = frozenset(repository.store.journal(layout.workspace_key(running.id)))
    return World(client, found(repository), lease, receipt, written)


ACTIONS: Final[dict[str, tuple[Action, frozenset[int]]]] = {
    "collect": (lambda repository: repository.collect(), frozenset()),
    "retire": (lambda repository: repository.retire(1), frozenset({1})),
    "keep_latest": (lambda repository: repository.keep_latest(1), frozenset({1, 2})),
}
"""What is done, and the snapshots that it retires."""


def cases(given: World) -> Iterator[Case]:
    """Every way to fail, once and for good, at every request of every action."""
    for name, (action, _) in ACTIONS.items():
        total = len(count(given.client, action))
        for fault in FAULTS:
            for times in TIMES:
                for at in range(total):
                    yield Case(name, fault, times, at)


def run_case(given: World, case: Case) -> str:
    """Returns how the action ended.

    Raises:
        AssertionError: If something was lost, or is not finished by the next collection.
    """
    action, retires = ACTIONS[case.action]
    client = FaultyClient(
        given.client.copy(), FAULTS[case.fault], case.at, for_good=TIMES[case.times]
    )
    outcome = _run(client, action)
    assert client.failed, case
    client.heal()
    repository = repository_on(client.inner)
    _check(given, repository, retires, (case, outcome))
    if FAULTS[case.fault].applied == "late":
        # What was on its way when the action ended arrives now.
        client.deliver()
        _check(given, repository, retires, (case, outcome))
    recovers = FAULTS[case.fault].recovers and case.times == "once"
    if recovers or case.fault == "applied twice":
        assert not isinstance(outcome, BaseException), (case, outcome)
    if not isinstance(outcome, BaseException):
        assert given.before.keys() - found(repository).keys() == retires, case
    given.running(repository).publish([given.receipt])
    _finish(given, repository, retires, case)
    return type(outcome).__name__ if isinstance(outcome, BaseException) else "done"


def _run(client: FaultyClient, action: Action) -> object:
    try:
        return action(repository_on(client))
    except (StorageError, OutcomeUnknownError, AttemptError) as error:
        return error


def _check(given: World, repository: Repository, retires: frozenset[int], where: object) -> None:
    seen = found(repository)
    gone = given.before.keys() - seen.keys()
    assert gone <= retires, where
    assert seen == {number: given.before[number] for number in seen}, where
    assert needed(repository) | given.written <= stored(repository), where
    assert repository.pins() == {"kept": 4}, where


def _finish(given: World, repository: Repository, retires: frozenset[int], where: object) -> None:
    """What the action began is brought to its end, once its process is over."""
    store = repository.store
    for lease in repository.leases():
        store.replace(layout.lease_key(lease.attempt_id), canonical.encode(renewed(lease, -1.0)))
    for number in sorted(retires.intersection(repository.numbers())):
        repository.retire(number)
    report = repository.collect()
    assert report.waiting == (), where
    left = {number: data for number, data in given.before.items() if number not in retires}
    assert found(repository) == {**left, given.lease.number: rows(RUNNING)}, where
    assert stored(repository) == needed(repository), where
    assert repository.leases() == [], where
    assert store.names(layout.ATTEMPTS) == [], where
    for number in {OUT, *retires}:
        names = store.names(f"{layout.SNAPSHOTS}/{layout.snapshot_name(number)}")
        assert names == [layout.RETIRED], (where, number)
    findings = repository.verify().findings
    assert [item for item in findings if item.message != "folder without a manifest"] == [], where


def run_all(given: World, chosen: Iterable[Case]) -> dict[str, Any]:
    """Figures of many cases; a problem is told and does not end the run."""
    ends: dict[str, collections.Counter[str]] = {}
    problems: list[str] = []
    total = 0
    for case in chosen:
        total += 1
        try:
            end = run_case(given, case)
        except Exception as error:  # noqa: BLE001 - counted, and told
            end = "problem"
            problems.append(f"{case}: {type(error).__name__}: {error}"[:500])
        ends.setdefault(f"{case.action}, {case.fault}", collections.Counter())[end] += 1
    return {
        "cases": total,
        "requests": {
            name: len(count(given.client, action)) for name, (action, _) in ACTIONS.items()
        },
        "problems": len(problems),
        "each_problem": problems[:20],
        "ends": {name: dict(sorted(found.items())) for name, found in ends.items()},
    }
