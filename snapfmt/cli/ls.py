"""`snapfmt ls`: the snapshots of a repository, newest last."""

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from snapfmt.cli import attempts, exitcodes
from snapfmt.cli.command import Command, add_repository, open_to_look
from snapfmt.cli.exitcodes import ExitCode
from snapfmt.cli.output import Block, Console, Heading, Lines, Outcome, Result, Table
from snapfmt.cli.text import age, moment, short_digest, size
from snapfmt.errors import SnapfmtError

if TYPE_CHECKING:
    from snapfmt_schemas.manifest import Manifest

_RIGHT = frozenset({"number", "parts", "tables", "rows", "logical", "stored", "base"})


@dataclass(frozen=True, slots=True)
class Options:
    """Options of `snapfmt ls`."""

    repository: str


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_repository(parser)


def run(options: Options, console: Console) -> Outcome:
    """One line for each snapshot; one that cannot be read is listed with its error."""
    from snapfmt.format import layout

    repository = open_to_look(options.repository, console)
    snapshots: list[dict[str, Any]] = []
    messages: list[str] = []
    codes = {ExitCode.OK}
    for number in repository.numbers():
        try:
            snapshots.append(summary(repository.snapshot(number).manifest))
        except SnapfmtError as error:
            # The other snapshots are why somebody lists a repository with a damaged one.
            codes.add(exitcodes.of(error))
            name = layout.snapshot_name(number)
            messages.append(f"{error.code}: {error}")
            snapshots.append(
                {
                    "number": number,
                    "name": name,
                    "error": {
                        "code": error.code,
                        "message": error.message,
                        "what": error.what,
                        "hint": error.hint,
                    },
                }
            )
    found: list[dict[str, Any]] = []
    try:
        found = attempts.unfinished(repository)
    except SnapfmtError as error:
        codes.add(exitcodes.of(error))
        messages.append(f"{error.code}: {error}")
    code = ExitCode.DAMAGE if ExitCode.DAMAGE in codes else max(codes)
    document = {
        "ok": code is ExitCode.OK,
        "repository": {"location": repository.location, "id": repository.id},
        "snapshots": snapshots,
        "attempts": found,
    }
    return Result(document, _text(snapshots, found, console), code, messages)


def summary(manifest: "Manifest") -> dict[str, Any]:
    """What a listing says of a snapshot; from the manifest alone."""
    from snapfmt.format import layout

    tables = [table for receipt in manifest.parts for table in receipt.tables]
    return {
        "number": manifest.number,
        "name": layout.snapshot_name(manifest.number),
        "created_at": moment(manifest.created_at_ns),
        "created_at_ns": manifest.created_at_ns,
        "parts": len(manifest.parts),
        "tables": len({table.name for table in tables}),
        "rows": sum(table.rows for table in tables),
        "records": sum(receipt.records for receipt in manifest.parts),
        "logical_bytes": sum(table.logical_bytes for table in tables),
        "stored_bytes": sum(receipt.stored_bytes for receipt in manifest.parts),
        "fingerprints": {item.name: item.digest for item in manifest.fingerprints},
        "base": None if manifest.base is None else manifest.base.number,
    }


def _text(
    snapshots: list[dict[str, Any]], found: list[dict[str, Any]], console: Console
) -> list[Block]:
    blocks: list[Block] = [Lines(["no snapshot was published"])]
    columns = ["number", "created", "parts", "tables", "rows", "logical", "stored", "base"]
    columns.append("fingerprints")
    if snapshots:
        rows = [_row(item, console) for item in snapshots]
        blocks = [Table(columns, rows, _RIGHT)]
    if found:
        blocks += [Heading("Unfinished attempts"), *attempts.blocks(found, console)]
    return blocks


def _row(item: dict[str, Any], console: Console) -> list[str]:
    if "error" in item:
        return [str(item["number"]), "-", "-", "-", "-", "-", "-", "-", item["error"]["code"]]
    created = item["created_at"]
    if console.terminal:
        created += f" ({age(console.now_ns - item['created_at_ns'])})"
    digests = item["fingerprints"].items()
    return [
        str(item["number"]),
        created,
        str(item["parts"]),
        str(item["tables"]),
        str(item["rows"]),
        size(item["logical_bytes"]),
        size(item["stored_bytes"]),
        "-" if item["base"] is None else str(item["base"]),
        " ".join(f"{name}:{short_digest(digest)}" for name, digest in digests) or "-",
    ]


COMMAND = Command("ls", "the snapshots of a repository", Options, configure, run)
