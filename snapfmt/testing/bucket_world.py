"""A bucket in memory with small snapshots, and what must hold after anything that failed."""

from collections.abc import Callable
from typing import Any

from snapfmt.errors import CommitOutcomeUnknown, OutcomeUnknownError, StorageError
from snapfmt.repository import Repository
from snapfmt.storage.client import ObjectClient
from snapfmt.storage.memory import MemoryClient
from snapfmt.storage.objects import ObjectStore
from snapfmt.testing.client_faults import FaultyClient, Request, patient
from snapfmt.testing.samples import contents, needed, stored
from snapfmt.writing.attempt import Attempt
from snapfmt_schemas.attempt import Receipt
from snapfmt_schemas.manifest import Manifest

Data = dict[str, Any]


def repository_on(client: ObjectClient, *, create: bool = False) -> Repository:
    """The repository in a bucket, with the usual tries and no pauses."""
    return Repository.open(ObjectStore(client, retry=patient()), create=create)


def write(attempt: Attempt, value: int) -> Receipt:
    """One part with an entry and a table."""
    with attempt.part("p", workers=1) as part:
        part.stage("note", f"note {value}".encode())
        with part.table("t") as table:
            table.append([f"a{value}", f"b{value}"], {"x": [value, value + 1]})
        return part.seal()


def save(repository: Repository, value: int) -> Manifest:
    """A snapshot with one such part."""
    with repository.begin() as attempt:
        return attempt.publish([write(attempt, value)], user_metadata={"value": value})


def rows(value: int) -> Data:
    """What `contents` finds of such a snapshot, but for its manifest."""
    return {"p/note": f"note {value}".encode(), f"t[a{value}]": {"x": str(value)}} | {
        f"t[b{value}]": {"x": str(value + 1)}
    }


def found(repository: Repository) -> dict[int, Data]:
    """All data of all snapshots that are published."""
    return {
        number: {
            name: data
            for name, data in contents(repository.snapshot(number)).items()
            if name != "manifest"
        }
        for number in repository.numbers()
    }


def count(origin: MemoryClient, action: Callable[[Repository], object]) -> list[Request]:
    """The requests of an action."""
    client = FaultyClient(origin.copy())
    action(repository_on(client))
    return client.requests


def run(client: FaultyClient, action: Callable[[Repository], Any]) -> Any:
    """The action's result, or its error, which must be one that a caller of a bucket expects."""
    try:
        return action(repository_on(client))
    except (StorageError, OutcomeUnknownError) as error:
        return error


def whole(repository: Repository, where: object, *, leftovers: bool = True) -> None:
    """Nothing is damaged, down to the last byte."""
    report = repository.verify()
    assert report.ok, (where, report.damage, report.unknown)
    # A name that was closed stays so.
    rest = [item for item in report.findings if item.message != "folder without a manifest"]
    assert leftovers or rest == [], (where, rest)


def settle_save(
    client: FaultyClient, outcome: object, where: object, *, late_first: bool, number: int = 2
) -> str:
    """What must hold after a save of `rows(2)` as `number`, whatever failed; returns how it ended.

    Wants every owner of a lease to count as dead, as it is after a crash.
    """
    client.heal()
    if late_first:
        client.deliver()
    repository = repository_on(client.inner)
    before = found(repository)
    if isinstance(outcome, CommitOutcomeUnknown):
        assert [lease.number for lease in repository.leases()] == [number], where
    elif isinstance(outcome, BaseException):
        assert number not in before, (where, outcome)
    else:
        assert before[number] == rows(2), where
    repository.clean_up()
    client.deliver()
    repository.clean_up()
    after = found(repository)
    assert after == before, (where, outcome)
    assert repository.leases() == [], where
    assert needed(repository) <= stored(repository), where
    if isinstance(outcome, Manifest) and not client.arrived:
        whole(repository, where, leftovers=False)
        return "Manifest"
    newest = save(repository, 3)
    assert found(repository) == {**before, newest.number: rows(3)}, where
    repository.clean_up()
    whole(repository, where, leftovers=bool(client.arrived))
    if isinstance(outcome, CommitOutcomeUnknown):
        return "unknown, and it was" if number in before else "unknown, and it was not"
    return type(outcome).__name__
