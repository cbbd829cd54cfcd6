"""A sample of the kills; all of them: `python tests/faults/loop_kills.py`."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture(scope="module")
def kills() -> ModuleType:
    path = Path(__file__).with_name("loop_kills.py")
    spec = importlib.util.spec_from_file_location("loop_kills", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


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
    kills: ModuleType, tmp_path: Path
) -> None:
    wanted = kills.in_peace(tmp_path / "in-peace")
    case = kills.run_case("save:commit.after@2+restore:install@1", tmp_path / "run", wanted)
    assert case.problems == []
    assert case.stopped >= 1
