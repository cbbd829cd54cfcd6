"""Power cuts at every system call of every operation: what the disk may hold, and whether it is whole.

Each operation is carried out once, with its calls recorded. At every call the power is cut: of
what is not certain by the model of `snapfmt.testing.power`, outcomes are enumerated, and each one
that differs is made a folder and opened.
"""  # noqa: E501

import random
import shutil
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from snapfmt.format import layout
from snapfmt.limits import DEFAULT_LIMITS
from snapfmt.repository import Repository
from snapfmt.testing.crashes import Effect, SystemCalls
from snapfmt.testing.operations import (
    OPERATIONS,
    Operation,
    judge,
    recover,
    run_of,
    snapshots,
)
from snapfmt.testing.power import Disk, Marks, Tree, choices, materialise
from snapfmt.testing.shapes import SHAPES, Shape, conditions
from snapfmt.writing.keeping import reached

Forgets = Callable[[Effect], bool]
"""Which calls never happened; to see that the check notices a sync that is missing."""


@dataclass(slots=True)
class Cuts:
    """What became of the power cuts of one operation and one shape."""

    operation: str
    shape: str
    cuts: int = 0
    states: int = 0
    distinct: int = 0
    """Trees that differ in any file."""
    opened: int = 0
    """Of those, trees that differ in what a reader of published snapshots can see; each opened."""
    recovered: int = 0
    """Trees on which the next save and the next retirement were tried."""
    violations: list[str] = field(default_factory=list)


def cut_pair(
    pair: tuple[int, int],
    folder: str,
    *,
    bound: int,
    recoveries: int = 0,
    forgets: Forgets | None = None,
) -> Cuts:
    """Cut one operation on one shape, with at most `bound` states at each of its calls."""
    operation, shape = OPERATIONS[pair[0]], SHAPES[pair[1]]
    with conditions(shape), tempfile.TemporaryDirectory(dir=folder) as place:
        study = _Study(operation, shape, Path(place))
        study.run(bound, recoveries, forgets or (lambda _: False))
        return study.tally


class _Study:
    def __init__(self, operation: Operation, shape: Shape, place: Path) -> None:
        self.tally = Cuts(operation.name, shape.name)
        self._operation = operation
        self._shape = shape
        self._place = place
        self._world = place / "world"
        self._world.mkdir()
        operation.prepare(self._world, shape)
        self._disk = Disk(self._world, without="remote")
        self._reach: dict[bytes, set[str]] = {}
        self._learn()
        self._before = snapshots(run_of(self._world))
        self._effects: list[Effect] = []
        with pytest.MonkeyPatch.context() as patch:
            SystemCalls(self._world, record=self._effects).install(patch)
            operation.begin(self._world, shape)()
        self._after = snapshots(run_of(self._world))
        self._learn()
        self._marks = Marks()
        self._trees: set[bytes] = set()
        self._seen: set[tuple[bytes, bool]] = set()

    def _learn(self) -> None:
        """Which objects each manifest reaches."""
        if not (run_of(self._world) / layout.REPOSITORY_KEY).exists():
            return
        repository = Repository.open(run_of(self._world))
        for number in repository.numbers():
            data = repository.store.get(layout.manifest_key(number), limit=1 << 30)
            manifest = repository.snapshot(number).manifest
            self._reach[data] = set(reached(repository.store, manifest, DEFAULT_LIMITS))

    def run(self, bound: int, recoveries: int, forgets: Forgets) -> None:
        """Every cut, from before the first call to after the last one."""
        chance = random.Random(f"{self.tally.operation} {self.tally.shape}")  # noqa: S311
        last = len(self._effects)
        # Spread over the cuts, the last one among them.
        tried = {last - (last * at) // max(recoveries, 1) for at in range(recoveries)}
        self._cut(bound, chance, over=last == 0, recovers=False)
        for at, effect in enumerate(self._effects, 1):
            if not forgets(effect):
                self._disk.apply(effect)
            over = at == last
            self._cut(bound * 8 if over else bound, chance, over=over, recovers=at in tried)

    def _cut(self, bound: int, chance: random.Random, *, over: bool, recovers: bool) -> None:
        units = self._disk.units()
        self.tally.cuts += 1
        for choice in choices(units, bound, chance):
            tree = self._disk.tree(units, choice)
            self.tally.states += 1
            whole = self._marks.of(tree)
            if recovers and chance.random() < 0.1:
                # A random one, not only those that differ least from what was meant.
                recovers = False
                self._recover(tree)
            if whole in self._trees and not over:
                continue
            if whole not in self._trees:
                self._trees.add(whole)
                self.tally.distinct += 1
            seen = (self._marks.of(self._visible(tree)), over)
            if seen not in self._seen:
                self._seen.add(seen)
                self.tally.opened += 1
                self._open(tree, over=over)

    def _visible(self, tree: Tree) -> Tree:
        """What a reader of published snapshots can come to: documents, and what they reach."""
        run, needed = "run/", set[str]()
        for path, data in tree.items():
            if path.endswith(f"/{layout.MANIFEST}") and path.startswith(f"{run}{layout.SNAPSHOTS}"):
                known = None if data is None else self._reach.get(data)
                if known is None:
                    # Not one that was meant: everything counts.
                    return tree
                needed |= known
        beside = tuple(f"{run}{name}" for name in (layout.ATTEMPTS, layout.OBJECTS))
        return {
            path: data
            for path, data in tree.items()
            if not path.startswith(beside) or path.removeprefix(run) in needed
        }

    def _open(self, tree: Tree, *, over: bool) -> None:
        world = self._place / "cut"
        materialise(tree, world)
        try:
            what = judge(snapshots(run_of(world)), self._before, self._after, over=over)
            if over and not what:
                # Also where it holds no snapshot: it was created.
                Repository.open(run_of(world))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what was looked for
            what = f"{type(error).__name__}: {error}"
        self._note(what)
        shutil.rmtree(world)

    def _recover(self, tree: Tree) -> None:
        world = self._place / "recovered"
        materialise(tree, world)
        if (self._world / "remote").exists():
            (world / "remote").symlink_to(self._world / "remote")
        self.tally.recovered += 1
        try:
            found = snapshots(run_of(world))
            what = recover(world, self._operation, self._shape, found, strays=True)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what was looked for
            what = f"{type(error).__name__}: {error}"
        self._note(what and f"recovery: {what}")
        shutil.rmtree(world)

    def _note(self, what: str) -> None:
        if what:
            call = self._effects[self.tally.cuts - 2] if self.tally.cuts > 1 else None
            where = f"{self.tally.operation}, {self.tally.shape}, cut {self.tally.cuts - 1}"
            name = "" if call is None else f" after {call.name} {call.path} {call.target}"
            self.tally.violations.append(f"{where}{name}: {what}")


def cut_all(
    chosen: Iterable[tuple[int, int]],
    folder: str,
    *,
    bound: int,
    recoveries: int = 0,
    workers: int = 1,
) -> list[Cuts]:
    """The power cuts of these pairs, in processes of their own if there are several workers."""
    run = partial(cut_pair, folder=folder, bound=bound, recoveries=recoveries)
    if workers == 1:
        return [run(pair) for pair in chosen]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        return list(pool.map(run, chosen))


def summary(found: Iterable[Cuts]) -> dict[str, Any]:
    """Figures over all of them."""
    tallies = list(found)
    violations = [text for tally in tallies for text in tally.violations]
    names = ("cuts", "states", "distinct", "opened", "recovered")
    return {
        **{name: sum(getattr(tally, name) for tally in tallies) for name in names},
        "operations": len({tally.operation for tally in tallies}),
        "shapes": len({tally.shape for tally in tallies}),
        "violations": len(violations),
        "first_violations": violations[:10],
    }
