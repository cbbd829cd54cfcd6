"""Calls that run ahead: in order, on threads only where there are several."""

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from snapfmt.threads import AHEAD, WORKERS, Begun, Pool, in_order


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


class Large:
    """Something whose end can be seen."""


@pytest.fixture
def held() -> Iterator[threading.Event]:
    """What calls wait for; set at the end."""
    event = threading.Event()
    yield event
    event.set()


def _leave(error: BaseException, calls: list[Callable[[], object]], more: list[int]) -> None:
    """Leave a pool by this error once the calls run; what comes after them did not begin."""
    running = threading.Semaphore(0)

    def run(call: Callable[[], object]) -> object:
        running.release()
        return call()

    with Pool(len(calls), thread_name_prefix="left") as pool:
        for call in calls:
            pool.submit(run, call)
        for _ in calls:
            assert running.acquire(timeout=30)
        pool.submit(_noted, more, 1)
        raise error


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_interrupt_waits_for_no_call_that_hangs(
    held: threading.Event, kind: type[BaseException]
) -> None:
    more: list[int] = []
    with pytest.raises(kind):
        _leave(kind(), [held.wait, held.wait], more)
    hanging = [item for item in threading.enumerate() if item.name.startswith("left")]
    assert [thread.daemon for thread in hanging] == [True, True]
    held.set()
    for thread in hanging:
        thread.join(30)
    assert not more


def test_an_error_waits_for_what_runs(held: threading.Event) -> None:
    ended: list[int] = []
    more: list[int] = []
    threading.Timer(0.7, held.set).start()
    with pytest.raises(ValueError, match="mine"):
        _leave(ValueError("mine"), [lambda: _noted(ended, int(held.wait(30)))], more)
    assert (ended, more) == ([1], [])


def test_a_pool_is_reused_and_holds_no_result() -> None:
    large: list[Large] = [Large()]
    seen = weakref.ref(large[0])
    with Pool(4, thread_name_prefix="reused") as pool:
        assert pool.submit(bool, large.pop()).result()
        time.sleep(0.2)
        gc.collect()
        assert seen() is None
        pool.submit(int).result()
        assert [item.name for item in threading.enumerate() if "reused" in item.name] == [
            "reused_0"
        ]


def test_an_error_keeps_nothing_that_the_call_had() -> None:
    gc.disable()
    try:
        with Pool(1, thread_name_prefix="error") as pool:
            large: list[Large] = [Large()]
            seen = weakref.ref(large[0])
            error = pool.submit(lambda item: int(type(item).__name__), large.pop()).exception()
            assert isinstance(error, ValueError)
            del error
            time.sleep(0.2)
            assert seen() is None
    finally:
        gc.enable()


def test_the_threads_of_a_pool_that_was_dropped_end() -> None:
    pool = Pool(2, thread_name_prefix="dropped")
    assert pool.submit(int, "1").result() == 1
    threads = [item for item in threading.enumerate() if item.name.startswith("dropped")]
    del pool
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def _noted(begun: list[int], number: int) -> int:
    begun.append(number)
    return number
