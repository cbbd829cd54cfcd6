"""When the demonstration kills, and that a run which shows nothing is no success."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import pytest

from snapfmt import Repository
from snapfmt.errors import CorruptError, InputError
from snapfmt_coordinator.demo import story
from snapfmt_coordinator.demo.story import AGENT_PART, StoryOptions, StoryReport
from snapfmt_schemas.continuation import Continuation
from snapfmt_schemas.identity import capture_key

DONE = {
    "event": "done",
    "comparable": {"rollouts": {f"p0_g{i}": {"turns": 3} for i in range(4)}, "steps": 1},
}
PEACE = [DONE]
Event = dict[str, Any]


def save(number: int) -> Event:
    timeline = {"schema_version": 1, "operation": "save"}
    return {
        "event": "save",
        "outcome": "completed",
        "number": number,
        "held_s": 0.001,
        "total_s": 0.1,
        "timeline": timeline,
    }


def restored(number: int, continued: int) -> Event:
    report = {
        "number": number,
        "train_step": 0,
        "total_s": 0.1,
        "passed_over": [],
        "continued": [[f"p0_g{i}", 1] for i in range(continued)],
        "started_over": [],
    }
    return {"event": "restored", "report": report}


def adopted(rollout: int) -> Event:
    return {"event": "adopted", "rollout": f"p0_g{rollout}"}


class Scripted:
    """A run that tells what it should, and counts what was heard before it was killed."""

    def __init__(self, lives: list[Sequence[Event]]) -> None:
        self.lives = lives
        self.heard: list[int] = []

    def __call__(self, config: Any) -> "Scripted":
        self.heard.append(0)
        self.log = Path(config.home) / "worker.log"
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def events(self) -> Iterator[Event]:
        for event in self.lives[len(self.heard) - 1]:
            self.heard[-1] += 1
            yield event

    def kill(self) -> int:
        return 23


def publish(home: Path, *middles: int, sandboxed: int = 0) -> None:
    """Snapshots 1, 2, ... with so many rollouts that go on, and some that start over."""
    repository = Repository.open(home / "run" / "repository", create=True)
    for middle in middles:
        with repository.begin() as attempt:
            part = attempt.part(AGENT_PART)
            lines = [
                Continuation(
                    rollout_id=f"p0_g{i}",
                    attempt_index=0,
                    capture_key=capture_key(f"p0_g{i}", 0),
                    last_committed_model_call_id="call-2",
                    resource_state_revisions={"sandbox": 1} if i >= middle else {"counter": 2},
                )
                for i in range(middle + sandboxed)
            ]
            part.records("continuations.jsonl", lines, key="capture_key")
            attempt.publish([part.seal()])


def tell(
    monkeypatch: pytest.MonkeyPatch, home: Path, *lives: Sequence[Event], kills: int = 1
) -> tuple[StoryReport, Scripted, str]:
    child = Scripted([*lives])
    monkeypatch.setattr(story, "Child", child)
    lines: list[str] = []
    report = story.run(home, StoryOptions(kills=kills), out=lines.append)
    return report, child, "\n".join(lines)


def test_a_run_without_a_rollout_in_the_middle_of_a_snapshot_is_no_success(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The first snapshot comes when all rollouts are over; the run could still be killed."""
    publish(tmp_path, 0, sandboxed=2)
    life = [*map(adopted, range(4)), save(1), DONE]
    with pytest.raises(InputError, match="before a snapshot held rollouts in the middle"):
        tell(monkeypatch, tmp_path, PEACE, life, [restored(1, 0), DONE])


def test_the_kill_waits_for_a_snapshot_that_holds_rollouts_in_the_middle(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    publish(tmp_path, 0, 1)
    life = [save(1), adopted(3), save(2), adopted(0), DONE]
    report, child, text = tell(monkeypatch, tmp_path, PEACE, life, [restored(2, 1), DONE])
    # One rollout is left in the middle: there is no result to wait for.
    assert child.heard == [1, 3, 2]
    assert (report.kills, report.continued) == (1, 1)
    assert "0 results after a snapshot with 1 rollouts in the middle" in text


@pytest.mark.parametrize("middle", [2, 3, 8])
def test_the_kill_comes_before_half_of_them_have_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, middle: int
) -> None:
    publish(tmp_path, middle)
    life = [save(1), *map(adopted, range(middle)), DONE]
    report, child, _ = tell(monkeypatch, tmp_path, PEACE, life, [restored(1, middle), DONE])
    assert 1 <= child.heard[1] <= 1 + middle // 2
    assert report.continued == middle


def test_a_run_that_starts_all_over_is_no_success(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    publish(tmp_path, 1)
    with pytest.raises(CorruptError, match="none went on"):
        tell(monkeypatch, tmp_path, PEACE, [save(1)], [restored(1, 0), DONE])


def test_only_kills_that_fell_are_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    publish(tmp_path, 1)
    lives = (PEACE, [save(1)], [restored(1, 1), DONE])
    report, child, text = tell(monkeypatch, tmp_path, *lives, kills=3)
    assert (report.kills, len(child.heard)) == (1, 3)
    assert "came to its end before kill -9, number 2" in text
