"""What every storage backend promises of workspaces and publications; part of `store_suite`."""

import contextlib
import threading
from collections.abc import Callable

import pytest

from snapfmt.errors import ConflictError, LeaseExpired, MissingObject
from snapfmt.storage.base import CLOSED, Store
from snapfmt.testing.store_case import MANIFEST, WORKSPACE, StoreCase, object_key


class PublicationSuite(StoreCase):
    """One publication of many, and none after a fence."""

    # Workspaces

    def test_a_workspace_is_opened_once(self, store: Store, again: Callable[[], Store]) -> None:
        """And is gone once dropped; dropping is repeatable."""
        assert not store.has_workspace(WORKSPACE)
        store.open_workspace(WORKSPACE, publishes=MANIFEST)
        assert again().has_workspace(WORKSPACE)
        with pytest.raises(ConflictError):
            again().open_workspace(WORKSPACE, publishes=MANIFEST)
        store.drop_workspace(WORKSPACE)
        store.drop_workspace(WORKSPACE)
        assert not store.has_workspace(WORKSPACE)
        assert store.journal(WORKSPACE) == []

    def test_nothing_is_written_through_a_workspace_that_is_not_there(self, store: Store) -> None:
        """Neither an object nor a publication."""
        with pytest.raises(LeaseExpired):
            self.through(store, b"nowhere")
        assert store.size(object_key(b"nowhere")) is None
        with pytest.raises(LeaseExpired):
            store.publish(WORKSPACE, "snapshots/s1", "manifest.json", b"{}")
        assert store.names("snapshots") == []

    def test_a_fence_shuts_the_owner_out(self, store: Store, again: Callable[[], Store]) -> None:
        """Whatever the owner holds open; what it finished stays on record."""
        key = self.put(store, b"finished before")
        held = store.sink(WORKSPACE, "held")
        held.write(b"half")
        assert again().fence_workspace(WORKSPACE)
        assert not again().fence_workspace(WORKSPACE)
        assert not store.has_workspace(WORKSPACE)
        with pytest.raises(LeaseExpired):
            held.finish(object_key(b"half"))
        held.discard()
        with pytest.raises(LeaseExpired):
            self.through(store, b"new")
        with pytest.raises(LeaseExpired):
            store.publish(WORKSPACE, "snapshots/s1", "manifest.json", b"{}")
        assert store.size("snapshots/s1/manifest.json") is None
        assert store.size(object_key(b"half")) is None
        assert store.size(object_key(b"new")) is None
        assert again().journal(WORKSPACE) == [key]
        store.drop_workspace(WORKSPACE)
        assert store.journal(WORKSPACE) == []
        assert store.get(key, limit=100) == b"finished before", "objects are not the workspace's"

    def test_a_fence_leaves_other_workspaces_alone(self, store: Store) -> None:
        """Names that begin alike, as well."""
        store.open_workspace(WORKSPACE, publishes=MANIFEST)
        store.open_workspace(WORKSPACE + "0", publishes="snapshots/s2/manifest.json")
        store.fence_workspace(WORKSPACE)
        store.drop_workspace(WORKSPACE)
        assert store.has_workspace(WORKSPACE + "0")
        self.put(store, b"data", WORKSPACE + "0")
        store.publish(WORKSPACE + "0", "snapshots/s2", "manifest.json", b"{}")

    def test_an_owner_that_gives_up_leaves_the_name_free(self, store: Store) -> None:
        """Unlike a fence by another, which may have to close it; then its folder is taken."""
        store.open_workspace(WORKSPACE, publishes=MANIFEST)
        assert store.fence_workspace(WORKSPACE, by_owner=True)
        assert not store.has_workspace(WORKSPACE)
        store.drop_workspace(WORKSPACE)
        assert store.names("snapshots") == []
        store.open_workspace("attempts/a2", publishes=MANIFEST)
        store.publish("attempts/a2", "snapshots/s1", "manifest.json", b"{}")
        assert store.names("snapshots") == ["s1"]

    def test_a_publication_that_a_fence_overtook_never_happens(
        self, store: Store, again: Callable[[], Store]
    ) -> None:
        """Nor does anybody see a snapshot, whatever the fence left."""
        store.open_workspace(WORKSPACE, publishes=MANIFEST)
        again().fence_workspace(WORKSPACE)
        again().drop_workspace(WORKSPACE)
        with pytest.raises(LeaseExpired):
            store.publish(WORKSPACE, "snapshots/s1", "manifest.json", b"{}")
        for handle in (store, again()):
            assert handle.size(MANIFEST) is None
            assert handle.names("snapshots/s1") == []
            assert list(handle.walk("snapshots")) == []
            with pytest.raises(MissingObject):
                handle.get(MANIFEST, limit=100)
            with pytest.raises(MissingObject):
                handle.unpublish("snapshots/s1", "manifest.json", "retiring.json")

    def test_a_closed_manifest_is_nothing(self, store: Store, again: Callable[[], Store]) -> None:
        """A copy of a bucket has some; one that is damaged, or empty, is there."""
        store.open_workspace(WORKSPACE, publishes=MANIFEST)
        store.publish(WORKSPACE, "snapshots/s1", "manifest.json", b"{}")
        store.drop_workspace(WORKSPACE)
        store.replace(MANIFEST, b"")
        assert again().size(MANIFEST) == 0
        assert again().names("snapshots/s1") == ["manifest.json"]
        assert again().holding("snapshots", "manifest.json") == ["s1"]
        assert again().holding("snapshots", "other.json") == []
        assert again().holding("none", "manifest.json") == []
        assert again().folders("snapshots") == {"s1": {"manifest.json"}}
        assert again().folders("snapshots", but=["s1"]) == again().folders("none") == {}
        store.replace(MANIFEST, CLOSED)
        store.create("pins/x", CLOSED)
        for handle in (store, again()):
            assert handle.size(MANIFEST) is None
            assert handle.names("snapshots/s1") == []
            assert handle.names("snapshots") == ["s1"]
            assert list(handle.walk("")) == [("pins/x", len(CLOSED))]
            assert handle.holding("snapshots", "manifest.json") == []
            assert handle.folders("snapshots") == {"s1": frozenset()}
            with pytest.raises(MissingObject):
                handle.get(MANIFEST, limit=100)
            with pytest.raises(MissingObject):
                handle.get_range(MANIFEST, 0, len(CLOSED))
            assert handle.get("pins/x", limit=100) == CLOSED
            assert handle.get_range("pins/x", 0, len(CLOSED)) == CLOSED
        store.open_workspace(WORKSPACE, publishes=MANIFEST)
        with pytest.raises(ConflictError):
            store.publish(WORKSPACE, "snapshots/s1", "manifest.json", b"{}")

    # Publication

    def test_a_publication_is_seen_whole(self, store: Store, again: Callable[[], Store]) -> None:
        """Under its final name only."""
        store.open_workspace(WORKSPACE, publishes=MANIFEST)
        store.publish(WORKSPACE, "snapshots/s1", "manifest.json", b"manifest")
        assert again().get("snapshots/s1/manifest.json", limit=100) == b"manifest"
        assert again().names("snapshots") == ["s1"]
        assert again().names("snapshots/s1") == ["manifest.json"]
        assert again().holding("snapshots", "manifest.json") == ["s1"]
        assert again().holding("snapshots", "other.json") == []
        assert again().holding("none", "manifest.json") == []
        assert again().folders("snapshots") == {"s1": {"manifest.json"}}
        assert again().folders("snapshots", but=["s1"]) == again().folders("none") == {}
        store.drop_workspace(WORKSPACE)
        assert again().get("snapshots/s1/manifest.json", limit=100) == b"manifest"

    def test_a_publication_is_exclusive(self, store: Store, again: Callable[[], Store]) -> None:
        """The first one stays; the loser may publish something else."""
        for name in ("attempts/a1", "attempts/a2"):
            store.open_workspace(name, publishes=MANIFEST)
        store.publish("attempts/a1", "snapshots/s1", "manifest.json", b"first")
        for handle in (store, again()):
            with pytest.raises(ConflictError):
                handle.publish("attempts/a2", "snapshots/s1", "manifest.json", b"second")
        assert store.get("snapshots/s1/manifest.json", limit=10) == b"first"
        assert store.names("snapshots/s1") == ["manifest.json"]
        store.open_workspace("attempts/a3", publishes="snapshots/s2/manifest.json")
        store.publish("attempts/a3", "snapshots/s2", "manifest.json", b"second")
        assert store.names("snapshots") == ["s1", "s2"]

    def test_of_many_publishers_one_wins(self, store: Store, again: Callable[[], Store]) -> None:
        """Several rounds, each with a barrier; the winner's bytes are what is read."""
        handles = [again() for _ in range(6)]
        for attempt in range(10):
            folder = f"snapshots/s{attempt}"
            winners: list[int] = []
            barrier = threading.Barrier(6)

            def run(
                number: int,
                attempt: int = attempt,
                folder: str = folder,
                barrier: threading.Barrier = barrier,
                winners: list[int] = winners,
            ) -> None:
                handle = handles[number]
                workspace = f"attempts/r{attempt}w{number}"
                handle.open_workspace(workspace, publishes=f"{folder}/manifest.json")
                barrier.wait()
                with contextlib.suppress(ConflictError):
                    handle.publish(workspace, folder, "manifest.json", b"%d" % number * 5000)
                    winners.append(number)

            threads = [threading.Thread(target=run, args=(number,)) for number in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len(winners) == 1
            data = store.get(f"{folder}/manifest.json", limit=10_000)
            assert data == b"%d" % winners[0] * 5000

    def test_what_is_unpublished_keeps_its_folder(
        self, store: Store, again: Callable[[], Store]
    ) -> None:
        """The name is gone, the bytes are under another one, and nothing takes the folder."""
        for workspace in ("attempts/a1", "attempts/a2"):
            store.open_workspace(workspace, publishes=MANIFEST)
        store.publish("attempts/a1", "snapshots/s1", "manifest.json", b"first")
        again().unpublish("snapshots/s1", "manifest.json", "retiring.json")
        for handle in (store, again()):
            assert handle.size("snapshots/s1/manifest.json") is None
            assert handle.get("snapshots/s1/retiring.json", limit=9) == b"first"
            with pytest.raises(ConflictError):
                handle.publish("attempts/a2", "snapshots/s1", "manifest.json", b"second")
            with pytest.raises(MissingObject):
                handle.unpublish("snapshots/s1", "manifest.json", "retiring.json")
            assert handle.names("snapshots/s1") == ["retiring.json"]
