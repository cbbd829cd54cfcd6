"""A resources server's side: operations in flight, and sessions frozen, cut and installed."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence, Sized
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

from snapfmt.reading.snapshot import Part
from snapfmt_coordinator.participant import parts, redacting, restoring, sessions_part
from snapfmt_coordinator.participant.fence import GRACE_S, Fence
from snapfmt_coordinator.participant.holding import CutHolder
from snapfmt_coordinator.participant.naming import check_run
from snapfmt_coordinator.participant.on_base import SaveMemory
from snapfmt_coordinator.participant.redacting import Secrets
from snapfmt_coordinator.participant.sessions_part import SessionCut
from snapfmt_coordinator.participant.tombstones import Tombstones
from snapfmt_coordinator.participant.touched import Touched
from snapfmt_coordinator.protocol import v1
from snapfmt_coordinator.protocol.codes import refused
from snapfmt_schemas.attempt import Ticket
from snapfmt_schemas.resources import ResourceSnapshot

__all__ = ["ResourcesParticipant", "SessionStore"]

FEATURES: Final = (v1.TICKET, v1.DEFERRED, v1.PART_RESTORE)
Contract = Literal["stateless", "serialized_per_session", "transactional_parallel"]


class SessionStore(Protocol):
    """What a resources server implements; called on the event loop, so each must be quick.

    A store that has `__len__` says by it how many sessions `prepare` reports.
    """

    def export(self) -> Iterable[tuple[str, int, int, dict[str, Any]]]:
        """Rollout, run, revision and state of every session; the state is a copy of its own.

        A session that no `operation` was entered for since a save, and whose revision is the
        same, counts as unchanged.
        """

    def install(self, sessions: Sequence[ResourceSnapshot]) -> None:
        """Take all sessions in, or none and raise; `attempt_index` is the new run's."""

    def drop(self, rollout_id: str, attempt_index: int) -> bool:
        """Forget a run's session; whether there was one."""


@dataclass(frozen=True, slots=True)
class Saved:
    """The sessions of a part."""

    sessions: tuple[ResourceSnapshot, ...]
    redacted: frozenset[str]
    """Rollouts whose session is not whole: they start over, without it."""


class ResourcesParticipant:
    """What a resources server answers the coordinator.

    `secrets` says what becomes of values in a session's state whose names read like a secret's
    (`redacting.Secrets`).
    """

    def __init__(
        self,
        store: SessionStore,
        *,
        server_name: str,
        name: str = "resources",
        mode: v1.Mode = "export_restore",
        concurrency_contract: Contract = "serialized_per_session",
        secrets: Secrets = "redact",
        grace_s: float = GRACE_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.server_name = server_name
        self.name = name
        self.mode: v1.Mode = mode
        self.concurrency_contract: Contract = concurrency_contract
        self.part = f"gym/resources/{server_name}"
        self.fence = Fence(grace_s=grace_s, clock=clock)
        self._store = store
        self._secrets: Secrets = secrets
        self._inside = 0
        self._newest: dict[str, int] = {}
        self._touched = Touched()
        self._closed = Tombstones()
        self._restored: set[tuple[str, int]] = set()
        self._holder: CutHolder[SessionCut] = CutHolder(self.fence, self.part)
        self._memory = SaveMemory()
        self.fence.on_open(self._restored.clear)

    # --- what the server calls

    @asynccontextmanager
    async def operation(self, rollout_id: str, attempt_index: int) -> AsyncIterator[None]:
        """Around everything that reads or changes a session: the next save writes it.

        Raises:
            ControlRefused: `resources_admission_closed` while frozen; `stale_attempt` for a run
                that was retired or has a newer one.
        """
        check_run(rollout_id, attempt_index)
        what = f"{rollout_id} run {attempt_index}"
        newest = self._newest.get(rollout_id, -1)
        if attempt_index < newest or self._closed.covers(rollout_id, attempt_index):
            raise refused("stale_attempt", "this run is over", what=what)
        if self.fence.closed:
            raise refused(
                "resources_admission_closed",
                "a checkpoint is in force",
                what=what,
                hint="park, and send it again after the resume",
            )
        if newest != attempt_index:
            self._touched.forget(rollout_id, newest)
        self._newest[rollout_id] = attempt_index
        self._touched.use(rollout_id, attempt_index)
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1
            self._settle()

    # --- what the coordinator asks for, without a checkpoint

    def capabilities(self) -> v1.Capabilities:
        """What this participant is and can do."""
        return v1.Capabilities(
            component="resources",
            name=self.name,
            server_name=self.server_name,
            checkpoint_mode=self.mode,
            concurrency_contract=self.concurrency_contract,
            phase=self.fence.phase,
            active_checkpoint_id=self.fence.active_id,
            deadline_ts=self.fence.deadline_ts,
            features=FEATURES,
        )

    def retire(self, executions: Sequence[v1.Execution]) -> v1.Retired:
        """Forget runs' sessions, and refuse these runs and those before them from now on."""
        retired = 0
        for item in executions:
            retired += self._drop(item.rollout_id, item.attempt_index)
            self._closed.close(item.rollout_id, item.attempt_index)
        return v1.Retired(retired=retired, tombstoned=len(executions))

    # --- what the coordinator asks for, for a checkpoint

    async def prepare(self, request: v1.Control) -> v1.ResourcesPrepared:
        """Refuse new operations and wait for those inside, up to the deadline.

        Raises:
            ControlRefused: `deadline_passed` when operations are still inside: admission is
                open again; `checkpoint_conflict`, `stale_checkpoint`, `wrong_phase`.
        """

        async def body() -> v1.ResourcesPrepared:
            # A store that fails must do so before admission is closed.
            self._count()
            if self.fence.enter(request, "preparing"):
                self._holder.drop()
            self.fence.require(request, "preparing", "prepared", "committed_paused")
            self._settle()
            drained = await self.fence.changed.wait_for(
                lambda: not self._inside or not self.fence.is_active(request.checkpoint_id),
                self.fence.remaining(request),
            )
            # Resumed, or ran out, meanwhile.
            self.fence.check_active(request)
            if not drained:
                self.fence.finish()
                raise refused(
                    "deadline_passed",
                    f"{self._inside} operations are still inside; admission is open again",
                    what=request.checkpoint_id,
                    hint="park the agents first, or allow more time",
                )
            return v1.ResourcesPrepared(state=self.fence.phase, sessions=self._count())

        return await self.fence.run_operation("prepare", request, body)

    async def commit(self, request: v1.Commit) -> v1.Committed:
        """Take the cut, and with `wait` write it; see `CutHolder.commit`.

        Raises:
            ControlRefused: `resources_checkpoint_error` and those of `CutHolder.commit`.
        """
        return await self._holder.commit(request, take=self._take, write=self._write)

    async def restore(self, request: v1.Restore) -> v1.Restored:
        """Install every saved session for the rollout's next run; see `restoring.restore`."""
        return await restoring.restore(
            self.fence,
            request,
            part=self.part,
            reason="resources_checkpoint_error",
            read=self._read,
            conflict=self._conflict,
            install=self._install,
        )

    async def discard(self, request: v1.DiscardRestored) -> v1.Discarded:
        """Drop the restored sessions of runs that start over.

        Raises:
            ControlRefused: `wrong_phase` unless a restore is in force, `unknown_checkpoint`,
                `stale_checkpoint`, `deadline_passed`.
        """

        async def body() -> v1.Discarded:
            await restoring.installed(self.fence, request)
            wanted = {(item.rollout_id, item.attempt_index) for item in request.executions}
            found = wanted & self._restored
            for key in found:
                self._drop(*key)
            self._restored -= found
            return v1.Discarded(discarded=len(found))

        return await self.fence.run_operation("discard", request, body)

    async def resume(self, request: v1.Resume) -> v1.Resumed:
        """Admit operations again.

        Raises:
            ControlRefused: `unknown_checkpoint`, `deadline_passed`.
        """
        idempotent = self.fence.resume(request)
        return v1.Resumed(state=self.fence.phase, idempotent=idempotent)

    # --- inside

    def _drop(self, rollout_id: str, attempt_index: int) -> bool:
        """Let go of a run; whether it had a session."""
        newest = self._newest.get(rollout_id)
        if newest is not None and newest <= attempt_index:
            del self._newest[rollout_id]
            self._touched.forget(rollout_id, newest)
        return bool(self._store.drop(rollout_id, attempt_index))

    def _settle(self) -> None:
        if self.fence.phase == "preparing" and not self._inside:
            self.fence.move("prepared")
        else:
            self.fence.changed.notify()

    def _count(self) -> int:
        if self.mode != "export_restore":
            return 0
        return len(self._store) if isinstance(self._store, Sized) else len(self._newest)

    def _take(self) -> tuple[SessionCut, v1.Committed]:
        if self._inside:
            raise refused(
                "resources_checkpoint_error",
                f"{self._inside} operations are inside",
                hint="prepare again",
            )
        sessions: list[sessions_part.Session] = []
        if self.mode == "export_restore":
            sessions = self._newest_only(_exported(self._store))
        marks = [self._touched.mark(*session[:3]) for session in sessions]
        cut = SessionCut(sessions, self.fence.clock(), marks)
        return cut, v1.Committed(
            state="committed_paused", ready=False, records=len(sessions), sessions=len(sessions)
        )

    def _newest_only(
        self, sessions: Iterable[sessions_part.Session]
    ) -> list[sessions_part.Session]:
        """One session of each rollout: older runs are over, and retired ones too."""
        newest: dict[str, sessions_part.Session] = {}
        for session in sessions:
            rollout_id, attempt_index = session[:2]
            if self._closed.covers(rollout_id, attempt_index):
                continue
            known = newest.get(rollout_id)
            if known is None or known[1] < attempt_index:
                newest[rollout_id] = session
        return list(newest.values())

    async def _write(self, cut: SessionCut, ticket: Ticket) -> v1.Committed:
        with parts.failing_as("resources_checkpoint_error", "the part was not written"):
            return await asyncio.to_thread(
                sessions_part.write,
                cut,
                self.server_name,
                self.mode,
                ticket,
                self._secrets,
                self._memory,
            )

    def _read(self, part: Part) -> Saved:
        server, sessions = sessions_part.read(part)
        if server.mode != self.mode:
            raise refused(
                "topology_mismatch",
                f"the snapshot is of a server in mode {server.mode}, this one is {self.mode}",
                what=self.server_name,
            )
        return Saved(sessions, redacting.read(part, sessions))

    def _conflict(self, saved: Saved) -> str:
        for item in saved.sessions:
            if item.rollout_id in self._newest or self._closed.covers(
                item.rollout_id, item.attempt_index + 1
            ):
                return item.rollout_id
        return ""

    def _install(self, saved: Saved) -> v1.Restored:
        sessions = [
            item.model_copy(update={"attempt_index": item.attempt_index + 1})
            for item in saved.sessions
            if item.rollout_id not in saved.redacted
        ]
        if sessions:
            try:
                self._store.install(sessions)
            except Exception as error:
                raise parts.failure(
                    "resources_checkpoint_error", "the sessions were not installed", error
                ) from error
        for item in saved.sessions:
            self._closed.close(item.rollout_id, item.attempt_index)
        for item in sessions:
            self._newest[item.rollout_id] = item.attempt_index
            self._restored.add((item.rollout_id, item.attempt_index))
        return v1.Restored(state=self.fence.phase, restored=len(sessions))


def _exported(store: SessionStore) -> list[sessions_part.Session]:
    try:
        # Taken apart here, so that a store that gives something else is told so.
        return [(name, number, rev, state) for name, number, rev, state in store.export()]
    except Exception as error:
        raise parts.failure(
            "resources_checkpoint_error", "the sessions were not exported", error
        ) from error
