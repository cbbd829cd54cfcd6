"""Small repositories in a bucket in memory, whose savers, readers and collectors are interleaved.

What each task does is the real code: begin, publish, retire, collect, read. Only a part is made
by hand, an index and a pack, so that a save has no threads of its own.
"""

import contextlib
import itertools
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from snapfmt.errors import SnapfmtError
from snapfmt.format import canonical, digest, layout, pack
from snapfmt.limits import DEFAULT_LIMITS
from snapfmt.repository import Repository
from snapfmt.storage.base import Store
from snapfmt.storage.client import ObjectClient
from snapfmt.storage.memory import MemoryClient
from snapfmt.storage.objects import ObjectStore
from snapfmt.testing.client_faults import patient
from snapfmt.testing.interleaving import Run, Schedules, Task, conflicts, execute, same_each_time
from snapfmt.writing.attempt import Attempt
from snapfmt.writing.base import open_base
from snapfmt.writing.keeping import reached
from snapfmt_schemas.attempt import Receipt
from snapfmt_schemas.manifest import RepositoryDocument
from snapfmt_schemas.part import Entry, PartIndex
from snapfmt_schemas.pin import Pin


class _Prepared(ObjectStore):
    """The probe says nothing new, and would be steps of every task."""

    def prepare(self) -> None:
        """Nothing to do."""

    def folders(self, prefix: str, *, but: Collection[str] = ()) -> dict[str, frozenset[str]]:
        """Folder by folder: a listing of many pages is no single moment either."""
        inner = [name for name in self.names(prefix) if name not in but]
        return {name: frozenset(self.names(f"{prefix}/{name}")) for name in inner}

    def holding(self, prefix: str, name: str) -> list[str]:
        """From one listing."""
        return [at for at, names in super().folders(prefix).items() if name in names]


def open_in(client: ObjectClient, document: RepositoryDocument) -> Repository:
    """The repository, without a request."""
    return Repository(
        _Prepared(client, retry=patient(), at_once=1), document, limits=DEFAULT_LIMITS
    )


def put(store: Store, attempt: Attempt, data: bytes) -> str:
    """An object of an attempt; returns its digest."""
    mark = digest.digest_of(data)
    sink = store.sink(layout.workspace_key(attempt.id), mark[-8:])
    sink.write(data)
    sink.finish(layout.object_key(mark))
    return mark


def seal(store: Store, attempt: Attempt, name: str, entries: Sequence[Entry]) -> Receipt:
    """A part of these entries."""
    index = PartIndex(part=name, attempt_id=attempt.id, entries=tuple(entries))
    data = canonical.encode(index)
    return Receipt(
        part=name,
        attempt_id=attempt.id,
        index_digest=put(store, attempt, data),
        index_size=len(data),
        entries=len(entries),
        records=0,
        stored_bytes=len(data),
        new_objects=1,
    )


def write(store: Store, attempt: Attempt, name: str) -> Receipt:
    """A part with one small entry in a pack of its own."""
    body = f"what {name} of {attempt.id} holds".encode()
    data = pack.header(attempt.id, "0" * 32) + body
    entry = Entry.model_validate(
        {
            "path": "note",
            "media_type": "text/plain",
            "location": {
                "pack": put(store, attempt, data),
                "offset": pack.HEADER_SIZE,
                "size": len(body),
            },
            "digest": digest.digest_of(body),
        }
    )
    return seal(store, attempt, name, [entry])


def save(repository: Repository, *, base: int | None = None, number: int | None = None) -> int:
    """A snapshot with a part of its own, and with what its base has, carried."""
    with repository.begin(base=base, number=number) as attempt:
        receipts = [write(repository.store, attempt, f"own{attempt.number}")]
        if base is not None:
            older = open_base(repository.store, attempt.ticket("carried"))
            assert older is not None
            receipts += [
                seal(repository.store, attempt, part.name, part.entries()) for part in older.parts()
            ]
        return attempt.publish(receipts, write_id=attempt.id).number


def begin_and_die(repository: Repository, *, over: bool) -> None:
    """A save that wrote a part and ended; `over`: and whose lease and workspace were lost."""
    attempt = repository.begin()
    write(repository.store, attempt, "lost")
    if over:
        repository.store.drop_workspace(layout.workspace_key(attempt.id))
        repository.store.delete(layout.lease_key(attempt.id))


def read(repository: Repository) -> dict[int, dict[str, bytes]]:
    """All that can be read; what is retired meanwhile says so."""
    found = {}
    for number in repository.numbers():
        with contextlib.suppress(SnapfmtError):
            snapshot = repository.snapshot(number)
            found[number] = {
                f"{part.name}/{entry.path}": part.read(entry.path)
                for part in snapshot.parts()
                for entry in part.entries()
            }
    return found


_SAMPLE: Final = 15
"""Schedules that tell which requests others may notice."""

Action = Callable[[Repository], object]
SAVE: Final[Action] = save
ON_1: Final[Action] = lambda repository: save(repository, base=1)  # noqa: E731
ON_2: Final[Action] = lambda repository: save(repository, base=2)  # noqa: E731
RETIRE_1: Final[Action] = lambda repository: repository.retire(1)  # noqa: E731
RETIRE_2: Final[Action] = lambda repository: repository.retire(2)  # noqa: E731
KEEP_1: Final[Action] = lambda repository: repository.keep_latest(1)  # noqa: E731
COLLECT: Final[Action] = lambda repository: repository.collect()  # noqa: E731
PIN_1: Final[Action] = lambda repository: repository.pin("p", 1)  # noqa: E731
PIN_2: Final[Action] = lambda repository: repository.pin("p", 2)  # noqa: E731


@dataclass(frozen=True, slots=True)
class Scenario:
    """Who runs beside whom, and how many switches are tried."""

    tasks: tuple[Action, ...]
    switches: int


SCENARIOS: Final[dict[str, Scenario]] = {
    "all together": Scenario((ON_2, SAVE, read, COLLECT, RETIRE_2), 1),
    "a save on a base, two collectors": Scenario((ON_2, COLLECT, COLLECT), 2),
    "a save on a base, retire and collect": Scenario((ON_2, RETIRE_2, COLLECT), 2),
    "two that retire what a save carries": Scenario((ON_2, RETIRE_2, RETIRE_1), 2),
    "two saves and a collector": Scenario((ON_2, SAVE, COLLECT), 2),
    "pin and retire": Scenario((PIN_2, RETIRE_2, COLLECT), 2),
    "pin, retire, keep the newest and collect": Scenario((PIN_1, RETIRE_1, KEEP_1, COLLECT), 2),
    "two that pin what is retired": Scenario((PIN_2, PIN_2, RETIRE_2), 2),
}


@dataclass(slots=True)
class World:
    """A bucket as it is before the tasks run: snapshot 2 carries 1, and two saves died."""

    client: MemoryClient = field(default_factory=MemoryClient)

    def __post_init__(self) -> None:
        with same_each_time():
            store = _Prepared(self.client, retry=patient())
            self.document = Repository.open(store, create=True).document
            repository = open_in(self.client, self.document)
            save(repository)
            save(repository, base=1)
            begin_and_die(repository, over=True)

    document: RepositoryDocument = field(init=False)

    def run(self, actions: Sequence[Action], prefix: Sequence[int]) -> tuple[Run, MemoryClient]:
        """Carry a schedule out on a copy."""
        client = self.client.copy()

        def task(action: Action) -> Task:
            return lambda own: action(open_in(own, self.document))

        return execute([task(action) for action in actions], client, prefix), client


def check(run: Run, client: MemoryClient, document: Any) -> None:
    """Nothing was lost, and a last collection leaves what is needed and nothing else.

    Raises:
        AssertionError: Saying what is wrong.
    """
    for result in run.results.values():
        if isinstance(result, BaseException) and not isinstance(result, SnapfmtError):
            raise AssertionError(f"an error without a type: {result!r}") from result
    repository = open_in(client, document)
    before = repository.numbers()
    saved = [result for result in run.results.values() if type(result) is int]
    for number in saved:
        assert number in before, f"snapshot {number} was published and is gone"
    needed = whole(repository, before)
    for result in run.results.values():
        if isinstance(result, dict):
            for number, data in result.items():
                assert len(data) == number if number < 3 else data, "a part is missing"
        if isinstance(result, Pin):
            assert result.number in before, f"snapshot {result.number} was pinned and is gone"
            assert repository.pins()[result.name] == result.number, "a pin that was made is gone"
    repository.collect()
    assert repository.numbers() == before
    stored = {key for key, _ in repository.store.walk(layout.OBJECTS)}
    assert stored == needed, f"left behind: {stored - needed}, lost: {needed - stored}"
    assert not repository.leases()


def whole(repository: Repository, numbers: Sequence[int]) -> set[str]:
    """What these snapshots reach, all of which is there."""
    stored = dict(repository.store.walk(layout.OBJECTS))
    needed: set[str] = set()
    for number in numbers:
        found = reached(repository.store, repository.snapshot(number).manifest, DEFAULT_LIMITS)
        lost = [key for key, end in found.items() if stored.get(key, 0) < end]
        assert not lost, f"snapshot {number} lost {lost}"
        needed |= found.keys()
    return needed


@dataclass(slots=True)
class Explored:
    """What an exploration saw."""

    schedules: int = 0
    """Carried out."""
    covered: int = 0
    """Those, and the ones that go through the same states."""
    longest: int = 0
    ends: int = 0
    """Different final states."""
    complete: bool = True
    """Whether that was all of them."""
    violations: list[str] = field(default_factory=list)
    refused: int = 0
    """Tasks that ended with a typed error."""


def explore(
    world: World,
    scenario: Scenario,
    *,
    limit: int | None = None,
    seconds: float | None = None,
    switches: int | None = None,
    reduce: bool = False,
    seed: int | None = None,
    to_the_first: bool = False,
) -> Explored:
    """Carry the schedules of a scenario out, and check each.

    `limit`, `seconds`: ends after so many. `reduce`: no switch where nobody could notice.
    `seed`: see `interleaving.Schedules`. `to_the_first`: ends with the first violation.
    """
    found = Explored()
    good: set[int] = set()
    last: list[MemoryClient] = []
    requests: set[tuple[int, tuple[str, str]]] = set()
    began = time.monotonic()

    def run(prefix: Sequence[int]) -> Run:
        done, client = world.run(scenario.tasks, prefix)
        last[:] = [client]
        return done

    with same_each_time():
        runs = [run([first]) for first in range(len(scenario.tasks))]
        if reduce:
            # Who waits for another makes requests that it makes at no other time.
            runs += itertools.islice(Schedules(run, switches=2, seed=0), _SAMPLE)
        seen = conflicts(runs)
        todo = Schedules(
            run,
            switches=scenario.switches if switches is None else switches,
            visible=(lambda _, key: key in seen) if reduce else None,
            seed=seed,
        )
        for done in todo:
            late = seconds is not None and time.monotonic() - began > seconds
            if late or found.schedules == limit:
                found.complete = False
                break
            found.schedules += 1
            requests.update(zip(done.chosen, done.keys, strict=True))
            found.longest = max(found.longest, len(done.chosen))
            found.refused += sum(isinstance(item, SnapfmtError) for item in done.results.values())
            end = hash((last[0].content(), tuple(map(str, done.results.values()))))
            if end in good:
                continue
            try:
                check(done, last[0], world.document)
                good.add(end)
            except (AssertionError, SnapfmtError) as error:
                found.violations.append(f"{error} after {_short(done)}")
                if to_the_first:
                    break
        if reduce and not conflicts([_one(requests)]) <= seen:
            # Somebody noticed what nobody was thought to: not all switches were tried.
            found.complete = False
        found.ends = len(good)
        found.covered = todo.covered()
    return found


def _one(requests: Iterable[tuple[int, tuple[str, str]]]) -> Run:
    """A run that makes these requests."""
    tasks, keys = zip(*sorted(requests), strict=True)
    return Run(chosen=list(tasks), keys=list(keys))


def _short(run: Run) -> str:
    """Whose steps came when: `0x12 1x3 0x5`."""
    groups = [(task, len(list(group))) for task, group in itertools.groupby(run.chosen)]
    return " ".join(f"{task}x{count}" for task, count in groups)
