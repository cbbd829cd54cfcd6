"""Whether the folders of a repository are folders (spec/v1/09-retention.md, K-18).

A link is never followed, and where one stands, or a file, nothing is listed. Who takes that for
empty removes what the snapshots reach that are behind it. So does who takes a folder for one that
never held anything, because its documents were lost (K-19).
"""

import contextlib
from collections.abc import Callable, Collection, Iterator

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


def check_all(store: Store, gone: Collection[int] = ()) -> None:
    """Before anything is removed: also the snapshots' own folders, but those of `gone` numbers.

    Raises:
        RefusedError: If something else stands where one of them must be, or one is empty.
    """
    _check(hidden(store))
    for key in _emptied(store, {layout.snapshot_name(number) for number in gone}):
        raise RefusedError(
            "a snapshot's folder holds no document, and nothing tells what it reached",
            what=key,
            hint="put its manifest back, or remove the folder if what it had may go; "
            "nothing was removed",
        )


def check_any(store: Store) -> None:
    """Before what nothing reaches is removed: whether there is, or was, a snapshot at all.

    Raises:
        RefusedError: If not.
    """
    if not any(map(_is_snapshot, store.names(layout.SNAPSHOTS))):
        raise RefusedError(
            "objects are there that no attempt which is known of wrote, and no snapshot",
            what=layout.SNAPSHOTS,
            hint="put the folder back if it was lost; else publish a snapshot, and collect again",
        )


def _emptied(store: Store, but: Collection[str]) -> Iterator[str]:
    """Folders of snapshots with no document, on a disk: no save and no retirement leaves one."""
    if layout.REPOSITORY_KEY not in store.not_folders(""):
        return  # a bucket, which has no folders that could be empty
    for name, inside in store.folders(layout.SNAPSHOTS, but=but).items():
        if _is_snapshot(name) and not inside & layout.DOCUMENTS:
            key = f"{layout.SNAPSHOTS}/{name}"
            # Once more: a listing may miss a document that gets another name meanwhile. A closed
            # name is listed as a file only.
            if layout.DOCUMENTS.isdisjoint([*store.names(key), *store.not_folders(key)]):
                yield key


def _tops(store: Store) -> list[str]:
    return [name for name in store.not_folders("") if name in layout.FOLDERS]


def _check(found: list[str]) -> None:
    if found:
        raise RefusedError("no folder stands where one must be", what=found[0], hint=_HINT)


@contextlib.contextmanager
def telling(failed: Failed, folder: str) -> Iterator[None]:
    """Errors within the context are told, and end it; an outage is raised: nobody could look."""
    try:
        yield
    except StorageUnavailable:
        raise
    except SnapfmtError as error:
        failed(folder, error)


def names(store: Store, folder: str, failed: Failed) -> list[str]:
    """As `Store.names`; none where the folder cannot be looked into, which is told."""
    found: list[str] = []
    with telling(failed, folder):
        found += store.names(folder)
    return found


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
    except StorageUnavailable:
        raise
    except SnapfmtError:
        failed(folder, error)
        return
    for name in there:
        key = f"{folder}/{name}" if folder else name
        if name in plain:
            yield key, store.size(key) or 0
        else:
            yield from files(store, key, failed)
