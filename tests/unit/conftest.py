"""A repository, and tables that are written and read back in one go."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from snapfmt import Repository
from snapfmt.reading.table import TableReader
from snapfmt.testing.samples import save_table

PassTime = Callable[[float], None]
SaveTable = Callable[[Mapping[str, Sequence[Any]]], TableReader]


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """An empty one."""
    return Repository.create(tmp_path / "run")


@pytest.fixture
def pass_time(monkeypatch: pytest.MonkeyPatch) -> PassTime:
    """Sets the clock that leases end by on, by so many seconds: none ends before."""
    ahead_ns, real = 0, time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + ahead_ns)

    def run(seconds: float) -> None:
        nonlocal ahead_ns
        ahead_ns += int(seconds * 1e9)

    return run


@pytest.fixture
def stored(tmp_path: Path) -> SaveTable:
    """Columns, written as one table with keys k0, k1, ... and opened again."""
    count = 0

    def run(columns: Mapping[str, Sequence[Any]]) -> TableReader:
        nonlocal count
        count += 1
        rows = len(next(iter(columns.values())))
        return save_table(tmp_path / f"table{count}", [f"k{i}" for i in range(rows)], columns)

    return run
