"""Every storage backend passes the one suite, and so do the wrappers that tests use."""

import gc
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from snapfmt.errors import ConflictError, MissingObject, SnapfmtError, StorageError
from snapfmt.storage.base import Store
from snapfmt.storage.local import LocalStore
from snapfmt.storage.memory import MemoryClient
from snapfmt.storage.objects import ObjectStore
from snapfmt.testing.store_case import MANIFEST, WORKSPACE, object_key
from snapfmt.testing.store_suite import StoreSuite
from snapfmt.testing.stores import CountingStore, FaultyStore


class TestLocalStore(StoreSuite):
    @pytest.fixture
    def store(self, tmp_path: Path) -> LocalStore:
        store = LocalStore(tmp_path / "store", create=True)
        store.prepare()
        return store

    @pytest.fixture
    def again(self, tmp_path: Path) -> Callable[[], Store]:
        return lambda: LocalStore(tmp_path / "store")

    def test_what_is_no_regular_file_is_not_there(self, store: LocalStore, tmp_path: Path) -> None:
        root = tmp_path / "store"
        (root / "pins").mkdir()
        os.mkfifo(root / "pins" / "pipe")
        (root / "pins" / "link").symlink_to("/etc/hostname")
        (root / "pins" / "folder").mkdir()
        for name in ("pipe", "link", "folder"):
            assert store.size(f"pins/{name}") is None
            with pytest.raises((MissingObject, StorageError)):
                store.get(f"pins/{name}", limit=10**6)
        with pytest.raises(ConflictError):
            store.create("pins/link", b"x")
        assert (root / "pins" / "link").is_symlink()
        store.replace("pins/link", b"x")
        assert store.get("pins/link", limit=5) == b"x", "a link is replaced, not followed"

    def test_a_sink_never_opens_what_is_there(self, store: LocalStore, tmp_path: Path) -> None:
        store.open_workspace(WORKSPACE, publishes=MANIFEST)
        workspace = tmp_path / "store" / WORKSPACE
        (tmp_path / "precious").write_text("keep")
        (workspace / "object.tmp").symlink_to(tmp_path / "precious")
        with pytest.raises(SnapfmtError):
            store.sink(WORKSPACE, "object")
        assert (tmp_path / "precious").read_text() == "keep"

    def test_descriptors_are_given_back(self, store: LocalStore, tmp_path: Path) -> None:
        # What earlier tests left is closed whenever its garbage is collected.
        gc.collect()
        before = len(os.listdir("/proc/self/fd"))
        for number in range(20):
            key = self.put(store, b"%d" % number)
            store.get(key, limit=10)
            store.size(key)
            store.size(key + "x")
            for bad in ("pins/none", "objects", f"{key}/below"):
                with pytest.raises(MissingObject):
                    store.get(bad, limit=1)
            sink = store.sink(WORKSPACE, "dropped")
            sink.discard()
        assert len(os.listdir("/proc/self/fd")) <= before

    def test_only_finished_files_have_final_names(self, store: LocalStore, tmp_path: Path) -> None:
        self.put(store, b"data")
        sink = store.sink(WORKSPACE, "open")
        sink.write(b"half of an object")
        store.create("pins/x", b"1")
        final = {
            str(path.relative_to(tmp_path / "store"))
            for path in (tmp_path / "store").rglob("*")
            if path.is_file() and "attempts" not in path.parts
        }
        assert final == {"pins/x", object_key(b"data")}
        sink.discard()


class TestMemory(StoreSuite):
    @pytest.fixture
    def client(self) -> MemoryClient:
        return MemoryClient()

    @pytest.fixture
    def store(self, client: MemoryClient) -> ObjectStore:
        store = ObjectStore(client)
        store.prepare()
        return store

    @pytest.fixture
    def again(self, client: MemoryClient) -> Callable[[], Store]:
        return lambda: ObjectStore(client)


class TestCountingStore(StoreSuite):
    @pytest.fixture
    def store(self, tmp_path: Path) -> CountingStore:
        store = CountingStore(LocalStore(tmp_path / "store", create=True))
        store.prepare()
        return store


class TestFaultyStoreWithoutFaults(StoreSuite):
    @pytest.fixture
    def store(self, tmp_path: Path) -> FaultyStore:
        store = FaultyStore(LocalStore(tmp_path / "store", create=True))
        store.prepare()
        return store
