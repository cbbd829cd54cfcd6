"""`snapfmt gc`: remove what no snapshot reaches, and finish retirements that were cut short."""

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from snapfmt.cli.command import Command, add_repository, open_repository
from snapfmt.cli.output import Block, Console, Fields, Heading, Outcome, Result, Table
from snapfmt.cli.text import size

if TYPE_CHECKING:
    from snapfmt.writing.collect import CollectReport


@dataclass(frozen=True, slots=True)
class Options:
    """Options of `snapfmt gc`."""

    repository: str
    dry_run: bool


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_repository(parser)
    parser.add_argument(
        "--dry-run", action="store_true", help="write nothing, and tell what would go"
    )


def run(options: Options, console: Console) -> Outcome:
    """What went and what stayed, for each reason."""
    del console
    report = open_repository(options.repository).collect(dry_run=options.dry_run)
    return Result(_document(report), _text(report))


def _document(report: "CollectReport") -> dict[str, Any]:
    def totals(*, removed: bool) -> list[dict[str, Any]]:
        return [
            {"reason": reason, "objects": count, "bytes": total}
            for reason, (count, total) in report.totals(removed=removed).items()
        ]

    return {
        "ok": True,
        "dry_run": report.dry_run,
        "removed_bytes": report.bytes(removed=True),
        "kept_bytes": report.bytes(removed=False),
        "removed": totals(removed=True),
        "kept": totals(removed=False),
        "attempts": list(report.attempts),
        "finished": list(report.finished),
        "waiting": list(report.waiting),
        "objects": [
            {"key": item.key, "size": item.size, "reason": item.reason}
            for item in report.objects
            if item.removed
        ],
    }


def _text(report: "CollectReport") -> list[Block]:
    def listed(values: tuple[object, ...]) -> str:
        return " ".join(map(str, values)) or "none"

    went = "would go" if report.dry_run else "removed"
    pairs = [
        (went, size(report.bytes(removed=True))),
        ("kept", size(report.bytes(removed=False))),
        ("attempts that are over", listed(report.attempts)),
        ("retirements finished", listed(report.finished)),
        ("retirements that wait", listed(report.waiting)),
    ]
    rows = [
        [what, reason, str(count), size(total)]
        for what, removed in ((went, True), ("kept", False))
        for reason, (count, total) in report.totals(removed=removed).items()
    ]
    blocks: list[Block] = [Fields(pairs)]
    if rows:
        columns = ["result", "reason", "objects", "bytes"]
        blocks += [Heading("Objects"), Table(columns, rows, frozenset({"objects", "bytes"}))]
    return blocks


COMMAND = Command("gc", "remove what no snapshot reaches", Options, configure, run)
