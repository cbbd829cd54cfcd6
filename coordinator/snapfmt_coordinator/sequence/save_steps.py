"""The single steps of a save, each on what the save has taken hold of so far."""

import asyncio
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from snapfmt import Repository
from snapfmt.errors import CutInconsistent, DeadlineExceeded, NotPublished, ParticipantFailed
from snapfmt_coordinator.gym.fanout import to_the_end
from snapfmt_coordinator.gym.observing import Observe
from snapfmt_coordinator.sequence import consistency, records
from snapfmt_coordinator.sequence.gates import CheckpointLock, DataPlaneBarrier, DispatchGate
from snapfmt_coordinator.sequence.indexes import RedactedRuns, read_indexes
from snapfmt_coordinator.sequence.ports import Controller, DataPlane, Gym
from snapfmt_coordinator.sequence.save_run import SaveRun, Skipped
from snapfmt_coordinator.sequence.timeline import TimelineRecorder
from snapfmt_coordinator.sequence.waiting import before, in_thread
from snapfmt_schemas.attempt import Receipt
from snapfmt_schemas.fingerprint import Fingerprint

CONTROLLER_PART: Final = "rl/controller"
NEW, PARKED = "new rollouts", "rollouts in flight"
WRITERS, TRAINER = "writers of rows", "trainer checkpoint"
_ACKNOWLEDGE_EVERY_S: Final = 0.05
_CUT_PATIENCE_S: Final = 60.0
_MARGIN_S: Final = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveSettings:
    """What a sequence of saves is told once. Times in seconds."""

    prepare_timeout_s: float
    write_timeout_s: float
    capture_partition: str
    fingerprints: tuple[Fingerprint, ...]
    user_metadata: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveSteps:
    """The steps, over the ports of one run."""

    repository: Repository
    gym: Gym | None
    controller: Controller
    data_plane: DataPlane
    gate: DispatchGate
    barrier: DataPlaneBarrier
    lock: CheckpointLock
    settings: SaveSettings

    def check(self, run: SaveRun, saved_version: int | None, *, force: bool) -> None:
        """Looks whether a save makes sense now; nothing is held yet.

        Raises:
            Skipped: If no save should be taken now.
        """
        if (reason := self.controller.skip_reason()) is not None:
            raise Skipped(reason)
        if self.gym is None and not force and saved_version == self.barrier.mutation_version:
            raise Skipped("no_data_plane_mutations")

    async def begin(self, run: SaveRun) -> None:
        """Everything that takes time and need not wait for anybody, nor hold anybody."""
        settings = self.settings
        lease_s = 4 * settings.prepare_timeout_s + settings.write_timeout_s + _MARGIN_S

        if self.gym is not None:
            await before(self.deadline(), "discover", self.gym.discover())
        work = self.data_plane.prepare(self.repository)
        base = await before(self.deadline(), "data plane", work)

        def begin() -> None:
            try:
                run.begun = self.repository.begin(base=base, lease_seconds=lease_s)
            except NotPublished:
                # The base was retired since it was looked for.
                run.begun = self.repository.begin(lease_seconds=lease_s)

        await in_thread(begin)
        step = self.controller.anchor().train_step
        nonce = uuid.uuid4().hex
        run.checkpoint_id = f"rollout-step-{step}-snapshot-{run.attempt.number}-{nonce}"

    async def close(self, run: SaveRun) -> None:
        """New rollouts wait from here on; pays the acknowledgements that are owed."""
        async with run.recorder.phase("gate", waited=(NEW,)):
            self.gate.close(run.checkpoint_id)
            await self._acknowledge(self.deadline())

    async def prepare(self, run: SaveRun, gym: Gym) -> None:
        """Gym comes to a standstill, while results that still arrive are acknowledged."""
        deadline = self.deadline()
        async with run.recorder.phase("prepare", "gym", waited=(NEW, PARKED)) as notes:
            run.gym_asked = True
            still = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._keep_acknowledging(still, deadline))
                counts = await before(
                    deadline,
                    "prepare",
                    gym.prepare(
                        run.checkpoint_id, deadline_ts=deadline, observe=observer(run.recorder)
                    ),
                )
                still.set()
            notes.count(**counts.as_counts())
            await self._acknowledge(deadline)

    async def commit(self, run: SaveRun, gym: Gym) -> None:
        """Every server takes its cut and holds it."""
        deadline = self.deadline()
        async with run.recorder.phase("commit", "gym", waited=(NEW, PARKED)):
            work = gym.commit(
                run.checkpoint_id,
                deadline_ts=deadline,
                tickets=run.attempt.ticket,
                observe=observer(run.recorder),
            )
            await before(deadline, "commit", work)

    async def cut(self, run: SaveRun) -> None:
        """Takes RL's own cut; nobody writes rows and no trainer checkpoint is cut meanwhile.

        Raises:
            Skipped: If the trainer's place has no durable checkpoint, other than when the save
                began.
            ParticipantFailed: If Gym was not told of a result in time.
        """
        held = (NEW, PARKED) if self.gym is not None else ()
        async with run.recorder.phase("cut", waited=(*held, WRITERS, TRAINER)) as notes:
            await before(self.deadline(), "cut", self._cut(run))
            if run.hold is not None:
                notes.count(waited=run.hold.waited)

    async def _cut(self, run: SaveRun) -> None:
        async with self.lock.hold(run.checkpoint_id) as waited, self.barrier.checkpoint() as hold:
            run.lock_wait_s, run.hold = waited, hold
            # A step that was finished since the save began does no harm if it is durable too.
            if self.controller.skip_reason() is not None:
                raise Skipped("trainer_state_changed")
            run.anchor = self.controller.anchor()
            with run.recorder.block("cut", CONTROLLER_PART):
                run.own = self.controller.cut()
            if self.gym is not None and (owed := run.own.pending_acknowledgements()):
                # Such as of an agent that was restarted: it is still at once, and what it gave
                # before is adopted after the last acknowledgement.
                raise ParticipantFailed(
                    f"{owed} results were adopted between the last acknowledgement and the cut",
                    what=run.checkpoint_id,
                    hint="they are acknowledged now; then save again",
                )
            with run.recorder.block("cut", "rl/tq"):
                await to_the_end(self._take_rows(run), patience_s=_CUT_PATIENCE_S)

    async def _take_rows(self, run: SaveRun) -> None:
        try:
            run.keep(await self.data_plane.take_cut())
        except CutInconsistent as error:
            # Its hold ran out: nothing contradicts anything, it only took too long.
            raise DeadlineExceeded(f"the data plane was not held: {error}") from error

    async def write(self, run: SaveRun) -> None:
        """Has every part written at the same time, while rollouts run.

        Raises:
            CutInconsistent: If the parts do not fit together.
            ExceptionGroup: With what the writers raised.
        """
        deadline = time.time() + self.settings.write_timeout_s
        async with asyncio.TaskGroup() as group:
            if self.gym is not None:
                group.create_task(self._write_gym(run, self.gym, deadline))
            rows = group.create_task(self._write_rows(run, deadline))
            own = group.create_task(self._write_own(run))
            keys = group.create_task(
                before(deadline, "keys", run.cut.keys(self.settings.capture_partition))
            )
        gym = () if run.gym_parts is None else run.gym_parts.receipts
        run.receipts = (*gym, *rows.result(), own.result())
        run.staging_rows = len(keys.result())
        async with run.recorder.phase("write", "consistency") as notes:
            if redacted := await in_thread(lambda: self._check(run, keys.result())):
                notes.count(redacted_runs=redacted)

    async def _write_gym(self, run: SaveRun, gym: Gym, deadline: float) -> None:
        async with run.recorder.phase("write", "gym"):
            run.gym_parts = await before(
                deadline,
                "Gym's parts",
                gym.collect(
                    run.checkpoint_id,
                    deadline_ts=deadline,
                    tickets=run.attempt.ticket,
                    observe=observer(run.recorder),
                ),
            )

    async def _write_rows(self, run: SaveRun, deadline: float) -> tuple[Receipt, ...]:
        async with run.recorder.phase("write", "rl/tq") as notes:
            receipts = await before(deadline, "rows", run.cut.write(run.attempt))
            notes.count(stored_bytes=sum(receipt.stored_bytes for receipt in receipts))
            return receipts

    async def _write_own(self, run: SaveRun) -> Receipt:
        def write() -> Receipt:
            with run.recorder.block("write", CONTROLLER_PART) as notes:
                with run.attempt.part(CONTROLLER_PART) as part:
                    run.state.write(part)
                    receipt = part.seal()
                notes.count(stored_bytes=receipt.stored_bytes)
                return receipt

        return await in_thread(write)

    def _check(self, run: SaveRun, rows: frozenset[str]) -> int:
        """Refuses parts that do not fit together; how many runs are not whole in them."""
        gym = run.gym_parts
        indexes = None
        if gym is not None:
            indexes = read_indexes(run.part_of(self.repository), gym)
        if indexes is not None and (gone := consistency.given_up(indexes, run.state)):
            raise ParticipantFailed(
                "; ".join(gone),
                what=run.checkpoint_id,
                hint="they start over; then save again",
            )
        if found := consistency.problems(indexes, run.state, rows):
            raise CutInconsistent(
                "; ".join(found),
                what=run.checkpoint_id,
                hint="a writer changed its part after the cut, or lost something before it",
            )
        if indexes is None:
            return 0
        if lost := consistency.lost_sessions(indexes):
            raise ParticipantFailed(
                "; ".join(lost),
                what=run.checkpoint_id,
                hint="such runs fail and start over; then save again. Run it with one worker",
            )
        run.notes += [_redacted_note(item) for item in indexes.redacted]
        return len(indexes.redacted_keys())

    async def publish(self, run: SaveRun) -> None:
        """Makes the snapshot exist."""
        record = records.SaveRecord(
            checkpoint_id=run.checkpoint_id,
            gym=run.gym_parts is not None,
            mutation_version=0 if run.hold is None else run.hold.mutation_version,
            capture_partition=self.settings.capture_partition,
        )
        metadata = records.to_metadata(record, run.gym_parts, self.settings.user_metadata)

        def publish() -> None:
            with run.recorder.block("publish"):
                run.manifest = run.attempt.publish(
                    run.receipts,
                    fingerprints=fingerprints_of(self.settings.fingerprints, self.gym),
                    anchor=run.anchor,
                    timeline=run.recorder.timeline(),
                    user_metadata=metadata,
                )

        await in_thread(publish)

    async def _keep_acknowledging(self, still: asyncio.Event, deadline: float) -> None:
        while not still.is_set():
            await self._acknowledge(deadline)
            with suppress(TimeoutError):
                await asyncio.wait_for(still.wait(), _ACKNOWLEDGE_EVERY_S)

    async def _acknowledge(self, deadline: float) -> None:
        owed = tuple(self.controller.acknowledgements())
        if self.gym is None or not owed:
            return
        work = self.gym.acknowledge(
            [(item.agent_name, item.receipt) for item in owed], deadline_ts=deadline
        )
        await before(deadline, "acknowledge", work)
        self.controller.acknowledged(owed)

    def deadline(self) -> float:
        """Deadline of a step that begins now, in Unix seconds."""
        return time.time() + self.settings.prepare_timeout_s


def observer(recorder: TimelineRecorder) -> Observe:
    """Notes what Gym reports of its single servers."""

    def observe(step: str, actor: str, start: int, end: int, counts: dict[str, int]) -> None:
        recorder.add(step, actor, start, end, counts=counts)

    return observe


def fingerprints_of(given: Sequence[Fingerprint], gym: Gym | None) -> tuple[Fingerprint, ...]:
    """The caller's fingerprints, and Gym's topology unless they have one."""
    if gym is None or any(item.name == "topology" for item in given):
        return tuple(given)
    return (*given, gym.topology().to_fingerprint())


def _redacted_note(found: RedactedRuns) -> str:
    """What the operator is told of a server whose state is not whole in its part."""
    first, count = found.runs[0], len(found.runs)
    which = "1 run has" if count == 1 else f"{count} runs has"
    return (
        f"{found.component} server {found.server!r}: state of {which} values under names that"
        f" read like a secret's, such as {first.paths[0]!r} of {first.capture_key}; they were not"
        " stored, and a restore lets these runs start over. Rename the fields; or, if none of it"
        " is a credential, give the server's participant secrets='keep'"
    )
