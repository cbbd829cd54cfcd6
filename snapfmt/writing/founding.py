"""The first document of a repository (spec/v1/04-documents.md, Repository document)."""

import secrets
import time
from collections.abc import Mapping
from typing import Any

from snapfmt._version import __version__
from snapfmt.errors import ConflictError
from snapfmt.format import canonical, layout
from snapfmt.storage.base import Store
from snapfmt_schemas.manifest import Features, RepositoryDocument


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
        UnsupportedFilesystem: If a safe publication is not possible here.
        StorageError: If it cannot be written.
    """
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
