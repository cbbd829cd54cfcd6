"""Model calls in flight: who is inside, what was given up, and one at a time per call id."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from itertools import islice
from types import TracebackType
from typing import Any, Self, TypeVar

from snapfmt_coordinator.participant.ledger import Ledger, RunKey, check_fingerprint
from snapfmt_coordinator.protocol.codes import refused
from snapfmt_schemas.lineage import ModelFailureRow, ModelLineageRow

T = TypeVar("T")


class ModelCall:
    """One model call of one run: `async with participant.call(...) as call`.

    A call that leaves without `commit` is not in the ledger.
    """

    def __init__(
        self,
        calls: "Calls",
        key: RunKey,
        model_call_id: str,
        *,
        fingerprint: str | None,
        admit: Callable[[RunKey], None],
        ledger: Ledger,
    ) -> None:
        self.rollout_id, self.attempt_index = key
        self.model_call_id = model_call_id
        self.replay: ModelLineageRow | None = None
        """The row of this call, committed before: answer with it, do not call again."""
        self.aborted = asyncio.Event()
        """Set when the run was given up; whatever the call does now does not count."""
        self._key = key
        self._calls = calls
        self._fingerprint = fingerprint
        self._admit = admit
        self._ledger = ledger
        self._inside = False
        self._done = asyncio.Event()
        self._generation: asyncio.Future[Any] | None = None
        self._interrupted = False

    async def __aenter__(self) -> Self:
        self._admit(self._key)
        self._calls.enter(self._key, self)
        self._inside = True
        try:
            # A retry while the first try runs must not stage the same row twice.
            while (other := self._calls.claim(self._key, self)) is not None:
                await other.wait_done()
            self._check()
            run = self._ledger.of(self._key)
            known = run.by_id.get(self.model_call_id) if run else None
            if known is not None and self._fingerprint is not None:
                check_fingerprint(known, self._fingerprint)
            self.replay = known
        except BaseException:
            self._leave()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leave()

    async def wait_done(self) -> None:
        """Wait until the call has left, or was given up."""
        await self._done.wait()

    def give_up(self) -> None:
        """Let nothing that the call does count any more, and let nobody wait for it."""
        self.aborted.set()
        self._done.set()

    async def generated(self, work: Awaitable[T]) -> T:
        """The result of the generation, which a checkpoint that cannot wait for it may end.

        Nothing may be stored by it: the agent parks and makes the same call again after the
        resume, as if this one had never been.

        Raises:
            ControlRefused: `model_admission_closed` if it was ended.
        """
        task = asyncio.ensure_future(work)
        self._generation = task
        try:
            return await task
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if not self._interrupted or (current is not None and current.cancelling()):
                raise
        finally:
            self._generation = None
        raise refused(
            "model_admission_closed",
            "a checkpoint could not wait for this call",
            what=f"{self.rollout_id} run {self.attempt_index} call {self.model_call_id}",
            hint="park, and make it again after the resume",
        )

    def interrupt(self) -> bool:
        """End the generation if that is what the call is at."""
        if self._generation is None or not self._generation.cancel():
            return False
        self._interrupted = True
        return True

    def commit(self, row: ModelLineageRow) -> ModelLineageRow:
        """Record the call, once its token-capture row is stored; returns the row that counts.

        Raises:
            ControlRefused: `stale_attempt` when the run was given up; `ledger_mismatch` if the
                row is another call's, has an unknown parent, or differs in its fingerprint.
        """
        self._check()
        if row.model_call_id != self.model_call_id:
            raise refused(
                "ledger_mismatch",
                f"the row is that of call {row.model_call_id!r}",
                what=self.model_call_id,
                hint="commit the row of the call that was entered",
            )
        return self._ledger.append(self._key, row)

    def fail(self, reason: str) -> None:
        """Record that the call failed for good.

        Raises:
            ControlRefused: `stale_attempt` when the run was given up.
        """
        self._check()
        row = ModelFailureRow(model_call_id=self.model_call_id, failure_reason=reason)
        self._ledger.fail(self._key, row)

    def _check(self) -> None:
        if self.aborted.is_set() or not self._inside:
            raise refused(
                "stale_attempt",
                "the run was given up" if self.aborted.is_set() else "the call has left",
                what=f"{self.rollout_id} run {self.attempt_index} call {self.model_call_id}",
                hint="stop this call; its work does not count",
            )

    def _leave(self) -> None:
        self._inside = False
        self._done.set()
        self._calls.leave(self._key, self)


class Calls:
    """All calls in flight."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._inside: dict[RunKey, set[ModelCall]] = {}
        self._claims: dict[tuple[str, int, str], ModelCall] = {}
        self._total = 0

    @property
    def total(self) -> int:
        """How many count as in flight."""
        return self._total

    def has_rollout(self, rollout_ids: set[str]) -> str:
        """One of these rollouts that has a call in flight, or nothing."""
        return next((key[0] for key in self._inside if key[0] in rollout_ids), "")

    def runs(self, most: int) -> Iterator[RunKey]:
        """Up to so many runs that have calls inside."""
        return islice(self._inside, most)

    def interrupt(self, key: RunKey) -> int:
        """End what the calls of a run generate; how many there were. They leave by themselves."""
        return sum(call.interrupt() for call in self._inside.get(key, ()))

    def enter(self, key: RunKey, call: ModelCall) -> None:
        """Count a call."""
        self._inside.setdefault(key, set()).add(call)
        self._total += 1

    def claim(self, key: RunKey, call: ModelCall) -> ModelCall | None:
        """Take the call id; the call that has it already, if another one has."""
        holder = self._claims.setdefault((*key, call.model_call_id), call)
        return None if holder is call else holder

    def leave(self, key: RunKey, call: ModelCall) -> None:
        """Count a call no more."""
        self._release(key, call)
        if call in self._inside.get(key, ()):
            self._drop(key, {call})

    def abort(self, key: RunKey) -> int:
        """Give up the calls of a run; how many there were."""
        gone = set(self._inside.get(key, ()))
        for call in gone:
            call.give_up()
            self._release(key, call)
        self._drop(key, gone)
        return len(gone)

    def abort_up_to(self, rollout_id: str, attempt_index: int) -> int:
        """Give up the calls of a run and of those before it; how many there were."""
        keys = [key for key in self._inside if key[0] == rollout_id and key[1] <= attempt_index]
        return sum(self.abort(key) for key in keys)

    def _release(self, key: RunKey, call: ModelCall) -> None:
        name = (*key, call.model_call_id)
        if self._claims.get(name) is call:
            del self._claims[name]

    def _drop(self, key: RunKey, gone: set[ModelCall]) -> None:
        if not gone:
            return
        left = self._inside[key] - gone
        if left:
            self._inside[key] = left
        else:
            del self._inside[key]
        self._total -= len(gone)
        self._changed()
