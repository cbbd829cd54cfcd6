"""Arrow IPC messages and zstd frames, as far as spec/v1/06-tables.md uses them."""

from __future__ import annotations

import itertools
import struct
import sys
from array import array
from collections.abc import Iterator
from typing import Any, NamedTuple

import zstandard
from documents import MIB, Damage

FRAME_CONTENT, FRAME_WINDOW, EXPANSION = 1024 * MIB, 1 << 27, 100_000
CODES = {"uint8": "B", "int32": "i", "int64": "q", "uint32": "I", "uint64": "Q"}
END = b"\xff\xff\xff\xff\x00\x00\x00\x00"


class Flat(NamedTuple):
    """A table of a flatbuffer; `at(slot)` is where a field lies, 0 when it is absent."""

    data: bytes
    place: int

    def at(self, slot: int) -> int:
        vtable = self.place - struct.unpack_from("<i", self.data, self.place)[0]
        if 4 + 2 * slot >= struct.unpack_from("<H", self.data, vtable)[0]:
            return 0
        offset: int = struct.unpack_from("<H", self.data, vtable + 4 + 2 * slot)[0]
        return self.place + offset if offset else 0

    def scalar(self, slot: int, form: str, default: int = 0) -> Any:
        place = self.at(slot)
        return struct.unpack_from("<" + form, self.data, place)[0] if place else default

    def follow(self, place: int) -> int:
        target: int = place + struct.unpack_from("<I", self.data, place)[0]
        return target

    def table(self, slot: int) -> Flat:
        if not self.at(slot):
            raise Damage("Arrow message lacks a table")
        return Flat(self.data, self.follow(self.at(slot)))

    def text(self, slot: int) -> str:
        start = self.follow(self.at(slot)) if self.at(slot) else 0
        size = struct.unpack_from("<I", self.data, start)[0] if start else 0
        return self.data[start + 4 : start + 4 + size].decode()

    def vector(self, slot: int, step: int) -> list[int]:
        if not self.at(slot):
            return []
        start = self.follow(self.at(slot))
        size = struct.unpack_from("<I", self.data, start)[0]
        if start + 4 + size * step > len(self.data):
            raise Damage("Arrow vector leaves its message")
        return [start + 4 + i * step for i in range(size)]

    def tables(self, slot: int) -> list[Flat]:
        return [Flat(self.data, self.follow(place)) for place in self.vector(slot, 4)]


def message(data: bytes, place: int) -> tuple[int, Flat, int, int]:
    """Header type, header, end of the metadata and length of the body of a message."""
    marker, size = struct.unpack_from("<Ii", data, place)
    if marker != 0xFFFFFFFF or size <= 0 or place + 8 + size > len(data):
        raise Damage("not an Arrow message")
    flat = data[place + 8 : place + 8 + size]
    root = Flat(flat, struct.unpack_from("<I", flat)[0])
    return root.scalar(1, "B"), root.table(2), place + 8 + size, root.scalar(3, "q")


def describe(field: Flat) -> tuple[str, str, bool, dict[str, str]]:
    """Name, type as text, nullable, metadata of a schema's field."""
    kind, inner = field.scalar(2, "B"), field.table(3)
    children = [describe(child) for child in field.tables(5)]
    below = f"<{children[0][1]}{'?' if children[0][2] else ''}>" if children else ""
    names = {4: "binary", 5: "string", 12: "list", 19: "large_binary", 20: "large_string"}
    if kind == 2:
        name = ("int" if inner.scalar(1, "B") else "uint") + str(inner.scalar(0, "i"))
    elif kind == 3:
        name = ("float16", "float32", "float64")[inner.scalar(0, "h")]
    elif kind in (15, 16):
        name = f"{'fixed_binary' if kind == 15 else 'fixed_list'}[{inner.scalar(0, 'i')}]"
    else:
        name = names.get(kind, "large_list" if kind == 21 else f"type {kind}")
    metadata = {pair.text(0): pair.text(1) for pair in field.tables(6)}
    return field.text(0), name + below, bool(field.scalar(1, "B")), metadata


def expand(part: bytes) -> bytes:
    """A buffer of a compressed body: an 8-byte size, then a zstd frame; -1: stored as it is."""
    if not part:
        return b""
    if len(part) < 8:
        raise Damage("a buffer is shorter than its prefix")
    size = struct.unpack_from("<q", part)[0]
    return part[8:] if size == -1 else unframe(part[8:], size)


def unframe(frame: bytes, size: int) -> bytes:
    """One zstd frame of exactly `size` bytes, bounded before it is unpacked."""
    if not 0 <= size <= min(FRAME_CONTENT, len(frame) * EXPANSION):
        raise Damage(f"compressed block of {size} bytes")
    try:
        header = zstandard.get_frame_parameters(frame)
        if header.content_size != size or header.window_size > max(FRAME_WINDOW, size):
            raise Damage("compressed block has another size or too large a window")
        data: bytes = zstandard.ZstdDecompressor().decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise Damage(f"compressed block cannot be read: {error}") from error
    if len(data) != size:
        raise Damage("compressed block has another size")
    return data


def numbers(data: bytes, kind: str = "int64") -> array[int]:
    """Little-endian integers."""
    result = array(CODES[kind])
    if len(data) % result.itemsize:
        raise Damage(f"buffer is not a run of {kind}")
    result.frombytes(data)
    if sys.byteorder == "big":
        result.byteswap()
    return result


def little(values: array[int]) -> bytes:
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def offsets_in(values: array[int], rows: int, end: int) -> array[int]:
    ok = len(values) == rows + 1 and values[0] == 0 and values[-1] == end
    if not ok or any(a > b for a, b in itertools.pairwise(values)):
        raise Damage("offsets do not fit the values")
    return values


def index_stream(data: bytes, wanted: list[tuple[str, str]]) -> list[dict[str, Any]]:
    """The rows of an index entry: one schema, one record batch, the end (06-tables, Indexes)."""
    kind, schema, place, _ = message(data, 0)
    found = [describe(field) for field in schema.tables(1)] if kind == 1 else []
    if [(name, form) for name, form, _, _ in found] != wanted:
        raise Damage("index has another schema")
    kind, batch, place, size = message(data, place)
    if kind != 3 or data[place + size :] != END:
        raise Damage("index is not one record batch")
    rows, body = batch.scalar(0, "q"), data[place : place + size]
    parts = []
    for at in batch.vector(2, 16):
        start, length = struct.unpack_from("<qq", batch.data, at)
        if min(start, length) < 0 or start + length > size:
            raise Damage("a buffer leaves its message")
        part = body[start : start + length]
        parts.append(expand(part) if batch.at(3) else part)
    nodes = iter(struct.unpack_from("<qq", batch.data, at) for at in batch.vector(1, 16))
    stream = iter(parts)
    columns = [column_of(form, nodes, stream) for _, form in wanted]
    if any(len(column) != rows for column in columns):
        raise Damage("index columns differ in length")
    names = [name for name, _ in wanted]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def column_of(form: str, nodes: Iterator[tuple[int, int]], parts: Iterator[bytes]) -> list[Any]:
    length, nulls = next(nodes)
    next(parts)
    if nulls or length < 0:
        raise Damage("index has nulls")
    if form == "int64":
        return list(numbers(next(parts)))[:length]
    if form == "fixed_binary[32]":
        data = next(parts)
        return [data[i : i + 32] for i in range(0, 32 * length, 32)]
    if form == "large_string":
        ends, data = numbers(next(parts)), next(parts)
        ends = offsets_in(ends or array("q", [0]), length, len(data))
        return [data[ends[i] : ends[i + 1]].decode() for i in range(length)]
    raw = next(parts)
    ends = numbers(raw, "int32") or array("i", [0])
    inner = column_of(form[5:-2], nodes, parts)
    offsets_in(ends, length, len(inner))
    return [inner[ends[i] : ends[i + 1]] for i in range(length)]
