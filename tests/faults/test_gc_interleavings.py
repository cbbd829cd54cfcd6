"""A sample of all schedules; `gc_interleavings.py` runs them in full."""

from collections.abc import Callable, Collection
from typing import Any

import pytest

from snapfmt.format import layout
from snapfmt.testing.gc_world import SCENARIOS, World, explore
from snapfmt.writing.keeping import Held, Keeping

SAMPLE = 150


@pytest.fixture(scope="module")
def world() -> World:
    """Made once; every schedule runs on a copy."""
    return World()


@pytest.mark.req("K-8", "K-12", "K-13")
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_sample_of_the_schedules_loses_nothing(world: World, name: str) -> None:
    seen = explore(world, SCENARIOS[name], limit=SAMPLE, reduce=True, seed=5)
    assert seen.violations == []
    assert seen.schedules == SAMPLE
    assert seen.ends > 3, "the schedules do the same"


def test_a_schedule_can_be_repeated(world: World) -> None:
    first = explore(world, SCENARIOS["two saves and a collector"], limit=30, seed=1)
    assert first == explore(world, SCENARIOS["two saves and a collector"], limit=30, seed=1)


def test_parts_are_together_the_whole(world: World) -> None:
    scenario = SCENARIOS["pin and retire"]
    all_of_it = explore(world, scenario, switches=1, reduce=True)
    parts = [explore(world, scenario, switches=1, reduce=True, part=(k, 3)) for k in range(3)]
    assert sum(part.schedules for part in parts) == all_of_it.schedules > 100
    assert [part.violations for part in [*parts, all_of_it]] == [[]] * 4


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
    "only what is published is kept": (
        "two that retire what a save carries",
        "standing",
        only_published,
        600,
    ),
    "the list is made once": (
        "a save on a base, retire and collect",
        "standing",
        looked_at_once,
        600,
    ),
    "bases of leases are not kept": (
        "a save on a base, retire and collect",
        "held",
        no_bases,
        300,
    ),
    "what running saves wrote is not kept": ("two saves and a collector", "held", no_attempts, 300),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_rule_that_is_left_out_is_found(
    world: World, monkeypatch: pytest.MonkeyPatch, mutant: str
) -> None:
    name, method, instead, limit = MUTANTS[mutant]
    monkeypatch.setattr(Keeping, method, instead)
    seen = explore(world, SCENARIOS[name], limit=limit, reduce=True, seed=1, to_the_first=True)
    assert any("lost" in text for text in seen.violations)
