"""One save, from the closed gate to the published snapshot.

Holds at any time, also after an error or a cancellation:
  * a snapshot is published only when every part is sealed and all parts fit together;
  * rollouts go on before anything is written, and new ones go out only after Gym confirmed;
  * when Gym did not confirm, the gate stays closed, and the next save first asks again for the
    release of the same checkpoint;
  * inside the barrier nothing is awaited but the taking of references.
"""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from snapfmt import Repository
from snapfmt.errors import InputError, SnapfmtError
from snapfmt_coordinator.gym.fanout import to_the_end
from snapfmt_coordinator.sequence.gates import (
    CheckpointHold,
    CheckpointLock,
    DataPlaneBarrier,
    DispatchGate,
    GateReport,
)
from snapfmt_coordinator.sequence.outcomes import (
    MAX_CONSECUTIVE_FAILURES,
    FailureCounter,
    Outcome,
    Reason,
    classify,
    grouped,
)
from snapfmt_coordinator.sequence.ports import Controller, DataPlane, Gym, Retention
from snapfmt_coordinator.sequence.save_run import SaveRun, Skipped
from snapfmt_coordinator.sequence.save_steps import (
    NEW,
    PARKED,
    SaveSettings,
    SaveSteps,
    observer,
)
from snapfmt_coordinator.sequence.waiting import before, in_thread
from snapfmt_schemas.attempt import Receipt
from snapfmt_schemas.fingerprint import Fingerprint
from snapfmt_schemas.manifest import Manifest
from snapfmt_schemas.timeline import PhaseTimeline

CAPTURE_PARTITION = "rollout_staging"
"""Upstream's partition of token-capture rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveResult:
    """How one save ended. Times in seconds."""

    outcome: Outcome
    reason: Reason
    checkpoint_id: str = ""
    manifest: Manifest | None = None
    timeline: PhaseTimeline
    """With the publication, which the manifest's own timeline cannot have."""
    error: SnapfmtError | None = None
    """Of a failed save; its cause has everything that went wrong."""
    total_s: float
    gate: GateReport | None = None
    """None when the gate was not closed, or was not opened again."""
    hold: CheckpointHold | None = None
    lock_wait_s: float = 0.0
    receipts: tuple[Receipt, ...] = ()
    staging_rows: int = 0
    retired: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    """What the operator should know: state that is not whole in the parts, and what went wrong
    after the publication. Where something was published, the snapshot is good."""

    @property
    def number(self) -> int | None:
        """The snapshot's number, None when none was published."""
        return None if self.manifest is None else self.manifest.number


class SaveSequence:
    """Takes snapshots of one run, one at a time. Belongs to one event loop."""

    def __init__(
        self,
        repository: Repository,
        gym: Gym | None,
        controller: Controller,
        data_plane: DataPlane,
        gate: DispatchGate,
        barrier: DataPlaneBarrier,
        lock: CheckpointLock,
        *,
        prepare_timeout_s: float = 300.0,
        write_timeout_s: float = 1800.0,
        keep_latest: int = 2,
        fingerprints: Sequence[Fingerprint] = (),
        retire: Retention | None = None,
        user_metadata: Mapping[str, Any] | None = None,
        capture_partition: str = CAPTURE_PARTITION,
        max_consecutive_failures: int = MAX_CONSECUTIVE_FAILURES,
    ) -> None:
        """`gym` is None where Gym takes no part; without `retire` every snapshot stays.

        `prepare_timeout_s` is for prepare, commit, cut and resume, each. Gym's topology is added
        to `fingerprints` unless they have one.

        Raises:
            InputError: If a number is out of range.
        """
        if keep_latest < 1 or max_consecutive_failures < 1:
            raise InputError("keep_latest and max_consecutive_failures are at least 1")
        settings = SaveSettings(
            prepare_timeout_s=prepare_timeout_s,
            write_timeout_s=write_timeout_s,
            capture_partition=capture_partition,
            fingerprints=tuple(fingerprints),
            user_metadata=dict(user_metadata or {}),
        )
        self._steps = SaveSteps(
            repository=repository,
            gym=gym,
            controller=controller,
            data_plane=data_plane,
            gate=gate,
            barrier=barrier,
            lock=lock,
            settings=settings,
        )
        self._repository, self._gym, self._gate = repository, gym, gate
        self._retire, self._keep_latest = retire, keep_latest
        self._failures = FailureCounter(max_consecutive_failures)
        self._turn = asyncio.Lock()
        self._pending: str | None = None
        self._saved_version: int | None = None
        self._last: SaveResult | None = None

    @property
    def pending_release(self) -> str | None:
        """The checkpoint whose release Gym has not confirmed; the gate is closed as long."""
        return self._pending

    @property
    def last(self) -> SaveResult | None:
        """How the last save ended, also when it raised."""
        return self._last

    @property
    def consecutive_failures(self) -> int:
        """Failed saves since the last one that succeeded or was skipped."""
        return self._failures.count

    async def save(self, *, force: bool = False) -> SaveResult:
        """Takes one snapshot, or says why not.

        A failed save that may be tried again is a result; the run goes on. `force` saves also
        when the data plane did not change.

        Raises:
            SnapfmtError: If an invariant is broken, or this was one failure too many; the run
                should end. Nothing was published, unless it is `CommitOutcomeUnknown`.
        """
        async with self._turn:
            run = SaveRun()
            try:
                await self._run(run, force=force)
            except Skipped as skip:
                if errors := await to_the_end(self._give_up(run)):
                    return self._failed(run, errors)
                return self._ended(run, "skipped", skip.reason)
            except asyncio.CancelledError as error:
                for other in await to_the_end(self._give_up(run)):
                    error.add_note(f"giving the save up failed: {other}")
                raise
            except Exception as error:  # noqa: BLE001 - classified, and raised if it must be
                return self._failed(run, [error, *await to_the_end(self._give_up(run))])
            return self._ended(run, "completed", "completed", *await self._settle(run))

    async def release_pending(self) -> None:
        """Asks Gym again for a release that it did not confirm; then the gate opens.

        Raises:
            SnapfmtError: If it is not confirmed now either; the gate stays closed.
        """
        async with self._turn:
            await self._release_again(SaveRun())

    async def _run(self, run: SaveRun, *, force: bool) -> None:
        steps, gym = self._steps, self._gym
        await self._release_again(run)
        steps.check(run, self._saved_version, force=force)
        await steps.begin(run)
        if gym is not None:
            await steps.close(run)
            await steps.prepare(run, gym)
            await steps.commit(run, gym)
        await steps.cut(run)
        if gym is not None:
            await to_the_end(self._release(run, gym, run.checkpoint_id))
        await steps.write(run)
        await steps.publish(run)

    async def _release_again(self, run: SaveRun) -> None:
        if self._pending is not None and self._gym is not None:
            await to_the_end(self._release(run, self._gym, self._pending))

    async def _release(self, run: SaveRun, gym: Gym, checkpoint_id: str) -> None:
        """Has Gym go on, then opens the gate; until Gym confirms, the release is pending."""
        self._pending = checkpoint_id
        deadline = self._steps.deadline()
        async with run.recorder.phase("resume", "gym", waited=(NEW, PARKED)) as notes:
            work = gym.resume(checkpoint_id, deadline_ts=deadline, observe=observer(run.recorder))
            await before(deadline, "resume", work)
            self._pending = None
            run.gate = self._gate.open(checkpoint_id)
            notes.count(gate_closed_ms=int(run.gate.closed_s * 1000), gate_waited=run.gate.waited)

    async def _give_up(self, run: SaveRun) -> list[BaseException]:
        """Lets go of everything that the save holds; what failed in that. Rollouts first."""
        errors: list[BaseException] = []

        async def attempt(work: Awaitable[object]) -> None:
            try:
                await work
            except Exception as error:  # noqa: BLE001 - told together with what came before it
                errors.append(error)

        ours = run.checkpoint_id != "" and self._gate.owner == run.checkpoint_id
        if ours and run.gym_asked and self._gym is not None:
            # Not again when Gym has just failed to confirm it: the next save will ask.
            if self._pending != run.checkpoint_id:
                await attempt(self._release(run, self._gym, run.checkpoint_id))
        elif ours:
            run.gate = self._gate.open(run.checkpoint_id)
        await attempt(run.let_go())
        if run.begun is not None:
            await attempt(asyncio.to_thread(run.begun.abandon))
        return errors

    async def _settle(self, run: SaveRun) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """After the publication: lets go, and retires what is too old; the notes on that."""
        if run.hold is not None:
            self._saved_version = run.hold.mutation_version
        notes = [str(error) for error in await to_the_end(self._give_up(run))]
        retired: list[int] = []
        if self._retire is not None:
            retire, keep = self._retire, self._keep_latest

            def retire_old() -> None:
                for number in self._repository.numbers()[:-keep]:
                    try:
                        retire(number)
                        retired.append(number)
                    except SnapfmtError as error:
                        notes.append(f"snapshot {number} was not retired: {error}")

            await in_thread(retire_old)
        return tuple(retired), tuple(notes)

    def _failed(self, run: SaveRun, errors: Sequence[BaseException]) -> SaveResult:
        reason = classify(BaseExceptionGroup("save", errors))
        error = grouped(errors, run.checkpoint_id or "save")
        return self._ended(run, "failed", reason, error=error)

    def _ended(
        self,
        run: SaveRun,
        outcome: Outcome,
        reason: Reason,
        retired: tuple[int, ...] = (),
        notes: tuple[str, ...] = (),
        *,
        error: SnapfmtError | None = None,
    ) -> SaveResult:
        result = SaveResult(
            outcome=outcome,
            reason=reason,
            checkpoint_id=run.checkpoint_id,
            manifest=run.manifest,
            timeline=run.recorder.timeline(),
            error=error,
            total_s=(run.recorder.now_ns() - run.recorder.started_at_ns) / 1e9,
            gate=run.gate,
            hold=run.hold,
            lock_wait_s=run.lock_wait_s,
            receipts=run.receipts,
            staging_rows=run.staging_rows,
            retired=retired,
            notes=(*run.notes, *notes),
        )
        self._last = result
        if self._failures.record(outcome, reason) and error is not None:
            raise error
        return result
