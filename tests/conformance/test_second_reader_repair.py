"""A reader that knows nothing of repairs reads what is whole, and refuses pieces by name."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from snapfmt import Repository
from snapfmt.format import layout
from snapfmt.repair import repair
from snapfmt.testing.corruption import flip
from snapfmt.testing.samples import save


@pytest.mark.req("M-5", "M-7", "F-2")
def test_pieces_are_refused_by_name(tmp_path: Path, run_minireader: Callable[..., Any]) -> None:
    source = Repository.create(tmp_path / "run")
    for value in (1, 2):
        save(source, value=value)
    place = source.snapshot(2).part("gym/agent/a").entry("notes.txt").location
    flip(tmp_path / "run" / layout.object_key(place.pack), place.offset)
    report = repair(tmp_path / "run", tmp_path / "new", pieces=tmp_path / "pieces")
    assert (report.whole, report.numbers("pieces")) == ([1], [2])
    read = run_minireader("verify", str(tmp_path / "new"))
    assert read.returncode == 0, read.stdout + read.stderr
    refused = run_minireader("verify", str(tmp_path / "pieces"))
    assert refused.returncode != 0
    assert "'salvage'" in refused.stdout + refused.stderr
    # The manifest says it too, should somebody move it.
    path = tmp_path / "pieces" / layout.manifest_key(2)
    assert json.loads(path.read_bytes())["features"]["read"] == ["salvage"]
