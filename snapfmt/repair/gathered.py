"""Several copies of one repository as one store that is only read.

An object is taken from wherever bytes lie that its name is the digest of: from the first copy
that has them under that name, or from any file of any copy, such as one that a tool misnamed.
"""

import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn

from snapfmt.errors import (
    LimitExceeded,
    RefusedError,
    SnapfmtError,
    StorageUnavailable,
)
from snapfmt.format import layout
from snapfmt.reading import checks
from snapfmt.reading.folders import files
from snapfmt.storage.base import Buffer, Sink, Store


@dataclass(frozen=True, slots=True)
class Home:
    """Where an object is read from."""

    store: Store
    key: str
    good: bool
    """Whether its bytes are those that its name promises."""


class Gathered:
    """Implements `storage.base.Store` for reading; what would write is refused."""

    def __init__(self, stores: Sequence[Store], documents: dict[str, bytes]) -> None:
        """`stores` in the order in which they are asked; `documents` stand for those in them."""
        self._stores = tuple(stores)
        self._documents = documents
        self._homes: dict[str, Home] = {}
        self._marks: dict[tuple[int, str], str] = {}
        """Store and key of a file that was hashed -> its digest, empty if it cannot be read."""
        self._strays: dict[str, Home] | None = None
        self._lock = threading.RLock()

    def home(self, key: str) -> Home:
        """Where an object is read from; it may be missing there."""
        with self._lock:
            if key not in self._homes:
                self._homes[key] = self._find(key, str(layout.object_digest(key)))
            return self._homes[key]

    def moved(self, keys: Iterable[str]) -> list[str]:
        """Those of these objects that the first copy does not have whole under their names."""
        homes = {key: self.home(key) for key in keys}
        first = self._stores[0]
        return sorted(
            key for key, home in homes.items() if home.store is not first or home.key != key
        )

    def _find(self, key: str, wanted: str) -> Home:
        found: list[tuple[int, int]] = []
        for number, store in enumerate(self._stores):
            size = self._size(store, key)
            if size is None:
                continue
            if self._mark(number, key, size) == wanted:
                return Home(store, key, good=True)
            found.append((size, -number))
        stray = self._misnamed().get(wanted)
        if stray is not None:
            return stray
        # The longest holds most of what can still be proven piece by piece.
        best = -max(found)[1] if found else 0
        return Home(self._stores[best], key, good=False)

    def _misnamed(self) -> dict[str, Home]:
        """Digest of a file -> the file, of those whose name is not their digest; hashes all."""
        if self._strays is None:
            strays: dict[str, Home] = {}
            for number, store in enumerate(self._stores):
                # What lies in a folder that cannot be looked into is missing, and told as that.
                for key, size in files(store, "", lambda *_: None):
                    mark = self._mark(number, key, size)
                    if mark and mark != layout.object_digest(key):
                        strays.setdefault(mark, Home(store, key, good=True))
            self._strays = strays
        return self._strays

    def _mark(self, number: int, key: str, size: int) -> str:
        if (number, key) not in self._marks:
            try:
                mark = checks.hash_of(self._stores[number], key, size)
            except StorageUnavailable:
                raise
            except SnapfmtError:
                mark = ""
            self._marks[number, key] = mark
        return self._marks[number, key]

    def _size(self, store: Store, key: str) -> int | None:
        try:
            return store.size(key)
        except StorageUnavailable:
            raise
        except SnapfmtError:
            return None

    def _place(self, key: str) -> tuple[Store, str]:
        if layout.object_digest(key) is None:
            return self._stores[0], key
        home = self.home(key)
        return home.store, home.key

    @property
    def location(self) -> str:
        """Of the first copy."""
        return self._stores[0].location

    def parents(self) -> list[Store]:
        """Nothing is made here."""
        return []

    @property
    def capabilities(self) -> dict[str, bool]:
        """None: nothing is written."""
        return {}

    @property
    def max_object(self) -> int:
        """Nothing is written."""
        return 0

    @property
    def read_size(self) -> int:
        """What suits the slowest."""
        return max(store.read_size for store in self._stores)

    @property
    def at_once(self) -> int:
        """Of the one that takes most."""
        return max(store.at_once for store in self._stores)

    def get(self, key: str, *, limit: int) -> bytes:
        """The whole object, or the document that stands for those of this name."""
        data = self._documents.get(key)
        if data is None:
            store, place = self._place(key)
            return store.get(place, limit=limit)
        if len(data) > limit:
            raise LimitExceeded(f"object of {len(data)} bytes, limit {limit}", what=key)
        return data

    def get_range(self, key: str, offset: int, size: int) -> bytes:
        """Bytes of an object."""
        store, place = self._place(key)
        return store.get_range(place, offset, size)

    def size(self, key: str) -> int | None:
        """Bytes of an object or a document."""
        if key in self._documents:
            return len(self._documents[key])
        store, place = self._place(key)
        return self._size(store, place)

    def walk(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Of the first copy."""
        return self._stores[0].walk(prefix)

    def holding(self, prefix: str, name: str) -> list[str]:
        """Of the first copy."""
        return self._stores[0].holding(prefix, name)

    def folders(self, prefix: str, *, but: Collection[str] = ()) -> dict[str, frozenset[str]]:
        """Of the first copy."""
        return self._stores[0].folders(prefix, but=but)

    def not_folders(self, prefix: str) -> list[str]:
        """Of the first copy."""
        return self._stores[0].not_folders(prefix)

    def names(self, prefix: str) -> list[str]:
        """Of the first copy."""
        return self._stores[0].names(prefix)

    def has_workspace(self, key: str) -> bool:
        """Of the first copy."""
        return self._stores[0].has_workspace(key)

    def journal(self, key: str) -> list[str]:
        """Of the first copy."""
        return self._stores[0].journal(key)

    def prepare(self) -> None:
        """Refused."""
        self._refuse()

    def create(self, key: str, data: Buffer) -> None:
        """Refused."""
        self._refuse(key)

    def replace(self, key: str, data: Buffer) -> None:
        """Refused."""
        self._refuse(key)

    def delete(self, key: str) -> None:
        """Refused."""
        self._refuse(key)

    def open_workspace(self, key: str, *, publishes: str) -> None:
        """Refused."""
        self._refuse(key)

    def fence_workspace(self, key: str, *, by_owner: bool = False) -> bool:
        """Refused."""
        self._refuse(key)

    def drop_workspace(self, key: str) -> None:
        """Refused."""
        self._refuse(key)

    def sink(self, workspace: str, name: str) -> Sink:
        """Refused."""
        self._refuse(name)

    def sync(self, keys: Iterable[str]) -> None:
        """Refused."""
        self._refuse()

    def publish(self, workspace: str, folder: str, name: str, data: Buffer) -> None:
        """Refused."""
        self._refuse(folder)

    def unpublish(self, folder: str, name: str, kept_as: str) -> None:
        """Refused."""
        self._refuse(folder)

    def _refuse(self, key: str = "") -> NoReturn:
        raise RefusedError("a repository that is repaired is only read", what=key or self.location)
