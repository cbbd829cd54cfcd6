"""`snapfmt push`, `pull` and `cp`: snapshots from one repository to another, byte for byte."""

import argparse
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from snapfmt.cli.command import Command, UsageError, open_repository, reference
from snapfmt.cli.output import Block, Console, Fields, Outcome, Result, Table, is_terminal
from snapfmt.cli.progress import progress
from snapfmt.cli.text import size
from snapfmt.errors import NotPublished, SnapfmtError

if TYPE_CHECKING:
    from snapfmt.cli.command import Reference
    from snapfmt.repository import Repository
    from snapfmt.transfer import CopyReport

_BUCKETS = ("s3://", "s3a://")
_RIGHT = frozenset({"number", "sent", "there", "bytes sent", "bytes there", "seconds"})


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the three commands."""

    source: str
    target: str
    snapshot: "Reference | None"
    every: bool
    deep: bool
    workers: int


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of `cp`."""
    _configure(parser, "path or URL of the repository", "path or URL of the copy")


def configure_push(parser: argparse.ArgumentParser) -> None:
    """Arguments of `push`."""
    _configure(parser, "folder of the repository", "s3://bucket/prefix of the copy")


def configure_pull(parser: argparse.ArgumentParser) -> None:
    """Arguments of `pull`."""
    _configure(parser, "s3://bucket/prefix of the repository", "folder of the copy")


def _configure(parser: argparse.ArgumentParser, source: str, target: str) -> None:
    parser.add_argument("source", metavar="FROM", help=source)
    parser.add_argument("target", metavar="TO", help=f"{target}; made if it is not there")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--snapshot",
        metavar="SNAPSHOT",
        type=reference,
        default=None,
        help="42, snapshot_000042 or latest (default: the newest)",
    )
    which.add_argument(
        "--all", action="store_true", dest="every", help="all that are published, oldest first"
    )
    parser.add_argument(
        "--deep",
        action="store_true",
        help="hash also what the target has already, and send it again where it differs",
    )
    parser.add_argument(
        "--workers", type=_count, default=4, metavar="N", help="objects at a time (default: 4)"
    )


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 256:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 to 256")
    return int(text)


def run_push(options: Options, console: Console) -> Outcome:
    """From a folder to a bucket."""
    if _in_bucket(options.source) or not _in_bucket(options.target):
        raise UsageError("push goes from a folder to s3://bucket/prefix; see cp for the rest")
    return run(options, console)


def run_pull(options: Options, console: Console) -> Outcome:
    """From a bucket to a folder."""
    if not _in_bucket(options.source) or _in_bucket(options.target):
        raise UsageError("pull goes from s3://bucket/prefix to a folder; see cp for the rest")
    return run(options, console)


def _in_bucket(location: str) -> bool:
    return location.startswith(_BUCKETS)


def run(options: Options, console: Console) -> Outcome:
    """One line for each snapshot; ends at the first that cannot be copied."""
    del console
    from snapfmt.transfer import copy_snapshot, open_target
    from snapfmt.transfer.ground import Ground

    source = open_repository(options.source)
    numbers = _numbers(source, options)
    target = open_target(options.target, source)
    ground = Ground(target)
    reports: list[CopyReport] = []
    messages: list[str] = []
    total = _work(source, numbers) if is_terminal(sys.stderr) else None
    with progress("copying", total) as advance:
        for number in numbers:
            try:
                reports.append(
                    copy_snapshot(
                        source,
                        target,
                        number,
                        deep=options.deep,
                        workers=options.workers,
                        progress=advance,
                        ground=ground,
                    )
                )
            except NotPublished as error:
                # Retired since it was listed; asked for by itself, it is an error.
                if not options.every:
                    raise
                messages.append(str(error))
    document = {
        "ok": True,
        "source": {"location": source.location, "id": source.id},
        "target": {"location": target.location, "id": target.id},
        "snapshots": [_as_json(report) for report in reports],
    }
    return Result(document, _text(target, reports), messages=messages)


def _numbers(source: "Repository", options: Options) -> list[int]:
    if options.every:
        numbers = source.numbers()
        if not numbers:
            raise NotPublished("no snapshot was published here", what=source.location)
        return numbers
    wanted = options.snapshot
    return [source.snapshot(wanted if isinstance(wanted, int) else None).number]


def _work(source: "Repository", numbers: list[int]) -> int | None:
    """Bytes that the snapshots reach; a shared object counts for each of them."""
    from snapfmt.writing.retire import reached

    try:
        return sum(
            sum(reached(source.store, source.snapshot(number).manifest, source.limits).values())
            for number in numbers
        )
    except SnapfmtError:
        return None


def _as_json(report: "CopyReport") -> dict[str, Any]:
    return {
        "number": report.number,
        "write_id": report.write_id,
        "published": report.published,
        "objects_sent": report.objects_sent,
        "objects_skipped": report.objects_skipped,
        "bytes_sent": report.bytes_sent,
        "bytes_skipped": report.bytes_skipped,
        "seconds": round(report.seconds, 6),
    }


def _text(target: "Repository", reports: "list[CopyReport]") -> list[Block]:
    columns = ["number", "result", "sent", "there", "bytes sent", "bytes there", "seconds"]
    rows = [
        [
            str(report.number),
            "copied" if report.published else "was there",
            str(report.objects_sent),
            str(report.objects_skipped),
            size(report.bytes_sent),
            size(report.bytes_skipped),
            f"{report.seconds:.2f}",
        ]
        for report in reports
    ]
    return [Fields([("target", target.location)]), Table(columns, rows, _RIGHT)]


PUSH = Command(
    "push", "copy snapshots from a folder to a bucket", Options, configure_push, run_push
)
PULL = Command(
    "pull", "copy snapshots from a bucket to a folder", Options, configure_pull, run_pull
)
CP = Command("cp", "copy snapshots from one repository to another", Options, configure, run)
