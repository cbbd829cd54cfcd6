"""A bucket in this process's memory, for tests."""

import hashlib
import sys
import threading
import time
from collections.abc import Iterator, Mapping

from snapfmt.errors import ConflictError, MissingObject, StorageError, StorageUnavailable
from snapfmt.storage.client import ObjectInfo
from snapfmt.storage.pieces import Body


class MemoryClient:
    """Implements `storage.client.ObjectClient`; gone with the process."""

    def __init__(self, name: str = "test", *, max_object: int = sys.maxsize) -> None:
        self.max_object = max_object
        self._name = name
        self._lock = threading.Lock()
        self._objects: dict[str, tuple[bytes, ObjectInfo]] = {}

    def copy(self) -> "MemoryClient":
        """Another one that holds the same objects."""
        other = MemoryClient(self._name, max_object=self.max_object)
        with self._lock:
            other._objects.update(self._objects)
        return other

    def content(self) -> frozenset[tuple[str, bytes, tuple[tuple[str, str], ...]]]:
        """All keys, bytes and metadata."""
        with self._lock:
            return frozenset(
                (key, data, tuple(sorted(info.metadata.items())))
                for key, (data, info) in self._objects.items()
            )

    @property
    def location(self) -> str:
        """Opens nothing elsewhere: it is in this process only."""
        return f"memory://{self._name}"

    def parents(self) -> list["MemoryClient"]:
        """None: a name is a bucket."""
        return []

    def put(
        self,
        key: str,
        data: Body,
        *,
        exclusive: bool,
        metadata: Mapping[str, str],
        sha256: bytes | None = None,
    ) -> None:
        """Store a copy, if it has the checksum."""
        if len(data) > self.max_object:
            raise StorageError(f"one PUT holds at most {self.max_object} bytes", what=key)
        held = bytes(data)
        if sha256 is not None and hashlib.sha256(held).digest() != sha256:
            raise StorageUnavailable("the bytes have another checksum", what=key)
        info = ObjectInfo(key, len(held), time.time_ns(), dict(metadata))
        with self._lock:
            if exclusive and key in self._objects:
                raise ConflictError("exists already", what=key)
            self._objects[key] = (held, info)

    def get(self, key: str, offset: int, size: int) -> bytes:
        """A slice of the copy."""
        with self._lock:
            found = self._objects.get(key)
        if found is None:
            raise MissingObject("not there", what=key)
        return found[0][offset : offset + size]

    def head(self, key: str) -> ObjectInfo | None:
        """What was noted when it was stored."""
        with self._lock:
            found = self._objects.get(key)
        return None if found is None else found[1]

    def list(self, prefix: str, *, deep: bool) -> Iterator[ObjectInfo]:
        """From a copy of the list of keys."""
        with self._lock:
            found = [info for key, (_, info) in self._objects.items() if key.startswith(prefix)]
        seen: set[str] = set()
        for info in found:
            head, slash, _ = info.key[len(prefix) :].partition("/")
            if deep or not slash:
                yield ObjectInfo(info.key, info.size, info.modified_ns)
            elif head not in seen:
                seen.add(head)
                yield ObjectInfo(f"{prefix}{head}/", 0)

    def delete(self, key: str) -> None:
        """Forget it."""
        with self._lock:
            self._objects.pop(key, None)
