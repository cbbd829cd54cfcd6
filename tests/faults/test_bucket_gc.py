"""A server that fails at any request of a collection or a retirement loses nothing.

Here a sample; `bucket_gc.py` does every request of each, in every way.
"""

from typing import Any

import pytest

from snapfmt.testing.bucket_gc import ACTIONS, World, cases, run_all, world
from snapfmt.testing.client_faults import FAULTS
from snapfmt.writing.keeping import Held, Keeping

STRIDE = 277
"""Has no factor in common with the numbers of requests, so that all parts of each are met."""


@pytest.fixture(scope="module")
def built() -> World:
    return world()


@pytest.mark.req("K-12")
@pytest.mark.req("K-13")
def test_a_request_of_a_collection_or_a_retirement_fails(built: World) -> None:
    every = list(cases(built))
    assert {item.action for item in every} == set(ACTIONS)
    chosen = every[::STRIDE]
    assert {item.fault for item in chosen} == set(FAULTS)
    found = run_all(built, chosen)
    assert found["each_problem"] == []
    assert found["cases"] > 40
    ends = {end for counted in found["ends"].values() for end in counted}
    assert {"done", "StorageUnavailable"} <= ends


def test_a_collector_that_passes_over_leases_is_noticed(
    built: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(self: Keeping, **_: Any) -> Held:
        return Held()

    monkeypatch.setattr(Keeping, "held", nothing)
    found = run_all(built, list(cases(built))[-1:])
    assert found["problems"] == 1
