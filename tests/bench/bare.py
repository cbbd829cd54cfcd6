"""What a save and a load cost at least: their steps in loops of the same libraries, no format.

A save narrows, compresses, hashes each piece and the whole, writes and syncs; a load reads,
hashes, decompresses, widens, and gives each row a tensor of its own. On as many threads as
snapfmt's own, in batches of the same size. Nothing is checked but the hashes, and nothing that is
written here can be found again.
"""

import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zstandard
from peers import Batches

from snapfmt import Repository
from snapfmt.format import layout, zframes
from snapfmt.threads import WORKERS

ROW_BATCH = 2**20
"""Logical bytes of a batch."""
Columns = list[np.ndarray[Any, Any]]


def save(batches: Batches, folder: Path) -> None:
    """One file of compressed pieces."""
    whole = hashlib.sha256()
    with (
        (folder / "bare").open("wb", buffering=0) as file,
        ThreadPoolExecutor(WORKERS) as pool,
    ):
        for data in pool.map(_encode, _pieces(batches)):
            whole.update(data)
            file.write(data)
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        os.fsync(file.fileno())


def _pieces(batches: Batches) -> Iterator[Columns]:
    """Columns of as many rows as fill a batch."""
    for batch in batches:
        rows = len(next(iter(batch.values())))
        size = sum(
            value.values().nbytes if value.is_nested else value.nbytes for value in batch.values()
        )
        step = max(1, ROW_BATCH * rows // size)
        for start in range(0, rows, step):
            stop = min(start + step, rows)
            yield [_slice(value, start, stop) for value in batch.values()]


def _slice(value: torch.Tensor, start: int, stop: int) -> np.ndarray[Any, Any]:
    if not value.is_nested:
        return value[start:stop].numpy()
    offsets = value.offsets()
    return value.values()[int(offsets[start]) : int(offsets[stop])].numpy()


def _encode(columns: Columns) -> bytes:
    found = []
    for values in columns:
        level = zframes.FAST_LEVEL if values.dtype.kind == "f" else zframes.LEVEL
        narrow = values.astype(np.int32) if values.dtype == np.int64 else values
        data = zstandard.ZstdCompressor(level=level).compress(narrow)
        hashlib.sha256(data).digest()
        found.append(data)
    return b"".join(found)


@dataclass(frozen=True)
class Stored:
    """Where a snapshot's rows lie: for each batch its file, bytes, and chunks of columns."""

    batches: list[tuple[Path, int, int, list[tuple[Any, Any, int]]]]

    @classmethod
    def of(cls, repository: Repository, folder: Path, table: str) -> "Stored":
        """Looked up before anything is timed."""
        found = []
        for segment in repository.snapshot().table(table).segments():
            data, columns = segment.document.data, segment.document.columns
            path = folder / layout.object_key(data.pack)
            for number in range(len(segment.index)):
                chunks = segment.index.place(number).chunks[1:]
                first = chunks[0].offset
                placed = [
                    (chunk, column, chunk.offset - first)
                    for chunk, column in zip(chunks, columns, strict=True)
                ]
                size = chunks[-1].offset + chunks[-1].size - first
                found.append((path, data.offset + first, size, placed))
        return cls(found)

    def load(self) -> int:
        """Tensors of all rows; returns how many there are."""
        with ThreadPoolExecutor(WORKERS) as pool:
            rows = list(pool.map(lambda item: _load(*item), self.batches))
        return sum(len(column) for batch in rows for column in batch)


def _load(
    path: Path, offset: int, size: int, placed: list[tuple[Any, Any, int]]
) -> list[list[torch.Tensor]]:
    descriptor = os.open(path, os.O_RDONLY)
    data = memoryview(os.pread(descriptor, size, offset))
    os.close(descriptor)
    found = []
    for chunk, column, start in placed:
        stored = data[start : start + chunk.size]
        assert hashlib.sha256(stored).digest() == chunk.digest
        buffers = list(_buffers(stored, chunk.buffer_sizes))
        values = np.frombuffer(buffers[-1], column.physical).astype(column.dtype, copy=False)
        if column.ndim == 0:
            found.append(list(torch.from_numpy(values.copy())))
            continue
        ends = np.frombuffer(buffers[1], np.int64).tolist()
        found.append([torch.from_numpy(values[low:high].copy()) for low, high in pairwise(ends)])
    return found


def _buffers(data: memoryview, sizes: tuple[int, ...]) -> Iterator[Any]:
    position = 0
    for size in sizes:
        raw = int.from_bytes(data[position : position + 8], "little", signed=True)
        body = data[position + 8 : position + size]
        packed = size > 0 and raw != -1
        yield zstandard.ZstdDecompressor().decompress(body) if packed else body
        position += size + (-size % 64)
