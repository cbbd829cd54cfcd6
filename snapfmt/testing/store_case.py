"""What the tests of a storage backend stand on."""

import hashlib
from collections.abc import Callable

import pytest

from snapfmt.storage.base import Store

WORKSPACE = "attempts/a1"
MANIFEST = "snapshots/s1/manifest.json"


def object_key(data: bytes) -> str:
    """A content-named key."""
    name = hashlib.sha256(data).hexdigest()
    return f"objects/{name[:2]}/{name}"


class StoreCase:
    """An empty store, and a second handle on it."""

    @pytest.fixture
    def store(self) -> Store:
        """An empty store; a subclass gives it."""
        raise NotImplementedError

    @pytest.fixture
    def again(self, store: Store) -> Callable[[], Store]:
        """Opens the same place once more, as another process would."""
        return lambda: store

    def put(self, store: Store, data: bytes, workspace: str = WORKSPACE) -> str:
        """Store an object through a workspace; returns its key."""
        if not store.has_workspace(workspace):
            store.open_workspace(workspace, publishes=MANIFEST)
        return self.through(store, data, workspace)

    def through(self, store: Store, data: bytes, workspace: str = WORKSPACE) -> str:
        """Store an object through a workspace that was opened; returns its key."""
        sink = store.sink(workspace, "object")
        sink.write(data)
        sink.finish(object_key(data))
        return object_key(data)
