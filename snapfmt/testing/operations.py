"""Every operation that changes a repository on a disk, with a world to do it in.

Tests that enumerate crashes and power cuts take their operations from `OPERATIONS`, so that a new
one is enumerated everywhere once it stands there.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from snapfmt.errors import StoreNotFound
from snapfmt.format import layout
from snapfmt.limits import DEFAULT_LIMITS
from snapfmt.repair import repair
from snapfmt.repository import Repository
from snapfmt.testing.corruption import Tree, flip
from snapfmt.testing.samples import contents
from snapfmt.testing.shapes import Shape, attempting, end_threads, save, write_parts
from snapfmt.transfer import copy_snapshot, open_target
from snapfmt.writing import lease
from snapfmt.writing.keeping import folder, reached

Snapshots = dict[int, dict[str, Any]]
"""Number of a published snapshot -> all that can be read from it."""
Act = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation: a world to do it in, and the operation itself, in a folder like that."""

    name: str
    prepare: Callable[[Path, Shape], None]
    begin: Callable[[Path, Shape], Act]
    """Opens what is needed, and returns what is to be interrupted."""
    retires: frozenset[int] = frozenset()
    """Numbers that are gone afterwards."""
    again: bool = False
    """Whether a second run finishes what the first one began."""
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
    _die(Repository.open(run_of(world)), shape)


def _die(repository: Repository, shape: Shape) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lease, "is_dead", lambda _: False)
        attempt = repository.begin()
        write_parts(attempt, shape, 7, share=0.5)
        sink = repository.store.sink(layout.workspace_key(attempt.id), "left")
        sink.write(b"half of a pack")
        repository.begin()


def _with_litter(world: Path, shape: Shape) -> None:
    """1 is pinned, 2 carries it, the retirement of 3 was cut short, and three saves died.

    Of one of them lease and workspace were lost as well.
    """
    _with_three(world, shape)
    repository = Repository.open(run_of(world))
    repository.pin("kept", 1)
    lost = repository.begin()
    write_parts(lost, shape, 8, share=0.5)
    end_threads(lost)
    repository.store.drop_workspace(layout.workspace_key(lost.id))
    repository.store.delete(layout.lease_key(lost.id))
    repository.store.unpublish(folder(3), layout.MANIFEST, layout.RETIRING)
    _die(repository, shape)


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
        with attempting(repository, 1) as attempt:
            attempt.publish(write_parts(attempt, shape, 2, share=0.3))

    return act


def _publish(world: Path, shape: Shape) -> Act:
    attempt = Repository.open(run_of(world)).begin(base=1)
    receipts = write_parts(attempt, shape, 2, share=0.5)
    return lambda: attempt.publish(receipts)


def _abandon(world: Path, shape: Shape) -> Act:
    attempt = Repository.open(run_of(world)).begin()
    write_parts(attempt, shape, 2, share=0.5)
    attempt.part("open", workers=1).stage("entry", b"not sealed")

    def act() -> None:
        try:
            attempt.abandon()
        finally:
            end_threads(attempt)

    return act


def _clean_up(world: Path, _: Shape) -> Act:
    return Repository.open(run_of(world)).clean_up


def _retire(world: Path, _: Shape) -> Act:
    repository = Repository.open(run_of(world))
    return lambda: repository.retire(1)


def _keep_latest(world: Path, _: Shape) -> Act:
    repository = Repository.open(run_of(world))
    return lambda: repository.keep_latest(1)


def _collect(world: Path, _: Shape) -> Act:
    return Repository.open(run_of(world)).collect


def _pin(world: Path, _: Shape) -> Act:
    repository = Repository.open(run_of(world))
    return lambda: repository.pin("best", 1)


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


def _with_damaged(world: Path, shape: Shape) -> None:
    """The second of three snapshots is not whole, and the third is."""
    _with_remote(world, shape)
    remote = _remote(world)
    save(remote, shape, 3)
    first, second = (
        reached(remote.store, remote.snapshot(number).manifest, DEFAULT_LIMITS).keys()
        for number in (1, 2)
    )
    own = second - first
    flip(world / "remote" / min(own, default=layout.manifest_key(2)), 20)


def _repair(world: Path, _: Shape) -> Act:
    damaged = Tree.take(world / "remote")

    def act() -> None:
        try:
            repair(damaged.root, run_of(world), workers=1)
        finally:
            assert Tree.take(damaged.root).files == damaged.files

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
    Operation("push", _with_target, _push, again=True),
    Operation("pull", _with_remote, _pull, again=True),
    Operation("repair", _with_damaged, _repair, again=True),
    Operation("create", _nothing, _create, again=True, one_shape=True),
    Operation("collect", _with_litter, _collect, retires=frozenset({3}), again=True),
    Operation("pin", _with_one, _pin, one_shape=True),
)


def snapshots(root: Path) -> Snapshots:
    """All of the published snapshots, and their pins; nothing where no repository is."""
    try:
        repository = Repository.open(root)
    except StoreNotFound:
        return {}
    found: Snapshots = {}
    pins = repository.pins()
    for number in repository.numbers():
        data = contents(repository.snapshot(number))
        # It names times and attempts, which differ from one run of the operation to the next.
        data.pop("manifest")
        data["pins"] = sorted(name for name, pinned in pins.items() if pinned == number)
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
    if over and found != after:
        return f"snapshots {sorted(found)} after the operation are not the {sorted(after)} expected"
    return ""


def recover(
    world: Path, operation: Operation, shape: Shape, found: Snapshots, *, strays: bool = False
) -> str:
    """What the next save and the next retirement do not get right; empty if nothing.

    `strays`: objects that nothing reaches may stay, since a power cut may take the note of them.
    """
    root = run_of(world)
    if operation.again:
        operation.begin(world, shape)()
    repository = Repository.open(root)
    known = repository.numbers()
    small = Shape(name="next", entries=1)
    number = save(repository, small, 9)
    # Whatever was announced when the process died keeps nobody from pinning.
    repository.pin("next", number)
    repository.unpin("next")
    if number <= max([*known, *found, *operation.retires], default=0):
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
