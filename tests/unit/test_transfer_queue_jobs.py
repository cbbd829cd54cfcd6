"""Work of an actor, and the driver that asks how it goes."""

import threading
import time
from collections.abc import Iterator

import pytest

from snapfmt.adapters.transfer_queue.jobs import Holding
from snapfmt.errors import LeaseExpired


@pytest.fixture
def holding() -> Iterator[Holding]:
    made = Holding([1], lease_s=60, release=lambda _: None)
    yield made
    made.drop()


def test_a_question_is_answered_when_the_work_ends(holding: Holding) -> None:
    def work() -> int:
        time.sleep(0.2)
        return 7

    holding.start(work, "work")
    assert not holding.status(60).done
    assert holding.status(60, 3600).result == 7


def test_a_question_waits_no_longer_than_it_says(holding: Holding) -> None:
    end = threading.Event()
    holding.start(end.wait, "work")
    try:
        assert not holding.status(60, 0.01).done
    finally:
        end.set()


def test_a_question_keeps_the_lease_before_it_waits(holding: Holding) -> None:
    assert holding.status(0.01, 0).done
    time.sleep(0.2)
    with pytest.raises(LeaseExpired):
        holding.status(60, 3600)
