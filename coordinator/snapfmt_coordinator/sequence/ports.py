"""What the sequences need of the parties to a save and a restore; no I/O, no policy.

Blocking methods (`def` below that say so) are called in a worker thread; the others are called
on the event loop and must be quick. Deadlines are absolute Unix seconds.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol

from snapfmt import PartWriter, Repository, Snapshot
from snapfmt_coordinator.gym.observing import Observe
from snapfmt_coordinator.gym.parts import GymParts
from snapfmt_coordinator.protocol.v1 import Capabilities, Execution
from snapfmt_schemas.attempt import Receipt, Ticket
from snapfmt_schemas.completion import CompletionReceipt
from snapfmt_schemas.ledger import PendingAcknowledgement
from snapfmt_schemas.manifest import TrainerAnchor
from snapfmt_schemas.topology import Topology

__all__ = [
    "Controller",
    "ControllerLoader",
    "ControllerSkip",
    "ControllerState",
    "DataPlane",
    "DataPlaneLoader",
    "Gym",
    "GymParts",
    "HeldCut",
    "LedgerFacts",
    "Observe",
    "PrepareCounts",
    "Retention",
    "SavedController",
    "TicketFor",
    "TicketSource",
]

TicketFor = Callable[[str], Ticket]
"""Gives the ticket of a part by the part's name."""
ControllerSkip = Literal["optimizer_commit_in_progress", "missing_trainer_anchor"]
"""Why the controller wants no save now."""


class TicketSource(Protocol):
    """A running save attempt, as far as a writer of parts needs it; `snapfmt.Attempt` is one."""

    def ticket(self, part: str) -> Ticket:
        """What another process needs to write this part."""
        ...


class PrepareCounts(Protocol):
    """What stands still once Gym is prepared."""

    def as_counts(self) -> dict[str, int]:
        """The numbers, for a timeline."""
        ...


class Gym(Protocol):
    """All Gym servers that take part, as one; `gym.side.GymSide` is one.

    `observe` is told every step on every server.
    """

    async def discover(self) -> tuple[Capabilities, ...]:
        """What every server is and can do; remembered, and looked at again by `prepare`.

        Raises:
            UnsupportedFeature: If a server lacks a feature that a save or a restore needs.
        """
        ...

    def topology(self) -> Topology:
        """The topology of the servers that were discovered."""
        ...

    async def acknowledge(
        self, receipts: Sequence[tuple[str, CompletionReceipt]], *, deadline_ts: float
    ) -> object:
        """Tells agents, by server name, which results were adopted; may be repeated."""
        ...

    async def prepare(
        self, checkpoint_id: str, *, deadline_ts: float, observe: Observe | None = None
    ) -> PrepareCounts:
        """Brings every server to a standstill at turn boundaries."""
        ...

    async def commit(
        self,
        checkpoint_id: str,
        *,
        deadline_ts: float,
        tickets: TicketFor,
        observe: Observe | None = None,
    ) -> object:
        """Has every server take and hold its cut; nothing is written yet."""
        ...

    async def collect(
        self,
        checkpoint_id: str,
        *,
        deadline_ts: float,
        tickets: TicketFor,
        observe: Observe | None = None,
    ) -> GymParts:
        """Has every server write the cut that it holds; its sealed parts."""
        ...

    async def resume(
        self, checkpoint_id: str, *, deadline_ts: float, observe: Observe | None = None
    ) -> object:
        """Opens resources, model and agents again; also gives up what was not committed.

        No error when they are open already.
        """
        ...

    async def restore(
        self,
        restore_id: str,
        *,
        deadline_ts: float,
        snapshot: Snapshot,
        source_checkpoint_id: str,
        observe: Observe | None = None,
    ) -> object:
        """Installs the saved state everywhere, every run as its next one; all stay paused.

        All or nothing: when one server fails or refuses, the others let go of what they had
        installed before the error is raised.
        """
        ...

    async def discard(
        self,
        restore_id: str,
        executions: Mapping[str, Sequence[Execution]],
        *,
        deadline_ts: float,
        observe: Observe | None = None,
    ) -> object:
        """Has agents, by server name, let restored runs start over, and models and resources.

        Under the empty name stand runs that no agent holds (`gym.upkeep.NO_AGENT`).
        """
        ...

    async def retire(self, executions: Sequence[Execution]) -> object:
        """Has every server forget and from now on refuse these runs."""
        ...


class LedgerFacts(Protocol):
    """What other parts of a cut must agree with; the same for a live and a saved state."""

    def required_rows(self) -> frozenset[str]:
        """Keys of the token-capture rows that the controller's state names."""
        ...

    def dispatched_runs(self) -> frozenset[str]:
        """Capture keys of the runs that were sent to Gym and have no adopted result."""
        ...

    def given_up_runs(self) -> frozenset[str]:
        """Capture keys of the runs that failed or were abandoned."""
        ...

    def pending_acknowledgements(self) -> int:
        """Adopted results that Gym does not know of yet."""
        ...


class ControllerState(LedgerFacts, Protocol):
    """The controller's own state at the cut; nothing that happens later changes it."""

    def write(self, part: PartWriter) -> None:
        """Blocking: stages the state into `rl/controller`; does not seal."""
        ...


class Controller(Protocol):
    """RL's own side of a save."""

    def skip_reason(self) -> ControllerSkip | None:
        """Why no save should be taken now."""
        ...

    def anchor(self) -> TrainerAnchor:
        """The trainer's place now."""
        ...

    def acknowledgements(self) -> Sequence[PendingAcknowledgement]:
        """Adopted results that Gym does not know of yet."""
        ...

    def acknowledged(self, done: Sequence[PendingAcknowledgement]) -> None:
        """Gym knows of these now."""
        ...

    def cut(self) -> ControllerState:
        """The state, taken while the barrier stands; O(groups), no I/O.

        Raises:
            CutInconsistent: If the controller's own parts do not agree.
        """
        ...


class HeldCut(Protocol):
    """The rows of the data plane at the cut, by reference."""

    @property
    def lease_s(self) -> float:
        """It is let go of when nobody renews or writes it for this many seconds."""
        ...

    async def write(self, source: TicketSource) -> tuple[Receipt, ...]:
        """Writes and seals its parts."""
        ...

    async def keys(self, partition: str) -> frozenset[str]:
        """Keys of the rows of a partition; empty when there is no such partition."""
        ...

    async def renew(self) -> None:
        """Keeps it for `lease_s` from now.

        Raises:
            LeaseExpired: If it is gone.
        """
        ...

    async def drop(self) -> None:
        """Lets go of it; no error when it is gone."""
        ...


class DataPlane(Protocol):
    """TransferQueue, in this process's view."""

    async def prepare(self, repository: Repository) -> int | None:
        """What a cut needs that takes time and holds nobody; before every cut.

        Returns:
            Number of the snapshot in the repository to build on; None to write all rows.
        """
        ...

    async def take_cut(self) -> HeldCut:
        """Takes references to all rows; the queue stands for milliseconds."""
        ...


class DataPlaneLoader(Protocol):
    """A fresh data plane, in this process's view."""

    async def load(self, snapshot: Snapshot) -> None:
        """Loads all rows of a snapshot; all or nothing.

        Raises:
            RestoreRefused: If the data plane is not empty.
        """
        ...

    async def unload(self) -> None:
        """Takes a finished load back: the data plane is empty again."""
        ...


class SavedController(LedgerFacts, Protocol):
    """The controller's state as a snapshot has it."""

    async def install(self, continued: frozenset[str]) -> None:
        """Takes the saved state over; every unfinished rollout gets its next run number.

        `continued` has the capture keys of the saved runs that Gym goes on with from their
        boundary; their rollouts go on as the next run. All or nothing.
        """
        ...

    async def uninstall(self) -> None:
        """Takes a finished `install` back; nothing was sent yet."""
        ...


class ControllerLoader(Protocol):
    """The controller's side of a restore."""

    def read(self, snapshot: Snapshot) -> SavedController:
        """Blocking: reads and checks the saved state; touches nothing live.

        Raises:
            CorruptError: If it is damaged or breaks one of its rules.
        """
        ...


Retention = Callable[[int], object]
"""Blocking: retires the published snapshot of that number."""
