"""The second reader reads a save on a base as the library does, with and without its base."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from snapfmt import Repository


@pytest.fixture
def grown(tmp_path: Path) -> Repository:
    """Three snapshots on one another: rows carried, changed, dropped, rewritten; entries too."""
    repository = Repository.create(tmp_path / "run")
    for number in range(1, 4):
        with repository.begin(base=number - 1 or None) as attempt:
            part = attempt.part("p")
            if number == 1:
                part.stage("note", b"note")
                part.records("turns.jsonl", [b'{"n":%d}' % n for n in range(90)])
            else:
                part.carry("note")
                part.carry("turns.jsonl")
            for name, share in (("many", 0.9), ("few", 0.2)):
                with part.table(name) as table:
                    for position, segment in enumerate(table.base_segments()):
                        table.carry(position, np.arange(segment.rows) < share * segment.rows)
                    keys = [f"{number}:{n}" for n in range(300)]
                    values = [np.arange(n % 5) * number for n in range(300)]
                    table.append(keys, {"ids": values, "text": keys})
            attempt.publish([part.seal()])
    return repository


@pytest.mark.req("T-17", "T-21", "T-22", "T-23", "W-13", "W-15")
@pytest.mark.parametrize("retired", [False, True])
def test_the_second_reader_reads_saves_on_a_base(
    grown: Repository,
    dump: Callable[[Path, int], Any],
    run_minireader: Callable[..., Any],
    retired: bool,
) -> None:
    folder = Path(grown.location)
    if retired:
        assert grown.keep_latest(1) == [1, 2]
    done = run_minireader("dump", str(folder), "3")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == dump(folder, 3)
    segments = grown.snapshot().table("many").segments()
    assert [item.document.live is None for item in segments] == [False, False, True]
    assert run_minireader("verify", str(folder)).stdout == "whole\n"
