"""The Single Controller's own side of saves and restores: state, trainer's place, what is owed."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from snapfmt import Snapshot
from snapfmt.errors import CutInconsistent, FormatError, InvalidRecord, RestoreRefused
from snapfmt_coordinator.loop.prompts import PromptLoader
from snapfmt_coordinator.loop.saved import PART, CutState, RunPlace, SavedState
from snapfmt_coordinator.loop.state import RlState, Run
from snapfmt_coordinator.protocol.v1 import Execution
from snapfmt_coordinator.sequence.ports import ControllerSkip
from snapfmt_schemas.identity import capture_key
from snapfmt_schemas.ledger import PendingAcknowledgement
from snapfmt_schemas.manifest import TrainerAnchor

BOOTSTRAP: Final = 0
"""The step before the first one; its anchor needs no trainer checkpoint."""


class Control:
    """Implements `sequence.ports.Controller` and, with `LoopLoader`, its restore."""

    def __init__(
        self,
        *,
        seed: int,
        prompts: int,
        generations: int,
        capacity: int,
        bootstrap_fingerprint: str | None = None,
        go_to_step: Callable[[int], Awaitable[None]] | None = None,
    ) -> None:
        """`go_to_step` brings the trainer and the engines to a step, before its state counts."""
        self._shape = {"seed": seed, "prompts": prompts, "generations": generations}
        self._capacity = capacity
        self._bootstrap = bootstrap_fingerprint
        self._go_to_step = go_to_step
        self.state = RlState(**self._shape, capacity=capacity)
        self.changed = Changes()
        self.train_steps = 0
        self.durable_step = BOOTSTRAP
        self.committing = False
        self.over: list[Execution] = []
        """Runs that are over, for Gym to retire: acknowledged, failed, or given up by a restore."""
        self.restarted: tuple[Run, ...] = ()
        """Runs that a restore gave to unfinished rollouts."""
        self.continued: frozenset[str] = frozenset()
        """Capture keys of saved runs that Gym goes on with."""

    # --- sequence.ports.Controller

    def skip_reason(self) -> ControllerSkip | None:
        """Why no save should be taken now."""
        if self.committing:
            return "optimizer_commit_in_progress"
        return None if self.durable_step == self.train_steps else "missing_trainer_anchor"

    def anchor(self) -> TrainerAnchor:
        """The trainer's place; its version is that of its newest step."""
        return TrainerAnchor(
            train_step=self.train_steps,
            trainer_version=self.train_steps,
            epoch=0,
            bootstrap_fingerprint=self._bootstrap,
        )

    def acknowledgements(self) -> Sequence[PendingAcknowledgement]:
        """Adopted results that Gym does not know of yet."""
        return self.state.owed()

    def acknowledged(self, done: Sequence[PendingAcknowledgement]) -> None:
        """Gym knows of these now, and has nothing to keep of them any more."""
        self.state.acknowledged(done)
        self.over += [
            Execution(rollout_id=item.receipt.rollout_id, attempt_index=item.receipt.attempt_index)
            for item in done
        ]
        self.changed.tell()

    def failed(self, run: Run) -> Run:
        """A run is given up, here and by Gym; its rollout's next run."""
        following = self.state.fail(run)
        self.over.append(Execution(rollout_id=run.rollout_id, attempt_index=run.attempt_index))
        self.changed.tell()
        return following

    def cut(self) -> CutState:
        """The state by reference; under the barrier.

        Raises:
            CutInconsistent: If a step is half committed, or rows are half written.
        """
        if self.committing:
            raise CutInconsistent("an optimizer step is being committed")
        cut = self.state.cut()
        run = RunPlace(
            train_steps=self.train_steps,
            trainer_version=self.train_steps,
            generations=self.state.generations,
            rolled_back=cut.rolled_back,
        )
        return CutState(cut, run, self._capacity)

    # --- restore

    def read(self, snapshot: Snapshot) -> "LoopSaved":
        """Reads and checks the saved state; blocking, touches nothing.

        Raises:
            CorruptError: If it is damaged, breaks a rule, or does not fit this run.
        """
        saved = SavedState.read(
            snapshot, generations=self.state.generations, capacity=self._capacity
        )
        try:
            PromptLoader(self._shape["seed"], self._shape["prompts"]).go_to(saved.place)
        except InvalidRecord as error:
            raise FormatError(str(error), what=f"{snapshot.name}/{PART}") from error
        return LoopSaved(self, saved)

    async def install(self, saved: SavedState, continued: frozenset[str]) -> None:
        """Takes a saved state over, before anything was sent.

        Raises:
            RestoreRefused: If this run has begun already.
            SnapfmtError: If the trainer has not what the state stands on.
        """
        if self.state.cut().groups or self.state.cut().place.batches or self.train_steps:
            raise RestoreRefused("the run has begun already", hint="restore into a fresh one")
        state = RlState(**self._shape, capacity=self._capacity)
        restarted = state.install(saved.ledger.groups, saved.replay.groups, saved.place)
        if self._go_to_step is not None:
            await self._go_to_step(saved.run.train_steps)
        self.restarted, self.continued = restarted, continued
        # Closed also where Gym has nothing of them, or a late request would begin them again.
        self.over = [
            Execution(rollout_id=run.rollout_id, attempt_index=run.attempt_index - 1)
            for run in restarted
        ]
        self.state = state
        self.train_steps = self.durable_step = saved.run.train_steps

    def continues(self, run: Run) -> bool:
        """Whether a restore has set this run up in Gym."""
        before = run.attempt_index - 1
        return before >= 0 and capture_key(run.rollout_id, before) in self.continued

    async def uninstall(self) -> None:
        """Is fresh again."""
        if self._go_to_step is not None:
            await self._go_to_step(BOOTSTRAP)
        self.state = RlState(**self._shape, capacity=self._capacity)
        self.train_steps = self.durable_step = BOOTSTRAP
        self.restarted, self.continued, self.over = (), frozenset(), []


class LoopSaved:
    """Implements `sequence.ports.SavedController`."""

    def __init__(self, control: Control, saved: SavedState) -> None:
        self._control = control
        self.saved = saved

    def required_rows(self) -> frozenset[str]:
        """Token-capture rows that the ledger names."""
        return self.saved.required_rows()

    def dispatched_runs(self) -> frozenset[str]:
        """Runs that Gym might go on with."""
        return self.saved.dispatched_runs()

    def given_up_runs(self) -> frozenset[str]:
        """Of the saved state."""
        return self.saved.given_up_runs()

    def pending_acknowledgements(self) -> int:
        """None in a readable one."""
        return self.saved.pending_acknowledgements()

    async def install(self, continued: frozenset[str]) -> None:
        """Takes the state over; unfinished rollouts get their next run number."""
        await self._control.install(self.saved, continued)

    async def uninstall(self) -> None:
        """Takes a finished `install` back."""
        await self._control.uninstall()


class Changes:
    """Wakes everybody who waits for the state to change."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    def tell(self) -> None:
        """Something changed."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    async def wait(self, timeout_s: float | None = None) -> None:
        """Until the next change, or so long."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await asyncio.wait((waiter,), timeout=timeout_s)
        finally:
            self._waiters.discard(waiter)
