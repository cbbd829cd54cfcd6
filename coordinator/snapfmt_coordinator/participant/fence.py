"""When a participant is closed, for which checkpoint, and until when.

    idle -prepare-> preparing -> prepared -commit-> committed_paused -resume-> idle
    idle -restore-> restoring -> restored_paused | restore_failed_paused -resume-> idle

One checkpoint id at a time. A closed participant opens again by itself when the deadline of
its checkpoint plus a grace has passed: a coordinator that died must not stop the rollouts.
Deadlines are absolute on the wire, and become remaining seconds on arrival: from then on the
wall clock may be set without a lease that ends early or never.
"""

import asyncio
import hashlib
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from snapfmt.errors import ControlRefused
from snapfmt_coordinator.participant.waiting import Lease, Signal
from snapfmt_coordinator.protocol.codes import refused
from snapfmt_coordinator.protocol.v1 import Control, Phase
from snapfmt_schemas._base import Record

R = TypeVar("R", bound=Record)

REMEMBERED_IDS: Final = 64
"""Finished checkpoint ids that are remembered and refused."""
GRACE_S: Final = 600.0
"""Seconds after a deadline until a participant opens by itself, or lets go of a held cut.

Longer than twice the coordinator's `prepare_timeout_s`: so long may lie between the commit that
held the cut and the one that has it written."""
MAX_AHEAD_S: Final = 366 * 24 * 3600.0
"""A deadline further ahead is a mistake, such as one in milliseconds."""
_LOG = logging.getLogger(__name__)


class Fence:
    """Admission of one participant. For one event loop; every change is synchronous.

    `clock` is the wall clock, which deadlines are compared with as they arrive; `timer` is
    monotonic, and leases run on it.
    """

    def __init__(
        self,
        *,
        grace_s: float = GRACE_S,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self.phase: Phase = "idle"
        self.active_id: str | None = None
        self.deadline_ts: float | None = None
        self.grace_s = grace_s
        self.clock = clock
        self.timer = timer
        self.changed = Signal()
        self._stale: deque[str] = deque(maxlen=REMEMBERED_IDS)
        self._openers: list[Callable[[], None]] = []
        self._lease = Lease(timer, self._expire)
        self._ends_at: float | None = None
        self._running: dict[tuple[str, str, str], asyncio.Task[Any]] = {}
        self._answers: dict[tuple[str, str, str], Any] = {}

    @property
    def closed(self) -> bool:
        """Whether new work is refused; opens first if the lease has ended.

        A loop that was busy or stopped may come here before the lease's own timer.
        """
        self._lease.check()
        return self.phase != "idle"

    def on_open(self, call: Callable[[], None]) -> None:
        """Call this whenever admission opens again."""
        self._openers.append(call)

    def is_active(self, checkpoint_id: str) -> bool:
        """Whether this checkpoint is the one in force."""
        return self.active_id == checkpoint_id

    def is_stale(self, checkpoint_id: str) -> bool:
        """Whether this checkpoint was resumed, or ran out, before."""
        return checkpoint_id in self._stale

    def remaining(self, request: Control) -> float:
        """Seconds to the deadline of a request that has just arrived."""
        return request.deadline_ts - self.clock()

    def check_deadline(self, request: Control) -> None:
        """Refuse a request that comes too late.

        Raises:
            ControlRefused: `deadline_passed`, or `invalid_request` for one no clock means.
        """
        self._lease.check()
        left = self.remaining(request)
        if left <= 0:
            raise refused(
                "deadline_passed",
                f"the deadline passed {-left:.3f} s ago; nothing was changed",
                what=request.checkpoint_id,
                hint="compare the clocks, or send a later deadline_ts",
            )
        if left > MAX_AHEAD_S:
            raise refused(
                "invalid_request",
                "deadline_ts is more than a year ahead",
                what="deadline_ts",
                hint="it is in seconds since 1970",
            )

    def enter(self, request: Control, phase: Phase) -> bool:
        """Close admission for a checkpoint; false when it is in force already.

        Raises:
            ControlRefused: `deadline_passed`, `stale_checkpoint`, `checkpoint_conflict`.
        """
        self.check_deadline(request)
        wanted = request.checkpoint_id
        if self.is_active(wanted):
            self.renew(request.deadline_ts)
            return False
        self._refuse_stale(wanted)
        if self.active_id is not None:
            raise refused(
                "checkpoint_conflict",
                f"checkpoint {self.active_id!r} is in force",
                what=wanted,
                hint="resume that one first",
            )
        self.active_id = wanted
        self.renew(request.deadline_ts)
        self.move(phase)
        return True

    def require(self, request: Control, *phases: Phase) -> None:
        """Refuse a request that is not about the checkpoint in force, or comes out of turn.

        Raises:
            ControlRefused: `deadline_passed`, `stale_checkpoint`, `unknown_checkpoint`,
                `wrong_phase`.
        """
        self.check_deadline(request)
        self.check_active(request)
        if phases and self.phase not in phases:
            raise self.wrong_phase(request, *phases)
        self.renew(request.deadline_ts)

    def check_active(self, request: Control) -> None:
        """Refuse a request that is not about the checkpoint in force.

        Raises:
            ControlRefused: `stale_checkpoint`, `unknown_checkpoint`.
        """
        if not self.is_active(request.checkpoint_id):
            self._refuse_stale(request.checkpoint_id)
            raise _unknown(request.checkpoint_id)

    def wrong_phase(self, request: Control, *phases: Phase) -> ControlRefused:
        """The refusal of a request that comes out of turn."""
        return refused(
            "wrong_phase",
            f"the participant is {self.phase}, not {' or '.join(phases)}",
            what=request.checkpoint_id,
            hint="ask in order: prepare or restore, commit, resume; to begin anew, resume this one"
            " and use a new id",
        )

    def renew(self, deadline_ts: float) -> None:
        """Move the deadline of the checkpoint in force, and its lease; never back."""
        self.deadline_ts = max(deadline_ts, self.deadline_ts or deadline_ts)
        ends_at = self.lease_end(deadline_ts)
        self._ends_at = max(ends_at, self._ends_at or ends_at)
        self._lease.set(self._ends_at)

    def lease_end(self, deadline_ts: float) -> float:
        """When the lease of a request ends that has just arrived, by `timer`."""
        return self.timer() + (deadline_ts - self.clock()) + self.grace_s

    def move(self, phase: Phase) -> None:
        """Go on to a phase of the checkpoint in force."""
        self.phase = phase
        self.changed.notify()

    def resume(self, request: Control) -> bool:
        """Open admission; true when this checkpoint was resumed, or ran out, before.

        The id is used up also when it was not known: a prepare that was given up, and arrives
        after its resume, must not close a participant that nobody will resume again.

        Raises:
            ControlRefused: `deadline_passed`, `unknown_checkpoint`.
        """
        self.check_deadline(request)
        wanted = request.checkpoint_id
        if self.is_stale(wanted):
            return True
        if not self.is_active(wanted):
            self._stale.append(wanted)
            raise _unknown(wanted)
        self.finish()
        return False

    def finish(self) -> None:
        """Open admission; the checkpoint's id is used up."""
        if self.active_id is not None:
            self._stale.append(self.active_id)
        self.withdraw()

    def withdraw(self) -> None:
        """Open admission as if the checkpoint in force had never been asked for."""
        self.active_id = self.deadline_ts = self._ends_at = None
        self._answers.clear()
        self._lease.clear()
        self.move("idle")
        for call in self._openers:
            call()

    async def run_operation(
        self, name: str, request: Control, body: Callable[[], Coroutine[Any, Any, R]]
    ) -> R:
        """Do something once per checkpoint id and request, also when asked concurrently.

        Whoever asks while it runs waits for the same answer; whoever asks later, as long as
        the checkpoint is in force, gets it again. A failure is not kept. It goes on when the
        one who asked goes away.

        Raises:
            ControlRefused: `deadline_passed`, and what `body` raises.
        """
        self.check_deadline(request)
        text = request.model_dump_json(exclude={"deadline_ts"})
        key = (request.checkpoint_id, name, hashlib.sha256(text.encode()).hexdigest())
        if key in self._answers:
            self.renew(request.deadline_ts)
            known: R = self._answers[key]
            return known
        task: asyncio.Task[R] | None = self._running.get(key)
        if task is None:
            task = asyncio.create_task(body())
            self._running[key] = task
            task.add_done_callback(lambda done: self._keep(key, done))
        return await asyncio.shield(task)

    def _keep(self, key: tuple[str, str, str], task: asyncio.Task[Any]) -> None:
        del self._running[key]
        # Asked for in any case, so that a failure nobody waited for is not reported as lost.
        if not task.cancelled() and task.exception() is None and self.is_active(key[0]):
            self._answers[key] = task.result()

    def _refuse_stale(self, checkpoint_id: str) -> None:
        if self.is_stale(checkpoint_id):
            raise refused(
                "stale_checkpoint",
                "this checkpoint was resumed or ran out before",
                what=checkpoint_id,
                hint="begin again with a new checkpoint id",
            )

    def _expire(self) -> None:
        _LOG.warning(
            "checkpoint %s was not resumed in time; admission is open again", self.active_id
        )
        self.finish()


def _unknown(checkpoint_id: str) -> ControlRefused:
    return refused(
        "unknown_checkpoint",
        "no such checkpoint is in force here",
        what=checkpoint_id,
        hint="prepare or restore it first",
    )
