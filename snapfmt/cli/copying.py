"""`snapfmt push`, `pull` and `cp`: snapshots from one repository to another, byte for byte."""

import argparse
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from snapfmt.cli import exitcodes
from snapfmt.cli.command import PLACE, Command, UsageError, open_repository, reference
from snapfmt.cli.exitcodes import ExitCode
from snapfmt.cli.output import (
    Block,
    Console,
    Fields,
    Heading,
    Outcome,
    Result,
    Table,
    is_terminal,
)
from snapfmt.cli.progress import progress
from snapfmt.cli.text import size
from snapfmt.errors import (
    NotPublished,
    SnapfmtError,
    StorageFull,
    StorageReadOnly,
    StorageUnavailable,
    StoreNotFound,
    UnsupportedFilesystem,
)

if TYPE_CHECKING:
    from snapfmt.cli.command import Reference
    from snapfmt.repository import Repository
    from snapfmt.transfer import CopyReport

_BUCKETS = ("s3://", "s3a://")
_PLACES = """\
buckets:
  The bucket must exist. Credentials, region and CA come from where AWS tools have them:
  AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, AWS_REGION, AWS_CA_BUNDLE, ~/.aws, or
  the role of the machine. The endpoint of another server is AWS_ENDPOINT_URL, or stands behind
  the URL: s3://bucket/prefix?endpoint_url=http://host:8333 (also ?profile=NAME, ?anon=true).

with --all:
  A snapshot that cannot be copied does not keep back the others. Each is told, and the exit code
  is that of the worst: 3, then 1, then 4. If a storage fails as a whole, the rest is not tried."""
_WORST = (ExitCode.DAMAGE, ExitCode.FAILED, ExitCode.NOTHING)
_NO_USE = (
    StorageFull,
    StorageReadOnly,
    StorageUnavailable,
    StoreNotFound,
    UnsupportedFilesystem,
)
"""Errors of a whole storage: the next snapshot would meet the same, often after minutes."""
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
    _configure(parser, PLACE, f"{PLACE} of the copy")


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
        "--workers",
        type=count,
        default=4,
        metavar="N",
        help="objects at a time (default: 4); in a bucket small ones are 16 at least",
    )
    parser.epilog = "\n\n".join(filter(None, (_PLACES, parser.epilog)))


def count(text: str) -> int:
    """A number of workers; for argparse."""
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


@dataclass(slots=True)
class _Story:
    """What became of each snapshot."""

    reports: "list[CopyReport]" = field(default_factory=list)
    failed: list[tuple[int, SnapfmtError]] = field(default_factory=list)
    retired: list[int] = field(default_factory=list)
    """Retired at the source since they were listed."""
    not_tried: list[int] = field(default_factory=list)

    @property
    def code(self) -> ExitCode:
        """That of the worst."""
        codes = {exitcodes.of(error) for _, error in self.failed}
        return next((code for code in _WORST if code in codes), ExitCode.OK)

    @property
    def copied(self) -> list[int]:
        """Numbers that were not at the target before."""
        return [report.number for report in self.reports if report.published]

    @property
    def there(self) -> list[int]:
        """Numbers that were."""
        return [report.number for report in self.reports if not report.published]


def run(options: Options, console: Console) -> Outcome:
    """One line for each snapshot; with `--all`, one that fails does not end it."""
    del console
    from snapfmt.transfer import copy_snapshot, open_target
    from snapfmt.transfer.ground import Ground
    from snapfmt.transfer.sides import at

    with at("source"):
        source = open_repository(options.source)
        numbers = _numbers(source, options)
    target = open_target(options.target, source)
    ground = Ground(target)
    story = _Story()
    total = _work(source, numbers) if is_terminal(sys.stderr) else None
    with progress("copying", total) as advance:
        for place, number in enumerate(numbers):
            try:
                report = copy_snapshot(
                    source,
                    target,
                    number,
                    deep=options.deep,
                    workers=options.workers,
                    progress=advance,
                    ground=ground,
                )
            except SnapfmtError as error:
                # Asked for by itself, it is an error like any other.
                if not options.every:
                    raise
                if isinstance(error, NotPublished):
                    story.retired.append(number)
                    continue
                story.failed.append((number, error))
                if isinstance(error, _NO_USE):
                    story.not_tried = numbers[place + 1 :]
                    break
            else:
                story.reports.append(report)
    return Result(
        _document(source, target, story),
        _text(target, story, options),
        story.code,
        _messages(story),
    )


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
    from snapfmt.writing.keeping import reached

    try:
        return sum(
            sum(reached(source.store, source.snapshot(number).manifest, source.limits).values())
            for number in numbers
        )
    except SnapfmtError:
        return None


def _document(source: "Repository", target: "Repository", story: _Story) -> dict[str, Any]:
    found: dict[str, Any] = {
        "ok": not story.failed,
        "source": {"location": source.location, "id": source.id},
        "target": {"location": target.location, "id": target.id},
        "snapshots": [_as_json(report) for report in story.reports],
        "failed": [{"number": number, **_error(error)} for number, error in story.failed],
        "retired": story.retired,
        "not_tried": story.not_tried,
    }
    if story.failed:
        # Where the errors of every command stand.
        worst = next(error for _, error in story.failed if exitcodes.of(error) is story.code)
        found["error"] = _error(worst)
    return found


def _error(error: SnapfmtError) -> dict[str, str]:
    return {
        "code": error.code,
        "message": error.message,
        "what": error.what,
        "hint": error.hint,
    }


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


def _messages(story: _Story) -> list[str]:
    said = [f"snapshot {number} was retired at the source meanwhile" for number in story.retired]
    said += [f"snapshot {number}: {error.code}: {error}" for number, error in story.failed]
    if story.not_tried:
        said.append(f"not tried: {_listed(story.not_tried)}")
    return said


def _listed(numbers: list[int]) -> str:
    return " ".join(map(str, numbers)) or "none"


def _text(target: "Repository", story: _Story, options: Options) -> list[Block]:
    columns = ["number", "result", "sent", "there", "bytes sent", "bytes there", "seconds"]
    rows = {
        report.number: [
            str(report.number),
            "copied" if report.published else "was there",
            str(report.objects_sent),
            str(report.objects_skipped),
            size(report.bytes_sent),
            size(report.bytes_skipped),
            f"{report.seconds:.2f}",
        ]
        for report in story.reports
    }
    failed = [number for number, _ in story.failed]
    others = (("FAILED", failed), ("retired", story.retired), ("not tried", story.not_tried))
    for result, numbers in others:
        rows |= {number: [str(number), result, *["-"] * 5] for number in numbers}
    pairs = [("target", target.location)]
    if options.every:
        summary = (("copied", story.copied), ("was there", story.there), ("failed", failed))
        pairs += [(name, _listed(numbers)) for name, numbers in summary]
        pairs += [(name, _listed(numbers)) for name, numbers in others[1:] if numbers]
    blocks: list[Block] = [Fields(pairs), Table(columns, [rows[n] for n in sorted(rows)], _RIGHT)]
    if story.failed:
        reasons = [[str(number), error.code, str(error)] for number, error in story.failed]
        blocks += [Heading("Failed"), Table(["number", "code", "reason"], reasons, _RIGHT)]
    return blocks


PUSH = Command(
    "push", "copy snapshots from a folder to a bucket", Options, configure_push, run_push
)
PULL = Command(
    "pull", "copy snapshots from a bucket to a folder", Options, configure_pull, run_pull
)
CP = Command("cp", "copy snapshots from one repository to another", Options, configure, run)
