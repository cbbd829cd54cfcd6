"""Memory for values that are kept: few large blocks, in huge pages where the system has them.

Memory that was never touched costs a page fault for every 4 KiB, several times what it takes to
copy that much; one for every 2 MiB costs little.
"""

import contextlib
import mmap
import threading
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Item = TypeVar("Item", bound=np.generic)

HUGE_PAGE = 2 * 2**20
FIRST = 64 * 2**10
"""Bytes of the first block: few values take little memory."""
LARGEST = 4 * 2**20
"""Bytes of a block that is not for one array alone; it is freed with the last of its arrays."""
_ALIGNMENT = 64


class Blocks:
    """Gives out arrays back to back; may be used by several threads at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._size = FIRST
        self._block = np.empty(0, np.uint8)
        self._taken = 0

    def copy(self, values: npt.NDArray[Any], dtype: np.dtype[Item]) -> npt.NDArray[Item]:
        """A copy of a one-dimensional array, whose numbers a dtype holds all."""
        place = self._take(values.size * dtype.itemsize).view(dtype)
        place[:] = values
        return place

    def _take(self, size: int) -> npt.NDArray[np.uint8]:
        if size > LARGEST // 2:
            return _block(size)[:size]
        with self._lock:
            if self._taken + size > len(self._block):
                while self._size < LARGEST and self._size < 2 * size:
                    self._size *= 2
                self._block, self._taken = _block(self._size), 0
                self._size = min(2 * self._size, LARGEST)
            begin = self._taken
            self._taken += size + -size % _ALIGNMENT
            return self._block[begin : begin + size]


def _block(size: int) -> npt.NDArray[np.uint8]:
    if size < HUGE_PAGE:
        return np.empty(size, np.uint8)
    # Systems that have huge pages align what is a multiple of one.
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    try:
        memory = mmap.mmap(-1, size + -size % HUGE_PAGE, flags=flags)
    except OSError as error:
        # Told from a failure of the disk, and as where a smaller array finds no memory.
        raise MemoryError(f"no memory for {size} bytes of values: {error.strerror}") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)
