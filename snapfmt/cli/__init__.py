"""The command `snapfmt`: look into a repository, take things out, check it.

Nothing here writes into a repository. Importing this package and `--help` load neither pyarrow
nor torch: a command imports what it needs when it runs.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from snapfmt._version import FORMAT_VERSION, __version__
from snapfmt.cli import attempts, cat, demo, exitcodes, ls, rows, show, tree, verify, version
from snapfmt.cli.command import Command, UsageError
from snapfmt.cli.exitcodes import ExitCode
from snapfmt.cli.output import Console, Stream, drop_stdout
from snapfmt.errors import SnapfmtError

__all__ = ["build_parser", "main"]

COMMANDS: tuple[Command[Any], ...] = (
    ls.COMMAND,
    show.COMMAND,
    tree.COMMAND,
    cat.COMMAND,
    rows.COMMAND,
    verify.COMMAND,
    attempts.COMMAND,
    demo.COMMAND,
    version.COMMAND,
)
"""In the order of `--help`."""


class _Parser(argparse.ArgumentParser):
    """Reports wrong usage like every other error instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see `{self.prog} --help`")


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    parser = _Parser(
        prog="snapfmt",
        description="Look into a repository of rollout snapshots, and check it.",
        epilog=exitcodes.table(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--version", action="version", version=f"snapfmt {__version__} (format {FORMAT_VERSION})"
    )
    _add_common(parser, default=False)
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, parser_class=_Parser
    )
    for command in COMMANDS:
        below = commands.add_parser(
            command.name,
            help=command.help,
            description=command.help,
            epilog=exitcodes.table(),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        command.configure(below)
        # Without a default here, the same option before the command keeps its value.
        _add_common(below, default=argparse.SUPPRESS)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code and never raises."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    # An error in the arguments must know these two before they are parsed.
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    console = Console(as_json="--json" in options, debug="--debug" in options)
    try:
        return int(_run(arguments, console))
    except KeyboardInterrupt:
        drop_stdout()
        console.message("interrupted")
        return int(ExitCode.INTERRUPTED)


def _run(arguments: list[str], console: Console) -> ExitCode:
    try:
        namespace = build_parser().parse_args(arguments)
        (command,) = (item for item in COMMANDS if item.name == namespace.command)
        return console.emit(command.execute(namespace, console))
    except SystemExit as stop:
        # --help and --version end this way, with their text still in stdout's buffer.
        console.emit(Stream(iter(())))
        return ExitCode(stop.code if isinstance(stop.code, int) else 0)
    except UsageError as error:
        console.failed("Usage", str(error))
        return ExitCode.USAGE
    except BrokenPipeError:
        drop_stdout()
        return ExitCode.OK
    except SnapfmtError as error:
        console.failed(
            error.code, str(error), message=error.message, what=error.what, hint=error.hint
        )
        return exitcodes.of(error)
    except Exception as error:  # noqa: BLE001 - the last place where a traceback can be stopped
        hint = "" if console.debug else " (--debug shows where)"
        console.failed(type(error).__name__, f"{error}{hint}", message=str(error))
        return ExitCode.FAILED


def _add_common(parser: argparse.ArgumentParser, *, default: Any) -> None:
    group = parser.add_argument_group("for every command")
    group.add_argument(
        "--json", action="store_true", default=default, help="one JSON document; rows: JSON lines"
    )
    group.add_argument(
        "--debug", action="store_true", default=default, help="show the traceback of an error"
    )
