"""`snapfmt rows`: rows of a table: a preview, JSON lines, or an Arrow file."""

import argparse
import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snapfmt.cli.command import (
    Command,
    Reference,
    UsageError,
    add_repository,
    add_snapshot,
    open_snapshot,
    open_to_look,
)
from snapfmt.cli.output import Console, Fields, Outcome, Result, Stream, json_line
from snapfmt.cli.text import clean, size
from snapfmt.errors import (
    MissingObject,
    NoMatch,
    SnapfmtError,
    StorageError,
    UnsupportedFeature,
    some_of,
)

if TYPE_CHECKING:
    from snapfmt.cli.cells import Cell
    from snapfmt.reading.table import TableReader

PREVIEW = 10
"""Rows that are shown unless the user says otherwise."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of `snapfmt rows`."""

    repository: str
    snapshot: Reference
    table: str
    keys: list[str] | None
    start: int | None
    stop: int | None
    columns: list[str] | None
    limit: int | None
    format: str | None
    out: str | None


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_repository(parser)
    add_snapshot(parser, optional=False)
    parser.add_argument("table", metavar="TABLE", help="name of the table, over all parts")
    parser.add_argument(
        "--keys", nargs="+", action="extend", metavar="K", help="these rows, in this order"
    )
    parser.add_argument("--start", type=int, metavar="N", help="first row; -5 counts from the end")
    parser.add_argument("--stop", type=int, metavar="N", help="row after the last")
    parser.add_argument(
        "--columns", action="append", metavar="A,B", help="these columns; may be repeated"
    )
    parser.add_argument(
        "--limit",
        type=_limit,
        metavar="N",
        help=f"at most so many rows, 0 for all (default: {PREVIEW}; a file gets all)",
    )
    parser.add_argument("--format", choices=["arrow"], help="write an Arrow IPC file to --out")
    parser.add_argument("--out", metavar="FILE", help="file for --format")


def _limit(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError("must not be negative")
    return number


def run(options: Options, console: Console) -> Outcome:
    """The chosen rows; only the chosen columns' bytes are read."""
    if (options.format is None) != (options.out is None):
        raise UsageError("--format and --out go together")
    if options.keys is not None and (options.start is not None or options.stop is not None):
        raise UsageError("--keys does not go with --start and --stop")
    snapshot = open_snapshot(open_to_look(options.repository, console), options.snapshot)
    table = snapshot.table(options.table)
    columns = _columns(table, options.columns)
    default = 0 if options.out is not None else PREVIEW
    limit = default if options.limit is None else options.limit
    ranges, total = _ranges(table, options)
    chosen = list(_cut(ranges, limit)) if limit else ranges
    if options.out is not None:
        return _write(table, columns, chosen, Path(options.out))
    count = sum(stop - start for start, stop in chosen)
    messages = []
    if count < total:
        messages.append(f"{count} of {total} rows; --limit 0 gives all")
    rows = _rows(table, columns, chosen)
    if console.as_json:
        return Stream((json_line(_document(key, cells)) for key, cells in rows), messages)
    return Stream(_text(rows), messages if total else ["no rows"])


def _columns(table: "TableReader", wanted: list[str] | None) -> list[str]:
    known = table.column_names
    if wanted is None:
        return known
    names: list[str] = []
    for text in wanted:
        # A column's name may itself hold a comma.
        names += [text] if text in known else [name for name in text.split(",") if name]
    for name in names:
        if name not in known:
            raise NoMatch(f"table {table.name} has no such column", what=name, hint=some_of(known))
    return list(dict.fromkeys(names))


def _ranges(table: "TableReader", options: Options) -> tuple[list[tuple[int, int]], int]:
    """Runs of rows in the order in which they are wanted, and how many rows that is."""
    if options.keys is None:
        start, stop, _ = slice(options.start, options.stop).indices(table.num_rows)
        return ([(start, stop)], stop - start) if start < stop else ([], 0)
    places = {key: place for place, key in enumerate(table.keys())}
    for key in options.keys:
        # The table itself refuses when two of its parts hold one key.
        if key not in table:
            raise NoMatch(f"table {table.name} has no such row", what=key)
    found = [(places[key], places[key] + 1) for key in dict.fromkeys(options.keys)]
    return found, len(found)


def _cut(ranges: Sequence[tuple[int, int]], limit: int) -> Iterator[tuple[int, int]]:
    for start, stop in ranges:
        if limit <= 0:
            return
        yield start, min(stop, start + limit)
        limit -= stop - start


def _rows(
    table: "TableReader", columns: list[str], ranges: Sequence[tuple[int, int]]
) -> Iterator[tuple[str, dict[str, "Cell"]]]:
    from snapfmt.cli.cells import cell

    for start, stop in ranges:
        for batch in table.batches(columns, start=start, stop=stop):
            held = [(name, batch.columns[name]) for name in columns if name in batch.columns]
            for row, key in enumerate(batch.keys):
                found = ((name, cell(column, row)) for name, column in held)
                yield key, {name: item for name, item in found if item is not None}


def _document(key: str, cells: dict[str, "Cell"]) -> dict[str, Any]:
    return {"key": key, "values": {name: item.as_json() for name, item in cells.items()}}


def _text(rows: Iterator[tuple[str, dict[str, "Cell"]]]) -> Iterator[bytes]:
    for key, cells in rows:
        shown = [(clean(name), item.type_text(), item.preview()) for name, item in cells.items()]
        names = max((len(name) for name, _, _ in shown), default=0)
        types = max((len(kind) for _, kind, _ in shown), default=0)
        lines = [clean(key)]
        lines += [
            f"  {name:<{names}}  {kind:<{types}}  {clean(value)}" for name, kind, value in shown
        ]
        yield ("\n".join(lines) + "\n").encode("utf-8", "backslashreplace")


def _write(
    table: "TableReader", columns: list[str], ranges: Sequence[tuple[int, int]], target: Path
) -> Outcome:
    import pyarrow as pa

    from snapfmt.storage.faults import typed

    mixed = [name for name, types in table.dtypes().items() if name in columns and len(types) > 1]
    if mixed:
        raise UnsupportedFeature(
            "rows of one column have different types, which an Arrow file cannot hold",
            what=", ".join(mixed),
            hint="choose other columns with --columns, or use --json",
        )
    pieces = [table.to_arrow(columns, start=start, stop=stop) for start, stop in ranges]
    found = pa.concat_tables(pieces or [table.to_arrow(columns, stop=0)], promote_options="default")
    # A reader of the file sees all of it or the one that was there before.
    partial = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with pa.OSFile(str(partial), "wb") as file, pa.ipc.new_file(file, found.schema) as writer:
            writer.write_table(found)
        partial.replace(target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        if isinstance(error, OSError) and not isinstance(error, SnapfmtError):
            # The user knows the file that was asked for, not the one beside it; and a folder that
            # is not there is no object that is missing. Arrow's own text names the file beside it.
            reason = os.strerror(error.errno) if error.errno else type(error).__name__
            known = typed(OSError(error.errno, reason), str(target))
            if isinstance(known, MissingObject):
                known = StorageError("no such folder", what=str(target))
            raise known from error
        raise
    written = target.stat().st_size
    document = {
        "ok": True,
        "file": str(target),
        "format": "arrow",
        "rows": found.num_rows,
        "columns": found.column_names,
        "bytes": written,
    }
    pairs = [("file", str(target)), ("rows", str(found.num_rows)), ("size", size(written))]
    return Result(document, [Fields(pairs)])


COMMAND = Command("rows", "rows of a table", Options, configure, run)
