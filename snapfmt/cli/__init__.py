"""The command `snapfmt`: look into a repository, take things out, check it.

`push`, `pull`, `cp` and `repair` write into the repository that takes the copy; `gc`, `retain`,
`pin` and `unpin` change the one they are given; the rest only read. Importing this package and
`--help` load neither pyarrow nor torch: a command imports what it needs when it runs. Other
packages add commands of their own (see `plugins`).
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from snapfmt._version import FORMAT_VERSION, __version__
from snapfmt.cli import (
    attempts,
    cat,
    copying,
    demo_queue,
    exitcodes,
    gc,
    ls,
    plugins,
    repair,
    report,
    retention,
    rows,
    show,
    tree,
    verify,
    version,
)
from snapfmt.cli.command import Command, UsageError, add_common
from snapfmt.cli.exitcodes import ExitCode
from snapfmt.cli.output import Console, Stream, drop_stdout
from snapfmt.cli.plugins import PluginError
from snapfmt.errors import SnapfmtError

__all__ = ["build_parser", "main"]

COMMANDS: tuple[Command[Any], ...] = (
    ls.COMMAND,
    show.COMMAND,
    report.COMMAND,
    tree.COMMAND,
    cat.COMMAND,
    rows.COMMAND,
    verify.COMMAND,
    attempts.COMMAND,
    copying.PUSH,
    copying.PULL,
    copying.CP,
    repair.COMMAND,
    gc.COMMAND,
    retention.RETAIN,
    retention.PIN,
    retention.UNPIN,
    retention.PINS,
    demo_queue.COMMAND,
    version.COMMAND,
)
"""Those of this package, in the order of `--help`."""


_HELP = ("-h", "--help")


class _Parser(argparse.ArgumentParser):
    """Reports wrong usage like every other error instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see `{self.prog} --help`")


def build_parser(commands: Sequence[Command[Any]] = COMMANDS) -> argparse.ArgumentParser:
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
    add_common(parser, default=False)
    below_it = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, parser_class=_Parser
    )
    for command in commands:
        below = below_it.add_parser(
            command.name,
            help=command.help,
            description=command.help,
            epilog=exitcodes.table(),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        command.configure(below)
        # Without a default here, the same option before the command keeps its value.
        add_common(below, default=argparse.SUPPRESS)
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
        commands = _commands(arguments, console)
        namespace = build_parser(commands).parse_args(arguments)
        (command,) = (item for item in commands if item.name == namespace.command)
        return console.emit(command.execute(namespace, console))
    except SystemExit as stop:
        # --help and --version end this way, with their text still in stdout's buffer.
        console.emit(Stream(iter(())))
        return ExitCode(stop.code if isinstance(stop.code, int) else 0)
    except UsageError as error:
        console.failed("Usage", str(error))
        return ExitCode.USAGE
    except PluginError as error:
        console.failed("Plugin", str(error))
        return ExitCode.FAILED
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


def _commands(arguments: Sequence[str], console: Console) -> list[Command[Any]]:
    """The commands that these arguments may mean; looks at other packages only if it must."""
    first = next((item for item in arguments if item in _HELP or not item.startswith("-")), "")
    own = {command.name for command in COMMANDS}
    if not first or first in own:
        return list(COMMANDS)
    try:
        found = plugins.find(own)
    except PluginError as error:
        if first not in _HELP:
            raise
        console.message(str(error))
        return list(COMMANDS)
    return [*COMMANDS, *(item.load() if item.name == first else item.listed() for item in found)]
