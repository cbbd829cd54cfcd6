"""What every command is made of, and the arguments that several of them share."""

import argparse
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from snapfmt.cli.output import Console, Outcome
from snapfmt.errors import StoreNotFound

if TYPE_CHECKING:
    from snapfmt.reading.snapshot import Snapshot
    from snapfmt.repository import Repository

O = TypeVar("O")  # noqa: E741 - the options of one command
Reference = int | Literal["latest"]
"""A snapshot as the user names it."""

PLACE = "folder or URL (s3://bucket/prefix)"
"""What names a repository, in help texts."""
_REFERENCE = re.compile(r"(?:snapshot_)?([0-9]{1,12})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Command(Generic[O]):
    """One command: its options are parsed into a frozen dataclass, `run` returns a value."""

    name: str
    help: str
    options: type[O]
    configure: Callable[[argparse.ArgumentParser], None]
    run: Callable[[O, Console], Outcome]

    def execute(self, namespace: argparse.Namespace, console: Console) -> Outcome:
        """Run it with the parsed arguments.

        Raises:
            UsageError: If the arguments do not go together.
        """
        kind: Any = self.options
        known = {item.name: getattr(namespace, item.name) for item in fields(kind)}
        return self.run(kind(**known), console)


class UsageError(Exception):
    """The arguments do not go together; ends with exit code 2."""


def reference(text: str) -> Reference:
    """`42`, `snapshot_000042` or `latest`; for argparse."""
    if text == "latest":
        return "latest"
    match = _REFERENCE.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no snapshot: 42, snapshot_000042 or latest")
    return int(match[1])


def add_repository(parser: argparse.ArgumentParser) -> None:
    """The argument REPO."""
    parser.add_argument("repository", metavar="REPO", help=PLACE)


def add_snapshot(parser: argparse.ArgumentParser, *, optional: bool, default: str = "") -> None:
    """The argument SNAPSHOT."""
    parser.add_argument(
        "snapshot",
        metavar="SNAPSHOT",
        type=reference,
        help="42, snapshot_000042 or latest" + (f" ({default})" if default else ""),
        nargs="?" if optional else None,
    )


def add_common(parser: argparse.ArgumentParser, *, default: Any) -> None:
    """The options of every command."""
    group = parser.add_argument_group("for every command")
    group.add_argument(
        "--json", action="store_true", default=default, help="one JSON document; rows: JSON lines"
    )
    group.add_argument(
        "--debug", action="store_true", default=default, help="show the traceback of an error"
    )


def open_to_look(location: str, console: Console) -> "Repository":
    """The repository, for commands that only show: also pieces of damaged snapshots."""
    repository = open_repository(location, salvage=True)
    if repository.is_salvage:
        console.message("pieces of damaged snapshots: no snapshot here is whole")
    return repository


def open_repository(location: str, *, salvage: bool = False) -> "Repository":
    """The repository; loads the library, which `--help` does not need."""
    from snapfmt.repository import Repository

    try:
        return Repository.open(location, salvage=salvage)
    except StoreNotFound as error:
        # The library's hints speak to callers in Python.
        text = error.message
        if Path(location).is_file():
            text = "this is a file, not the folder of a repository"
        raise StoreNotFound(text, what=error.what, hint="check the path") from error


def open_snapshot(repository: "Repository", wanted: Reference | None) -> "Snapshot":
    """The snapshot that was named, or the newest."""
    return repository.snapshot(wanted if isinstance(wanted, int) else None)
