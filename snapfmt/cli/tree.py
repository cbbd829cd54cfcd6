"""`snapfmt tree`: what a snapshot holds: parts, their entries, tables and segments."""

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from snapfmt.cli.command import (
    Command,
    Reference,
    add_repository,
    add_snapshot,
    open_snapshot,
    open_to_look,
)
from snapfmt.cli.output import Console, Lines, Outcome, Result
from snapfmt.cli.text import clean, size

if TYPE_CHECKING:
    from snapfmt.reading.snapshot import Part


@dataclass(frozen=True, slots=True)
class Options:
    """Options of `snapfmt tree`."""

    repository: str
    snapshot: Reference | None


@dataclass(frozen=True, slots=True)
class _Node:
    label: str
    note: str
    below: tuple["_Node", ...] = ()


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_repository(parser)
    add_snapshot(parser, optional=True, default="default: latest")


def run(options: Options, console: Console) -> Outcome:
    """Parts, entries and tables with their stored sizes."""
    snapshot = open_snapshot(open_to_look(options.repository, console), options.snapshot)
    parts = [_part(part) for part in snapshot.parts()]
    document = {"ok": True, "name": snapshot.name, "number": snapshot.number, "parts": parts}
    root = _Node(snapshot.name, "", tuple(_part_node(part) for part in parts))
    pairs = _drawn(root)
    width = max(len(left) for left, _ in pairs)
    return Result(document, [Lines([f"{left:<{width}}  {note}".rstrip() for left, note in pairs])])


def _part(part: "Part") -> dict[str, Any]:
    return {
        "part": part.name,
        "stored_bytes": part.receipt.stored_bytes,
        "entries": [
            {
                "path": entry.path,
                "media_type": entry.media_type,
                "size": entry.location.size,
                "records": entry.records,
                "digest": entry.digest,
            }
            for entry in part.entries()
        ],
        "tables": [
            {
                "name": table.name,
                "schema_id": table.schema_id,
                "rows": table.rows,
                "segments": [
                    {
                        "rows": segment.rows,
                        "live_rows": segment.live_rows,
                        "size": segment.data.size,
                        "logical_bytes": segment.logical_bytes,
                        "columns": [column.name for column in segment.columns],
                        "pack": segment.data.pack,
                    }
                    for segment in table.segments
                ],
            }
            for table in part.index.tables
        ],
    }


def _part_node(part: dict[str, Any]) -> _Node:
    entries = [_Node(entry["path"], _entry_note(entry)) for entry in part["entries"]]
    tables = [_table_node(table) for table in part["tables"]]
    return _Node(part["part"], f"part, {size(part['stored_bytes'])}", (*entries, *tables))


def _entry_note(entry: dict[str, Any]) -> str:
    records = "" if entry["records"] is None else f"{_count(entry['records'], 'record')}, "
    return f"{size(entry['size'])}, {records}{entry['media_type']}"


def _table_node(table: dict[str, Any]) -> _Node:
    stored = sum(segment["size"] for segment in table["segments"])
    segments = []
    for number, segment in enumerate(table["segments"]):
        rows = _count(segment["rows"], "row")
        if segment["live_rows"] != segment["rows"]:
            rows = f"{segment['live_rows']} of {rows}"
        columns = _count(len(segment["columns"]), "column")
        note = f"{size(segment['size'])}, {rows}, {columns}"
        segments.append(_Node(f"segment {number}", note))
    note = f"{size(stored)}, {_count(table['rows'], 'row')}, table"
    return _Node(table["name"], note, tuple(segments))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _drawn(node: _Node) -> list[tuple[str, str]]:
    lines = [(clean(node.label), node.note)]
    for child in node.below:
        last = child is node.below[-1]
        (label, note), *rest = _drawn(child)
        lines.append((("└── " if last else "├── ") + label, note))
        lines += [(("    " if last else "│   ") + text, other) for text, other in rest]
    return lines


COMMAND = Command("tree", "parts, entries and tables of a snapshot", Options, configure, run)
