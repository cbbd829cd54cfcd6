"""Every interleaving of a model: the rules lose nothing, and each of them is needed."""

from dataclasses import fields, replace

import pytest

from snapfmt.testing.gc_model import Rules, explore, scenarios


@pytest.mark.req("K-6", "K-8", "K-13")
@pytest.mark.parametrize("name", scenarios(Rules()))
def test_no_interleaving_loses_anything(name: str) -> None:
    found = explore(scenarios(Rules())[name])
    assert found.lost == []
    assert found.states > 1000
    assert found.interleavings > 10**8


@pytest.mark.req("K-8")
@pytest.mark.parametrize("rule", [item.name for item in fields(Rules)])
def test_each_rule_is_needed(rule: str) -> None:
    broken = scenarios(replace(Rules(), **{rule: False}))
    assert any(explore(processes).lost for processes in broken.values())
