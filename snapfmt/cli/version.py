"""`snapfmt version`: this library, the format, and what is installed beside it."""

import argparse
import platform
from dataclasses import dataclass
from importlib import metadata

from snapfmt._version import FORMAT_VERSION, READABLE_FORMATS, __version__
from snapfmt.cli.command import Command
from snapfmt.cli.output import Console, Fields, Outcome, Result

_PACKAGES = ("numpy", "pyarrow", "pydantic", "zstandard", "torch", "ray", "TransferQueue", "rich")


@dataclass(frozen=True, slots=True)
class Options:
    """Options of `snapfmt version`: none."""


def configure(_: argparse.ArgumentParser) -> None:
    """No arguments."""


def run(_: Options, __: Console) -> Outcome:
    """Versions, as a report of a problem needs them; imports none of the packages."""
    packages = {name: _installed(name) for name in _PACKAGES}
    document = {
        "ok": True,
        "version": __version__,
        "format_version": FORMAT_VERSION,
        "readable_formats": sorted(READABLE_FORMATS),
        "python": platform.python_version(),
        "packages": packages,
    }
    reads = ", ".join(str(number) for number in sorted(READABLE_FORMATS))
    pairs = [
        ("snapfmt", __version__),
        ("format", f"writes {FORMAT_VERSION}, reads {reads}"),
        ("python", platform.python_version()),
    ]
    pairs += [(name, version or "not installed") for name, version in packages.items()]
    return Result(document, [Fields(pairs)])


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


COMMAND = Command("version", "versions of the library and the format", Options, configure, run)
