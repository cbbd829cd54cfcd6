"""An agent server's side: runs, the boundaries at which they park, and results owed."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from snapfmt_coordinator.participant import agent_part, parts, restoring
from snapfmt_coordinator.participant.agent_part import AgentCut
from snapfmt_coordinator.participant.execution import AgentExecution
from snapfmt_coordinator.participant.fence import GRACE_S, Fence
from snapfmt_coordinator.participant.holding import CutHolder
from snapfmt_coordinator.participant.naming import check_run
from snapfmt_coordinator.participant.on_base import SaveMemory
from snapfmt_coordinator.participant.redacting import Secrets
from snapfmt_coordinator.participant.runs import Remembered, Run, Runs, State
from snapfmt_coordinator.participant.tombstones import Tombstones
from snapfmt_coordinator.protocol import v1
from snapfmt_coordinator.protocol.codes import refused
from snapfmt_schemas.attempt import Ticket
from snapfmt_schemas.completion import CompletionReceipt

__all__ = ["AgentExecution", "AgentParticipant"]

FEATURES: Final = (
    v1.ACKNOWLEDGEMENT,
    v1.CONTINUATION_INDEX,
    v1.DISCARD,
    v1.DEPENDENCIES,
    v1.TICKET,
    v1.DEFERRED,
    v1.PART_RESTORE,
)
NAMED: Final = 128
"""How many runs a reply of `prepare` names; its counts are those of all."""


class AgentParticipant:
    """What an agent server holds of every run, and what it answers the coordinator.

    `secrets` says what becomes of values in its state whose names read like a secret's
    (`redacting.Secrets`).
    """

    def __init__(
        self,
        *,
        server_name: str,
        name: str = "agent",
        secrets: Secrets = "redact",
        grace_s: float = GRACE_S,
        features: Sequence[str] = FEATURES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.server_name = server_name
        self.name = name
        self.part = f"gym/agent/{server_name}"
        self.fence = Fence(grace_s=grace_s, clock=clock)
        self._features = tuple(features)
        self._secrets: Secrets = secrets
        self._runs = Runs(self._settle)
        self._closed = Tombstones()
        self._acknowledged = Remembered()
        self._acknowledgements = 0
        self._generations = Remembered()
        self._holder: CutHolder[AgentCut] = CutHolder(self.fence, self.part)
        self._memory = SaveMemory()
        self.fence.on_open(self._runs.wake_parked)

    # --- what the server calls

    async def begin(
        self, rollout_id: str, attempt_index: int, *, held: bool = False
    ) -> AgentExecution:
        """Start a run, from its restored boundary if there is one.

        `held` says that this server must hold the run (`v1.HELD_HEADER`): a restore set it up
        here, or it was sent before. Begun from nothing it would act twice on its sessions.

        Raises:
            ControlRefused: `agent_admission_closed` (try again after the resume),
                `duplicate_execution`, `stale_attempt`, `unknown_execution` when a `held` run is
                not here, `invalid_request` for a name that no snapshot can hold.
        """
        check_run(rollout_id, attempt_index)
        what = _what(rollout_id, attempt_index)
        if self.fence.closed:
            raise refused(
                "agent_admission_closed",
                "a checkpoint is in force",
                what=what,
                hint="send it again after the resume",
            )
        if self._closed.covers(rollout_id, attempt_index) or self._acknowledged.get(
            rollout_id, attempt_index
        ):
            raise refused(
                "stale_attempt", "this run is over", what=what, hint="send the rollout's next run"
            )
        restored = self._runs.beginnable(rollout_id, attempt_index, held=held)
        generation = (self._generations.get(rollout_id, attempt_index) or 0) + 1
        self._generations.put(rollout_id, attempt_index, generation)
        if attempt_index:
            self._closed.close(rollout_id, attempt_index - 1)
        run = Run(rollout_id, attempt_index, generation, "running")
        if restored is not None:
            run.boundary, run.marks = restored.boundary, restored.marks
        self._runs.add(run)
        return AgentExecution(self.fence, self._runs, run)

    def result_of(
        self, rollout_id: str, attempt_index: int
    ) -> tuple[CompletionReceipt, dict[str, Any]] | None:
        """A finished run's receipt and result, until they are acknowledged."""
        run = self._runs.of(rollout_id)
        if run is None or run.attempt_index != attempt_index:
            return None
        if run.receipt is None or run.result is None:
            return None
        return run.receipt, run.result

    # --- what the coordinator asks for, without a checkpoint

    def capabilities(self) -> v1.Capabilities:
        """What this participant is and can do."""
        return v1.Capabilities(
            component="agent",
            name=self.name,
            server_name=self.server_name,
            checkpoint_mode="export_restore",
            concurrency_contract="serialized_per_session",
            phase=self.fence.phase,
            active_checkpoint_id=self.fence.active_id,
            deadline_ts=self.fence.deadline_ts,
            features=self._features,
        )

    def acknowledge(self, receipts: Sequence[CompletionReceipt]) -> v1.Acknowledged:
        """Let go of results that the trainer adopted: all of them, or none.

        A run of which nothing is held has nothing to let go of: an agent that was restarted
        has forgotten its results, and the trainer has them. Such a run is over from now on.

        Raises:
            ControlRefused: `completed_execution_acknowledgement_error` if a receipt differs
                in any field from the one that is retained, or the run has not ended.
        """
        fresh: dict[str, Run] = {}
        unknown: dict[tuple[str, int], CompletionReceipt] = {}
        for receipt in receipts:
            name = (receipt.rollout_id, receipt.attempt_index)
            run = self._runs.of(receipt.rollout_id)
            held = run is not None and run.attempt_index == receipt.attempt_index
            known = self._acknowledged.get(*name) or unknown.get(name)
            if run is not None and run.receipt == receipt:
                fresh[receipt.rollout_id] = run
            elif known is None and not held:
                unknown[name] = receipt
            elif known != receipt:
                raise refused(
                    "completed_execution_acknowledgement_error",
                    "the receipt is not that of a result retained here; none was acknowledged",
                    what=_what(receipt.rollout_id, receipt.attempt_index),
                    hint="look the receipt up with completion-receipt",
                )
        for run in fresh.values():
            self._acknowledged.put(run.rollout_id, run.attempt_index, run.receipt)
            self._runs.remove(run)
        for (rollout_id, attempt_index), receipt in unknown.items():
            self._acknowledged.put(rollout_id, attempt_index, receipt)
        self._acknowledgements += len(fresh)
        known_ones = [
            item for item in receipts if (item.rollout_id, item.attempt_index) not in unknown
        ]
        return v1.Acknowledged(
            acknowledged=tuple(
                v1.Execution(rollout_id=item.rollout_id, attempt_index=item.attempt_index)
                for item in known_ones
            ),
            idempotent=len(known_ones) - len(fresh),
            unknown=tuple(
                v1.Execution(rollout_id=rollout_id, attempt_index=attempt_index)
                for rollout_id, attempt_index in unknown
            ),
        )

    def completion_receipt(self, execution: v1.Execution) -> CompletionReceipt:
        """The receipt of a finished run, also of one that was acknowledged lately.

        Raises:
            ControlRefused: `unknown_execution`.
        """
        rollout_id, attempt_index = execution.rollout_id, execution.attempt_index
        if retained := self.result_of(rollout_id, attempt_index):
            return retained[0]
        known: CompletionReceipt | None = self._acknowledged.get(rollout_id, attempt_index)
        if known is None:
            raise refused(
                "unknown_execution",
                "no finished run of this name is known",
                what=_what(rollout_id, attempt_index),
                hint="it runs still, or ended before this server was started",
            )
        return known

    def retire(self, executions: Sequence[v1.Execution]) -> v1.Retired:
        """Forget runs and what came before them, and refuse them from now on."""
        retired = 0
        for execution in executions:
            run = self._runs.of(execution.rollout_id)
            if run is not None and run.attempt_index <= execution.attempt_index:
                self._runs.remove(run)
                retired += 1
            self._closed.close(execution.rollout_id, execution.attempt_index)
        return v1.Retired(retired=retired, tombstoned=len(executions))

    # --- what the coordinator asks for, for a checkpoint

    async def prepare(self, request: v1.PrepareAgents) -> v1.AgentsPrepared:
        """Close admission and park the runs; says how far that is, at the latest after `wait_s`.

        Raises:
            ControlRefused: `checkpoint_conflict`, `stale_checkpoint`, `deadline_passed`,
                `wrong_phase`.
        """
        if self.fence.enter(request, "preparing"):
            self._holder.drop()
        self.fence.require(request, "preparing", "prepared", "committed_paused")
        self._settle()
        seconds = min(request.wait_s, self.fence.remaining(request))
        await self.fence.changed.wait_for(
            lambda: self._ready() or not self.fence.is_active(request.checkpoint_id), seconds
        )
        # Resumed, or ran out, meanwhile.
        self.fence.check_active(request)
        return self._report()

    async def commit(self, request: v1.Commit) -> v1.Committed:
        """Take the cut, and with `wait` write it; see `CutHolder.commit`.

        Raises:
            ControlRefused: `agent_prepare_incomplete`, `agent_checkpoint_error` and those of
                `CutHolder.commit`.
        """
        return await self._holder.commit(request, take=self._take, write=self._write)

    async def restore(self, request: v1.Restore) -> v1.Restored:
        """Set up every saved run as the rollout's next run; see `restoring.restore`."""
        return await restoring.restore(
            self.fence,
            request,
            part=self.part,
            reason="agent_checkpoint_error",
            read=agent_part.read,
            conflict=self._conflict,
            install=self._install,
        )

    async def discard(self, request: v1.DiscardRestored) -> v1.Discarded:
        """Drop restored continuations: those runs start over.

        Raises:
            ControlRefused: `wrong_phase` unless a restore is in force, `unknown_checkpoint`,
                `stale_checkpoint`, `deadline_passed`.
        """

        async def body() -> v1.Discarded:
            await restoring.installed(self.fence, request)
            found = [
                run
                for item in set(request.executions)
                if (run := self._runs.of(item.rollout_id)) is not None
                and (run.attempt_index, run.state) == (item.attempt_index, "restored")
            ]
            for run in found:
                self._runs.remove(run)
            return v1.Discarded(discarded=len(found))

        return await self.fence.run_operation("discard", request, body)

    async def resume(self, request: v1.Resume) -> v1.Resumed:
        """Open admission and let the parked runs go on.

        Raises:
            ControlRefused: `unknown_checkpoint`, `deadline_passed`.
        """
        released = self._runs.count("parked")
        idempotent = self.fence.resume(request)
        return v1.Resumed(
            state=self.fence.phase,
            released=0 if idempotent else released,
            idempotent=idempotent,
        )

    # --- inside

    def _ready(self) -> bool:
        return self._runs.count("running") == 0 and self._runs.count("completed") == 0

    def _settle(self) -> None:
        if self.fence.phase == "preparing" and self._ready():
            self.fence.move("prepared")
        else:
            self.fence.changed.notify()

    def _report(self) -> v1.AgentsPrepared:
        held = [run for run in self._runs if run.state in ("parked", "restored")]
        with_boundary = sum(run.boundary is not None for run in held)
        return v1.AgentsPrepared(
            state=self.fence.phase,
            ready_to_commit=self._ready(),
            running=self._runs.count("running"),
            parked=len(held),
            parked_with_boundary=with_boundary,
            parked_without_boundary=len(held) - with_boundary,
            completed_unacknowledged=self._runs.count("completed"),
            acknowledged_completed=self._acknowledgements,
            active=len(self._runs) - self._runs.count("completed"),
            blocking_attempts=self._named("running"),
            completed_unacknowledged_attempts=self._named("completed"),
        )

    def _named(self, state: State) -> tuple[v1.Execution, ...]:
        found: list[v1.Execution] = []
        for run in self._runs if self._runs.count(state) else ():
            if run.state == state:
                found.append(run.execution())
                if len(found) == NAMED:
                    break
        return tuple(found)

    def _take(self) -> tuple[AgentCut, v1.Committed]:
        if not self._ready():
            running, owed = self._runs.count("running"), self._runs.count("completed")
            raise refused(
                "agent_prepare_incomplete",
                f"{running} runs are not parked, {owed} results are not acknowledged",
                hint="prepare again until it is ready to commit",
            )
        # Nothing but references: no object is made for a run.
        cut = AgentCut(
            tuple(run.boundary for run in self._runs if run.boundary is not None),
            tuple(run.marks for run in self._runs if run.boundary is not None),
        )
        count = len(cut.records)
        return cut, v1.Committed(
            state="committed_paused", ready=False, records=count, rollouts=count
        )

    async def _write(self, cut: AgentCut, ticket: Ticket) -> v1.Committed:
        with parts.failing_as("agent_checkpoint_error", "the part was not written"):
            return await asyncio.to_thread(
                agent_part.write, cut, ticket, self._secrets, self._memory
            )

    def _conflict(self, saved: agent_part.SavedRuns) -> str:
        for record in saved.records:
            next_run = record.attempt_index + 1
            if self._runs.of(record.rollout_id) or self._closed.covers(record.rollout_id, next_run):
                return record.rollout_id
        return ""

    def _install(self, saved: agent_part.SavedRuns) -> v1.Restored:
        for record in saved.records:
            run_index = record.attempt_index + 1
            boundary = record.model_copy(update={"attempt_index": run_index})
            self._closed.close(record.rollout_id, record.attempt_index)
            if record.rollout_id not in saved.redacted:
                run = Run(record.rollout_id, run_index, 0, "restored")
                self._runs.bind(run, boundary)
                self._runs.add(run)
        return v1.Restored(
            state=self.fence.phase,
            restored=len(saved.records) - len(saved.redacted),
            continuation_index=saved.index,
        )


def _what(rollout_id: str, attempt_index: int) -> str:
    return f"{rollout_id} run {attempt_index}"
