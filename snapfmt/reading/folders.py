"""Whether the folders of a repository are folders (spec/v1/09-retention.md, K-18).

A link is never followed, and where one stands, or a file, nothing is listed. Who takes that for
empty removes what the snapshots reach that are behind it.
"""

from collections.abc import Callable, Iterator

from snapfmt.errors import RefusedError, SnapfmtError, StorageUnavailable
from snapfmt.format import layout
from snapfmt.storage.base import Store

Failed = Callable[[str, SnapfmtError], None]
"""Told of a folder that cannot be looked into, and why."""

_HINT = "put the folder back, or remove what stands there; nothing was changed"


def hidden(store: Store, failed: Failed | None = None) -> list[str]:
    """Keys at which a folder of the format must be, and something else is.

    `failed` is told where the folder of all snapshots cannot be looked into.
    """
    found = _tops(store)
    try:
        there = store.not_folders(layout.SNAPSHOTS)
    except StorageUnavailable:
        raise
    except SnapfmtError as error:
        if failed is None:
            raise
        failed(layout.SNAPSHOTS, error)
        return found
    keys = [f"{layout.SNAPSHOTS}/{name}" for name in there if _is_snapshot(name)]
    return found + keys


def _is_snapshot(name: str) -> bool:
    return layout.snapshot_number(name) is not None


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


def names(store: Store, folder: str, failed: Failed) -> list[str]:
    """As `Store.names`; none where the folder cannot be looked into, which is told."""
    try:
        return store.names(folder)
    except StorageUnavailable:
        raise
    except SnapfmtError as error:
        failed(folder, error)
        return []


def files(store: Store, folder: str, failed: Failed) -> Iterator[tuple[str, int]]:
    """As `Store.walk`, but a folder below that cannot be looked into hides nothing beside it."""
    try:
        found = list(store.walk(folder))
    except StorageUnavailable:
        raise
    except SnapfmtError as error:
        yield from _one_by_one(store, folder, error, failed)
    else:
        yield from found


def _one_by_one(
    store: Store, folder: str, error: SnapfmtError, failed: Failed
) -> Iterator[tuple[str, int]]:
    try:
        there, plain = store.names(folder), set(store.not_folders(folder))
    except SnapfmtError:
        failed(folder, error)
        return
    for name in there:
        key = f"{folder}/{name}" if folder else name
        if name in plain:
            yield key, store.size(key) or 0
        else:
            yield from files(store, key, failed)
