"""A sample of the crashes; all of them: `python tests/faults/crash_points.py`."""

from pathlib import Path

import pytest

from snapfmt.testing.crash_matrix import pairs, run_all, run_pair, summary
from snapfmt.testing.operations import OPERATIONS
from snapfmt.testing.shapes import SHAPES
from snapfmt.writing.retire import Retirement

NUMBER = {operation.name: number for number, operation in enumerate(OPERATIONS)}


def test_every_operation_is_stopped_at_some_of_its_calls(fast_path: Path) -> None:
    # One shape after the other, so that each operation and each shape is there.
    chosen = [
        pair for pair in pairs() if pair[1] == 0 or pair[0] % len(SHAPES) in (pair[1], pair[1] - 11)
    ]
    found = summary(run_all(chosen, str(fast_path), stride=79))
    assert found["problems"] == 0, found["first_problems"]
    assert found["operations"].keys() == {operation.name for operation in OPERATIONS}
    assert found["cases"] > 80
    assert found["torn_writes"] > 10
    assert found["errors"] > 30
    assert min(found["old"], found["new"]) > 15


def test_an_error_at_any_call_of_giving_up_is_a_typed_one(fast_path: Path) -> None:
    """Also where nothing but a temporary file is removed."""
    tally = run_pair((NUMBER["abandon"], 0), str(fast_path))
    assert tally.problems == []
    assert tally.errors >= 10


def test_what_is_left_over_is_noticed(fast_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Retirement, "finish", lambda _: None)
    tally = run_pair((NUMBER["keep_latest"], 0), str(fast_path), stride=9)
    assert tally.problems
