"""`snapfmt demo-queue`: a live TransferQueue is saved, killed, restored and compared."""

import argparse
import tempfile
from dataclasses import asdict, dataclass, is_dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from snapfmt.cli.command import Command
from snapfmt.cli.output import Console, Outcome, Result
from snapfmt.errors import UnsupportedFeature

NEEDS = ("ray", "torch", "transfer_queue")
"""Modules that the demonstration imports beyond what snapfmt needs itself."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of `snapfmt demo-queue`."""

    directory: str | None
    units: int
    restore_units: int
    rows: int


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument(
        "--directory", metavar="D", help="where the repository goes (default: a new folder)"
    )
    parser.add_argument(
        "--units", type=_count, default=2, metavar="N", help="storage units that are saved"
    )
    parser.add_argument(
        "--restore-units", type=_count, default=3, metavar="N", help="units of the restored run"
    )
    parser.add_argument("--rows", type=_count, default=512, metavar="N", help="rows in flight")


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def run(options: Options, console: Console) -> Outcome:
    """Tell the story line by line while it happens."""
    lacking = [name for name in NEEDS if find_spec(name) is None]
    if lacking:
        raise _refused(", ".join(lacking))
    directory = options.directory or tempfile.mkdtemp(prefix="snapfmt-demo-")
    try:
        result = import_module("snapfmt.demo").run(
            directory,
            units=options.units,
            restore_units=options.restore_units,
            rows=options.rows,
            out=console.line,
        )
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in NEEDS:
            raise
        raise _refused(error.name) from error
    document: dict[str, Any] = {"ok": True, "directory": directory}
    if is_dataclass(result) and not isinstance(result, type):
        found = asdict(result)
        document["result"] = {
            name: str(value) if isinstance(value, Path) else value for name, value in found.items()
        }
    return Result(document, messages=[f"the repository is kept in {directory}"])


def _refused(lacking: str) -> UnsupportedFeature:
    return UnsupportedFeature(
        "the demonstration needs packages that are not installed",
        what=lacking,
        hint="pip install 'snapfmt[transfer-queue]'",
    )


COMMAND = Command(
    "demo-queue",
    "save a live TransferQueue, kill it, restore it, compare it",
    Options,
    configure,
    run,
)
