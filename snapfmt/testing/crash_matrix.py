"""Crashes and errors at every system call of every operation, over every shape of snapshot."""

import errno
import shutil
import tempfile
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from snapfmt.errors import AttemptClosed, SnapfmtError
from snapfmt.testing.crashes import Call, InjectedCrash, SystemCalls
from snapfmt.testing.operations import (
    OPERATIONS,
    Act,
    Operation,
    Snapshots,
    judge,
    recover,
    run_of,
    snapshots,
)
from snapfmt.testing.shapes import SHAPES, Shape, conditions

ERRORS = (
    errno.EIO,
    errno.ENOSPC,
    errno.EROFS,
    errno.EACCES,
    errno.EDQUOT,
    errno.ESTALE,
)
"""Of a storage that fails; each call meets one of them."""


@dataclass(slots=True)
class Tally:
    """What became of the crashes of one operation and one shape."""

    operation: str
    shape: str
    whole: int = 0
    """Cases with a crash between two calls."""
    torn: int = 0
    """Cases with a crash half-way through a write."""
    errors: int = 0
    """Cases with an error instead of a crash."""
    old: int = 0
    new: int = 0
    """Cases after which nothing, or something, of the operation was to be seen."""
    problems: list[str] = field(default_factory=list)


def pairs() -> list[tuple[int, int]]:
    """Every operation with every shape, as positions in `OPERATIONS` and `SHAPES`."""
    return [
        (number, shape)
        for shape in range(len(SHAPES))
        for number, operation in enumerate(OPERATIONS)
        if shape == 0 or not operation.one_shape
    ]


def run_pair(pair: tuple[int, int], folder: str, *, stride: int = 1) -> Tally:
    """Every crash of one operation and one shape, or one in `stride`."""
    operation, shape = OPERATIONS[pair[0]], SHAPES[pair[1]]
    tally = Tally(operation.name, shape.name)
    with conditions(shape), tempfile.TemporaryDirectory(dir=folder) as place:
        matrix = _Matrix(operation, shape, Path(place), tally)
        matrix.run(stride)
    return tally


class _Matrix:
    def __init__(self, operation: Operation, shape: Shape, place: Path, tally: Tally) -> None:
        self._operation = operation
        self._shape = shape
        self._place = place
        self._tally = tally
        self._origin = place / "origin"
        self._origin.mkdir()
        operation.prepare(self._origin, shape)
        self._before = snapshots(run_of(self._origin))
        self._names, self._after = self._undisturbed()

    def _fresh(self, name: str) -> Path:
        world = self._place / name
        shutil.copytree(self._origin, world)
        return world

    def _undisturbed(self) -> tuple[list[str], Snapshots]:
        world = self._fresh("undisturbed")
        act = self._operation.begin(world, self._shape)
        with pytest.MonkeyPatch.context() as patch:
            calls = SystemCalls(run_of(world)).install(patch)
            act()
        return calls.names(), snapshots(run_of(world))

    def run(self, stride: int) -> None:
        """Crash everywhere; the last case is one that no crash disturbs."""
        total, seen = len(self._names), []
        for step in sorted({*range(1, total + 2, stride), total + 1}):
            seen.append(self._stop(step))
            self._tally.whole += 1
        if seen != sorted(seen):
            self._tally.problems.append(f"{self._tally.operation}: old again after new: {seen}")
        writes = [step for step, name in enumerate(self._names, 1) if name == "write"]
        for step in writes[::stride]:
            self._stop(step, torn=True)
            self._tally.torn += 1
        for step in range(1, total + 1, stride):
            self._stop(step, code=ERRORS[step // stride % len(ERRORS)])
            self._tally.errors += 1

    def _stop(self, step: int, *, torn: bool = False, code: int = 0) -> int:
        """Crash, or fail with an error; returns how much of the operation was to be seen then."""
        world = self._fresh("crash")
        act = self._operation.begin(world, self._shape)
        with pytest.MonkeyPatch.context() as patch:
            calls = SystemCalls(run_of(world), crash_at=None if code else step, torn=torn)

            def fails(call: Call) -> OSError | None:
                return OSError(code, "injected", call.path) if len(calls.calls) == step else None

            calls.fail = fails if code else None
            calls.install(patch)
            what = self._act(act, SnapfmtError if code else AttemptClosed)
        wrong, found = self._look(world)
        if what := what or wrong:
            last = calls.calls[min(step, len(calls.calls)) - 1] if calls.calls else None
            where = f"{self._tally.operation}, {self._tally.shape}, step {step}, torn {torn}"
            self._tally.problems.append(f"{where}, error {code} ({last}): {what}")
        shutil.rmtree(world)
        seen = len(found.keys() ^ self._before.keys())
        if seen:
            self._tally.new += 1
        else:
            self._tally.old += 1
        return seen

    def _act(self, act: Act, expected: type[SnapfmtError]) -> str:
        """What is wrong with how it ended; empty if nothing."""
        try:
            act()
        except (InjectedCrash, expected):
            return ""
        except Exception as error:  # noqa: BLE001 - an error without a type is what was looked for
            return f"ended with {type(error).__name__}: {error}"
        return ""

    def _look(self, world: Path) -> tuple[str, Snapshots]:
        found: Snapshots = {}
        try:
            found = snapshots(run_of(world))
            what = judge(found, self._before, self._after)
            return what or recover(world, self._operation, self._shape, found), found
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what was looked for
            return f"{type(error).__name__}: {error}", found


def run_all(
    chosen: Iterable[tuple[int, int]], folder: str, *, workers: int = 1, stride: int = 1
) -> list[Tally]:
    """The tallies of these pairs, in processes of their own if there are several workers."""
    run = partial(run_pair, folder=folder, stride=stride)
    if workers == 1:
        return [run(pair) for pair in chosen]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        return list(pool.map(run, chosen))


def summary(tallies: Iterable[Tally]) -> dict[str, Any]:
    """Figures over all of them."""
    found = list(tallies)
    cases = sum(tally.whole + tally.torn + tally.errors for tally in found)
    problems = [problem for tally in found for problem in tally.problems]
    by_operation: dict[str, int] = {}
    for tally in found:
        count = by_operation.get(tally.operation, 0)
        by_operation[tally.operation] = count + tally.whole + tally.torn + tally.errors
    return {
        "cases": cases,
        "torn_writes": sum(tally.torn for tally in found),
        "errors": sum(tally.errors for tally in found),
        "old": sum(tally.old for tally in found),
        "new": sum(tally.new for tally in found),
        "operations": by_operation,
        "shapes": len({tally.shape for tally in found}),
        "problems": len(problems),
        "first_problems": problems[:10],
    }
