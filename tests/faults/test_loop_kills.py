"""A sample of the kills; all of them: `python tests/faults/loop_kills.py`."""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


def write(path: Path, lines: list[Any]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def mutation(call: int, attempt: int = 0) -> dict[str, Any]:
    return {"rollout_id": "r_g0", "attempt_index": attempt, "model_call_id": f"call-{call}"}


@pytest.mark.parametrize(
    ("made", "cut", "expected"),
    [
        ([(1, 0), (2, 0), (3, 0), (3, 1), (4, 1)], 2, ""),
        ([(1, 0), (2, 0), (2, 1)], 2, "made ['call-2'] again"),
        ([(1, 0), (1, 0)], 1, "was made 2 times"),
    ],
)
def test_a_repeated_effect_is_seen(
    kills: ModuleType, tmp_path: Path, made: list[tuple[int, int]], cut: int, expected: str
) -> None:
    write(tmp_path / kills.MUTATIONS, [mutation(call, attempt) for call, attempt in made])
    write(tmp_path / "continued.jsonl", [["r_g0", 1, cut]])
    found = kills.repeated(tmp_path, [0])
    assert (expected in str(found)) if expected else not found


def test_a_rollout_that_no_snapshot_knew_may_begin_again_in_the_next_life(
    kills: ModuleType, tmp_path: Path
) -> None:
    write(tmp_path / kills.MUTATIONS, [mutation(1), mutation(2), mutation(1), mutation(2)])
    assert kills.repeated(tmp_path, [0, 2]) == []
    assert kills.repeated(tmp_path, [0]) != []


def test_there_is_a_case_for_every_step(kills: ModuleType) -> None:
    names = kills.cases()
    assert len(set(names)) == len(names) > 20


@pytest.mark.cluster
def test_a_kill_in_a_save_and_one_in_the_restore_after_it(
    kills: ModuleType, run_in_peace: dict[str, Any], tmp_path: Path
) -> None:
    """The second snapshot is being written when everything is killed; the first one is there."""
    wanted = run_in_peace["comparable"]
    case = kills.run_case("save:write@2+restore:install@1", tmp_path, wanted)
    assert case.problems == []
    assert case.stopped == 2
    assert case.restored == [1]
    assert case.continued > 0
