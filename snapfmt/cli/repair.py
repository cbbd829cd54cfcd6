"""`snapfmt repair`: what is good of a damaged repository, into a new one."""

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING

from snapfmt.cli.command import PLACE, Command
from snapfmt.cli.copying import count
from snapfmt.cli.exitcodes import ExitCode
from snapfmt.cli.output import Block, Console, Fields, Heading, Outcome, Result, Table
from snapfmt.cli.progress import progress
from snapfmt.cli.text import size

if TYPE_CHECKING:
    from snapfmt.repair import Loss, RepairReport, SnapshotRepair

_EPILOG = """\
SOURCE and the places of --also are read and never written. TARGET and the place of --pieces are
empty or not there, or were begun by the same command: one that was interrupted goes on.

TARGET gets every snapshot that is whole, byte for byte, under its number. With --also, objects
are taken from other copies of the repository as well, such as a bucket that it was pushed to.
Go on from TARGET, and save no more to SOURCE: both have the same id.

--pieces gets what is good of the other snapshots, for `show`, `rows`, `cat` and `verify`. No
program restores from it. Without it, the same is told and not written.

Exit code 0: every snapshot is whole. 3: something is lost, and is told."""
_RIGHT = frozenset({"number", "moved", "bytes sent", "entries", "records", "rows", "count"})
_KEYS = 3


@dataclass(frozen=True, slots=True)
class Options:
    """Options of `snapfmt repair`."""

    source: str
    target: str
    also: list[str]
    pieces: str | None
    workers: int


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("source", metavar="SOURCE", help=f"the damaged one: {PLACE}")
    parser.add_argument("target", metavar="TARGET", help=f"the new one: {PLACE}")
    parser.add_argument(
        "--also",
        action="append",
        default=[],
        metavar="OTHER",
        help="another copy of the same repository to take objects from; may come several times",
    )
    parser.add_argument(
        "--pieces",
        metavar="PLACE",
        default=None,
        help="where good pieces of snapshots that are not whole go",
    )
    parser.add_argument(
        "--workers", type=count, default=4, metavar="N", help="objects at a time (default: 4)"
    )
    parser.epilog = "\n\n".join(filter(None, (_EPILOG, parser.epilog)))


def run(options: Options, console: Console) -> Outcome:
    """One line for each snapshot and one for each loss."""
    del console
    from snapfmt.repair import repair

    with progress("repairing", None) as advance:
        report = repair(
            options.source,
            options.target,
            also=options.also,
            pieces=options.pieces,
            workers=options.workers,
            progress=advance,
        )
    return Result(report.as_json(), _text(report), _code(report), _messages(report))


def _code(report: "RepairReport") -> ExitCode:
    if report.numbers("lost") or report.numbers("pieces"):
        return ExitCode.DAMAGE
    return ExitCode.OK if report.ok else ExitCode.NOTHING


def _messages(report: "RepairReport") -> list[str]:
    said = list(report.others)
    if report.document:
        said.append(f"snapfmt.json of the source cannot be read: {report.document}")
    if report.numbers("pieces") and not report.pieces:
        said.append("some is good of snapshots that are not whole; --pieces PLACE writes it")
    return said


def _text(report: "RepairReport") -> list[Block]:
    pairs = [
        ("target", report.target or "none: nothing is whole"),
        ("pieces", report.pieces or "none"),
        ("whole", _numbers(report.whole)),
        ("pieces of", _numbers(report.numbers("pieces"))),
        ("lost", _numbers(report.numbers("lost"))),
    ]
    others = (
        ("needs a newer snapfmt", report.numbers("unknown")),
        ("retired", report.retired),
        ("without a manifest", report.unpublished),
    )
    pairs += [(name, _numbers(numbers)) for name, numbers in others if numbers]
    if report.unreached_objects:
        pairs.append(("objects of no snapshot", str(report.unreached_objects)))
    columns = ["number", "outcome", "moved", "bytes sent", "entries", "records", "rows"]
    blocks: list[Block] = [
        Fields(pairs),
        Table(columns, [_row(item) for item in report.snapshots], _RIGHT),
    ]
    losses = [(item.number, loss) for item in report.snapshots for loss in item.losses]
    if losses:
        head = ["snapshot", "part", "kind", "name", "count", "keys", "reason"]
        blocks += [Heading("Lost"), Table(head, [_loss(*item) for item in losses], _RIGHT)]
    return blocks


def _row(item: "SnapshotRepair") -> list[str]:
    kept = [item.kept.entries, item.kept.records, item.kept.rows]
    counts = ["-"] * 3 if item.outcome != "pieces" else [str(number) for number in kept]
    sent = size(item.bytes_sent) if item.outcome == "whole" else "-"
    return [str(item.number), item.outcome, str(item.moved), sent, *counts]


def _loss(number: int, loss: "Loss") -> list[str]:
    keys = " ".join(loss.keys[:_KEYS]) + (" ..." if len(loss.keys) > _KEYS else "")
    where = loss.part or "-"
    return [str(number), where, loss.kind, loss.name, str(loss.count), keys or "-", loss.reason]


def _numbers(numbers: list[int]) -> str:
    return " ".join(map(str, numbers)) or "none"


COMMAND = Command(
    "repair", "what is good of a damaged repository, in a new one", Options, configure, run
)
