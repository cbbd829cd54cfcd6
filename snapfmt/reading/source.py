"""Verified access to the bytes that a part index points at (spec/v1/08-reading.md)."""

from snapfmt.errors import CorruptObject, LimitExceeded
from snapfmt.format import digest, layout
from snapfmt.limits import Limits
from snapfmt.storage.base import Store
from snapfmt_schemas.part import Location


class Source:
    """Reads ranges of packs; every byte that leaves here was checked or is marked unchecked."""

    def __init__(self, store: Store, limits: Limits) -> None:
        self.store = store
        self.limits = limits

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
        key = layout.object_key(location.pack)
        return self.store.get_range(key, location.offset + offset, size)

    def entry(self, location: Location, expected: str, *, what: str) -> bytes:
        """A whole extent, checked against its digest.

        Raises:
            CorruptObject: If the bytes differ.
        """
        data = self.unchecked(location, 0, location.size)
        digest.check(data, expected, what=what)
        return data
