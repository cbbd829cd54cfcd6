"""Who waits during a save: new rollouts at the gate, writers of rows at the barrier.

Everything here belongs to one event loop. State changes are synchronous, so that a cancellation
can only ever strike a waiter, never a release.
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal, get_args

from snapfmt.errors import ConflictError, InputError

MutationKind = Literal[
    "group_commits",
    "group_removals",
    "prompt_reservations",
    "recovery_retries",
    "sample_clears",
    "sibling_seals",
    "other",
]
"""What changes the data plane or the controller's view of it."""
KINDS: frozenset[str] = frozenset(get_args(MutationKind))


@dataclass(frozen=True, slots=True)
class GateReport:
    """How long the gate was closed, and how many came to it meanwhile."""

    owner: str
    closed_s: float
    waited: int


class DispatchGate:
    """New rollouts go out only while it is open. One owner closes it at a time."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self._owner: str | None = None
        self._since = 0.0
        self._waited = 0

    @property
    def owner(self) -> str | None:
        """Who has closed it, None while it is open."""
        return self._owner

    @property
    def closed_since(self) -> float | None:
        """Reading of the monotonic clock when it was closed, None while it is open."""
        return None if self._owner is None else self._since

    def close(self, owner: str) -> None:
        """Closes it; nothing happens when the same owner has closed it already.

        Raises:
            ConflictError: If somebody else has closed it.
        """
        if self._owner == owner:
            return
        if self._owner is not None:
            raise ConflictError("the dispatch gate is closed already", what=self._owner)
        self._owner, self._since, self._waited = owner, time.monotonic(), 0
        self._open.clear()

    def open(self, owner: str) -> GateReport:
        """Opens it, and lets all go that wait.

        Raises:
            ConflictError: If somebody else has closed it, or nobody.
        """
        if self._owner != owner:
            raise ConflictError(
                f"the dispatch gate is not {owner}'s to open", what=self._owner or "open"
            )
        report = GateReport(owner, time.monotonic() - self._since, self._waited)
        self._owner = None
        self._open.set()
        return report

    async def wait(self) -> float:
        """Returns when it is open; the seconds that it took."""
        if self._owner is None:
            return 0.0
        started = time.monotonic()
        self._waited += 1
        # Closed again before this task ran: it still waits, and was counted once.
        while not self._open.is_set():
            await self._open.wait()
        return time.monotonic() - started


@dataclass(slots=True)
class CheckpointHold:
    """One stand of the barrier; the last three are known when it is over."""

    wait_s: float
    """Until the mutations inside had ended."""
    mutation_version: int
    """Completed mutations, all of which the cut sees."""
    hold_s: float = 0.0
    waited: int = 0
    """Mutations that had to wait for it."""
    longest_wait_s: float = 0.0


@dataclass(slots=True, eq=False)
class _Mutation:
    """One outer mutation; `depth` counts it and those inside it that have not ended."""

    barrier: "DataPlaneBarrier"
    kind: str
    depth: int = 1


@dataclass(slots=True, eq=False)
class _Waiter:
    """A mutation at the closed barrier; whoever opens it counts it in and sets `admitted`."""

    admitted: asyncio.Future[None]
    since: float


@dataclass(frozen=True, slots=True, eq=False)
class _Entry:
    """That a task is inside a mutation; tasks that it starts inherit this."""

    mutation: _Mutation
    task: asyncio.Task[Any] | None


_INSIDE: ContextVar[tuple[_Entry, ...]] = ContextVar("snapfmt_mutations", default=())


class DataPlaneBarrier:
    """Many mutations at a time, or one checkpoint.

    A checkpoint that waits keeps new mutations out, so it cannot starve; when it ends, all
    mutations that wait go first, so neither can they. A mutation inside another one of the same
    task, or of a task that it started, passes at once.
    """

    def __init__(self) -> None:
        self._inside = 0
        self._version = 0
        self._kinds: Counter[str] = Counter()
        # Taken: from the moment a checkpoint has its turn, which is before its task runs.
        self._taken = False
        self._holder: asyncio.Task[Any] | None = None
        self._mutations: deque[_Waiter] = deque()
        self._checkpoints: deque[asyncio.Future[None]] = deque()

    @property
    def mutation_version(self) -> int:
        """Outer mutations that ended so far, also by an error."""
        return self._version

    @property
    def mutations_by_kind(self) -> dict[str, int]:
        """The same, per kind."""
        return dict(self._kinds)

    @property
    def standing(self) -> bool:
        """Whether a checkpoint has it."""
        return self._taken

    @property
    def closed(self) -> bool:
        """Whether a mutation that came now would wait, unless it is inside another one."""
        return self._taken or bool(self._checkpoints)

    @asynccontextmanager
    async def mutation(self, kind: MutationKind) -> AsyncIterator[None]:
        """Surrounds one change; waits while a checkpoint holds the barrier or waits for it.

        Raises:
            InputError: If there is no such kind.
            ConflictError: If this task itself holds the barrier for a checkpoint.
        """
        if kind not in KINDS:
            raise InputError("not a kind of mutation", what=kind, hint=", ".join(sorted(KINDS)))
        mutation = self._outer()
        if mutation is not None:
            mutation.depth += 1
        else:
            await self._enter()
            mutation = _Mutation(self, kind)
        token = _INSIDE.set((*_INSIDE.get(), _Entry(mutation, asyncio.current_task())))
        try:
            yield
        finally:
            _INSIDE.reset(token)
            self._leave(mutation)

    @asynccontextmanager
    async def checkpoint(self) -> AsyncIterator[CheckpointHold]:
        """Waits for the mutations inside, then keeps all others out.

        Raises:
            ConflictError: If it is asked for inside a mutation or another checkpoint of the
                same task, for which it would wait for ever.
        """
        task = asyncio.current_task()
        own = any(item.mutation.barrier is self and item.task is task for item in _INSIDE.get())
        if own or self._is_holder():
            raise ConflictError("a checkpoint cannot begin inside what it has to wait for")
        started = time.monotonic()
        await self._take()
        now = time.monotonic()
        self._holder = asyncio.current_task()
        hold = CheckpointHold(now - started, self._version)
        try:
            yield hold
        finally:
            hold.hold_s = time.monotonic() - now
            self._holder = None
            self._release(hold)

    def _outer(self) -> _Mutation | None:
        """The mutation around this one, if it has not ended."""
        for item in _INSIDE.get():
            if item.mutation.barrier is self and item.mutation.depth:
                return item.mutation
        return None

    def _is_holder(self) -> bool:
        return self._holder is not None and self._holder is asyncio.current_task()

    async def _enter(self) -> None:
        if self._is_holder():
            raise ConflictError("a mutation cannot begin inside this task's own checkpoint")
        if not self.closed:
            self._inside += 1
            return
        waiter = _Waiter(asyncio.get_running_loop().create_future(), time.monotonic())
        self._mutations.append(waiter)
        try:
            await waiter.admitted
        except asyncio.CancelledError:
            if waiter.admitted.cancelled():
                with suppress(ValueError):
                    self._mutations.remove(waiter)
            else:
                # It was let in at the same moment.
                self._inside -= 1
                self._advance()
            raise

    def _leave(self, mutation: _Mutation) -> None:
        mutation.depth -= 1
        if mutation.depth:
            return
        self._inside -= 1
        self._version += 1
        self._kinds[mutation.kind] += 1
        self._advance()

    async def _take(self) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._checkpoints.append(turn)
        self._advance()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                # It had its turn at the same moment.
                self._release(None)
                raise
            with suppress(ValueError):
                self._checkpoints.remove(turn)
            if not self.closed:
                self._admit(None)
            raise

    def _release(self, hold: CheckpointHold | None) -> None:
        self._taken = False
        self._admit(hold)
        self._advance()

    def _admit(self, hold: CheckpointHold | None) -> None:
        """Lets all mutations in that wait."""
        now = time.monotonic()
        while self._mutations:
            waiter = self._mutations.popleft()
            if waiter.admitted.done():
                continue
            self._inside += 1
            waiter.admitted.set_result(None)
            if hold is not None:
                hold.waited += 1
                hold.longest_wait_s = max(hold.longest_wait_s, now - waiter.since)

    def _advance(self) -> None:
        """Gives the barrier to the next checkpoint, when nobody is inside."""
        while self._checkpoints and not self._inside and not self._taken:
            turn = self._checkpoints.popleft()
            if not turn.done():
                self._taken = True
                turn.set_result(None)


class CheckpointLock:
    """Keeps a snapshot's cut and a trainer checkpoint's cut apart, and nothing else.

    Both read the trainer's place and the data plane, and must see the same of both. Hence the
    lock covers exactly that: place, rows and state, by reference. The Gym phase before a cut and
    the writing after it are outside, so a trainer checkpoint waits milliseconds for a snapshot,
    where one lock around everything makes it wait until the snapshot is published. A trainer
    checkpoint does likewise: it takes the lock for its cut and writes after it. Both take the
    lock first and the barrier inside it.

    What else the two could do to each other is handled without a lock: a step that ends during
    the Gym phase is seen under the barrier and throws the snapshot away, and a snapshot is
    written only while the trainer checkpoint that it stands on is durable.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._owner: str | None = None

    @property
    def owner(self) -> str | None:
        """Who has it."""
        return self._owner

    @asynccontextmanager
    async def hold(self, owner: str) -> AsyncIterator[float]:
        """Holds it; gives the seconds that it took to get it."""
        started = time.monotonic()
        async with self._lock:
            self._owner = owner
            try:
                yield time.monotonic() - started
            finally:
                self._owner = None
