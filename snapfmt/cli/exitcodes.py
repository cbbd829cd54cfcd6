"""Exit codes of the command: one table, append-only, shown by `snapfmt --help`."""

from enum import IntEnum

from snapfmt.errors import CorruptError, MissingObject, NotFoundError, RefusedError, SnapfmtError


class ExitCode(IntEnum):
    """What a script may rely on; a number never changes its meaning."""

    OK = 0
    FAILED = 1
    USAGE = 2
    DAMAGE = 3
    NOTHING = 4
    INTERRUPTED = 130


MEANINGS: dict[ExitCode, str] = {
    ExitCode.OK: "done, and nothing is wrong",
    ExitCode.FAILED: "failed: storage, input, or anything that has no code of its own",
    ExitCode.USAGE: "wrong usage",
    ExitCode.DAMAGE: "damage found: stored bytes differ, do not follow the format or are missing",
    ExitCode.NOTHING: "nothing matches, or refused; nothing was touched",
    ExitCode.INTERRUPTED: "interrupted",
}
"""The table."""


def of(error: SnapfmtError) -> ExitCode:
    """Exit code of a typed error."""
    if isinstance(error, (CorruptError, MissingObject)):
        return ExitCode.DAMAGE
    if isinstance(error, (NotFoundError, RefusedError)):
        return ExitCode.NOTHING
    return ExitCode.FAILED


def table() -> str:
    """The table as text, for the end of `--help`."""
    return "exit codes:\n" + "\n".join(
        f"  {int(code):>3}  {meaning}" for code, meaning in MEANINGS.items()
    )
