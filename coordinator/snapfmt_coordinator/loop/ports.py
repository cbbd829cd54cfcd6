"""What the pumps need of the other actors."""

from collections.abc import Sequence
from typing import Protocol

from snapfmt_coordinator.loop.state import Finished, Run
from snapfmt_schemas.ledger import LedgerGroup
from snapfmt_schemas.replay import ReplayGroup


class Runner(Protocol):
    """Sends runs to Gym."""

    async def run(self, run: Run) -> Finished:
        """Sends a run and waits for its result, also over a save.

        Raises:
            ParticipantFailed: If it ended without one; its rollout needs another run.
        """
        ...


class Finalizer(Protocol):
    """Makes canonical rows."""

    async def prepare(self, group: LedgerGroup) -> ReplayGroup:
        """Reads the token-capture rows of a group and makes its canonical rows; writes nothing."""
        ...

    async def put(self, group_id: str) -> None:
        """Writes the rows that it made of this group."""
        ...

    async def clear(self, group_ids: Sequence[str]) -> None:
        """Clears every row of these groups, canonical and captured."""
        ...


class Advantages(Protocol):
    """The pool that computes advantages."""

    async def compute(self, groups: Sequence[ReplayGroup]) -> None:
        """Reads the rows and computes; writes nothing."""
        ...

    async def write(self, groups: Sequence[ReplayGroup]) -> None:
        """Writes what it computed for these into their rows."""
        ...


class Trainer(Protocol):
    """The training engine."""

    async def load(self, step: int) -> None:
        """Goes on from the checkpoint of a step.

        Raises:
            MissingObject: If there is none.
        """
        ...

    async def step(self, number: int, groups: Sequence[ReplayGroup]) -> None:
        """Forward, backward and the optimizer's arithmetic; nothing counts yet."""
        ...

    async def commit(self, number: int) -> None:
        """The step counts."""
        ...

    async def save(self, number: int) -> None:
        """Makes `step_<number>` durable as the state was after that step."""
        ...

    async def prune(self, keep: Sequence[int]) -> None:
        """Removes checkpoints of other steps; that of the step saved or loaded last stays."""
        ...

    async def steps(self) -> Sequence[int]:
        """Steps with a durable checkpoint."""
        ...


class Engine(Protocol):
    """The generation engines."""

    async def update_weights(self, version: int) -> None:
        """Generates with these weights from now on."""
        ...
