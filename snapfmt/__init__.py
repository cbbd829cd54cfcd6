"""Crash-safe, verified snapshots of agentic RL rollouts.

`Repository` is the front door: `Repository.open(location, create=True).begin()` starts a save,
`Repository.open(location).snapshot()` reads the newest one. Names load on first use, so that
`import snapfmt` stays cheap in every process of a large run.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from snapfmt._version import FORMAT_VERSION, __version__
from snapfmt.errors import SnapfmtError

if TYPE_CHECKING:
    from snapfmt.format.columns import MISSING
    from snapfmt.reading.snapshot import Snapshot
    from snapfmt.repository import Repository
    from snapfmt.writing.attempt import Attempt
    from snapfmt.writing.part import PartWriter

__all__ = [
    "FORMAT_VERSION",
    "MISSING",
    "Attempt",
    "PartWriter",
    "Repository",
    "SnapfmtError",
    "Snapshot",
    "__version__",
]

_HOMES = {
    "MISSING": "snapfmt.format.columns",
    "Attempt": "snapfmt.writing.attempt",
    "PartWriter": "snapfmt.writing.part",
    "Repository": "snapfmt.repository",
    "Snapshot": "snapfmt.reading.snapshot",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'snapfmt' has no attribute {name!r}")
