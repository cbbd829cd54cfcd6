"""A cut that its driver holds for a while: its keys, its lease, its writing, its end."""

import time
from pathlib import Path
from typing import Any

import pytest

from snapfmt import Repository
from snapfmt.adapters.transfer_queue import HeldCut, load, prepare_cut, take_cut
from snapfmt.errors import AttemptClosed, AttemptError, NoMatch

pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def filled(lab: Any) -> Any:
    """A queue of two units: rows with values, one row with a tag alone, a second partition."""
    import torch

    lab.start(2)
    lab.put("p", [f"k{i}" for i in range(10)], {"x": torch.arange(10.0)}, tags=[{"t": 1}] * 10)
    lab.put("p", ["tag-only"], None, tags=[{"t": 2}])
    lab.put("q", ["other"], {"x": torch.zeros(1)})
    return lab


def test_the_keys_of_a_cut_are_those_of_the_rows_that_it_writes(
    filled: Any, tmp_path: Path
) -> None:
    import torch

    repository = Repository.create(tmp_path / "run")
    with take_cut() as cut, repository.begin() as attempt:
        filled.put("p", ["later"], {"x": torch.zeros(1)})
        filled.clear("p", ["k0", "k1"])
        keys = cut.keys("p")
        assert keys == {f"k{i}" for i in range(10)}
        assert cut.keys("q") == {"other"}
        assert cut.keys("nowhere") == frozenset()
        receipts, counts = cut.write(attempt, user_metadata={"step": 3})
        assert counts.rows == {"p": 10, "q": 1}
        attempt.publish(receipts)
    assert set(repository.snapshot().table("rows/p").keys()) == keys
    assert 0 < cut.times.controller_held_s < cut.times.cut_s
    filled.empty()
    assert load(repository.snapshot()).user_metadata == {"step": 3}


def test_a_cut_that_is_renewed_outlives_its_lease(filled: Any, tmp_path: Path) -> None:
    cut = take_cut(lease_s=3.0)
    try:
        ends = time.monotonic() + 4.5
        while time.monotonic() < ends:
            cut.renew()
            time.sleep(0.1)
        with Repository.create(tmp_path / "run").begin() as attempt:
            assert len(cut.write(attempt)[0]) == 3
    finally:
        cut.drop()


def test_a_cut_that_nobody_renews_is_gone(filled: Any, tmp_path: Path) -> None:
    cut = take_cut(lease_s=2.0)
    time.sleep(2.6)
    with pytest.raises(AttemptError):
        cut.renew()
    with Repository.create(tmp_path / "run").begin() as attempt, pytest.raises(AttemptError):
        cut.write(attempt)


def test_a_cut_is_written_once_and_dropped_for_good(filled: Any, tmp_path: Path) -> None:
    prepared = prepare_cut(partitions=["p"])
    first, second = prepared.take(), prepared.take()
    assert first.keys("q") == frozenset()
    with Repository.create(tmp_path / "run").begin() as attempt:
        first.write(attempt)
        with pytest.raises(AttemptClosed, match="already"):
            first.write(attempt)
    for cut in (first, second):
        cut.drop()
        cut.drop()
        with pytest.raises(AttemptError):
            cut.keys("p")
    assert holdings(filled) == 0


def test_a_cut_that_fails_leaves_nothing_in_the_actors(filled: Any) -> None:
    with pytest.raises(NoMatch, match="nowhere"):
        take_cut(partitions=["nowhere"])
    assert holdings(filled) == 0
    cut = take_cut()
    assert isinstance(cut, HeldCut)
    assert holdings(filled) == 3
    cut.drop()


def test_a_cut_that_is_dropped_ends_its_own_writing(filled: Any, tmp_path: Path) -> None:
    cut = take_cut()

    def interfere() -> None:
        cut.drop()

    stand_in = filled.stand_in(interfere, Repository.create(tmp_path / "run"))
    with pytest.raises(AttemptError):
        cut.write(stand_in)
    stand_in.attempt.abandon()
    assert holdings(filled) == 0


def holdings(lab: Any) -> int:
    """Cuts that any actor still keeps."""

    def count(actor: Any) -> int:
        return sum(item.content is not None for item in vars(actor)["_snapfmt_holdings"].values())

    return sum([lab.on_controller(count), lab.on_unit(0, count), lab.on_unit(1, count)])
