"""One save while it runs: what it holds, and how it lets go of it."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from snapfmt import Attempt, Repository
from snapfmt.errors import AttemptClosed, NoMatch
from snapfmt.reading.snapshot import Part
from snapfmt.reading.source import Source
from snapfmt_coordinator.gym.parts import GymParts
from snapfmt_coordinator.sequence.gates import CheckpointHold, GateReport
from snapfmt_coordinator.sequence.outcomes import SkipReason
from snapfmt_coordinator.sequence.ports import ControllerState, HeldCut
from snapfmt_coordinator.sequence.timeline import TimelineRecorder
from snapfmt_schemas.attempt import Receipt
from snapfmt_schemas.manifest import Manifest, TrainerAnchor


class Skipped(Exception):
    """This save is not to be taken; not an error."""

    def __init__(self, reason: SkipReason) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(slots=True, kw_only=True)
class SaveRun:
    """Everything that one save has taken hold of so far."""

    recorder: TimelineRecorder = field(default_factory=lambda: TimelineRecorder("save"))
    checkpoint_id: str = ""
    anchor: TrainerAnchor | None = None
    begun: Attempt | None = None
    gym_asked: bool = False
    """Whether a Gym server may have closed for it."""
    gate: GateReport | None = None
    lock_wait_s: float = 0.0
    hold: CheckpointHold | None = None
    own: ControllerState | None = None
    rows: HeldCut | None = None
    renewal: asyncio.Task[None] | None = None
    gym_parts: GymParts | None = None
    receipts: tuple[Receipt, ...] = ()
    staging_rows: int = 0
    notes: list[str] = field(default_factory=list)
    """What the operator should know of the parts."""
    manifest: Manifest | None = None

    @property
    def attempt(self) -> Attempt:
        """The running attempt."""
        if self.begun is None:
            raise AttemptClosed("the save has not begun")
        return self.begun

    @property
    def state(self) -> ControllerState:
        """The controller's state at the cut."""
        if self.own is None:
            raise AttemptClosed("the cut was not taken", what=self.checkpoint_id)
        return self.own

    @property
    def cut(self) -> HeldCut:
        """The rows at the cut."""
        if self.rows is None:
            raise AttemptClosed("the cut was not taken", what=self.checkpoint_id)
        return self.rows

    def keep(self, cut: HeldCut) -> None:
        """Takes a cut over, and renews its lease until `let_go`."""
        self.rows = cut
        self.renewal = asyncio.create_task(_renew(cut))

    async def let_go(self) -> None:
        """Drops the cut; the second time nothing happens."""
        renewal, self.renewal = self.renewal, None
        if renewal is not None:
            renewal.cancel()
            with suppress(asyncio.CancelledError):
                await renewal
        cut, self.rows = self.rows, None
        if cut is not None:
            await cut.drop()

    def part_of(self, repository: Repository) -> Callable[[str], Part]:
        """Finds sealed parts of the attempt by name, before they are published."""
        source = Source(repository.store, repository.limits)
        known = {receipt.part: receipt for receipt in self.receipts}

        def find(name: str) -> Part:
            if name not in known:
                raise NoMatch("no such part was written", what=name, hint=", ".join(sorted(known)))
            return Part(source, known[name], snapshot=self.checkpoint_id)

        return find


async def _renew(cut: HeldCut) -> None:
    while True:
        await asyncio.sleep(cut.lease_s / 3)
        try:
            await cut.renew()
        except Exception:  # noqa: BLE001 - whoever writes the cut meets the reason
            return
