"""Snapshots of every shape, small enough to be saved thousands of times."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from snapfmt.format import pack
from snapfmt.repository import Repository
from snapfmt.testing.crashes import InjectedCrash
from snapfmt.writing import lease
from snapfmt.writing import table as table_module
from snapfmt.writing.attempt import Attempt
from snapfmt_schemas.attempt import Receipt


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What one snapshot holds. Counts are per part, sizes in bytes."""

    name: str
    parts: int = 1
    entries: int = 0
    entry_size: int = 20
    records: int = 0
    tables: int = 0
    rows: int = 6
    pack_size: int = 0
    """Size after which a pack is closed; 0 for the usual one."""
    segment_rows: int = 0
    """Rows after which a batch and a segment are closed; 0 for the usual sizes."""

    def values(self, table: int, first: int, count: int, value: int) -> dict[str, list[Any]]:
        """Columns of so many rows."""
        numbers = range(first, first + count)
        return {
            "ids": [np.arange(i % 4 + 1, dtype=np.int64) + value + table for i in numbers],
            "text": [f"text {value} {i}" for i in numbers],
        }


SHAPES = (
    Shape(name="entry", entries=1),
    Shape(name="nothing", parts=0),
    Shape(name="empty entry", entries=1, entry_size=0),
    Shape(name="entries", entries=7, entry_size=300),
    Shape(name="large entry", entries=1, entry_size=200_000),
    Shape(name="records", records=9),
    Shape(name="table", tables=1),
    Shape(name="tables", tables=3, rows=4),
    Shape(name="segments", tables=1, rows=12, segment_rows=4),
    Shape(name="three parts", parts=3, entries=1),
    Shape(name="five parts", parts=5, entries=2, records=2),
    Shape(name="small packs", entries=6, entry_size=100, pack_size=64),
    Shape(name="small packs of parts", parts=2, entries=3, entry_size=400, pack_size=64),
    Shape(name="all", parts=2, entries=2, records=4, tables=1),
    Shape(
        name="all in small packs", parts=2, entries=2, records=3, tables=1, rows=8,
        pack_size=64, segment_rows=4,
    ),
)  # fmt: skip


@contextlib.contextmanager
def conditions(shape: Shape) -> Iterator[None]:
    """The sizes of a shape; and every attempt's owner counts as dead once it is looked at."""
    with pytest.MonkeyPatch.context() as patch:
        # The dead process of these tests is this one, which lives on.
        patch.setattr(lease, "is_dead", lambda _: True)
        patch.setattr(threading, "excepthook", _quietly(threading.excepthook))
        if shape.pack_size:
            patch.setattr(pack, "TARGET_SIZE", shape.pack_size)
        if shape.segment_rows:
            patch.setattr(table_module, "BATCH_ROWS", shape.segment_rows)
            patch.setattr(table_module, "SEGMENT_BYTES", 1)
        yield


def _quietly(tell: Callable[[Any], object]) -> Callable[[Any], None]:
    """A thread of a process that died says nothing any more."""

    def told(args: threading.ExceptHookArgs) -> None:
        if not isinstance(args.exc_value, InjectedCrash):
            tell(args)

    return told


def save(repository: Repository, shape: Shape, value: int, base: int | None = None) -> int:
    """One snapshot; returns its number."""
    with attempting(repository, base) as attempt:
        return attempt.publish(write_parts(attempt, shape, value, share=0.5)).number


@contextlib.contextmanager
def attempting(repository: Repository, base: int | None = None) -> Iterator[Attempt]:
    """An attempt that is given up at the end, as by a process."""
    attempt = repository.begin(base=base)
    try:
        yield attempt
    finally:
        try:
            attempt.abandon()
        finally:
            end_threads(attempt)


def end_threads(attempt: Attempt) -> None:
    """Those of a process that died; there are thousands of such processes in this one."""
    for part in attempt._parts:
        with contextlib.suppress(BaseException):
            part.abandon()
        part._pool.shutdown(wait=False)


def write_parts(attempt: Attempt, shape: Shape, value: int, share: float) -> list[Receipt]:
    """Every part of a shape; on a base, what is there is carried, of tables a share of the rows."""
    made = []
    for number in range(shape.parts):
        part = attempt.part(f"part/{number}", workers=1)
        fresh = attempt.base is None
        for entry in range(shape.entries):
            # On a base the last entry is written anew, the others are carried.
            if fresh or entry == shape.entries - 1:
                text = b"%d %d " % (value, entry)
                part.stage(f"entry{entry}", (text * shape.entry_size)[: shape.entry_size])
            else:
                part.carry(f"entry{entry}")
        if shape.records and fresh:
            lines = [b'{"id":"%d","value":%d}' % (i, value) for i in range(shape.records)]
            part.records("lines", lines, key="id")
        elif shape.records:
            part.carry("lines")
        for table in range(shape.tables):
            with part.table(f"table{table}") as writer:
                first, count = (0, shape.rows) if fresh else (1000 + value, 2)
                for at, item in enumerate(writer.base_segments()):
                    writer.carry(at, np.arange(item.rows) >= item.rows * (1 - share))
                columns = shape.values(table, first, count, value)
                writer.append([f"p{number}k{i}" for i in range(first, first + count)], columns)
        made.append(part.seal())
    return made
