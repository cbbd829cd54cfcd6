"""Arrow IPC stream messages, written by hand (spec/v1/06-tables.md, Stream).

A segment's rows are one Arrow IPC stream that any Arrow reader opens. Its record batches are
assembled here so that each buffer is compressed, hashed and located on its own: one column of
one batch is readable and verifiable alone. The layout follows Arrow's Message.fbs, version V5,
with BodyCompression ZSTD per buffer.
"""

import struct
from collections.abc import Sequence
from itertools import chain

import numpy as np
import pyarrow as pa

from snapfmt.format.columns import Column, Signature
from snapfmt.format.dtypes import ARROW_TYPES

ALIGNMENT = 64
"""Batch bodies and buffers start at multiples of this, relative to the stream."""
END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""Last 8 bytes of a stream."""
KEY_COLUMN = "__key__"
"""First column of every stream: the row's key."""
KEY_SIGNATURE = Signature("text")

_RAW = struct.pack("<q", -1)
_FIXED = struct.Struct("<I HHHHHH iIqhBxxxxx HHHHHH4x iIqII HHHH ibbxx")


def padding(size: int, alignment: int = ALIGNMENT) -> int:
    """Bytes to add so that `size` becomes a multiple of `alignment`."""
    return -size % alignment


def field(name: str, signature: Signature, physical: str) -> list[pa.Field]:
    """Arrow fields of one column: its values, and its shapes when a row has 2 or more axes."""
    metadata = {
        "snapfmt.kind": signature.kind,
        "snapfmt.dtype": signature.dtype,
        "snapfmt.ndim": str(signature.ndim),
    }
    if signature.kind == "bytes":
        return [pa.field(name, pa.large_binary(), metadata=metadata)]
    if not signature.is_array:
        return [pa.field(name, pa.large_string(), metadata=metadata)]
    element = ARROW_TYPES[physical]
    if signature.ndim == 0:
        return [pa.field(name, element, metadata=metadata)]
    item = pa.field("item", element, nullable=False)
    fields = [pa.field(name, pa.large_list(item), metadata=metadata)]
    if signature.ndim > 1:
        axes = pa.field("item", pa.int64(), nullable=False)
        fields.append(pa.field(f"{name}#shape", pa.list_(axes, signature.ndim), nullable=False))
    return fields


def schema(columns: Sequence[tuple[str, Signature, str]]) -> pa.Schema:
    """Arrow schema of a segment with these columns (name, signature, physical type)."""
    return pa.schema([part for column in columns for part in field(*column)])


def head(columns: Sequence[tuple[str, Signature, str]]) -> bytes:
    """The stream's schema message, padded so that what follows is aligned."""
    message = schema(columns).serialize().to_pybytes()
    return _pad_message(message)


def _pad_message(message: bytes) -> bytes:
    marker, size = struct.unpack_from("<Ii", message)
    extra = padding(len(message))
    return struct.pack("<Ii", marker, size + extra) + message[8:] + bytes(extra)


def buffers(column: Column, physical: str) -> list[memoryview]:
    """Arrow buffers of a column, in the order of the format; empty where Arrow allows none."""
    validity = memoryview(b"")
    if column.present is not None and not column.present.all():
        validity = _view(np.packbits(column.present, bitorder="little"))
    values = column.values
    if column.signature.is_array and values.dtype != np.dtype(physical):
        values = values.astype(physical)
    empty = memoryview(b"")
    signature = column.signature
    if signature.ndim == 0 and signature.is_array:
        if column.present is not None and len(values) != column.rows:
            full = np.zeros(column.rows, values.dtype)
            full[column.present] = values
            values = full
        return [validity, _view(values)]
    offsets = _view(np.ascontiguousarray(column.offsets))
    if not signature.is_array:
        return [validity, offsets, _view(values)]
    result = [validity, offsets, empty, _view(values)]
    if column.shapes is not None:
        result += [empty, empty, _view(np.ascontiguousarray(column.shapes))]
    return result


def _view(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> memoryview:
    if array.size == 0:
        return memoryview(b"")
    return memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def buffer_count(signature: Signature) -> int:
    """Number of Arrow buffers of one column."""
    if not signature.is_array:
        return 3
    if signature.ndim == 0:
        return 2
    return 4 if signature.ndim == 1 else 7


def nodes(column: Column) -> list[tuple[int, int]]:
    """Arrow field nodes (length, null count) of a column."""
    nulls = 0 if column.present is None else int(column.rows - column.present.sum())
    signature = column.signature
    result = [(column.rows, nulls)]
    if signature.is_array and signature.ndim > 0:
        result.append((len(column.values), 0))
    if column.shapes is not None:
        result += [(column.rows, 0), (column.shapes.size, 0)]
    return result


def batch_header(
    rows: int,
    field_nodes: Sequence[tuple[int, int]],
    places: Sequence[tuple[int, int]],
    body: int,
) -> bytes:
    """The metadata of one record batch message.

    `places` are (offset in the body, length) of every buffer. The prefix positions are those of
    a flatbuffer with one Message, one RecordBatch and one BodyCompression table.
    """
    fixed = _FIXED.pack(
        16,
        12, 24, 16, 18, 4, 8,
        12, 36, body, 4, 3,
        12, 24, 8, 4, 16, 20,
        16, 40, rows, 104 + 16 * len(field_nodes) + 4 - 72, 12,
        8, 8, 4, 5,
        8, 1, 0,
    )  # fmt: skip
    flat = b"".join(
        (
            fixed,
            _pairs(field_nodes),
            _pairs(places),
        )
    )
    flat += bytes(padding(len(flat) + 8))
    return struct.pack("<Ii", 0xFFFFFFFF, len(flat)) + flat


def _pairs(pairs: Sequence[tuple[int, int]]) -> bytes:
    """A vector of structs of two int64."""
    return struct.pack(f"<4xI{2 * len(pairs)}q", len(pairs), *chain.from_iterable(pairs))


def raw_prefix() -> bytes:
    """Prefix of a buffer that is stored as it is."""
    return _RAW


def size_prefix(size: int) -> bytes:
    """Prefix of a compressed buffer: its uncompressed size."""
    return struct.pack("<q", size)


def same_schema(message: bytes, other: bytes) -> bool:
    """Whether two schema messages say the same; writers may lay the bytes out differently."""
    if message == other:
        return True
    try:
        left, right = (pa.ipc.read_schema(pa.py_buffer(item)) for item in (message, other))
    except (pa.ArrowException, OSError):
        return False
    return bool(left.equals(right, check_metadata=True))
