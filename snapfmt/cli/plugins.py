"""Commands of other packages: entry points of the group `snapfmt.commands`.

An entry point's name is the command's, its value a module that holds a `COMMAND`, made as those
of this package are. It is loaded only when its command is called: nothing else pays for it, and
one that is broken harms no other command.
"""

import argparse
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from snapfmt.cli.command import Command, add_common
from snapfmt.cli.output import Console, Outcome

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "snapfmt.commands"
_NAME = re.compile(r"[a-z][a-z0-9_-]*", re.ASCII)


class PluginError(Exception):
    """A command of another package cannot be used; ends with exit code 1."""


@dataclass(frozen=True, slots=True)
class _NoOptions:
    """Options of a command that is only listed."""


@dataclass(frozen=True, slots=True)
class Plugin:
    """A command of another package, not loaded."""

    name: str
    points: tuple["EntryPoint", ...]
    """One; more if packages quarrel about the name."""

    @property
    def origin(self) -> str:
        """The packages that bring it."""
        return ", ".join(sorted({_package(point) for point in self.points}))

    def listed(self) -> Command[Any]:
        """A stand-in for `--help`, which loads nothing."""
        return Command(self.name, f"from the package {self.origin}", _NoOptions, _nothing, _never)

    def load(self) -> Command[Any]:
        """The command itself.

        Raises:
            PluginError: If it cannot be loaded, or is not a command.
        """
        if len(self.points) > 1:
            raise PluginError(f"{self.name!r} is a command of several packages: {self.origin}")
        (point,) = self.points
        where = f"the command {self.name!r} of the package {self.origin} ({point.value})"
        try:
            command = getattr(point.load(), "COMMAND", None)
            if isinstance(command, Command):
                # What it does to a parser is code of the package as well.
                parser = argparse.ArgumentParser()
                command.configure(parser)
                add_common(parser, default=argparse.SUPPRESS)
        except (Exception, SystemExit) as error:
            raise PluginError(
                f"{where} cannot be loaded: {type(error).__name__}: {error}"
            ) from error
        if not isinstance(command, Command) or command.name != self.name:
            raise PluginError(f"{where} has no COMMAND of that name")
        return command


def find(taken: Collection[str]) -> list[Plugin]:
    """The commands of installed packages, by name; those of snapfmt itself win.

    Raises:
        PluginError: If what is installed cannot be told.
    """
    from importlib.metadata import entry_points

    found: dict[str, set[EntryPoint]] = {}
    try:
        for point in entry_points(group=GROUP):
            if point.name not in taken and _NAME.fullmatch(point.name):
                found.setdefault(point.name, set()).add(point)
    except Exception as error:
        raise PluginError(
            f"commands of other packages cannot be listed: {type(error).__name__}: {error}"
        ) from error
    return [
        Plugin(name, tuple(sorted(points, key=lambda point: point.value)))
        for name, points in sorted(found.items())
    ]


def _package(point: "EntryPoint") -> str:
    return point.dist.name if point.dist is not None else "?"


def _nothing(_: argparse.ArgumentParser) -> None:
    return None


def _never(_: _NoOptions, __: Console) -> Outcome:
    raise PluginError("a command that is only listed was called")
