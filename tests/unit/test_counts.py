"""Counts that a hostile author made too large to add up, to divide or to print."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from snapfmt import Repository
from snapfmt.cli import main
from snapfmt.errors import FormatError
from snapfmt.repair import repair
from snapfmt.testing.forgery import forge, seal
from snapfmt.testing.samples import save
from snapfmt_schemas.identity import MAX_COUNT

HUGE = 9 * 10**4299
"""As many digits as an integer of a document may have; twice as much has one more."""


def _extent(index: dict[str, Any], _: Any) -> None:
    index["entries"][0]["location"].update(offset=HUGE, size=HUGE)


def _keys(index: dict[str, Any], _: Any) -> None:
    index["tables"][0]["segments"][0]["keys"].update(offset=HUGE, size=HUGE)


def _logical(index: dict[str, Any], _: Any) -> None:
    index["tables"][0]["segments"][0]["logical_bytes"] = HUGE


def _receipt(member: str) -> Callable[[dict[str, Any]], None]:
    return lambda manifest: manifest["parts"][0].update({member: HUGE})


INDEX = {"an extent": _extent, "keys": _keys, "logical bytes": _logical}
MANIFEST: dict[str, Callable[[dict[str, Any]], None]] = {
    "stored bytes": _receipt("stored_bytes"),
    "records": _receipt("records"),
    "index size": _receipt("index_size"),
    "time": lambda manifest: manifest.update(created_at_ns=HUGE),
    "one too many": lambda manifest: manifest.update(created_at_ns=MAX_COUNT + 1),
}


@pytest.mark.req("G-7")
@pytest.mark.parametrize("what", [*INDEX, *MANIFEST])
def test_one_hostile_snapshot_hides_no_other(
    repository: Repository, tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    save(repository, value=1)
    save(repository, value=2)
    root = Path(repository.location)
    path = root / "snapshots/snapshot_000002/manifest.json"
    if what in INDEX:
        parts = repository.snapshot(2).parts()
        name = next(
            part.name for part in parts if bool(part.table_names()) is (what != "an extent")
        )
        forge(root, 2, name, INDEX[what])
    else:
        document = json.loads(path.read_bytes())
        MANIFEST[what](document)
        seal(path, document)
    for options in ({}, {"decode": False}, {"deep": False}):
        report = repository.verify(**options)
        assert {number for item in report.damage for number in item.snapshots} == {2}
    selection = repository.latest()
    assert selection.snapshot.number == 1
    assert [number for number, _ in selection.passed_over] == [2]
    mended = repair(root, tmp_path / "mended")
    assert [item.number for item in mended.snapshots if item.outcome == "whole"] == [1]
    for command in ("ls", "verify", "tree", "show"):
        assert main([command, str(root)]) in (0, 3), command
    assert "Error:" not in capsys.readouterr().err.replace("FormatError:", "")
    with pytest.raises(FormatError):
        [part.entries() for part in repository.snapshot(2).parts()]


def test_the_largest_count_is_one(repository: Repository) -> None:
    save(repository, value=1)
    path = Path(repository.location) / "snapshots/snapshot_000001/manifest.json"
    document = json.loads(path.read_bytes())
    document["created_at_ns"] = document["parts"][0]["stored_bytes"] = MAX_COUNT
    seal(path, document)
    assert repository.snapshot().manifest.created_at_ns == MAX_COUNT
    assert main(["ls", repository.location]) == 0
    assert main(["show", repository.location]) == 0
