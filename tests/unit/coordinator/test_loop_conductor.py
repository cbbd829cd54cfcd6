"""What a training run does around its saves: which trainer checkpoints it keeps."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from snapfmt import Repository
from snapfmt_coordinator.loop.checkpoints import TrainerCheckpoints
from snapfmt_coordinator.loop.conductor import Conductor, Parties
from snapfmt_coordinator.loop.config import LoopConfig
from snapfmt_coordinator.loop.learning import TrainerState
from snapfmt_coordinator.loop.trip import Trip
from snapfmt_coordinator.sequence.save import SaveResult
from snapfmt_schemas.manifest import TrainerAnchor
from snapfmt_schemas.timeline import PhaseTimeline


class Trainer:
    """The trainer's checkpoints, without an actor around them."""

    def __init__(self, root: Path) -> None:
        self.checkpoints = TrainerCheckpoints(root)

    async def prune(self, keep: Sequence[int]) -> None:
        self.checkpoints.prune(keep)


@pytest.mark.parametrize("damaged", [False, True])
def test_what_a_published_snapshot_stands_on_is_kept(tmp_path: Path, damaged: bool) -> None:
    repository = Repository.create(tmp_path / "run")
    for step in (1, 2, 4):
        with repository.begin() as attempt:
            anchor = TrainerAnchor(train_step=step, trainer_version=step, epoch=0)
            manifest = attempt.publish([], anchor=anchor)
    repository.retire(1)
    if damaged:
        # Which step it stands on, nobody knows.
        (path,) = (tmp_path / "run").glob("snapshots/*2/manifest.json")
        path.write_bytes(path.read_bytes()[:-20])
    trainer = Trainer(tmp_path / "trainer")
    for step in range(1, 7):
        trainer.checkpoints.save(TrainerState(steps=step))
    nobody: Any = None
    told: list[SaveResult] = []
    conductor = Conductor(
        LoopConfig(home=str(tmp_path)),
        Parties(
            gym=nobody,
            runner=nobody,
            finalizer=nobody,
            trainer=trainer,  # type: ignore[arg-type]
            advantages=nobody,
            engine=nobody,
            queue=nobody,
        ),
        repository,
        Trip(lambda _: None),
        saved=told.append,
    )
    result = SaveResult(
        outcome="completed",
        reason="completed",
        manifest=manifest,
        timeline=PhaseTimeline(operation="save"),
        total_s=0.0,
    )
    asyncio.run(conductor._save_ended(result))
    assert told == [result]
    kept = [1, 2, 3, 4, 5, 6] if damaged else [2, 4, 6]
    assert trainer.checkpoints.steps() == kept
