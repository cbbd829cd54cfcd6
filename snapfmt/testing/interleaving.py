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
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from unittest import mock

from snapfmt.errors import SnapfmtError
from snapfmt.format import canonical, compat
from snapfmt.storage.client import ObjectClient, ObjectInfo
from snapfmt.storage.memory import MemoryClient
from snapfmt.storage.pieces import Body
from snapfmt.writing import lease, pins
from snapfmt_schemas.attempt import Owner

T = TypeVar("T")
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
    states: list[int] = field(default_factory=list)
    """What lay in the bucket, and what each task had seen, before each step, as one number."""
    results: dict[int, object] = field(default_factory=dict)
    """What each task returned, or the error that it met."""


class _Turns:
    """Hands the turn on. The thread that has it decides who is next."""

    def __init__(self, tasks: int, prefix: Sequence[int], content: Callable[[], Hashable]) -> None:
        self.run = Run()
        self._content = content
        self._lies_there = hash(content())
        self._seen = [0] * tasks
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

    def saw(self, task: int, sight: Hashable, *, wrote: bool) -> None:
        """What a request told the task."""
        self._seen[task] = hash((self._seen[task], sight))
        if wrote:
            self._lies_there = hash(self._content())

    def end(self, task: int, result: object) -> None:
        self.run.results[task] = result
        self.saw(task, str(result), wrote=False)
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
        self.run.states.append(hash((self._lies_there, tuple(self._seen), current)))
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

    def parents(self) -> Sequence[ObjectClient]:
        """Of the inner client."""
        return self._inner.parents()

    @property
    def max_object(self) -> int:
        """Of the inner client."""
        return self._inner.max_object

    def put(
        self,
        key: str,
        data: Body,
        *,
        exclusive: bool,
        metadata: Mapping[str, str],
        sha256: bytes | None = None,
    ) -> None:
        """As the inner client."""

        def run() -> None:
            self._inner.put(key, data, exclusive=exclusive, metadata=metadata, sha256=sha256)

        self._do("put", key, run)

    def get(self, key: str, offset: int, size: int) -> bytes:
        """As the inner client."""
        return self._do("get", key, lambda: self._inner.get(key, offset, size))

    def head(self, key: str) -> ObjectInfo | None:
        """As the inner client."""
        return self._do("head", key, lambda: self._inner.head(key))

    def list(self, prefix: str, *, deep: bool) -> Iterator[ObjectInfo]:
        """As the inner client."""
        return iter(self._do("list", prefix, lambda: [*self._inner.list(prefix, deep=deep)]))

    def delete(self, key: str) -> None:
        """As the inner client."""
        self._do("delete", key, lambda: self._inner.delete(key))

    def _do(self, verb: str, key: str, run: Callable[[], T]) -> T:
        self._turns.request(self._task, verb, key)
        wrote = verb in ("put", "delete")
        try:
            result = run()
        except SnapfmtError as error:
            self._turns.saw(self._task, (verb, key, str(error)), wrote=wrote)
            raise
        self._turns.saw(self._task, (verb, key, _sight(result)), wrote=wrote)
        return result


def _sight(result: object) -> Hashable:
    """What a request told, for comparing."""
    if isinstance(result, bytes):
        return result
    if isinstance(result, list):
        return tuple((info.key, info.size, info.modified_ns) for info in result)
    return repr(result)


def execute(tasks: Sequence[Task], client: MemoryClient, prefix: Sequence[int] = ()) -> Run:
    """Carry one schedule out on a bucket; errors of tasks are results."""
    turns = _Turns(len(tasks), prefix, client.content)

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
            # One look, and one more: what goes on between is a switch.
            (pins, "PAUSES_S", (0.0,)),
            # What bytes mean does not change from one schedule to the next.
            (canonical, "decode", functools.lru_cache(4096)(canonical.decode)),
            (compat, "decode_root", functools.lru_cache(4096)(compat.decode_root)),
        ):
            stack.enter_context(mock.patch.object(where, name, instead))
        yield


Node = tuple[int, int]
"""A state, and the switches that are left in it."""
_END: Final[Node] = (0, -1)


@dataclass(slots=True)
class Schedules:
    """Every schedule with at most so many switches away from a task that could go on.

    `run` carries out a prefix and what follows from it. With `visible`, a switch is only made
    before requests of which it says that others may notice them, or be noticed by them. Schedules
    that come to the same state, the same sights and the same switches left go on alike, and their
    rest is carried out once. `seed`: in a random order.
    """

    run: Callable[[Sequence[int]], Run]
    switches: int
    visible: Callable[[str, str], bool] | None = None
    seed: int | None = None
    _next: dict[Node, list[Node | bytes]] = field(default_factory=dict)
    _first: dict[bytes, Node] = field(default_factory=dict)
    """The node to which the run of a prefix came first."""

    def __iter__(self) -> Iterator[Run]:
        order = None if self.seed is None else random.Random(self.seed)  # noqa: S311
        todo: list[tuple[bytes, int]] = [(b"", self.switches)]
        while todo:
            if order is not None:
                place = order.randrange(len(todo))
                todo[place], todo[-1] = todo[-1], todo[place]
            prefix, left = todo.pop()
            done = self.run(prefix)
            same = bytes(done.chosen[: len(prefix)]) == prefix
            assert same, "the same schedule did something else"
            todo += self._follow(prefix, left, done)
            yield done

    def _follow(self, prefix: bytes, left: int, done: Run) -> list[tuple[bytes, int]]:
        """Note where the run came by; returns the prefixes that branch off for the first time."""
        nodes = [*((state, left) for state in done.states), _END]
        self._first[prefix] = nodes[len(prefix)]
        found: list[tuple[bytes, int]] = []
        costs = dict(switches(done, len(prefix), self.visible))
        for step in range(len(prefix), len(done.chosen)):
            if nodes[step] in self._next:
                break
            branches = self._next[nodes[step]] = [nodes[step + 1]]
            cost = costs.get(step)
            if cost is None or cost > left:
                continue
            for other in done.ready[step]:
                if other != done.chosen[step]:
                    branch = bytes([*done.chosen[:step], other])
                    branches.append(branch)
                    found.append((branch, left - cost))
        return found

    def covered(self) -> int:
        """Schedules all of whose steps, each in its state, were carried out."""
        counts: dict[Node, int] = {_END: 1}
        todo = [self._first[b""]]
        while todo:
            node = todo[-1]
            after = [
                self._first.get(item) if isinstance(item, bytes) else item
                for item in self._next[node]
            ]
            known = [item for item in after if item is not None]
            if missing := [item for item in known if item not in counts]:
                todo += missing
                continue
            counts[node] = sum(counts[item] for item in known)
            todo.pop()
        return counts[self._first[b""]]


def switches(
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
