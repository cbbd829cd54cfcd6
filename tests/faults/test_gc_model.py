"""Every interleaving of a model: the rules lose nothing, and each of them is needed."""

from dataclasses import fields, replace

import pytest

from snapfmt.testing.gc_model import Rules, explore, scenarios


@pytest.mark.req("K-6", "K-8", "K-13", "K-16", "K-17")
@pytest.mark.parametrize("name", scenarios(Rules()))
def test_no_interleaving_loses_anything(name: str) -> None:
    processes = scenarios(Rules())[name]
    found = explore(processes)
    assert found.lost == []
    assert found.states > (1000 if len(processes) > 2 else 100)
    assert found.interleavings > (10**6 if len(processes) > 2 else 10**3)


OLD = Rules(
    announces=False,
    looks_again_when_announced=False,
    waits=False,
    never_takes_a_pin_back=False,
)
"""Pins and retirements that know nothing of each other; a pin looks once, after it was made."""


@pytest.mark.req("K-17")
def test_pins_that_look_only_for_the_manifest_come_too_late() -> None:
    for name, processes in scenarios(OLD).items():
        assert "pin" not in name or explore(processes).lost, name


@pytest.mark.req("K-17")
def test_a_pin_that_is_taken_back_may_be_anothers() -> None:
    """Two that pin the same under one name."""
    rules = replace(Rules(), never_takes_a_pin_back=False)
    alone, both = "pin 2 without patience, retire 2", "pin 2, pin 2, retire 2"
    assert explore(scenarios(rules)[alone]).lost == []
    assert explore(scenarios(rules)[both]).lost


RULES = [item.name for item in fields(Rules)]
PINS = RULES[RULES.index("announces") :]


@pytest.mark.req("K-8", "K-16", "K-17")
@pytest.mark.parametrize("rule", RULES)
def test_each_rule_is_needed(rule: str) -> None:
    broken = list(scenarios(replace(Rules(), **{rule: False})).values())
    # Saves come first, and pins last.
    assert any(explore(processes).lost for processes in (broken[::-1] if rule in PINS else broken))
