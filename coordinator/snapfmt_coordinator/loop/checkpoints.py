"""Trainer checkpoints: one folder for each step, there whole or not at all."""

import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from snapfmt.errors import FormatError, MissingObject
from snapfmt_coordinator.loop.learning import TrainerState
from snapfmt_schemas.lines import from_line, to_line

STATE: Final = "trainer.json"
_FOLDER: Final = re.compile(r"^step_(0|[1-9][0-9]*)$")


class TrainerCheckpoints:
    """`<root>/step_<n>`; blocking."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = Path(root)

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
        # Left behind by a run that was restored to an earlier step.
        shutil.rmtree(folder, ignore_errors=True)
        staged.rename(folder)
        _sync(self._root)

    def load(self, step: int) -> TrainerState:
        """The state after a step; that of step 0 is always there.

        Raises:
            MissingObject: If it was never made durable, or is gone.
            FormatError: If it is damaged.
        """
        if step == 0:
            return TrainerState()
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
        """Removes all but these and the newest one; returns the steps that went."""
        steps = self.steps()
        kept = {*keep, *steps[-1:]}
        gone = [step for step in steps if step not in kept]
        for step in gone:
            trash = self._root / f"trash_step_{step}"
            (self._root / f"step_{step}").rename(trash)
            shutil.rmtree(trash, ignore_errors=True)
        return gone


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
