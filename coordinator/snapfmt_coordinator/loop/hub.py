"""What all pumps share: the state, the gate, the barrier, and the log of who does what."""

from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field

from snapfmt_coordinator.loop import activity
from snapfmt_coordinator.loop.activity import ActivityLog
from snapfmt_coordinator.loop.control import Control
from snapfmt_coordinator.loop.timers import StallWatchdog
from snapfmt_coordinator.sequence.gates import (
    CheckpointLock,
    DataPlaneBarrier,
    DispatchGate,
    MutationKind,
)


@dataclass(frozen=True, slots=True)
class Hub:
    """One controller's shared things."""

    control: Control
    watchdog: StallWatchdog
    gate: DispatchGate = field(default_factory=DispatchGate)
    barrier: DataPlaneBarrier = field(default_factory=DataPlaneBarrier)
    lock: CheckpointLock = field(default_factory=CheckpointLock)
    log: ActivityLog = field(default_factory=ActivityLog)

    @asynccontextmanager
    async def mutation(self, kind: MutationKind, part: str) -> AsyncIterator[None]:
        """Surrounds a change of rows or ledger; waits while a cut is taken."""
        # Where nobody waits nothing is noted, however long this process has to itself.
        with ExitStack() as waiting:
            # Only who waits is noted, however long the machine keeps this process waiting.
            if self.barrier.closed:
                waiting.enter_context(self.log.during(part, "waiting", activity.BARRIER))
            async with self.barrier.mutation(kind):
                waiting.close()
                yield

    async def wait_gate(self) -> None:
        """Waits until runs may be sent."""
        if self.gate.owner is None:
            return
        with self.log.during(activity.ROLLOUT_PUMP, "waiting", activity.GATE):
            await self.gate.wait()
