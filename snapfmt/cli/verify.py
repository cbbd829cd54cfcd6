"""`snapfmt verify`: whether every byte is what it must be."""

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING

from snapfmt.cli.command import Command, Reference, add_repository, add_snapshot, open_to_look
from snapfmt.cli.exitcodes import ExitCode
from snapfmt.cli.output import Block, Console, Fields, Heading, Outcome, Result, Table
from snapfmt.cli.progress import progress
from snapfmt.cli.text import size
from snapfmt.errors import NotPublished, SnapfmtError

if TYPE_CHECKING:
    from snapfmt.reading.report import VerifyReport
    from snapfmt.repository import Repository


@dataclass(frozen=True, slots=True)
class Options:
    """Options of `snapfmt verify`."""

    repository: str
    snapshot: Reference | None
    shallow: bool
    hashes: bool


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_repository(parser)
    add_snapshot(parser, optional=True, default="default: the whole repository")
    depth = parser.add_mutually_exclusive_group()
    depth.add_argument(
        "--shallow",
        action="store_true",
        help="manifests, part indexes and sizes only, not the bytes of the data",
    )
    depth.add_argument(
        "--hashes",
        action="store_true",
        help="every byte, but only hashed, not decoded: several times as fast",
    )


def run(options: Options, console: Console) -> Outcome:
    """Every finding; damage ends with exit code 3, leftovers of a crashed save do not."""
    repository = open_to_look(options.repository, console)
    number = _number(repository, options.snapshot)
    deep = not options.shallow
    decode = not options.hashes
    total = _work(repository, decode) if deep and number is None else None
    with progress("verifying", total) as advance:
        report = repository.verify(number, deep=deep, decode=decode, progress=advance)
    code = ExitCode.OK
    if report.damage:
        code = ExitCode.DAMAGE
    elif report.unknown:
        code = ExitCode.NOTHING
    return Result(report.as_json(), _text(report), code)


def _number(repository: "Repository", wanted: Reference | None) -> int | None:
    if wanted is None:
        return None
    numbers = repository.numbers()
    if not numbers:
        raise NotPublished("no snapshot was published here", what=repository.location)
    if wanted == "latest":
        return numbers[-1]
    if wanted not in numbers:
        # To ask for what was never published is a question without answer, not damage.
        raise NotPublished(
            "this snapshot was not published",
            what=str(wanted),
            hint="run `snapfmt ls` for those that were",
        )
    return wanted


def _work(repository: "Repository", decode: bool) -> int | None:
    """About how many bytes a deep check reads: each object as a whole, and again its entries."""
    from snapfmt.format import layout

    try:
        stored = sum(length for _, length in repository.store.walk(layout.OBJECTS))
    except SnapfmtError:
        return None
    return 2 * stored if decode else stored


def _result(report: "VerifyReport") -> str:
    if report.damage:
        return "DAMAGED"
    return "UNKNOWN: something here needs a newer snapfmt" if report.unknown else "good"


def _text(report: "VerifyReport") -> list[Block]:
    depth = "shallow: documents and sizes"
    if report.deep:
        depth = "deep: every byte" if report.decoded else "hashes: every byte, not decoded"
    leftovers = len(report.findings) - len(report.damage) - len(report.unknown)
    pairs = [
        ("result", _result(report)),
        ("checked", depth),
        ("snapshots", " ".join(str(number) for number in report.snapshots) or "none"),
        ("objects", str(report.objects)),
        ("bytes", size(report.bytes)),
        ("damage", str(len(report.damage))),
        ("unknown", str(len(report.unknown))),
        ("leftovers", str(leftovers)),
    ]
    blocks: list[Block] = [Fields(pairs)]
    if report.findings:
        columns = ["severity", "rule", "snapshots", "path", "message"]
        rows = [
            [
                item.severity,
                item.rule,
                " ".join(str(number) for number in item.snapshots) or "-",
                item.path,
                item.message,
            ]
            for item in report.findings
        ]
        blocks += [Heading("Findings"), Table(columns, rows)]
    return blocks


COMMAND = Command("verify", "whether every byte is what it must be", Options, configure, run)
