"""Whether the folders of a repository are folders (spec/v1/09-retention.md, K-18).

A link is never followed, and where one stands, or a file, nothing is listed. Who takes that for
empty removes what the snapshots reach that are behind it.
"""

from snapfmt.errors import RefusedError
from snapfmt.format import layout
from snapfmt.storage.base import Store

_HINT = "put the folder back, or remove what stands there; nothing was changed"


def hidden(store: Store) -> list[str]:
    """Keys at which a folder of the format must be, and something else is."""
    snapshots = [
        f"{layout.SNAPSHOTS}/{name}"
        for name in store.not_folders(layout.SNAPSHOTS)
        if layout.snapshot_number(name) is not None
    ]
    return _tops(store) + snapshots


def check_tops(store: Store) -> None:
    """Before anything is written.

    Raises:
        RefusedError: If something else stands where one of the four folders must be.
    """
    _check(_tops(store))


def check_all(store: Store) -> None:
    """Before anything is removed: also the snapshots' own folders.

    Raises:
        RefusedError: If something else stands where one of them must be.
    """
    _check(hidden(store))


def _tops(store: Store) -> list[str]:
    return [name for name in store.not_folders("") if name in layout.FOLDERS]


def _check(found: list[str]) -> None:
    if found:
        raise RefusedError("no folder stands where one must be", what=found[0], hint=_HINT)
