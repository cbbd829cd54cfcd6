"""Verified access to the bytes that a part index points at (spec/v1/08-reading.md)."""

import contextlib
import threading
from collections.abc import Iterable, Iterator, Sequence

from snapfmt.errors import CorruptObject, LimitExceeded
from snapfmt.format import digest, layout
from snapfmt.limits import Limits
from snapfmt.reading.ahead import Range, ReadAhead, gather, near
from snapfmt.storage.base import Store
from snapfmt_schemas.part import Location


class Source:
    """Reads ranges of packs; every byte that leaves here was checked or is marked unchecked."""

    def __init__(self, store: Store, limits: Limits) -> None:
        self.store = store
        self.limits = limits
        self._lock = threading.Lock()
        self._gathered: dict[Range, memoryview] = {}
        self._ahead: tuple[ReadAhead, ...] = ()

    @property
    def near(self) -> int:
        """Bytes that cost less to fetch along with others than to ask for later."""
        return near(self.store)

    def gather(self, locations: Iterable[Location]) -> None:
        """Fetch small extents that will be asked for, in few requests; each is kept for once."""
        wanted = [_range(location, 0, location.size) for location in locations]
        fresh = [item for item in wanted if item.size and item not in self._gathered]
        if sum(item.size for item in fresh) <= self.limits.entry_size:
            found = gather(self.store, fresh)
            with self._lock:
                self._gathered |= found

    @contextlib.contextmanager
    def ahead(self, parts: Sequence[tuple[Location, int, int]]) -> Iterator[None]:
        """Within the context, bytes `start` to `stop` of these extents are read ahead."""
        ranges = [_range(item, start, stop - start) for item, start, stop in parts]
        if not self.store.read_size or not ranges:
            yield
            return
        with ReadAhead(self.store, ranges) as found:
            with self._lock:
                self._ahead = (*self._ahead, found)
            try:
                yield
            finally:
                with self._lock:
                    self._ahead = tuple(item for item in self._ahead if item is not found)

    def unchecked(self, location: Location, offset: int, size: int) -> bytes:
        """Bytes within an extent; the caller checks their digest.

        Raises:
            MissingObject: If the pack is not there.
            CorruptObject: If the range leaves the extent or the pack is truncated.
        """
        if offset < 0 or size < 0 or offset + size > location.size:
            raise CorruptObject(
                "a range leaves its entry",
                what=location.pack,
                expected=f"at most {location.size} bytes",
                got=f"{offset}+{size}",
            )
        if size > self.limits.entry_size:
            raise LimitExceeded(f"range of {size} bytes", what=location.pack)
        if size == 0:
            return b""
        wanted = _range(location, offset, size)
        if self._gathered:
            with self._lock:
                held = self._gathered.pop(wanted, None)
            if held is not None:
                return bytes(held)
        for item in self._ahead:
            found = item.get(wanted)
            if found is not None:
                return found
        return self.store.get_range(wanted.key, wanted.offset, size)

    def entry(self, location: Location, expected: str, *, what: str) -> bytes:
        """A whole extent, checked against its digest.

        Raises:
            CorruptObject: If the bytes differ.
        """
        data = self.unchecked(location, 0, location.size)
        digest.check(data, expected, what=what)
        return data


def _range(location: Location, offset: int, size: int) -> Range:
    return Range(layout.object_key(location.pack), location.offset + offset, size)
