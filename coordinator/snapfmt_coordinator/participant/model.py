"""A model server's side: admission of calls, those in flight, and the lineage ledger."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Final, Literal

from pydantic import Field

from snapfmt_coordinator.participant import model_part, parts, restoring
from snapfmt_coordinator.participant.calls import Calls, ModelCall
from snapfmt_coordinator.participant.fence import GRACE_S, Fence
from snapfmt_coordinator.participant.holding import CutHolder
from snapfmt_coordinator.participant.ledger import Ledger, LedgerCut, RunKey
from snapfmt_coordinator.participant.naming import check_run
from snapfmt_coordinator.participant.on_base import SaveMemory
from snapfmt_coordinator.participant.tombstones import Tombstones
from snapfmt_coordinator.protocol import v1
from snapfmt_coordinator.protocol.codes import refused
from snapfmt_schemas.attempt import Ticket
from snapfmt_schemas.lineage import ModelLineageRow

__all__ = ["ModelCall", "ModelParticipant", "ModelStatus"]

FEATURES: Final = (
    v1.STORAGE_REFERENCES,
    v1.TICKET,
    v1.DEFERRED,
    v1.PART_RESTORE,
    v1.INTERRUPT,
)
NAMED: Final = 128
"""How many runs with calls inside a reply names; its count is that of all calls."""


class ModelStatus(v1.Control):
    """Asks how the draining goes; with `wait_state`, answers when it is reached or time is up."""

    wait_state: Literal["paused"] | None = None
    timeout_s: Annotated[float, Field(ge=0, le=60)] = 0.0


class ModelParticipant:
    """What a model server holds of every run, and what it answers the coordinator."""

    def __init__(
        self,
        *,
        server_name: str,
        name: str = "model",
        instance_role: Literal["policy", "auxiliary"] = "policy",
        grace_s: float = GRACE_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.server_name = server_name
        self.name = name
        self.instance_role: Literal["policy", "auxiliary"] = instance_role
        self.part = f"gym/model/{server_name}"
        self.fence = Fence(grace_s=grace_s, clock=clock)
        self._ledger = Ledger()
        self._calls = Calls(self._settle)
        self._given_up = Tombstones()
        self._retired = Tombstones()
        self._restored: set[RunKey] = set()
        self._holder: CutHolder[LedgerCut] = CutHolder(self.fence, self.part)
        self._memory = SaveMemory()
        self.fence.on_open(self._restored.clear)

    # --- what the server calls

    def call(
        self,
        rollout_id: str,
        attempt_index: int,
        model_call_id: str,
        *,
        fingerprint: str | None = None,
    ) -> ModelCall:
        """One model call, as an async context manager; entering it asks for admission.

        A retry while the first try runs waits for it, and finds its row in `replay`.

        Raises:
            ControlRefused: On entering: `model_admission_closed`, `stale_attempt`, and
                `ledger_mismatch` when the call is known with another `fingerprint`.
        """
        return ModelCall(
            self._calls,
            (rollout_id, attempt_index),
            model_call_id,
            fingerprint=fingerprint,
            admit=self._admit,
            ledger=self._ledger,
        )

    def rows(self, rollout_id: str, attempt_index: int) -> tuple[ModelLineageRow, ...]:
        """The committed calls of a run, in order."""
        run = self._ledger.of((rollout_id, attempt_index))
        return tuple(run.rows) if run else ()

    # --- what the coordinator asks for, without a checkpoint

    def capabilities(self) -> v1.Capabilities:
        """What this participant is and can do."""
        return v1.Capabilities(
            component="model",
            name=self.name,
            server_name=self.server_name,
            checkpoint_mode="export_restore",
            concurrency_contract="transactional_parallel",
            instance_role=self.instance_role,
            phase=self.fence.phase,
            active_checkpoint_id=self.fence.active_id,
            deadline_ts=self.fence.deadline_ts,
            features=FEATURES,
        )

    def forget(self, executions: Sequence[v1.Execution]) -> v1.Retired:
        """Forget runs and those before them, give up their calls, and refuse them from now on."""
        retired = 0
        for item in executions:
            self._calls.abort_up_to(item.rollout_id, item.attempt_index)
            retired += self._ledger.forget(item.rollout_id, item.attempt_index)
            self._retired.close(item.rollout_id, item.attempt_index)
            self._given_up.forget(item.rollout_id, item.attempt_index)
        return v1.Retired(retired=retired, tombstoned=len(executions))

    # --- what the coordinator asks for, for a checkpoint

    async def pause(self, request: v1.PauseModel) -> v1.ModelAdmission:
        """Refuse new calls; those inside go on.

        Raises:
            ControlRefused: `not_a_policy_instance`, `checkpoint_conflict`, `stale_checkpoint`,
                `deadline_passed`, `wrong_phase`.
        """
        self._check_policy()
        if self.fence.enter(request, "preparing"):
            self._holder.drop()
        self.fence.require(request, "preparing", "prepared", "committed_paused")
        self._settle()
        return self._admission()

    async def status(self, request: ModelStatus) -> v1.ModelAdmission:
        """How many calls are inside; with `wait_state`, waits until there is none.

        Raises:
            ControlRefused: `not_a_policy_instance`, `unknown_checkpoint`, `stale_checkpoint`,
                `deadline_passed`.
        """
        self._check_policy()
        self.fence.require(request)
        if request.wait_state is not None:
            seconds = min(request.timeout_s, self.fence.remaining(request))
            await self.fence.changed.wait_for(
                lambda: not self._calls.total or not self.fence.is_active(request.checkpoint_id),
                seconds,
            )
            # Resumed, or ran out, meanwhile.
            self.fence.check_active(request)
        return self._admission()

    async def abort_inflight(self, request: v1.AbortInflight) -> v1.AbortedInflight:
        """Give up the calls of one run, and the run; or, with `keep_run`, what they generate.

        Raises:
            ControlRefused: `not_a_policy_instance`, `unknown_checkpoint`, `stale_checkpoint`,
                `deadline_passed`, `wrong_phase`.
        """
        self._check_policy()

        if request.keep_run:
            # Each time anew: a retry that waited for an interrupted call may be at it by now.
            self.fence.require(request, "preparing", "prepared")
            ended = self._calls.interrupt((request.rollout_id, request.attempt_index))
            return v1.AbortedInflight(aborted_inflight=ended)

        async def body() -> v1.AbortedInflight:
            self.fence.require(request, "preparing", "prepared")
            self._given_up.close(request.rollout_id, request.attempt_index)
            gone = self._calls.abort((request.rollout_id, request.attempt_index))
            return v1.AbortedInflight(aborted_inflight=gone)

        return await self.fence.run_operation("abort_inflight", request, body)

    async def commit(self, request: v1.CommitModel) -> v1.Committed:
        """Take the cut; with `wait` and the agents' receipts, write the lineage they need.

        Raises:
            ControlRefused: `not_a_policy_instance`, `ledger_not_quiescent`, `ledger_mismatch`,
                `ledger_not_checkpointable` and those of `CutHolder.commit`.
        """
        self._check_policy()
        agents = request.agents
        if agents is None:
            return await self._holder.commit(request, take=self._take, write=None)

        async def write(cut: LedgerCut, ticket: Ticket) -> v1.Committed:
            with parts.failing_as("ledger_not_checkpointable", "the part was not written"):
                return await asyncio.to_thread(
                    model_part.write, cut, self.server_name, agents, ticket, self._memory
                )

        given = ",".join(sorted(item.index_digest for item in agents))
        return await self._holder.commit(request, take=self._take, write=write, given=f"[{given}]")

    async def restore(self, request: v1.Restore) -> v1.Restored:
        """Take the lineage of every saved run over into the next run; see `restoring.restore`.

        Raises:
            ControlRefused: `not_a_policy_instance`, and those of `restoring.restore`.
        """
        self._check_policy()
        return await restoring.restore(
            self.fence,
            request,
            part=self.part,
            reason="ledger_mismatch",
            read=model_part.read,
            conflict=self._conflict,
            install=self._install,
        )

    async def discard(self, request: v1.DiscardRestored) -> v1.Discarded:
        """Drop the restored lineage of runs that start over.

        Raises:
            ControlRefused: `not_a_policy_instance`, `wrong_phase` unless a restore is in force,
                `unknown_checkpoint`, `stale_checkpoint`, `deadline_passed`.
        """
        self._check_policy()

        async def body() -> v1.Discarded:
            await restoring.installed(self.fence, request)
            wanted = {(item.rollout_id, item.attempt_index) for item in request.executions}
            found = wanted & self._restored
            for key in found:
                self._ledger.forget(*key)
            self._restored -= found
            return v1.Discarded(discarded=len(found))

        return await self.fence.run_operation("discard", request, body)

    async def resume(self, request: v1.Resume) -> v1.Resumed:
        """Accept calls again.

        Raises:
            ControlRefused: `not_a_policy_instance`, `unknown_checkpoint`, `deadline_passed`.
        """
        self._check_policy()
        idempotent = self.fence.resume(request)
        return v1.Resumed(state=self.fence.phase, idempotent=idempotent)

    # --- inside

    def _admit(self, key: RunKey) -> None:
        check_run(*key)
        what = f"{key[0]} run {key[1]}"
        if self._closed(*key) or self._ledger.newest(key[0]) > key[1]:
            raise refused(
                "stale_attempt", "this run is over", what=what, hint="send the rollout's next run"
            )
        if self.fence.closed:
            raise refused(
                "model_admission_closed",
                "a checkpoint is in force",
                what=what,
                hint="park, and call again after the resume",
            )

    def _check_policy(self) -> None:
        if self.instance_role != "policy":
            raise refused(
                "not_a_policy_instance",
                "only the policy model takes part; others must go on, so that tools can finish",
                what=self.server_name,
                hint="leave this server out of checkpoints",
            )

    def _settle(self) -> None:
        if self.fence.phase == "preparing" and not self._calls.total:
            self.fence.move("prepared")
        else:
            self.fence.changed.notify()

    def _admission(self) -> v1.ModelAdmission:
        return v1.ModelAdmission(
            state=self.fence.phase,
            admission="paused" if self.fence.closed else "accepting",
            inflight_total=self._calls.total,
            tombstones=len(self._given_up),
            inflight=tuple(
                v1.Execution(rollout_id=rollout_id, attempt_index=attempt_index)
                for rollout_id, attempt_index in self._calls.runs(NAMED)
            ),
        )

    def _take(self) -> tuple[LedgerCut, v1.Committed]:
        if self._calls.total:
            raise refused(
                "ledger_not_quiescent",
                f"{self._calls.total} calls are in flight",
                hint="wait for status 'paused' with none in flight, or abort them",
            )
        cut = self._ledger.cut(dict(self._given_up))
        return cut, v1.Committed(state="committed_paused", ready=False, rollouts=len(cut.runs))

    def _conflict(self, saved: model_part.RestoredLedger) -> str:
        if what := self._calls.has_rollout({key[0] for key in saved.runs}):
            return what
        for rollout_id, number in saved.runs:
            if self._ledger.has_rollout(rollout_id) or self._closed(rollout_id, number + 1):
                return rollout_id
        return ""

    def _closed(self, rollout_id: str, attempt_index: int) -> bool:
        return self._given_up.covers(rollout_id, attempt_index) or self._retired.covers(
            rollout_id, attempt_index
        )

    def _install(self, saved: model_part.RestoredLedger) -> v1.Restored:
        for item in saved.tombstones:
            self._given_up.close(item.rollout_id, item.attempt_index)
        for (rollout_id, number), run in saved.runs.items():
            self._retired.close(rollout_id, number)
            self._ledger.adopt((rollout_id, number + 1), run)
            self._restored.add((rollout_id, number + 1))
        return v1.Restored(
            state=self.fence.phase,
            restored=len(saved.runs),
            storage_reference_index=saved.index,
        )
