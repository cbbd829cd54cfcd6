"""The first document of a repository (spec/v1/04-documents.md, Repository document)."""

import secrets
import time
from collections.abc import Mapping
from typing import Any, Final

from snapfmt._version import __version__
from snapfmt.errors import ConflictError, RefusedError, StorageDenied
from snapfmt.format import canonical, layout
from snapfmt.storage.base import Store
from snapfmt_schemas.manifest import Features, RepositoryDocument

LOOKS: Final = 100
"""Names directly below a new repository's place that are looked into."""


def found(
    store: Store,
    *,
    repository_id: str | None = None,
    features: Features | None = None,
    extensions: Mapping[str, Any] | None = None,
) -> None:
    """Write `snapfmt.json`, with an id of its own unless one is given.

    Where another process makes it at the same moment, theirs counts.

    Raises:
        RefusedError: If it would stand inside of another repository, or around one.
        UnsupportedFilesystem: If a safe publication is not possible here.
        StorageError: If it cannot be written.
    """
    _check_alone(store)
    store.prepare()
    document = RepositoryDocument(
        repository_id=repository_id or secrets.token_hex(16),
        features=features or Features(),
        created_at_ns=time.time_ns(),
        writer=f"snapfmt {__version__}",
        capabilities=store.capabilities,
        extensions=dict(extensions or {}),
    )
    try:
        store.create(layout.REPOSITORY_KEY, canonical.encode(document.sealed()))
    except ConflictError:
        return


def _check_alone(store: Store) -> None:
    """Whoever looks after one of two repositories might take what is the other's for leftovers."""
    for parent in store.parents():
        if _is_there(parent, layout.REPOSITORY_KEY):
            raise _nested("this place is inside of a repository", parent.location)
    for name in store.names("")[:LOOKS]:
        if _is_there(store, f"{name}/{layout.REPOSITORY_KEY}"):
            raise _nested("there is a repository inside of this place", f"{store.location}: {name}")


def _is_there(store: Store, key: str) -> bool:
    """No, where it may not be looked at: that is no place that its user could mistake."""
    try:
        return store.size(key) is not None
    except StorageDenied:
        return False


def _nested(message: str, what: str) -> RefusedError:
    return RefusedError(message, what=what, hint="choose a place beside it, not in or around it")
