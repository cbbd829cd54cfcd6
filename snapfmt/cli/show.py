"""`snapfmt show`: one snapshot's manifest in readable form."""

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from snapfmt.cli import report
from snapfmt.cli.command import (
    Command,
    Reference,
    add_repository,
    add_snapshot,
    open_snapshot,
    open_to_look,
)
from snapfmt.cli.output import Block, Console, Fields, Heading, Outcome, Result, Table
from snapfmt.cli.text import age, flat, moment, ratio, short_digest, size

if TYPE_CHECKING:
    from snapfmt.reading.snapshot import Snapshot
    from snapfmt_schemas.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Options:
    """Options of `snapfmt show`."""

    repository: str
    snapshot: Reference | None


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_repository(parser)
    add_snapshot(parser, optional=True, default="default: latest")


def run(options: Options, console: Console) -> Outcome:
    """The manifest, and the tables' columns from the part indexes."""
    snapshot = open_snapshot(open_to_look(options.repository, console), options.snapshot)
    manifest = snapshot.manifest
    tables = [_table(snapshot, name) for name in snapshot.table_names()]
    document = {
        "ok": True,
        "name": snapshot.name,
        "number": snapshot.number,
        "created_at": moment(manifest.created_at_ns),
        "tables": tables,
        "manifest": manifest.model_dump(mode="json"),
    }
    blocks = [
        *_head(snapshot, console),
        *_parts(manifest),
        *_tables(tables),
        *_context(manifest),
    ]
    return Result(document, blocks)


def _table(snapshot: "Snapshot", name: str) -> dict[str, Any]:
    table = snapshot.table(name)
    logical, stored = table.logical_bytes, table.stored_bytes
    return {
        "name": name,
        "rows": table.num_rows,
        "segments": len(table.segments()),
        "logical_bytes": logical,
        "stored_bytes": stored,
        "ratio": round(logical / stored, 4) if stored else None,
        "columns": [{"name": key, "types": types} for key, types in table.dtypes().items()],
    }


def _head(snapshot: "Snapshot", console: Console) -> list[Block]:
    manifest = snapshot.manifest
    created = moment(manifest.created_at_ns)
    if console.terminal:
        created += f" ({age(console.now_ns - manifest.created_at_ns)} ago)"
    base = manifest.base
    pairs = [
        ("created", created),
        ("writer", manifest.writer),
        ("format", str(manifest.format_version)),
        ("repository", manifest.repository_id),
        ("attempt", manifest.attempt_id),
        ("write id", manifest.write_id),
        ("base", "none" if base is None else f"snapshot {base.number}, write id {base.write_id}"),
    ]
    features = manifest.features.model_dump()
    pairs += [
        (f"needed to {name}", " ".join(needed)) for name, needed in features.items() if needed
    ]
    return [Heading(snapshot.name), Fields(pairs)]


def _parts(manifest: "Manifest") -> list[Block]:
    if not manifest.parts:
        return [Heading("Parts"), Fields([("none", "")])]
    columns = ["part", "entries", "records", "tables", "rows", "stored", "objects", "index"]
    rows = [
        [
            receipt.part,
            str(receipt.entries),
            str(receipt.records),
            str(len(receipt.tables)),
            str(sum(table.rows for table in receipt.tables)),
            size(receipt.stored_bytes),
            str(receipt.new_objects),
            short_digest(receipt.index_digest),
        ]
        for receipt in manifest.parts
    ]
    return [Heading("Parts"), Table(columns, rows, frozenset(columns[1:-1]))]


def _tables(tables: list[dict[str, Any]]) -> list[Block]:
    if not tables:
        return []
    columns = ["table", "rows", "segments", "logical", "stored", "ratio"]
    rows = [
        [
            table["name"],
            str(table["rows"]),
            str(table["segments"]),
            size(table["logical_bytes"]),
            size(table["stored_bytes"]),
            ratio(table["logical_bytes"], table["stored_bytes"]),
        ]
        for table in tables
    ]
    types = [
        [table["name"], column["name"], " | ".join(column["types"])]
        for table in tables
        for column in table["columns"]
    ]
    return [
        Heading("Tables"),
        Table(columns, rows, frozenset(columns[1:])),
        Heading("Columns"),
        Table(["table", "column", "type"], types),
    ]


def _context(manifest: "Manifest") -> list[Block]:
    blocks: list[Block] = []
    for item in manifest.fingerprints:
        blocks += [Heading(f"Fingerprint {item.name} {item.digest}"), Fields(flat(item.content))]
    if manifest.anchor is not None:
        pairs = flat(manifest.anchor.model_dump(mode="json"))
        blocks += [Heading("Trainer"), Fields(pairs)]
    if manifest.timeline is not None:
        heading = Heading(f"Timeline of the {manifest.timeline.operation}")
        blocks += [heading, report.steps(manifest.timeline)]
    if manifest.user_metadata:
        blocks += [Heading("User metadata"), Fields(flat(manifest.user_metadata))]
    if manifest.extensions:
        blocks += [Heading("Extensions"), Fields(flat(manifest.extensions))]
    return blocks


COMMAND = Command("show", "one snapshot in readable form", Options, configure, run)
