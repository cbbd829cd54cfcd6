"""Both readers, and what they say of a repository in one common form."""

import hashlib
import importlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from snapfmt.format import jsonl
from snapfmt.format.columns import Column
from snapfmt.reading.table import TableReader
from snapfmt.repository import Repository

Dump = dict[str, Any]


@pytest.fixture(scope="session")
def spec(root: Path) -> Path:
    """Folder of the specification."""
    return root / "spec"


@pytest.fixture(scope="session")
def golden(spec: Path) -> Path:
    """The golden repository of 0.1.0, with what is expected of it."""
    return spec / "vectors" / "v1" / "golden-0.1.0"


@pytest.fixture(scope="session")
def minireader(spec: Path) -> Iterator[ModuleType]:
    """The second reader, as a module; its files import each other by their bare names."""
    folder = str(spec / "minireader")
    sys.path.insert(0, folder)
    yield importlib.import_module("minireader")
    sys.path.remove(folder)


@pytest.fixture(scope="session")
def run_minireader(spec: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The second reader, as a command in a process of its own."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        script = str(spec / "minireader" / "minireader.py")
        return subprocess.run(
            [sys.executable, "-E", "-s", script, *arguments],
            capture_output=True,
            text=True,
            encoding="utf-8",
            check=False,
            timeout=120,
            env={"PYTHONIOENCODING": "utf-8", "PYTHONUTF8": "1"},
        )

    return run


@pytest.fixture(scope="session")
def dump() -> Callable[[Path, int], Dump]:
    """What snapfmt finds in a snapshot, in the form of the second reader's dump."""
    return dump_snapshot


def dump_snapshot(repository: Path, number: int) -> Dump:
    """A snapshot through the public readers of snapfmt."""
    snapshot = Repository.open(repository).snapshot(number)
    parts = []
    for part in snapshot.parts():
        entries = []
        for entry in part.entries():
            stored = part.stored(entry.path)
            found: dict[str, Any] = {
                "path": entry.path,
                "media_type": entry.media_type,
                "size": len(stored),
                "sha256": hashlib.sha256(stored).hexdigest(),
            }
            if entry.media_type == jsonl.MEDIA_TYPE:
                found["lines"] = [line.decode() for line in part.lines(entry.path)]
            entries.append(found)
        parts.append({"name": part.name, "entries": entries, "tables": part.table_names()})
    return {
        "repository_id": snapshot.manifest.repository_id,
        "snapshot": snapshot.number,
        "write_id": snapshot.manifest.write_id,
        "parts": parts,
        "tables": {name: list(_rows(snapshot.table(name))) for name in snapshot.table_names()},
    }


def _rows(table: TableReader) -> Iterator[Dump]:
    for batch in table.batches():
        for row, key in enumerate(batch.keys):
            cells = {name: _cell(column, row) for name, column in batch.columns.items()}
            yield {"key": key, "cells": {name: cell for name, cell in cells.items() if cell}}


def _cell(column: Column, row: int) -> Dump | None:
    if column.present is not None and not column.present[row]:
        return None
    raw = column.values[int(column.offsets[row]) : int(column.offsets[row + 1])].tobytes()
    signature = column.signature
    if signature.kind == "bytes":
        return {"kind": "bytes", "size": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    if not signature.is_array:
        return {"kind": signature.kind, "text": raw.decode()}
    return {
        "kind": signature.kind,
        "dtype": signature.dtype,
        "shape": list(column.shape(row)),
        "sha256": hashlib.sha256(raw).hexdigest(),
    }


def read_json(path: Path) -> Any:
    """A JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))
