"""One execution of one run, as the agent's own code holds it."""

import asyncio
from types import TracebackType
from typing import Any, Final, Self

from snapfmt.errors import InvalidRecord
from snapfmt_coordinator.participant.fence import Fence
from snapfmt_coordinator.participant.runs import Run, Runs, completion_receipt
from snapfmt_coordinator.protocol.codes import refused
from snapfmt_schemas.agent import AgentBoundaryRecord
from snapfmt_schemas.completion import CompletionReceipt

_FIRST_PAUSE_S: Final = 0.01
_LONGEST_PAUSE_S: Final = 0.2


class AgentExecution:
    """A run that was begun; leaving it as a context manager without `finish` fails it.

    An execution whose rollout has a newer generation or run, or was retired, can do nothing
    any more: everything here then raises `stale_attempt`.
    """

    def __init__(self, fence: Fence, runs: Runs, run: Run) -> None:
        self._fence = fence
        self._runs = runs
        self._run = run
        self._restored = run.boundary
        self._pauses = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.fail()

    @property
    def rollout_id(self) -> str:
        """The rollout."""
        return self._run.rollout_id

    @property
    def attempt_index(self) -> int:
        """Its run."""
        return self._run.attempt_index

    @property
    def generation(self) -> int:
        """How often this run was begun; from 1."""
        return self._run.generation

    @property
    def restored(self) -> AgentBoundaryRecord | None:
        """The boundary that it goes on from, as this run's own; None: it starts over.

        Unless the participant keeps secrets, each value of `model_server_cookies` is the text
        `[redacted]`, under its old name: do not send them, the model server knows no such
        session. Nothing else in the record was changed.
        """
        return self._restored

    @property
    def parking(self) -> bool:
        """Whether a checkpoint waits for this run to park."""
        return self._fence.closed

    async def boundary(self, record: AgentBoundaryRecord) -> None:
        """Register the run's newest boundary; while a checkpoint is in force, park here.

        The record and all that it holds must not be changed afterwards: it is written later,
        while the run goes on. Items of the conversation that are the same objects as in the
        boundary before, up to the first one that is another, count as unchanged and are not
        written again: append new objects, and put a new one in the place of what changes.

        Raises:
            ControlRefused: `stale_attempt`.
            InvalidRecord: If it is the record of another run.
        """
        self._check()
        if (record.rollout_id, record.attempt_index) != (self.rollout_id, self.attempt_index):
            raise InvalidRecord(
                f"the boundary is that of run {record.attempt_index} of {record.rollout_id!r}",
                what=self._what,
            )
        self._runs.bind(self._run, record)
        self._pauses = 0
        await self._park()

    async def wait_admission(self) -> None:
        """Park without a new boundary; returns when admission is open.

        For the time before the first boundary, and after the model refused a call. The model
        closes before the agents do, so a call again and again, with no boundary between, also
        waits a little when admission is open here.

        Not after a tool has acted: hand over a boundary first, `turn_complete` or, between a
        model's reply and its tools, `pending_model`. A run that parks here is saved with its
        boundary before, and its sessions as they are now: restored, it would act twice. A save
        finds that by the boundary's `resource_state_revisions` and publishes nothing; where
        they are null it finds nothing.

        Raises:
            ControlRefused: `stale_attempt`.
        """
        self._check()
        if not self._fence.closed and self._pauses:
            await asyncio.sleep(min(_FIRST_PAUSE_S * 2**self._pauses, _LONGEST_PAUSE_S))
        self._pauses = min(self._pauses + 1, 8)
        await self._park()

    def finish(
        self,
        *,
        result_identity: str,
        result: dict[str, Any],
        terminal_model_call_id: str | None = None,
        manifest_capture_key: str | None = None,
    ) -> CompletionReceipt:
        """End the run with a result, which is kept until it is acknowledged.

        Raises:
            ControlRefused: `stale_attempt`; `duplicate_execution` if it has another result.
            InvalidRecord: If the result is not JSON or an identity breaks its rule.
        """
        self._check()
        run = self._run
        receipt = completion_receipt(
            run,
            result,
            result_identity=result_identity,
            terminal_model_call_id=terminal_model_call_id,
            manifest_capture_key=manifest_capture_key,
        )
        if run.receipt is not None and run.receipt != receipt:
            raise refused(
                "duplicate_execution", "the run was finished with another result", what=self._what
            )
        run.receipt, run.result, run.boundary, run.marks = receipt, result, None, ()
        self._runs.move(run, "completed")
        return receipt

    def fail(self) -> None:
        """End the run without a result: it is forgotten. Does nothing after `finish`."""
        if self._runs.holds(self._run) and self._run.receipt is None:
            self._runs.remove(self._run)

    @property
    def _what(self) -> str:
        return f"{self.rollout_id} run {self.attempt_index}"

    def _check(self) -> None:
        if not self._runs.holds(self._run):
            raise refused(
                "stale_attempt",
                f"generation {self.generation} of this run is over",
                what=self._what,
                hint="stop this handler; its work does not count",
            )

    async def _park(self) -> None:
        run = self._run
        try:
            # In a loop: the next checkpoint may begin before this task runs again.
            while self._fence.closed and self._runs.holds(run):
                run.waiter = asyncio.get_running_loop().create_future()
                self._runs.move(run, "parked")
                await run.waiter
        finally:
            run.waiter = None
            if run.receipt is None:
                self._runs.move(run, "running")
        self._check()
