"""Values that a storage unit keeps on SSD: their files outlive the cut that names them.

A unit unlinks the file of a value that is cleared or replaced. While a cut is pinned such files
are kept, and unlinked when the last cut is let go.
"""

import threading
from collections.abc import Callable
from typing import Any

_ATTRIBUTE = "_snapfmt_spilled"


class SpilledValues:
    """Stands between a unit's storage and its file store."""

    def __init__(self, data: Any) -> None:
        self._data = data
        self._store = data._ssd_store
        self._lock = threading.Lock()
        self._pins = 0
        self._kept: list[Any] = []
        self._unlink: Callable[[Any], None] = self._store.unlink
        self._store.unlink = self._later

    def pin(self) -> None:
        """From now on no file that exists is unlinked; O(1)."""
        with self._lock:
            self._pins += 1

    def unpin(self) -> None:
        """Undoes one `pin`; after the last one the kept files are unlinked."""
        with self._lock:
            self._pins -= 1
            kept, self._kept = (self._kept, []) if self._pins == 0 else ([], self._kept)
        for reference in kept:
            self._unlink(reference)

    def load(self, value: Any) -> tuple[Any, int]:
        """The value behind a reference, and the bytes read for it; other values as they are."""
        if type(value).__name__ != "_SSDValueRef":
            return value, 0
        raw = self._store._read_value_file(value)
        return self._data._decode_sample(raw, value), len(raw)

    def _later(self, reference: Any) -> None:
        with self._lock:
            if self._pins:
                self._kept.append(reference)
                return
        self._unlink(reference)


def spilled_values(data: Any) -> SpilledValues | None:
    """The stand-in for this storage, None where it keeps everything in memory."""
    if not data.ssd_offload_enabled:
        return None
    found: SpilledValues | None = data.__dict__.get(_ATTRIBUTE)
    if found is None:
        found = SpilledValues(data)
        setattr(data, _ATTRIBUTE, found)
    return found
