"""One restore: everything, or nothing at all.

    discover, select, load rows, load Gym, assign, discard, resume

Nothing live is touched before a snapshot was chosen, read and checked. Whatever fails after that
is taken back in reverse: the controller's state, Gym's restored runs, the rows.
"""

import asyncio
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from snapfmt import Repository
from snapfmt.errors import ParticipantFailed, RefusedError
from snapfmt_coordinator.gym.fanout import to_the_end
from snapfmt_coordinator.gym.upkeep import NO_AGENT
from snapfmt_coordinator.protocol.v1 import Capabilities, Execution
from snapfmt_coordinator.sequence.indexes import SavedRun
from snapfmt_coordinator.sequence.outcomes import grouped
from snapfmt_coordinator.sequence.ports import ControllerLoader, DataPlaneLoader, Gym
from snapfmt_coordinator.sequence.save_steps import NEW, PARKED, fingerprints_of, observer
from snapfmt_coordinator.sequence.selection import Selected, Wanted, select
from snapfmt_coordinator.sequence.timeline import TimelineRecorder
from snapfmt_coordinator.sequence.waiting import before
from snapfmt_schemas.fingerprint import Fingerprint
from snapfmt_schemas.identity import run_of
from snapfmt_schemas.manifest import Manifest, TrainerAnchor
from snapfmt_schemas.timeline import PhaseTimeline

T = TypeVar("T")
StartOver = Literal["redacted_state", "restart_only_resource"]
"""Why a saved run starts over: redaction changed its state, or it used a server whose state is
not saved."""

AFRESH = "nothing is restored; start Gym servers and queue afresh before trying again"
LOAD_TIMEOUT_S = 1800.0
PREPARE_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreResult:
    """What was restored."""

    restore_id: str
    checkpoint_id: str
    """The one that the snapshot was saved under."""
    manifest: Manifest
    continued: tuple[Execution, ...] = ()
    """Runs that go on after their last boundary; by their new number."""
    started_over: tuple[Execution, ...] = ()
    """Runs that cannot go on from their saved boundary; by their new number."""
    reasons: tuple[StartOver, ...] = ()
    """Why each of those starts over, in their order."""
    passed_over: tuple[tuple[int, str], ...] = ()
    """Newer snapshots, and why they were not taken."""
    timeline: PhaseTimeline
    total_s: float

    @property
    def number(self) -> int:
        """The snapshot's number."""
        return self.manifest.number


async def restore(
    repository: Repository,
    gym: Gym | None,
    controller_loader: ControllerLoader,
    data_plane_loader: DataPlaneLoader,
    *,
    fingerprints: Sequence[Fingerprint] = (),
    anchor: TrainerAnchor | None = None,
    number: int | None = None,
    deep: bool = False,
    prepare_timeout_s: float = PREPARE_TIMEOUT_S,
    load_timeout_s: float = LOAD_TIMEOUT_S,
) -> RestoreResult:
    """Restores the newest snapshot that fits, or the one of a number, and lets Gym go on.

    Args:
        repository: Where the snapshots are.
        gym: The Gym servers; None restores a snapshot that was saved without them.
        controller_loader: The controller's side; it has not begun.
        data_plane_loader: An empty data plane.
        fingerprints: What must be equal; Gym's topology is added unless they have one.
        anchor: The trainer's place, if it was restored first.
        number: One snapshot instead of the newest one that fits.
        deep: Whether every stored byte is checked before anything live is touched.
        prepare_timeout_s: Time for each step of Gym.
        load_timeout_s: Time to load the rows.

    Raises:
        FingerprintMismatch, NoMatch: If no snapshot fits; nothing was touched.
        StorageError: If none was found and one could not be read; nothing was touched.
        RestoreRefused: If something live is in the way, or Gym takes part on one side only;
            nothing is restored.
        SnapfmtError: If a step failed; it was taken back, and nothing is restored.
    """
    recorder = TimelineRecorder("restore")
    capabilities: tuple[Capabilities, ...] = ()
    if gym is not None:
        async with recorder.phase("discover", "gym"):
            capabilities = await before(time.time() + prepare_timeout_s, "discover", gym.discover())
    wanted = Wanted(
        fingerprints=fingerprints_of(fingerprints, gym),
        anchor=anchor,
        gym=gym is not None,
        deep=deep,
    )
    async with recorder.phase("select") as notes:
        selected = await asyncio.to_thread(
            select, repository, controller_loader, wanted, number=number
        )
        notes.count(passed_over=len(selected.passed_over))
    work = _Restore(
        selected=selected,
        gym=gym,
        rows=data_plane_loader,
        restart_only=frozenset(
            item.server_name
            for item in capabilities
            if item.component == "resources" and item.checkpoint_mode == "restart_only"
        ),
        recorder=recorder,
        step_s=prepare_timeout_s,
        load_s=load_timeout_s,
    )
    await work.run()
    return work.result()


@dataclass(slots=True, kw_only=True)
class _Restore:
    """One restore after the choice: what was done so far, and how it is taken back."""

    selected: Selected
    gym: Gym | None
    rows: DataPlaneLoader
    restart_only: frozenset[str]
    recorder: TimelineRecorder
    step_s: float
    load_s: float
    restore_id: str = field(default_factory=lambda: f"restore-{uuid.uuid4().hex}")
    undo: list[Callable[[], Awaitable[object]]] = field(default_factory=list)

    async def run(self) -> None:
        """All steps, or none.

        Raises:
            SnapfmtError: What failed; with everything else that failed while it was taken back.
        """
        try:
            await self._steps()
            return
        except asyncio.CancelledError as error:
            for other in await to_the_end(self._take_back()):
                error.add_note(f"taking the restore back failed: {other}")
            raise
        except Exception as error:  # noqa: BLE001 - told together with what failed after it
            errors = [error, *await to_the_end(self._take_back())]
        failure = grouped(errors, self.restore_id, kind=ParticipantFailed, hint=AFRESH)
        if isinstance(failure, RefusedError | ParticipantFailed):
            raise failure
        raise ParticipantFailed(
            f"the restore was given up ({failure.code}: {failure})",
            what=self.restore_id,
            hint=AFRESH,
        ) from failure

    async def _steps(self) -> None:
        await self._load_rows()
        if self.gym is not None:
            await self._load_gym(self.gym)
        await self._assign()
        if self.gym is not None:
            await self._discard(self.gym)
            await self._resume(self.gym)

    def result(self) -> RestoreResult:
        """What was restored."""
        continued, over = self._split()
        manifest = self.selected.snapshot.manifest
        return RestoreResult(
            restore_id=self.restore_id,
            checkpoint_id=self.selected.record.checkpoint_id,
            manifest=manifest,
            continued=_next_runs(continued),
            started_over=_next_runs(run for run, _ in over),
            reasons=tuple(why for _, why in over),
            passed_over=self.selected.passed_over,
            timeline=self.recorder.timeline(),
            total_s=(self.recorder.now_ns() - self.recorder.started_at_ns) / 1e9,
        )

    async def _load_rows(self) -> None:
        async with self.recorder.phase("load", "rl/tq", waited=(NEW,)):
            work = self.rows.load(self.selected.snapshot)
            await self._done(before(time.time() + self.load_s, "rows", work), self.rows.unload)

    async def _load_gym(self, gym: Gym) -> None:
        let_go = False

        async def install() -> None:
            nonlocal let_go
            try:
                await gym.restore(
                    self.restore_id,
                    deadline_ts=deadline,
                    snapshot=self.selected.snapshot,
                    source_checkpoint_id=self.selected.record.checkpoint_id,
                    observe=observer(self.recorder),
                )
            except Exception:
                let_go = True
                raise

        async def give_up() -> None:
            # Only what this restore installed: a server that refused it may run something live,
            # and what the others had installed they let go of when Gym's restore failed. Of one
            # that was cut off nobody knows. Retired runs are refused from now on: an opened
            # server does not go back to being fresh.
            try:
                if not let_go:
                    await gym.retire(self._installed())
            finally:
                await self._open(gym)

        async with self.recorder.phase("load", "gym", waited=(NEW, PARKED)):
            # Also when it fails half way: some servers may have installed their part.
            self.undo.append(give_up)
            deadline = time.time() + self.step_s
            await before(deadline, "Gym's parts", install())

    async def _assign(self) -> None:
        controller = self.selected.controller
        continued, _ = self._split()
        keys = frozenset(run.capture_key for run in continued)
        async with self.recorder.phase("assign", "rl/controller", waited=(NEW, PARKED)):
            await self._done(controller.install(keys), controller.uninstall)

    async def _discard(self, gym: Gym) -> None:
        continued, over = self._split()
        by_agent: dict[str, list[Execution]] = defaultdict(list)
        for run, _ in over:
            by_agent[run.agent] += _next_runs([run])
        # The new run must not meet the session of one that parked before its first boundary,
        # nor that of one that ended and was never retired.
        known = {run.capture_key for run in (*continued, *(run for run, _ in over))}
        if loose := sorted(self._saved_sessions() - known):
            by_agent[NO_AGENT] += _runs_after(loose)
        if not by_agent:
            return
        async with self.recorder.phase("discard", "gym", waited=(NEW, PARKED)) as notes:
            reasons: Counter[str] = Counter(why for _, why in over)
            notes.count(started_over=len(over), loose_sessions=len(loose), **reasons)
            deadline = time.time() + self.step_s
            work = gym.discard(
                self.restore_id, by_agent, deadline_ts=deadline, observe=observer(self.recorder)
            )
            await before(deadline, "discard", work)

    async def _resume(self, gym: Gym) -> None:
        async with self.recorder.phase("resume", "gym", waited=(NEW, PARKED)):
            await to_the_end(self._open(gym))

    async def _open(self, gym: Gym) -> None:
        deadline = time.time() + self.step_s
        work = gym.resume(self.restore_id, deadline_ts=deadline, observe=observer(self.recorder))
        await before(deadline, "resume", work)

    async def _done(
        self, work: Coroutine[Any, Any, T], undo: Callable[[], Awaitable[object]]
    ) -> None:
        """Does a step that is whole or not at all, and remembers how to take it back."""

        async def both() -> None:
            await work
            self.undo.append(undo)

        await to_the_end(both())

    async def _take_back(self) -> list[BaseException]:
        errors: list[BaseException] = []
        for step in reversed(self.undo):
            try:
                await step()
            except Exception as error:  # noqa: BLE001 - the other steps are taken back all the same
                errors.append(error)
        return errors

    def _installed(self) -> tuple[Execution, ...]:
        """Every run that a Gym server may have installed, also those without a continuation."""
        runs = self.selected.indexes.runs
        known = {run.capture_key for run in runs}
        saved = self.selected.controller.dispatched_runs() | self._saved_sessions()
        others = sorted(saved - known)
        return (*_next_runs(runs), *_runs_after(others))

    def _saved_sessions(self) -> set[str]:
        """Capture keys of all runs of which a resources server saved a session."""
        return {key for found in self.selected.indexes.sessions.values() for key in found}

    def _split(self) -> tuple[list[SavedRun], list[tuple[SavedRun, StartOver]]]:
        """Saved runs that go on, and those that start over, with the reason."""
        indexes = self.selected.indexes
        redacted = indexes.redacted_keys()
        over: list[tuple[SavedRun, StartOver]] = []
        continued: list[SavedRun] = []
        for run in indexes.runs:
            if run.capture_key in redacted:
                over.append((run, "redacted_state"))
            elif self._lost(run):
                over.append((run, "restart_only_resource"))
            else:
                continued.append(run)
        return continued, over

    def _lost(self, run: SavedRun) -> bool:
        """Whether a run used a resource whose state was not saved. Unknown use counts as use."""
        used = self.restart_only if run.revisions is None else run.revisions
        return not self.restart_only.isdisjoint(used)


def _next_runs(runs: Iterable[SavedRun]) -> tuple[Execution, ...]:
    """The runs that take these up."""
    return tuple(
        Execution(rollout_id=run.rollout_id, attempt_index=run.attempt_index + 1) for run in runs
    )


def _runs_after(keys: Iterable[str]) -> tuple[Execution, ...]:
    """The runs after those with these capture keys."""
    runs = (run_of(key) for key in keys)
    return tuple(Execution(rollout_id=name, attempt_index=number + 1) for name, number in runs)
