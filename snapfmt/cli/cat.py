"""`snapfmt cat`: one entry on stdout, verified; records as JSON lines."""

import argparse
import base64
from collections.abc import Iterator
from dataclasses import dataclass
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
from snapfmt.cli.output import Console, Outcome, Result, Stream
from snapfmt.errors import FormatError, NoMatch, some_of

if TYPE_CHECKING:
    from snapfmt.reading.snapshot import Part, Snapshot
    from snapfmt_schemas.part import Entry


@dataclass(frozen=True, slots=True)
class Options:
    """Options of `snapfmt cat`."""

    repository: str
    snapshot: Reference
    entry: str
    raw: bool
    record: str | None


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_repository(parser)
    add_snapshot(parser, optional=False)
    parser.add_argument(
        "entry", metavar="PART/ENTRY", help="part and path of the entry; PART:ENTRY works too"
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--raw", action="store_true", help="the bytes as they are stored")
    which.add_argument("--record", metavar="KEY", help="one record of a record file")


def run(options: Options, console: Console) -> Outcome:
    """The entry's bytes; with `--json`, its content within one document."""
    from snapfmt.format import jsonl

    snapshot = open_snapshot(open_to_look(options.repository, console), options.snapshot)
    part, entry = find(snapshot, options.entry)
    is_records = entry.media_type == jsonl.MEDIA_TYPE
    if options.record is not None and not is_records:
        raise NoMatch(
            "the entry holds no records",
            what=entry.path,
            hint=f"its media type is {entry.media_type}",
        )
    as_lines = is_records and not options.raw
    if as_lines:
        lines = part.lines(entry.path)
        if options.record is not None:
            lines = iter([_record(part, entry, options.record)])
        if not console.as_json:
            return Stream(line + b"\n" for line in lines)
        content: dict[str, Any] = {"records": list(_parsed(lines, f"{part.name}/{entry.path}"))}
    else:
        data = part.stored(entry.path)
        if not console.as_json:
            return Stream(iter([data]))
        content = _content(data)
    about = {
        "ok": True,
        "snapshot": snapshot.name,
        "part": part.name,
        "path": entry.path,
        "media_type": entry.media_type,
        "size": entry.location.size,
        "digest": entry.digest,
    }
    return Result(about | content)


def find(snapshot: "Snapshot", target: str) -> tuple["Part", "Entry"]:
    """The part and the entry that `PART/ENTRY` or `PART:ENTRY` names.

    Raises:
        NoMatch: If there is none.
        UsageError: If two parts could be meant.
    """
    names = snapshot.part_names()
    name, colon, path = target.partition(":")
    if colon:
        part = snapshot.part(name)
        return part, part.entry(path)
    found = []
    heads = [name for name in names if target.startswith(f"{name}/")]
    for name in heads:
        part, path = snapshot.part(name), target[len(name) + 1 :]
        found += [(part, entry) for entry in part.entries() if entry.path == path]
    if len(found) > 1:
        choices = " or ".join(f"{part.name}:{entry.path}" for part, entry in found)
        raise UsageError(f"{target!r} could be {choices}")
    if found:
        return found[0]
    whole = target.rstrip("/")
    if whole in names:
        paths = some_of([entry.path for entry in snapshot.part(whole).entries()])
        raise NoMatch(
            "this is a part; name one of its entries",
            what=target,
            hint=f"entries: {paths}" if paths else "it has no entries; see `snapfmt tree`",
        )
    if heads:
        raise NoMatch(f"{snapshot.name} has no such entry", what=target, hint="see `snapfmt tree`")
    raise NoMatch(f"{snapshot.name} has no such part", what=target, hint=f"parts: {some_of(names)}")


def _record(part: "Part", entry: "Entry", key: str) -> bytes:
    places = part.line_places(entry)
    for place, line in zip(places, part.lines(entry.path), strict=True):
        if place.key == key:
            return line
    raise NoMatch("the entry has no such record", what=key)


def _parsed(lines: Iterator[bytes], what: str) -> Iterator[Any]:
    from snapfmt_schemas.lines import parse

    for number, line in enumerate(lines):
        try:
            yield parse(line)
        except ValueError as error:
            raise FormatError(f"not a JSON line: {error}", what=f"{what}:{number}") from error


def _content(data: bytes) -> dict[str, Any]:
    try:
        return {"encoding": "utf-8", "content": data.decode("utf-8")}
    except UnicodeDecodeError:
        return {"encoding": "base64", "content": base64.b64encode(data).decode("ascii")}


COMMAND = Command("cat", "one entry, as its bytes or as its records", Options, configure, run)
