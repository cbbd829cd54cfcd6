"""Trainer checkpoints: one folder for each step, there whole or not at all."""

import os
import re
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from snapfmt.errors import FormatError, MissingObject
from snapfmt_coordinator.loop.learning import TrainerState
from snapfmt_schemas.lines import from_line, to_line

STATE: Final = "trainer.json"
_FOLDER: Final = re.compile(r"^step_(0|[1-9][0-9]*)$")
_TRASH: Final = "trash_"


class TrainerCheckpoints:
    """`<root>/step_<n>`, as one trainer sees them during its life; blocking."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = Path(root)
        self._reached: int | None = None

    def save(self, state: TrainerState) -> None:
        """Writes the folder of the state's step; one that is there is replaced."""
        self._root.mkdir(parents=True, exist_ok=True)
        folder = self._root / f"step_{state.steps}"
        staged = self._root / f"tmp_step_{state.steps}"
        shutil.rmtree(staged, ignore_errors=True)
        staged.mkdir()
        with (staged / STATE).open("wb") as file:
            file.write(to_line(state) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        _sync(staged)
        # Before it can be seen, so that no `prune` beside this takes it for a stale one.
        self._reached = state.steps
        # Left behind by a run that was restored to an earlier step.
        old = self._set_aside(state.steps)
        staged.rename(folder)
        _sync(self._root)
        shutil.rmtree(old, ignore_errors=True)

    def load(self, step: int) -> TrainerState:
        """The state after a step, from which this trainer goes on; that of step 0 is always there.

        Later steps stay on disk: a restore may yet be taken back. They are stale from then on.

        Raises:
            MissingObject: If it was never made durable, or is gone.
            FormatError: If it is damaged.
        """
        state = TrainerState() if step == 0 else self._read(step)
        self._reached = step
        return state

    def _read(self, step: int) -> TrainerState:
        path = self._root / f"step_{step}" / STATE
        try:
            state = from_line(TrainerState, path.read_bytes())
        except FileNotFoundError as error:
            raise MissingObject(
                "the snapshot's trainer checkpoint is gone", what=str(path)
            ) from error
        except ValueError as error:
            raise FormatError(f"not a trainer checkpoint: {error}", what=str(path)) from error
        if state.steps != step:
            raise FormatError(f"it is the state of step {state.steps}", what=str(path))
        return state

    def steps(self) -> list[int]:
        """Steps with a durable checkpoint, ascending."""
        names = os.listdir(self._root) if self._root.is_dir() else []
        return sorted(int(found[1]) for name in names if (found := _FOLDER.match(name)))

    def prune(self, keep: Iterable[int]) -> list[int]:
        """Removes all but these and where this trainer is; returns the steps that went.

        Where it is, the next snapshot stands: the step that it saved or loaded last, which is
        not the highest number on disk after a restore to an earlier one. One that did neither
        keeps the highest.
        """
        steps = self.steps()
        # After the list: what was saved meanwhile is not in it, or is kept.
        kept = {*keep, *(steps[-1:] if self._reached is None else [self._reached])}
        gone = [step for step in steps if step not in kept]
        for step in gone:
            self._set_aside(step)
        if gone:
            _sync(self._root)
        for trash in self._root.glob(f"{_TRASH}step_*"):
            shutil.rmtree(trash, ignore_errors=True)
        return gone

    def _set_aside(self, step: int) -> Path:
        """Takes a folder's name away in one step; where it lies now, if it was there."""
        trash = self._root / f"{_TRASH}step_{step}"
        # Left behind by a process that died.
        shutil.rmtree(trash, ignore_errors=True)
        with suppress(FileNotFoundError):
            (self._root / f"step_{step}").rename(trash)
        return trash


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
