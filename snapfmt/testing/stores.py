"""Stores that watch or fail, around a real one."""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from snapfmt.repository import Repository
from snapfmt.storage.base import Buffer, Sink, Store


@dataclass(slots=True)
class WrappedStore:
    """Passes every call on; implements `storage.base.Store`."""

    inner: Store

    @property
    def location(self) -> str:
        """Of the inner store."""
        return self.inner.location

    def parents(self) -> list[Store]:
        """Of the inner store."""
        return self.inner.parents()

    @property
    def capabilities(self) -> dict[str, bool]:
        """Of the inner store."""
        return self.inner.capabilities

    @property
    def max_object(self) -> int:
        """Of the inner store."""
        return self.inner.max_object

    @property
    def read_size(self) -> int:
        """Of the inner store."""
        return self.inner.read_size

    @property
    def at_once(self) -> int:
        """Of the inner store."""
        return self.inner.at_once

    def prepare(self) -> None:
        """As the inner store."""
        self.inner.prepare()

    def get(self, key: str, *, limit: int) -> bytes:
        """As the inner store."""
        return self.inner.get(key, limit=limit)

    def get_range(self, key: str, offset: int, size: int) -> bytes:
        """As the inner store."""
        return self.inner.get_range(key, offset, size)

    def size(self, key: str) -> int | None:
        """As the inner store."""
        return self.inner.size(key)

    def walk(self, prefix: str) -> Iterator[tuple[str, int]]:
        """As the inner store."""
        return self.inner.walk(prefix)

    def holding(self, prefix: str, name: str) -> list[str]:
        """As the inner store."""
        return self.inner.holding(prefix, name)

    def folders(self, prefix: str, *, but: Collection[str] = ()) -> dict[str, frozenset[str]]:
        """One after the other, so that who watches `names` sees each."""
        inner = [name for name in self.names(prefix) if name not in but]
        return {name: frozenset(self.names(f"{prefix}/{name}")) for name in inner}

    def not_folders(self, prefix: str) -> list[str]:
        """As the inner store."""
        return self.inner.not_folders(prefix)

    def names(self, prefix: str) -> list[str]:
        """As the inner store."""
        return self.inner.names(prefix)

    def create(self, key: str, data: Buffer) -> None:
        """As the inner store."""
        self.inner.create(key, data)

    def replace(self, key: str, data: Buffer) -> None:
        """As the inner store."""
        self.inner.replace(key, data)

    def delete(self, key: str) -> None:
        """As the inner store."""
        self.inner.delete(key)

    def open_workspace(self, key: str, *, publishes: str) -> None:
        """As the inner store."""
        self.inner.open_workspace(key, publishes=publishes)

    def has_workspace(self, key: str) -> bool:
        """As the inner store."""
        return self.inner.has_workspace(key)

    def fence_workspace(self, key: str, *, by_owner: bool = False) -> bool:
        """As the inner store."""
        return self.inner.fence_workspace(key, by_owner=by_owner)

    def drop_workspace(self, key: str) -> None:
        """As the inner store."""
        self.inner.drop_workspace(key)

    def journal(self, key: str) -> list[str]:
        """As the inner store."""
        return self.inner.journal(key)

    def sink(self, workspace: str, name: str) -> Sink:
        """As the inner store."""
        return self.inner.sink(workspace, name)

    def sync(self, keys: Iterable[str]) -> None:
        """As the inner store."""
        self.inner.sync(keys)

    def publish(self, workspace: str, folder: str, name: str, data: Buffer) -> None:
        """As the inner store."""
        self.inner.publish(workspace, folder, name, data)

    def unpublish(self, folder: str, name: str, kept_as: str) -> None:
        """As the inner store."""
        self.inner.unpublish(folder, name, kept_as)


@dataclass(slots=True)
class CountingStore(WrappedStore):
    """Notes every read: (key, offset, size)."""

    reads: list[tuple[str, int, int]] = field(default_factory=list)

    def get(self, key: str, *, limit: int) -> bytes:
        """As the inner store, noted."""
        data = self.inner.get(key, limit=limit)
        self.reads.append((key, 0, len(data)))
        return data

    def get_range(self, key: str, offset: int, size: int) -> bytes:
        """As the inner store, noted."""
        self.reads.append((key, offset, size))
        return self.inner.get_range(key, offset, size)

    @property
    def bytes_read(self) -> int:
        """Sum of all reads so far."""
        return sum(size for _, _, size in self.reads)


@dataclass(slots=True)
class FaultyStore(WrappedStore):
    """Raises the error that is set for a method; with `applied`, after it was done."""

    errors: dict[str, Exception] = field(default_factory=dict)
    applied: bool = False

    def _run(self, name: str, *args: Any) -> Any:
        error = self.errors.get(name)
        if error is not None and not self.applied:
            raise error
        result = getattr(self.inner, name)(*args)
        if error is not None:
            raise error
        return result

    def publish(self, workspace: str, folder: str, name: str, data: Buffer) -> None:
        """As the inner store, or the error."""
        self._run("publish", workspace, folder, name, data)

    def create(self, key: str, data: Buffer) -> None:
        """As the inner store, or the error."""
        self._run("create", key, data)

    def sync(self, keys: Iterable[str]) -> None:
        """As the inner store, or the error."""
        self._run("sync", keys)

    def get(self, key: str, *, limit: int) -> bytes:
        """As the inner store, or the error."""
        error = self.errors.get("get")
        if error is not None:
            raise error
        return self.inner.get(key, limit=limit)


def watching(
    repository: Repository, verb: str, ending: str, act: Callable[[], object]
) -> Repository:
    """The repository; something happens once, before a verb with a key that ends so."""
    done: list[object] = []

    class Watching(WrappedStore):
        pass

    def wrapped(self: WrappedStore, key: str, *args: Any, **kwargs: Any) -> Any:
        if key.endswith(ending) and not done:
            done.append(1)
            act()
        return getattr(self.inner, verb)(key, *args, **kwargs)

    setattr(Watching, verb, wrapped)
    store: Any = Watching(repository.store)
    return Repository(store, repository.document, limits=repository.limits)
