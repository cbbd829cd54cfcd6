"""Every operation that changes a repository on a disk, with a world to do it in.

Tests that enumerate crashes and power cuts take their operations from `OPERATIONS`, so that a new
one is enumerated everywhere once it stands there.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from snapfmt.errors import StoreNotFound
from snapfmt.format import layout, pack
from snapfmt.limits import DEFAULT_LIMITS
from snapfmt.repository import Repository
from snapfmt.testing.crashes import InjectedCrash
from snapfmt.testing.samples import contents
from snapfmt.transfer import copy_snapshot, open_target
from snapfmt.writing import lease
from snapfmt.writing import table as table_module
from snapfmt.writing.attempt import Attempt
from snapfmt.writing.keeping import reached
from snapfmt_schemas.attempt import Receipt

Snapshots = dict[int, dict[str, Any]]
"""Number of a published snapshot -> all that can be read from it."""
Act = Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What one snapshot holds. Counts are per part, sizes in bytes."""

    name: str
    parts: int = 1
    entries: int = 0
    entry_size: int = 20
    records: int = 0
    tables: int = 0
    rows: int = 6
    pack_size: int = 0
    """Size after which a pack is closed; 0 for the usual one."""
    segment_rows: int = 0
    """Rows after which a batch and a segment are closed; 0 for the usual sizes."""

    def values(self, table: int, first: int, count: int, value: int) -> dict[str, list[Any]]:
        """Columns of so many rows."""
        numbers = range(first, first + count)
        return {
            "ids": [np.arange(i % 4 + 1, dtype=np.int64) + value + table for i in numbers],
            "text": [f"text {value} {i}" for i in numbers],
        }


SHAPES = (
    Shape(name="entry", entries=1),
    Shape(name="nothing", parts=0),
    Shape(name="empty entry", entries=1, entry_size=0),
    Shape(name="entries", entries=7, entry_size=300),
    Shape(name="large entry", entries=1, entry_size=200_000),
    Shape(name="records", records=9),
    Shape(name="table", tables=1),
    Shape(name="tables", tables=3, rows=4),
    Shape(name="segments", tables=1, rows=12, segment_rows=4),
    Shape(name="three parts", parts=3, entries=1),
    Shape(name="five parts", parts=5, entries=2, records=2),
    Shape(name="small packs", entries=6, entry_size=100, pack_size=64),
    Shape(name="small packs of parts", parts=2, entries=3, entry_size=400, pack_size=64),
    Shape(name="all", parts=2, entries=2, records=4, tables=1),
    Shape(
        name="all in small packs", parts=2, entries=2, records=3, tables=1, rows=8,
        pack_size=64, segment_rows=4,
    ),
)  # fmt: skip


@contextlib.contextmanager
def conditions(shape: Shape) -> Iterator[None]:
    """The sizes of a shape; and every attempt's owner counts as dead once it is looked at."""
    with pytest.MonkeyPatch.context() as patch:
        # The dead process of these tests is this one, which lives on.
        patch.setattr(lease, "is_dead", lambda _: True)
        patch.setattr(threading, "excepthook", _quietly(threading.excepthook))
        if shape.pack_size:
            patch.setattr(pack, "TARGET_SIZE", shape.pack_size)
        if shape.segment_rows:
            patch.setattr(table_module, "BATCH_ROWS", shape.segment_rows)
            patch.setattr(table_module, "SEGMENT_BYTES", 1)
        yield


def _quietly(tell: Callable[[Any], object]) -> Callable[[Any], None]:
    """A thread of a process that died says nothing any more."""

    def told(args: threading.ExceptHookArgs) -> None:
        if not isinstance(args.exc_value, InjectedCrash):
            tell(args)

    return told


def save(repository: Repository, shape: Shape, value: int, base: int | None = None) -> int:
    """One snapshot; returns its number."""
    with _attempt(repository, base) as attempt:
        return attempt.publish(_receipts(attempt, shape, value, share=0.5)).number


@contextlib.contextmanager
def _attempt(repository: Repository, base: int | None = None) -> Iterator[Attempt]:
    attempt = repository.begin(base=base)
    try:
        yield attempt
    finally:
        try:
            attempt.abandon()
        finally:
            _end_threads(attempt)


def _end_threads(attempt: Attempt) -> None:
    """Those of a process that died; there are thousands of such processes in this one."""
    for part in attempt._parts:
        with contextlib.suppress(BaseException):
            part.abandon()
        part._pool.shutdown(wait=False)


def _receipts(attempt: Attempt, shape: Shape, value: int, share: float) -> list[Receipt]:
    """Every part of a shape; on a base, what is there is carried, of tables a share of the rows."""
    made = []
    for number in range(shape.parts):
        part = attempt.part(f"part/{number}", workers=1)
        fresh = attempt.base is None
        for entry in range(shape.entries):
            # On a base the last entry is written anew, the others are carried.
            if fresh or entry == shape.entries - 1:
                text = b"%d %d " % (value, entry)
                part.stage(f"entry{entry}", (text * shape.entry_size)[: shape.entry_size])
            else:
                part.carry(f"entry{entry}")
        if shape.records and fresh:
            lines = [b'{"id":"%d","value":%d}' % (i, value) for i in range(shape.records)]
            part.records("lines", lines, key="id")
        elif shape.records:
            part.carry("lines")
        for table in range(shape.tables):
            with part.table(f"table{table}") as writer:
                first, count = (0, shape.rows) if fresh else (1000 + value, 2)
                for at, item in enumerate(writer.base_segments()):
                    writer.carry(at, np.arange(item.rows) >= item.rows * (1 - share))
                columns = shape.values(table, first, count, value)
                writer.append([f"p{number}k{i}" for i in range(first, first + count)], columns)
        made.append(part.seal())
    return made


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation: a world to do it in, and the operation itself, in a folder like that."""

    name: str
    prepare: Callable[[Path, Shape], None]
    begin: Callable[[Path, Shape], Act]
    """Opens what is needed, and returns what is to be interrupted."""
    retires: frozenset[int] = frozenset()
    """Numbers that are gone afterwards."""
    copies: bool = False
    """Whether a second run finishes what the first one sent."""
    one_shape: bool = False
    """Whether its steps are the same whatever a snapshot holds."""


def run_of(world: Path) -> Path:
    """The repository of a world that is changed."""
    return world / "run"


def _remote(world: Path) -> Repository:
    return Repository.open(world / "remote")


def _with_one(world: Path, shape: Shape) -> None:
    save(Repository.create(run_of(world)), shape, 1)


def _with_three(world: Path, shape: Shape) -> None:
    repository = Repository.create(run_of(world))
    save(repository, shape, 1)
    save(repository, shape, 2, base=1)
    save(repository, shape, 3)


def _with_remote(world: Path, shape: Shape) -> None:
    remote = Repository.create(world / "remote")
    save(remote, shape, 1)
    save(remote, shape, 2, base=1)


def _with_target(world: Path, shape: Shape) -> None:
    _with_remote(world, shape)
    remote = _remote(world)
    copy_snapshot(remote, open_target(run_of(world), remote), 1)


def _with_leftovers(world: Path, shape: Shape) -> None:
    """Two attempts whose process died: in the middle of a part, and before anything."""
    _with_one(world, shape)
    repository = Repository.open(run_of(world))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lease, "is_dead", lambda _: False)
        attempt = repository.begin()
        _receipts(attempt, shape, 7, share=0.5)
        sink = repository.store.sink(layout.workspace_key(attempt.id), "left")
        sink.write(b"half of a pack")
        repository.begin()


def _save(world: Path, shape: Shape) -> Act:
    repository = Repository.open(run_of(world))
    return lambda: save(repository, shape, 2)


def _save_on_base(world: Path, shape: Shape) -> Act:
    repository = Repository.open(run_of(world))
    return lambda: save(repository, shape, 2, base=1)


def _compact(world: Path, shape: Shape) -> Act:
    """So few rows stay that their segments are rewritten."""
    repository = Repository.open(run_of(world))

    def act() -> None:
        with _attempt(repository, 1) as attempt:
            attempt.publish(_receipts(attempt, shape, 2, share=0.3))

    return act


def _publish(world: Path, shape: Shape) -> Act:
    attempt = Repository.open(run_of(world)).begin(base=1)
    receipts = _receipts(attempt, shape, 2, share=0.5)
    return lambda: attempt.publish(receipts)


def _abandon(world: Path, shape: Shape) -> Act:
    attempt = Repository.open(run_of(world)).begin()
    _receipts(attempt, shape, 2, share=0.5)
    attempt.part("open", workers=1).stage("entry", b"not sealed")

    def act() -> None:
        try:
            attempt.abandon()
        finally:
            _end_threads(attempt)

    return act


def _clean_up(world: Path, _: Shape) -> Act:
    return Repository.open(run_of(world)).clean_up


def _retire(world: Path, _: Shape) -> Act:
    repository = Repository.open(run_of(world))
    return lambda: repository.retire(1)


def _keep_latest(world: Path, _: Shape) -> Act:
    repository = Repository.open(run_of(world))
    return lambda: repository.keep_latest(1)


def _push(world: Path, _: Shape) -> Act:
    remote, target = _remote(world), Repository.open(run_of(world))
    return lambda: copy_snapshot(remote, target, 2)


def _pull(world: Path, _: Shape) -> Act:
    remote = _remote(world)

    def act() -> None:
        target = open_target(run_of(world), remote)
        for number in remote.numbers():
            copy_snapshot(remote, target, number)

    return act


def _create(world: Path, _: Shape) -> Act:
    return lambda: Repository.open(run_of(world), create=True)


def _nothing(_: Path, __: Shape) -> None:
    return


OPERATIONS = (
    Operation("save", _with_one, _save),
    Operation("save on a base", _with_one, _save_on_base),
    Operation("compaction", _with_one, _compact),
    Operation("publish", _with_one, _publish),
    Operation("abandon", _with_one, _abandon),
    Operation("clean-up", _with_leftovers, _clean_up),
    Operation("retire", _with_three, _retire, retires=frozenset({1})),
    Operation("keep_latest", _with_three, _keep_latest, retires=frozenset({1, 2})),
    Operation("push", _with_target, _push, copies=True),
    Operation("pull", _with_remote, _pull, copies=True),
    Operation("create", _nothing, _create, one_shape=True),
    # `collect` goes here: a world with leftovers and retired snapshots, and the collection.
)


def snapshots(root: Path) -> Snapshots:
    """All that can be read of all published snapshots; nothing where no repository is."""
    try:
        repository = Repository.open(root)
    except StoreNotFound:
        return {}
    found: Snapshots = {}
    for number in repository.numbers():
        data = contents(repository.snapshot(number))
        # It names times and attempts, which differ from one run of the operation to the next.
        data.pop("manifest")
        found[number] = data
    return found


def unreached(repository: Repository) -> set[str]:
    """Objects that no published snapshot reaches, and those that are missing."""
    needed = {
        key
        for number in repository.numbers()
        for key in reached(repository.store, repository.snapshot(number).manifest, DEFAULT_LIMITS)
    }
    return needed ^ {key for key, _ in repository.store.walk(layout.OBJECTS)}


def judge(found: Snapshots, before: Snapshots, after: Snapshots, *, over: bool = False) -> str:
    """What is wrong with a state in the middle of an operation, or after it; empty if nothing."""
    for number, data in found.items():
        if data not in [known[number] for known in (before, after) if number in known]:
            return f"snapshot {number} is published and is not whole"
    if lost := (before.keys() & after.keys()) - found.keys():
        return f"lost snapshots {sorted(lost)}"
    if over and found.keys() != after.keys():
        return f"snapshots {sorted(found)} after the operation, {sorted(after)} expected"
    return ""


def recover(
    world: Path, operation: Operation, shape: Shape, found: Snapshots, *, strays: bool = False
) -> str:
    """What the next save and the next retirement do not get right; empty if nothing.

    `strays`: objects that nothing reaches may stay, since a power cut may take the note of them.
    """
    root = run_of(world)
    if operation.copies or operation.one_shape:
        operation.begin(world, shape)()
    repository = Repository.open(root)
    known = repository.numbers()
    small = Shape(name="next", entries=1)
    number = save(repository, small, 9)
    if number <= max([*known, *found], default=0):
        return f"the next save got number {number}"
    for gone in sorted(operation.retires.intersection(known)):
        repository.retire(gone)
    repository.keep_latest(99)
    later = snapshots(root)
    for old in found.keys() - operation.retires:
        if later.get(old) != found[old]:
            return f"snapshot {old} changed afterwards"
    if not strays and (wrong := unreached(repository)):
        return f"left over or missing: {sorted(wrong)[:3]}"
    findings = [
        item
        for item in repository.verify().findings
        # Documents that were being written when the process died hold nothing.
        if not item.path.endswith(".tmp")
        if not strays or item.severity in ("damage", "unknown")
    ]
    if findings or repository.leases():
        return f"left over: {findings[:3]} {repository.leases()[:1]}"
    repository.retire(number)
    if number in repository.numbers() or (unreached(repository) and not strays):
        return "the next retirement left something"
    return ""
