"""Calls that run ahead: in order, on threads only where there are several."""

import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from snapfmt.threads import AHEAD, WORKERS, Begun, in_order


def here(number: int) -> Callable[[], tuple[int, bool]]:
    caller = threading.current_thread()
    return lambda: (number, threading.current_thread() is caller)


@pytest.mark.parametrize("count", [0, 1, 2, AHEAD, AHEAD + 1, 30])
def test_results_come_in_order_and_one_call_needs_no_thread(count: int) -> None:
    found = list(in_order(here(number) for number in range(count)))
    assert found == [(number, count == 1) for number in range(count)]


@pytest.mark.parametrize("count", [1, 2, 30])
def test_the_first_error_is_raised_and_nothing_begins_after_it(count: int) -> None:
    begun: list[int] = []

    def call(number: int) -> Callable[[], int]:
        def work() -> int:
            begun.append(number)
            if number == count - 1 or number == 3:
                raise ValueError(number)
            return number

        return work

    with pytest.raises(ValueError, match=str(min(count - 1, 3))):
        list(in_order(map(call, range(count))))
    assert len(begun) <= min(count, 4 + AHEAD)


def test_who_stops_asking_ends_it() -> None:
    def calls() -> Iterator[Callable[[], int]]:
        for number in range(1000):
            assert number <= AHEAD + 2
            yield partial(int, number)

    assert list(zip(range(2), in_order(calls()), strict=False)) == [(0, 0), (1, 1)]


def test_a_call_is_begun_once_for_its_name_and_its_error_is_its_result() -> None:
    begun: list[int] = []
    with Begun[int]() as calls:
        for number in range(3):
            calls.begin("a", partial(_noted, begun, number))
        calls.begin("b", partial(int, "no number"))
        assert calls.result("a") == 0
        with pytest.raises(ValueError, match="no number"):
            calls.result("b")
    assert begun == [0]


def test_who_leaves_gives_up_what_did_not_begin() -> None:
    begun: list[int] = []
    held = threading.Event()
    with Begun[object]() as calls:
        for number in range(WORKERS):
            calls.begin(f"held {number}", partial(held.wait, 5))
        for number in range(100):
            calls.begin(f"{number}", partial(_noted, begun, number))
        threading.Timer(0.1, held.set).start()
    assert len(begun) <= WORKERS


def _noted(begun: list[int], number: int) -> int:
    begun.append(number)
    return number
