"""Real code, run step by step in every order: all schedules with few switches, one after another.

Each task runs in a thread, and only one at a time: it stops before every request to its bucket
and goes on when it is its turn. A schedule says whose turn it is at each step; what it does not
say goes on without a switch. Ids are drawn from counters, so a schedule always means the same.
"""

import functools
import random
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from unittest import mock

from snapfmt.format import canonical, compat
from snapfmt.storage.base import Buffer
from snapfmt.storage.client import ObjectClient, ObjectInfo
from snapfmt.writing import lease
from snapfmt_schemas.attempt import Owner

_NOW_NS: Final = 1_800_000_000_000_000_000

Task = Callable[[ObjectClient], object]
"""What one process does, through the client that it is given."""


@dataclass(slots=True)
class Run:
    """One schedule that was carried out."""

    chosen: list[int] = field(default_factory=list)
    """The task that made each request, or ended."""
    ready: list[tuple[int, ...]] = field(default_factory=list)
    """The tasks that could have been chosen instead, at each step."""
    keys: list[tuple[str, str]] = field(default_factory=list)
    """Verb and key of each request; empty where a task ended."""
    results: dict[int, object] = field(default_factory=dict)
    """What each task returned, or the error that it met."""


class _Turns:
    """Hands the turn on. The thread that has it decides who is next."""

    def __init__(self, tasks: int, prefix: Sequence[int]) -> None:
        self.run = Run()
        self._prefix = prefix
        self._alive = set(range(tasks))
        self._wake = [threading.Semaphore(0) for _ in range(tasks)]
        self.done = threading.Semaphore(0)
        self._pending = [("start", "")] * tasks
        """What each task does next."""

    def start(self) -> None:
        self._wake[self._next(None)].release()

    def wait(self, task: int) -> None:
        self._wake[task].acquire()

    def request(self, task: int, verb: str, key: str) -> None:
        """Called by a task before a request; returns when it is its turn."""
        self._pending[task] = (verb, key)
        chosen = self._next(task)
        if chosen != task:
            self._wake[chosen].release()
            self._wake[task].acquire()

    def end(self, task: int, result: object) -> None:
        self.run.results[task] = result
        self._alive.discard(task)
        if self._alive:
            self._wake[self._next(None)].release()
        else:
            self.done.release()

    def _next(self, current: int | None) -> int:
        step, ready = len(self.run.chosen), tuple(sorted(self._alive))
        if step < len(self._prefix):
            chosen = self._prefix[step]
            if chosen not in self._alive:
                raise AssertionError("the same schedule did something else: a task is over")
        else:
            chosen = ready[0] if current is None else current
        self.run.chosen.append(chosen)
        self.run.ready.append(ready)
        self.run.keys.append(self._pending[chosen])
        return chosen


class _TurnClient:
    """Passes requests on when it is the task's turn; implements `storage.client.ObjectClient`."""

    def __init__(self, inner: ObjectClient, turns: _Turns, task: int) -> None:
        self._inner = inner
        self._turns = turns
        self._task = task

    @property
    def location(self) -> str:
        """Of the inner client."""
        return self._inner.location

    def put(
        self,
        key: str,
        data: Buffer,
        *,
        exclusive: bool,
        metadata: Mapping[str, str],
        sha256: bytes | None = None,
    ) -> None:
        """As the inner client."""
        self._turns.request(self._task, "put", key)
        self._inner.put(key, data, exclusive=exclusive, metadata=metadata, sha256=sha256)

    def get(self, key: str, offset: int, size: int) -> bytes:
        """As the inner client."""
        self._turns.request(self._task, "get", key)
        return self._inner.get(key, offset, size)

    def head(self, key: str) -> ObjectInfo | None:
        """As the inner client."""
        self._turns.request(self._task, "head", key)
        return self._inner.head(key)

    def list(self, prefix: str, *, deep: bool) -> Iterator[ObjectInfo]:
        """As the inner client."""
        self._turns.request(self._task, "list", prefix)
        return iter(list(self._inner.list(prefix, deep=deep)))

    def delete(self, key: str) -> None:
        """As the inner client."""
        self._turns.request(self._task, "delete", key)
        self._inner.delete(key)


def execute(tasks: Sequence[Task], client: ObjectClient, prefix: Sequence[int] = ()) -> Run:
    """Carry one schedule out on a bucket; errors of tasks are results."""
    turns = _Turns(len(tasks), prefix)

    def work(number: int, task: Task) -> None:
        turns.wait(number)
        _NAMES.task = number
        _NAMES.count = 0
        result: object
        try:
            result = task(_TurnClient(client, turns, number))
        except BaseException as error:  # noqa: BLE001 - the caller judges it
            result = error
        turns.end(number, result)

    threads = [threading.Thread(target=work, args=item, daemon=True) for item in enumerate(tasks)]
    for thread in threads:
        thread.start()
    turns.start()
    turns.done.acquire()
    for thread in threads:
        thread.join()
    return turns.run


_NAMES: Any = threading.local()


@contextmanager
def same_each_time() -> Iterator[None]:
    """Inside, ids are counted for each task and time stands still: a schedule repeats exactly."""

    def token(size: int = 32) -> str:
        _NAMES.count = getattr(_NAMES, "count", 0) + 1
        return f"{getattr(_NAMES, 'task', 15):x}{_NAMES.count:0{2 * size - 1}x}"

    with ExitStack() as stack:
        for where, name, instead in (
            (secrets, "token_hex", token),
            # Time stands still, and nobody dies.
            (time, "time_ns", lambda: _NOW_NS),
            (lease, "is_dead", lambda _: False),
            (lease, "current_owner", lambda host: Owner(host=host)),
            # What bytes mean does not change from one schedule to the next.
            (canonical, "decode", functools.lru_cache(4096)(canonical.decode)),
            (compat, "decode_root", functools.lru_cache(4096)(compat.decode_root)),
        ):
            stack.enter_context(mock.patch.object(where, name, instead))
        yield


def schedules(
    run: Callable[[Sequence[int]], Run],
    *,
    switches: int,
    visible: Callable[[str, str], bool] | None = None,
    part: tuple[int, int] = (0, 1),
    seed: int | None = None,
) -> Iterator[Run]:
    """Every schedule with at most so many switches away from a task that could go on.

    `run` carries out a prefix and what follows from it. With `visible`, a switch is only made
    before requests of which it says that others may notice them, or be noticed by them.
    `part` (k, n) is the k-th of n parts, which together are all. `seed`: in a random order.
    """
    mine, parts = part
    order = None if seed is None else random.Random(seed)  # noqa: S311
    todo: list[tuple[bytes, int]] = [(b"", switches)]
    while todo:
        if order is not None:
            place = order.randrange(len(todo))
            todo[place], todo[-1] = todo[-1], todo[place]
        prefix, left = todo.pop()
        done = run(prefix)
        assert bytes(done.chosen[: len(prefix)]) == prefix, "the same schedule did something else"
        if prefix or mine == 0:
            yield done
        children = [
            (bytes([*done.chosen[:step], other]), left - cost)
            for step, cost in _switches(done, len(prefix), visible)
            if cost <= left
            for other in done.ready[step]
            if other != done.chosen[step]
        ]
        todo += children if prefix else children[mine::parts]


def _switches(
    run: Run, first: int, visible: Callable[[str, str], bool] | None
) -> Iterator[tuple[int, int]]:
    """Steps at which another task could have been chosen, and whether that is a switch."""
    for step in range(first, len(run.chosen)):
        could_go_on = step > 0 and run.chosen[step - 1] in run.ready[step]
        if not could_go_on:
            yield step, 0
        elif visible is None or visible(*run.keys[step]):
            yield step, 1


def conflicts(runs: Sequence[Run]) -> set[str]:
    """Keys that one task writes and another one reads, writes or lists, in any of these runs."""
    writers: dict[str, set[int]] = {}
    lookers: dict[str, set[int]] = {}
    for run in runs:
        for task, (verb, key) in zip(run.chosen, run.keys, strict=True):
            (writers if verb in ("put", "delete") else lookers).setdefault(key, set()).add(task)
    found = set()
    for key, tasks in writers.items():
        for looked, others in lookers.items():
            same = looked == key or (looked.endswith("/") and key.startswith(looked))
            if same and len(tasks | others) > 1:
                found |= {key, looked}
        if len(tasks) > 1:
            found.add(key)
    return found
