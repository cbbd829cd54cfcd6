"""The order in which a save makes things durable: what a name promises is on disk before it."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from snapfmt import Repository
from snapfmt.storage import local, local_sink
from snapfmt.testing.crashes import Call, SystemCalls
from snapfmt.testing.samples import save


class Trace:
    """The calls of one save, with paths relative to the repository."""

    def __init__(self, root: Path, calls: list[Call]) -> None:
        def short(path: str) -> str:
            return os.path.relpath(path, root) if path else ""

        self.calls = [Call(call.name, short(call.path), short(call.target)) for call in calls]

    def at(self, name: str, matches: Callable[[Call], bool]) -> list[int]:
        """Positions of the calls of that name that match."""
        return [
            position
            for position, call in enumerate(self.calls)
            if call.name == name and matches(call)
        ]

    def synced(self, path: str, after: int, before: int) -> bool:
        """Whether the path was fsynced between two positions."""
        return any(after < at < before for at in self.at("fsync", lambda call: call.path == path))


def record(root: Path, *, first: bool) -> Trace:
    """Trace of a save into a new repository, or into one that has a snapshot."""
    repository = Repository.open(root, create=True)
    if not first:
        save(repository, value=1)
    with pytest.MonkeyPatch.context() as patch:
        calls = SystemCalls(root).install(patch)
        save(Repository.open(root), value=2)
    return Trace(root, calls.calls)


def check(trace: Trace) -> None:
    """The discipline of spec/v1/02-storage.md."""
    objects = trace.at("rename", lambda call: call.target.startswith("objects/"))
    (publication,) = trace.at("rename", lambda call: call.target.startswith("snapshots/"))
    snapshot = trace.calls[publication]
    assert len(objects) == 4, "two packs and two part indexes"

    # 1. Bytes before names: every object was fsynced after its last write, then renamed.
    for position in objects:
        temporary = trace.calls[position].path
        writes = trace.at("write", lambda call, path=temporary: call.path == path)  # type: ignore[misc]
        assert writes, temporary
        assert max(writes) < position
        assert trace.synced(temporary, max(writes), position), f"{temporary} is not durable"

    # 2. The attempt's journal knows an object before the object has its name.
    for position in objects:
        key = trace.calls[position].target
        note = key.replace("/", "=")
        notes = trace.at("open", lambda call, name=note: call.path.endswith(name))  # type: ignore[misc]
        assert notes, key
        assert notes[0] < position, key

    # 3. Objects before the manifest: their folders were fsynced, and what holds the folders.
    assert max(objects) < publication
    for position in objects:
        folder = os.path.dirname(trace.calls[position].target)
        assert trace.synced(folder, position, publication), f"{folder} is not durable"
    assert trace.synced("objects", max(objects), publication), "objects/ is not durable"

    # 4. A whole manifest before its name: file, then its folder, then the rename.
    manifest = f"{snapshot.path}/manifest.json"
    writes = trace.at("write", lambda call: call.path == manifest)
    assert min(writes) > max(objects), "the manifest was written before the objects were named"
    assert trace.synced(manifest, max(writes), publication), "the manifest is not durable"
    (file_sync,) = trace.at("fsync", lambda call: call.path == manifest)
    assert trace.synced(snapshot.path, file_sync, publication), "the staged folder is not durable"

    # 5. Folders that were made on the way are durable before the publication.
    for position in trace.at("mkdir", lambda call: call.path in ("objects", "snapshots")):
        assert trace.synced(".", position, publication), "the root is not durable"

    # 6. The name itself is durable before the save says that it is published.
    assert trace.synced("snapshots", publication, len(trace.calls)), "snapshots/ is not durable"
    lease_gone = trace.at("unlink", lambda call: call.path.endswith(".json"))
    assert trace.synced("snapshots", publication, min(lease_gone))

    # 7. The lease is durable before anything that it protects exists.
    (lease,) = trace.at("link", lambda call: call.target.startswith("attempts/"))
    assert lease < min(objects)
    assert trace.synced("attempts", lease, min(objects)), "the lease is not durable"


@pytest.mark.parametrize("first", [True, False])
def test_a_save_follows_the_order(tmp_path: Path, first: bool) -> None:
    check(record(tmp_path / "run", first=first))


OMISSIONS: dict[str, Callable[[pytest.MonkeyPatch], object]] = {
    "no file is synced": lambda patch: [
        patch.setattr(module, "fsync_file", lambda _: None) for module in (local, local_sink)
    ],
    "no object is synced": lambda patch: patch.setattr(local_sink, "fsync_file", lambda _: None),
    "no folder is synced": lambda patch: patch.setattr(local, "fsync_directory", lambda _: None),
    "objects are not synced": lambda patch: patch.setattr(
        local.LocalStore, "sync", lambda self, keys: None
    ),
    "only the root is synced": lambda patch: patch.setattr(
        local,
        "fsync_directory",
        lambda path, real=local.fsync_directory: real(path) if path.name == "run" else None,
    ),
    "the root is not synced": lambda patch: patch.setattr(
        local,
        "fsync_directory",
        lambda path, real=local.fsync_directory: None if path.name == "run" else real(path),
    ),
}


@pytest.mark.parametrize("omission", OMISSIONS)
def test_an_omission_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, omission: str
) -> None:
    OMISSIONS[omission](monkeypatch)
    trace = record(tmp_path / "run", first=True)
    with pytest.raises(AssertionError, match=r"durable|synced|False"):
        check(trace)


def test_a_new_repository_is_durable_before_it_is_used(tmp_path: Path) -> None:
    root = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        calls = SystemCalls(tmp_path).install(patch)
        Repository.create(root)
    trace = Trace(root, calls.calls)
    (named,) = trace.at("link", lambda call: call.target == "snapfmt.json")
    temporary = trace.calls[named].path
    (written,) = trace.at("write", lambda call: call.path == temporary)
    assert trace.synced(temporary, written, named)
    assert trace.synced(".", named, len(trace.calls))
    assert trace.synced("..", -1, len(trace.calls)), "the folder's own name is not durable"


# Steps of the store that callers rely on by themselves


@pytest.mark.req("S-6", "S-9")
@pytest.mark.parametrize("step", ["fence", "unpublish"])
def test_a_step_of_the_store_is_durable_when_it_returns(tmp_path: Path, step: str) -> None:
    store = local.LocalStore(tmp_path, create=True)
    store.open_workspace("attempts/a", publishes="snapshots/s/manifest.json")
    store.publish("attempts/a", "snapshots/s", "manifest.json", b"{}")
    with pytest.MonkeyPatch.context() as patch:
        calls = SystemCalls(tmp_path).install(patch)
        if step == "fence":
            assert store.fence_workspace("attempts/a")
        else:
            store.unpublish("snapshots/s", "manifest.json", "retiring.json")
    trace = Trace(tmp_path, calls.calls)
    (moved,) = trace.at("rename", lambda _: True)
    folder = "attempts" if step == "fence" else "snapshots/s"
    assert trace.synced(folder, moved, len(trace.calls))
