"""A sample of all schedules; `gc_interleavings.py` runs them in full."""

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import pytest

from snapfmt.format import layout
from snapfmt.testing.gc_world import COLLECT, PIN_2, RETIRE_2, SAVE, SCENARIOS, World, explore
from snapfmt.testing.interleaving import same_each_time, switches
from snapfmt.writing import pins
from snapfmt.writing.keeping import Held, Keeping
from snapfmt.writing.retire import Retirement

SAMPLE = 25


@pytest.fixture(scope="module")
def world() -> World:
    """Made once; every schedule runs on a copy."""
    return World()


@pytest.mark.req("K-8", "K-12", "K-13", "K-16", "K-17")
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_sample_of_the_schedules_loses_nothing(world: World, name: str) -> None:
    seen = explore(world, SCENARIOS[name], limit=SAMPLE, reduce=True, seed=5)
    assert seen.violations == []
    assert seen.schedules == SAMPLE
    assert seen.ends > 3, "the schedules do the same"


def test_a_schedule_can_be_repeated(world: World) -> None:
    first = explore(world, SCENARIOS["two saves and a collector"], limit=15, seed=1)
    assert first == explore(world, SCENARIOS["two saves and a collector"], limit=15, seed=1)


def test_covered_are_all_schedules(world: World) -> None:
    """Counted once more, without following alike ones only once."""
    scenario = replace(SCENARIOS["pin and retire"], tasks=(PIN_2, RETIRE_2))
    seen = explore(world, scenario, switches=1)
    assert (seen.complete, seen.violations) == (True, [])
    with same_each_time():
        todo: list[tuple[list[int], int]] = [([], 1)]
        count = 0
        while todo:
            prefix, left = todo.pop()
            run, _ = world.run(scenario.tasks, prefix)
            count += 1
            for step, cost in switches(run, len(prefix), None):
                others = set(run.ready[step]) - {run.chosen[step]}
                todo += [([*run.chosen[:step], o], left - cost) for o in others if cost <= left]
    assert seen.covered == count >= seen.schedules > 20


# Each rule that is left out is found


def only_published(self: Keeping, leaving: Collection[int]) -> set[str]:
    del leaving
    numbers = self.numbers(layout.MANIFEST)
    return {key for number in numbers for key in (self.reach(number) or {})}


def looked_at_once(self: Keeping, leaving: Collection[int]) -> set[str]:
    found: set[str] = set()
    for number, names in self._documents().items():
        if names & {layout.MANIFEST, layout.RETIRING} and number not in leaving:
            found |= self._standing(number).keys()
    return found


def no_bases(self: Keeping, **options: Any) -> Held:
    found = HELD(self, **options)
    return Held({}, found.objects, found.running)


def no_attempts(self: Keeping, **options: Any) -> Held:
    return Held(HELD(self, **options).numbers)


HELD = Keeping.held
STANDING = Keeping.standing
MUTANTS: dict[str, tuple[str, str, Callable[..., Any], int]] = {
    # The last is a seed that finds it among the first schedules; others take some hundreds.
    "only what is published is kept": (
        "two that retire what a save carries",
        "standing",
        only_published,
        28,
    ),
    "the list is made once": (
        "a save on a base, retire and collect",
        "standing",
        looked_at_once,
        7,
    ),
    "bases of leases are not kept": (
        "a save on a base, retire and collect",
        "held",
        no_bases,
        1,
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_rule_that_is_left_out_is_found(
    world: World, monkeypatch: pytest.MonkeyPatch, mutant: str
) -> None:
    name, method, instead, seed = MUTANTS[mutant]
    monkeypatch.setattr(Keeping, method, instead)
    seen = explore(world, SCENARIOS[name], limit=600, reduce=True, seed=seed, to_the_first=True)
    assert any("lost" in text for text in seen.violations)


def not_looked_again(self: Retirement, *, without: Collection[str] = ()) -> dict[int, str]:
    return {} if without else LOOK(self)


LOOK = Retirement._held
PIN_MUTANTS: dict[str, tuple[object, str, Any]] = {
    "nobody waits for retirements": (pins, "_let_retirements_end", lambda *_: None),
    "pins are not looked at again": (Retirement, "_held", not_looked_again),
    "what is announced is not seen": (pins, "present", lambda *_: set()),
}


@pytest.mark.req("K-16", "K-17")
@pytest.mark.parametrize("mutant", PIN_MUTANTS)
def test_a_pin_that_comes_too_late_is_found(
    world: World, monkeypatch: pytest.MonkeyPatch, mutant: str
) -> None:
    monkeypatch.setattr(*PIN_MUTANTS[mutant])
    scenario = replace(SCENARIOS["pin and retire"], tasks=(PIN_2, RETIRE_2))
    seen = explore(world, scenario, reduce=True, to_the_first=True)
    assert any("pinned and is gone" in text for text in seen.violations)


def test_what_running_saves_wrote_is_needed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = replace(SCENARIOS["two saves and a collector"], tasks=(SAVE, COLLECT))
    assert explore(world, scenario, switches=1).violations == []
    monkeypatch.setattr(Keeping, "held", no_attempts)
    seen = explore(world, scenario, switches=1, to_the_first=True)
    assert any("not there" in text for text in seen.violations)
