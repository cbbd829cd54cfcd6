"""The runs that an agent server holds, how many are in which state, and how they are woken."""

import asyncio
import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from operator import is_
from typing import Any, Final, Literal

from pydantic import ValidationError

from snapfmt.errors import InvalidRecord
from snapfmt_coordinator.protocol.codes import refused
from snapfmt_coordinator.protocol.v1 import Execution
from snapfmt_schemas.agent import AgentBoundaryRecord
from snapfmt_schemas.completion import CompletionReceipt

State = Literal["running", "parked", "restored", "completed"]
MAX_REMEMBERED: Final = 16_384
"""Acknowledged receipts, and generations of runs that failed, that are remembered."""


@dataclass(slots=True, eq=False)
class Run:
    """One run of one rollout, in the generation that counts."""

    rollout_id: str
    attempt_index: int
    generation: int
    state: State
    boundary: AgentBoundaryRecord | None = None
    receipt: CompletionReceipt | None = None
    result: dict[str, Any] | None = None
    waiter: asyncio.Future[None] | None = None
    marks: tuple[int, ...] = ()
    """One for each item of the boundary's conversation; see `Runs.bind`."""

    def execution(self) -> Execution:
        """Its name on the wire."""
        return Execution(rollout_id=self.rollout_id, attempt_index=self.attempt_index)

    def wake(self) -> None:
        """Let it look again whether it may go on."""
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)


class Runs:
    """At most one run of each rollout: a newer one takes the place of an older one."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._runs: dict[str, Run] = {}
        self._states: dict[State, int] = dict.fromkeys(
            ("running", "parked", "restored", "completed"), 0
        )
        self._next_mark = 0

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs.values())

    def of(self, rollout_id: str) -> Run | None:
        """The run of a rollout."""
        return self._runs.get(rollout_id)

    def beginnable(self, rollout_id: str, attempt_index: int, *, held: bool) -> Run | None:
        """The restored run that one which is begun now goes on from, if there is one.

        Raises:
            ControlRefused: `stale_attempt`, `duplicate_execution`; `unknown_execution` when it
                must be `held` and is not.
        """
        what = f"{rollout_id} run {attempt_index}"
        old = self.of(rollout_id)
        if old is not None and old.attempt_index > attempt_index:
            raise refused(
                "stale_attempt",
                "a newer run of this rollout exists",
                what=what,
                hint="stop sending this one; its work does not count",
            )
        if old is None or old.attempt_index < attempt_index:
            if not held:
                return None
            raise refused(
                "unknown_execution",
                "this run is not held here any more; the server was restarted, or the run failed",
                what=what,
                hint="retire it and send the rollout's next run",
            )
        if old.state != "restored":
            raise refused(
                "duplicate_execution",
                f"this run is {old.state} already",
                what=what,
                hint="fetch a completed run's result from the server",
            )
        return old

    def holds(self, run: Run) -> bool:
        """Whether this very run still counts."""
        return self._runs.get(run.rollout_id) is run

    def count(self, state: State) -> int:
        """How many runs are in a state."""
        return self._states[state]

    def add(self, run: Run) -> None:
        """Put a run in, in the place of the rollout's run before it."""
        if old := self._runs.get(run.rollout_id):
            self.remove(old)
        self._runs[run.rollout_id] = run
        self._states[run.state] += 1
        self._changed()

    def remove(self, run: Run) -> None:
        """Take a run out, and wake it if it is parked."""
        if self.holds(run):
            del self._runs[run.rollout_id]
            self._states[run.state] -= 1
            run.wake()
            self._changed()

    def move(self, run: Run, state: State) -> None:
        """Put a run into a state."""
        if self.holds(run) and run.state != state:
            self._states[run.state] -= 1
            self._states[state] += 1
            run.state = state
            self._changed()

    def bind(self, run: Run, record: AgentBoundaryRecord) -> None:
        """Make a record the run's newest boundary.

        The items with which its conversation begins as the one before did, each the very same
        object, keep their marks. From the first one that differs on, all get new ones: a mark
        stands for one item at one place of one run.
        """
        before = run.boundary.output_items if run.boundary is not None else ()
        items = record.output_items
        kept = len(before)
        if len(items) < kept or not all(map(is_, before, items)):
            kept = sum(1 for _ in takewhile(bool, map(is_, before, items)))
        first = self._next_mark
        self._next_mark += len(items) - kept
        run.marks = (*run.marks[:kept], *range(first, self._next_mark))
        run.boundary = record

    def wake_parked(self) -> None:
        """Let every parked run look again whether it may go on."""
        for run in self._runs.values():
            run.wake()


class Remembered:
    """A bounded memory by run; of more, the oldest is forgotten."""

    def __init__(self, limit: int = MAX_REMEMBERED) -> None:
        self._limit = limit
        self._known: OrderedDict[tuple[str, int], Any] = OrderedDict()

    def put(self, rollout_id: str, attempt_index: int, value: Any) -> None:
        """Remember a value of a run."""
        self._known[rollout_id, attempt_index] = value
        self._known.move_to_end((rollout_id, attempt_index))
        if len(self._known) > self._limit:
            self._known.popitem(last=False)

    def get(self, rollout_id: str, attempt_index: int) -> Any:
        """What is remembered of a run, or None."""
        return self._known.get((rollout_id, attempt_index))


def result_digest(result: dict[str, Any]) -> str:
    """Upstream's digest of a result: sha256 of its canonical JSON.

    Raises:
        InvalidRecord: If it is not JSON.
    """
    try:
        text = json.dumps(result, sort_keys=True, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRecord(
            f"the result is not JSON: {error}",
            hint="make it of JSON values before it is handed over",
        ) from error
    return hashlib.sha256(text.encode()).hexdigest()


def completion_receipt(run: Run, result: dict[str, Any], **fields: Any) -> CompletionReceipt:
    """The receipt of a finished run.

    Raises:
        InvalidRecord: If a field breaks its rule.
    """
    try:
        return CompletionReceipt(
            rollout_id=run.rollout_id,
            attempt_index=run.attempt_index,
            execution_generation=run.generation,
            result_digest=result_digest(result),
            **fields,
        )
    except ValidationError as error:
        raise InvalidRecord(
            f"not a completion receipt: {error.errors()[0]['msg']}",
            what=run.rollout_id,
            hint="see the record completion-receipt",
        ) from error
