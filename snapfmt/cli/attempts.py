"""`snapfmt attempts`: saves that began and were not cleaned up, and what became of them."""

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from snapfmt.cli.command import Command, add_repository, open_repository
from snapfmt.cli.output import Block, Console, Lines, Outcome, Result, Table
from snapfmt.cli.text import age, moment

if TYPE_CHECKING:
    from snapfmt.repository import Repository
    from snapfmt_schemas.attempt import Lease


@dataclass(frozen=True, slots=True)
class Options:
    """Options of `snapfmt attempts`."""

    repository: str


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_repository(parser)


def run(options: Options, console: Console) -> Outcome:
    """Every lease, whose it is, whether it was published, and whether its owner still lives."""
    found = unfinished(open_repository(options.repository))
    return Result({"ok": True, "attempts": found}, blocks(found, console))


def unfinished(repository: "Repository") -> list[dict[str, Any]]:
    """Attempts as JSON values, oldest first."""
    from snapfmt.format import layout
    from snapfmt.writing.lease import is_over
    from snapfmt.writing.owner import is_dead

    found = []
    for lease in sorted(
        repository.leases(), key=lambda item: (item.started_at_ns, item.attempt_id)
    ):
        state = "running"
        if _is_published(repository, lease):
            state = "published"
        elif is_dead(lease.owner):
            state = "dead"
        elif is_over(lease):
            state = "expired"
        found.append(
            {
                "attempt_id": lease.attempt_id,
                "number": lease.number,
                "base": lease.base,
                "state": state,
                "started_at": moment(lease.started_at_ns),
                "started_at_ns": lease.started_at_ns,
                "expires_at": moment(lease.expires_at_ns),
                "expires_at_ns": lease.expires_at_ns,
                "host": lease.owner.host,
                "pid": lease.owner.pid,
                "objects": len(repository.store.journal(layout.workspace_key(lease.attempt_id))),
            }
        )
    return found


def _is_published(repository: "Repository", lease: "Lease") -> bool:
    """Whether the snapshot is the attempt's: so an outcome that was unknown is settled later."""
    from snapfmt.errors import CorruptError, NotPublished, RefusedError

    try:
        return repository.snapshot(lease.number).manifest.attempt_id == lease.attempt_id
    except (NotPublished, CorruptError, RefusedError):
        # One that cannot be read may be anybody's: `verify` tells of it.
        return False


def blocks(found: list[dict[str, Any]], console: Console) -> list[Block]:
    """Attempts as text."""
    if not found:
        return [Lines(["no unfinished attempts"])]
    columns = ["attempt", "number", "base", "state", "started", "expires", "owner", "objects"]
    rows = []
    for item in found:
        started = item["started_at"]
        if console.terminal:
            started += f" ({age(console.now_ns - item['started_at_ns'])})"
        rows.append(
            [
                item["attempt_id"],
                str(item["number"]),
                "-" if item["base"] is None else str(item["base"]),
                item["state"],
                started,
                item["expires_at"],
                f"{item['host']}:{item['pid']}",
                str(item["objects"]),
            ]
        )
    return [Table(columns, rows, frozenset({"number", "base", "objects"}))]


COMMAND = Command("attempts", "saves that are not finished", Options, configure, run)
