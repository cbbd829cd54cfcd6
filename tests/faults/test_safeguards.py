"""Safeguards behind other safeguards: each holds by itself, also where another one fails first."""

import os
from pathlib import Path

import pytest

from snapfmt.errors import CorruptObject, InputError, MissingObject
from snapfmt.storage.local import LocalStore
from snapfmt.storage.memory import MemoryClient
from snapfmt.storage.objects import ObjectStore


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    """One with a document."""
    store = LocalStore(tmp_path, create=True)
    store.create("pins/a.json", b"0123456789")
    return store


@pytest.mark.req("S-7")
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_regular_file_is_not_there_to_a_reader(
    store: LocalStore, tmp_path: Path, make: object
) -> None:
    make(tmp_path / "pins/b.json")  # type: ignore[operator]
    with pytest.raises(MissingObject):
        store.get("pins/b.json", limit=100)
    with pytest.raises(MissingObject):
        store.get_range("pins/b.json", 0, 0)


def test_a_file_that_shrinks_while_it_is_read_is_damage(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda at, size, offset: real(at, min(size, 4), 0)[offset:])
    with pytest.raises(CorruptObject, match="truncated"):
        store.get("pins/a.json", limit=100)
    with pytest.raises(CorruptObject, match="truncated"):
        store.get_range("pins/a.json", 0, 8)


@pytest.mark.req("S-14")
def test_a_workspace_of_a_bucket_publishes_what_its_marker_names_and_nothing_else() -> None:
    store = ObjectStore(MemoryClient())
    store.open_workspace("attempts/a", publishes="snapshots/one/manifest.json")
    with pytest.raises(InputError, match="something else"):
        store.publish("attempts/a", "snapshots/two", "manifest.json", b"{}")
    assert store.names("snapshots") == []
    store.publish("attempts/a", "snapshots/one", "manifest.json", b"{}")
