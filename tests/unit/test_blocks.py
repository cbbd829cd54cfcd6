"""Memory for values that are kept."""

import errno
import gc
import mmap
import os
import threading
import weakref

import numpy as np
import pytest

from snapfmt.adapters import blocks
from snapfmt.adapters.blocks import FIRST, LARGEST, Blocks

BYTE = np.dtype(np.uint8)
SIZES = [0, 1, 63, 64, 65, FIRST, FIRST + 1, LARGEST // 2, LARGEST // 2 + 1, 3 * LARGEST]


def test_arrays_are_copied_and_lie_apart() -> None:
    memory = Blocks()
    given = [np.full(size, number % 256, np.uint8) for number, size in enumerate(SIZES * 3)]
    copies = [memory.copy(values, values.dtype) for values in given]
    for values in given:
        values[:] = 255
    for number, copy in enumerate(copies):
        assert (copy == number % 256).all()
        assert copy.flags.writeable
    for copy in copies:
        copy[:] = 7
    assert sum(int(copy.sum()) for copy in copies) == 7 * 3 * sum(SIZES)


@pytest.mark.parametrize("dtype", [np.int64, np.float16, np.uint8])
def test_every_array_is_aligned(dtype: type[np.generic]) -> None:
    memory = Blocks()
    for count in (3, 1, 5):
        copy = memory.copy(np.arange(count).astype(dtype), np.dtype(dtype))
        assert copy.dtype == dtype
        assert copy.ctypes.data % 16 == 0


@pytest.mark.parametrize("narrow", [np.uint8, np.int32, np.int64])
def test_a_copy_of_narrow_numbers_is_as_wide_as_it_is_asked_for(narrow: type[np.integer]) -> None:
    limits = np.iinfo(narrow)
    shifted = np.frombuffer(b"." + np.array([limits.min, 7, limits.max], narrow).tobytes(), "u1")[
        1:
    ]
    copy = Blocks().copy(shifted.view(narrow), np.dtype(np.int64))
    assert copy.dtype == np.int64
    assert copy.tolist() == [limits.min, 7, limits.max]


def test_few_values_take_little_memory_and_many_take_large_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes: list[int] = []
    plain = blocks._block

    def counting(size: int) -> "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]":
        sizes.append(size)
        return plain(size)

    monkeypatch.setattr(blocks, "_block", counting)
    memory = Blocks()
    memory.copy(np.zeros(10, np.uint8), BYTE)
    assert sizes == [FIRST]
    for _ in range(3 * LARGEST // 1000):
        memory.copy(np.zeros(1000, np.uint8), BYTE)
    assert max(sizes) == LARGEST
    assert sizes == sorted(sizes)


def test_a_block_is_freed_with_the_last_of_its_arrays() -> None:
    memory = Blocks()
    first = memory.copy(np.zeros(FIRST // 2, np.uint8), BYTE)
    second = memory.copy(np.zeros(FIRST // 2, np.uint8), BYTE)
    block = weakref.ref(memory._block)
    memory.copy(np.zeros(FIRST, np.uint8), BYTE)
    del first
    gc.collect()
    assert block() is not None
    del second
    gc.collect()
    assert block() is None


def test_threads_are_given_different_memory() -> None:
    memory = Blocks()
    found: list[np.ndarray[tuple[int, ...], np.dtype[np.int64]]] = []

    def take(number: int) -> None:
        found.extend(memory.copy(np.full(100, number), np.dtype(np.int64)) for _ in range(300))

    threads = [threading.Thread(target=take, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((copy == copy[0]).all() for copy in found)
    assert sum(int(copy[0]) for copy in found) == 300 * 6


def test_a_system_without_pages_says_so_as_without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """As numpy does, so that who loads can tell it from a failure of the disk."""

    def refused(*_: object, **__: object) -> "mmap.mmap":
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(mmap, "mmap", refused)
    with pytest.raises(MemoryError):
        Blocks().copy(np.zeros(LARGEST, np.uint8), np.dtype(np.uint8))
