"""The suite that every storage backend must pass.

Subclass it in a test module, name the class `Test...` and give it a `store` fixture:

    class TestMyStore(StoreSuite):
        @pytest.fixture
        def store(self, tmp_path):
            return MyStore(tmp_path)

`again` opens a second handle on the same place; the default uses the store itself.
"""

import contextlib
import threading
from collections.abc import Callable

import pytest

from snapfmt.errors import (
    ConflictError,
    CorruptObject,
    LimitExceeded,
    MissingObject,
    SnapfmtError,
)
from snapfmt.storage.base import Buffer, Store
from snapfmt.testing.store_case import MANIFEST, WORKSPACE, object_key
from snapfmt.testing.store_publication import PublicationSuite

MIB = 1 << 20
BAD_KEYS = ["", "/", "/x", "x/", "a//b", ".", "..", "../x", "a/../b", "a/./b", "a\0b", "a/.."]


class StoreSuite(PublicationSuite):
    """What `storage.base.Store` promises."""

    # Documents

    def test_a_document_comes_back(self, store: Store, again: Callable[[], Store]) -> None:
        """Whole, in ranges, with its size, through another handle as well."""
        for number, data in enumerate([b"", b"x", bytes(range(256)) * 100]):
            key = f"pins/name{number}.json"
            store.create(key, data)
            for handle in (store, again()):
                assert handle.get(key, limit=len(data)) == data
                assert handle.size(key) == len(data)
                assert handle.get_range(key, 0, len(data)) == data
        data = bytes(range(256)) * 100
        assert store.get_range("pins/name2.json", 1000, 333) == data[1000:1333]
        assert store.get_range("pins/name2.json", len(data), 0) == b""

    def test_a_document_may_lie_at_the_root(self, store: Store) -> None:
        """`snapfmt.json` has no folder."""
        store.create("snapfmt.json", b"{}")
        assert store.get("snapfmt.json", limit=10) == b"{}"

    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
    def test_any_buffer_is_written(self, store: Store, kind: Callable[[bytes], bytes]) -> None:
        """And taken as it is at that moment."""
        store.create("pins/x", kind(b"data"))
        assert store.get("pins/x", limit=10) == b"data"

    def test_create_is_exclusive(self, store: Store, again: Callable[[], Store]) -> None:
        """The first one stays, byte for byte."""
        store.create("pins/x", b"first")
        for handle in (store, again()):
            with pytest.raises(ConflictError):
                handle.create("pins/x", b"second")
        assert store.get("pins/x", limit=10) == b"first"
        assert store.names("pins") == ["x"], "no temporary file is left"

    def test_of_many_creators_one_wins(self, store: Store, again: Callable[[], Store]) -> None:
        """And what is read is the winner's."""
        winners: list[int] = []
        barrier = threading.Barrier(8)
        handles = [again() for _ in range(8)]

        def run(number: int) -> None:
            barrier.wait()
            with contextlib.suppress(ConflictError):
                handles[number].create("pins/x", b"%d" % number * 1000)
                winners.append(number)

        threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(winners) == 1
        assert store.get("pins/x", limit=10_000) == b"%d" % winners[0] * 1000

    def test_replace_writes_over_or_anew(self, store: Store, again: Callable[[], Store]) -> None:
        """Longer, shorter, empty."""
        for data in (b"first", b"second is longer", b"", b"x"):
            store.replace("attempts/l.json", data)
            assert again().get("attempts/l.json", limit=100) == data
        assert store.names("attempts") == ["l.json"]

    def test_delete(self, store: Store) -> None:
        """Also of what is not there."""
        store.create("pins/x", b"1")
        store.delete("pins/x")
        store.delete("pins/x")
        store.delete("nowhere/x")
        assert store.size("pins/x") is None
        store.create("pins/x", b"2")
        assert store.get("pins/x", limit=1) == b"2"

    # Reading

    def test_what_is_missing_says_so(self, store: Store) -> None:
        """A file, a folder in its place, a key below a file."""
        store.create("pins/x", b"1")
        for key in ("pins/y", "nowhere/x", "pins", "pins/x/y"):
            assert store.size(key) is None
            with pytest.raises(MissingObject):
                store.get(key, limit=10)
            with pytest.raises(MissingObject):
                store.get_range(key, 0, 1)

    def test_limits_hold_before_a_byte_is_read(self, store: Store) -> None:
        """One byte more is too much."""
        store.create("pins/x", b"12345")
        assert store.get("pins/x", limit=5) == b"12345"
        for limit in (4, 0):
            with pytest.raises(LimitExceeded):
                store.get("pins/x", limit=limit)

    def test_a_range_past_the_end_is_damage(self, store: Store) -> None:
        """Never fewer bytes than asked for, and no allocation for a lie."""
        store.create("pins/x", b"12345")
        for offset, size in [(0, 6), (5, 1), (3, 3), (9, 1), (0, 1 << 62), (1 << 62, 1)]:
            with pytest.raises(CorruptObject):
                store.get_range("pins/x", offset, size)
        assert store.get_range("pins/x", 3, 2) == b"45"

    @pytest.mark.parametrize("key", BAD_KEYS, ids=repr)
    def test_a_key_that_is_not_normalised_is_refused(self, store: Store, key: str) -> None:
        """By every method, with a typed error."""
        store.open_workspace(WORKSPACE, publishes=MANIFEST)
        calls: list[Callable[[], object]] = [
            lambda: store.get(key, limit=1),
            lambda: store.get_range(key, 0, 1),
            lambda: store.size(key),
            lambda: store.create(key, b""),
            lambda: store.replace(key, b""),
            lambda: store.delete(key),
            lambda: store.open_workspace(key, publishes=MANIFEST),
            lambda: store.publish(WORKSPACE, key, "manifest.json", b""),
        ]
        for call in calls:
            with pytest.raises(SnapfmtError):
                call()

    # Listing

    def test_names_and_walk(self, store: Store) -> None:
        """In order, each file once, with its size."""
        data = {object_key(bytes(i)): bytes(i) for i in (3, 1, 2, 170)}
        data |= {"snapfmt.json": b"{}", "pins/a.json": b"1"}
        for key, value in data.items():
            self._write_deep(store, key, value)
        below = {key: len(value) for key, value in data.items() if key.startswith("objects")}
        assert store.names("objects") == sorted({key.split("/")[1] for key in below})
        assert store.names("nowhere") == []
        assert store.names("snapfmt.json") == []
        assert {"objects", "pins", "snapfmt.json"} <= set(store.names(""))
        assert list(store.walk("objects")) == sorted(below.items())
        found = dict(store.walk(""))
        assert {key: len(value) for key, value in data.items()}.items() <= found.items()
        assert list(store.walk("nowhere")) == []

    def _write_deep(self, store: Store, key: str, value: bytes) -> None:
        """Objects go through a sink, documents do not."""
        if not key.startswith("objects/"):
            store.create(key, value)
            return
        if not store.has_workspace(WORKSPACE):
            store.open_workspace(WORKSPACE, publishes=MANIFEST)
        sink = store.sink(WORKSPACE, "object")
        sink.write(value)
        sink.finish(key)

    # Objects

    def test_an_object_is_seen_whole_or_not_at_all(
        self, store: Store, again: Callable[[], Store]
    ) -> None:
        """Nothing before `finish`; everything after it."""
        store.open_workspace(WORKSPACE, publishes=MANIFEST)
        pieces: list[Buffer] = [b"a" * 1000, b"", bytearray(b"b" * MIB), memoryview(b"c" * 10)]
        data = b"".join(pieces)
        key = object_key(data)
        sink = store.sink(WORKSPACE, "object")
        for piece in pieces:
            sink.write(piece)
            assert again().size(key) is None
            assert list(again().walk("objects")) == []
        sink.finish(key)
        store.sync([key])
        assert again().get(key, limit=2 * MIB) == data
        assert store.journal(WORKSPACE) == [key]

    def test_a_discarded_object_is_never_seen(self, store: Store) -> None:
        """And leaves no trace in the journal."""
        store.open_workspace(WORKSPACE, publishes=MANIFEST)
        sink = store.sink(WORKSPACE, "object")
        sink.write(b"data")
        sink.discard()
        sink.discard()
        assert store.journal(WORKSPACE) == []
        assert list(store.walk("objects")) == []

    def test_a_journal_names_the_objects_of_its_workspace_alone(self, store: Store) -> None:
        """Whoever gives up a workspace looks there for what may go."""
        own, other = self.put(store, b"own"), self.put(store, b"other", "attempts/a2")
        assert store.journal(WORKSPACE) == [own]
        assert store.journal("attempts/a2") == [other]

    def test_the_same_object_twice_is_one(self, store: Store) -> None:
        """Equal bytes have one name; writing them again harms nobody."""
        key = self.put(store, b"data")
        assert self.put(store, b"data") == key
        assert self.put(store, b"data", "attempts/a2") == key
        assert store.get(key, limit=10) == b"data"
        assert list(store.walk("objects")) == [(key, 4)]

    def test_many_sinks_at_once(self, store: Store) -> None:
        """Names of temporary files are the caller's; different ones do not meet."""
        store.open_workspace(WORKSPACE, publishes=MANIFEST)
        sinks = [store.sink(WORKSPACE, f"object{number}") for number in range(5)]
        for number, sink in enumerate(sinks):
            sink.write(b"%d" % number)
        keys = [object_key(b"%d" % number) for number in range(5)]
        for sink, key in zip(reversed(sinks), reversed(keys), strict=True):
            sink.finish(key)
        assert store.journal(WORKSPACE) == sorted(keys)
        assert [store.get(key, limit=1) for key in keys] == [b"%d" % i for i in range(5)]

    def test_a_location_opens_the_store_again(self, store: Store) -> None:
        """And says what was probed."""
        assert store.location
        assert all(isinstance(value, bool) for value in store.capabilities.values())
