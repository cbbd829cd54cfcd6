"""How large an Arrow stream becomes when it is read; known before anything is allocated.

Arrow's own reader believes the size that stands before each compressed buffer. Here the buffers
of a message are looked up in its flatbuffer (Message.fbs) and their sizes added up first.
"""

import struct

import pyarrow as pa

from snapfmt.errors import FormatError, LimitExceeded
from snapfmt.format.digest import Buffer
from snapfmt.limits import DEFAULT_LIMITS, Limits

_HEADER, _BUFFERS, _COMPRESSION = 2, 2, 3
"""Numbers of the fields: Message.header, RecordBatch.buffers, RecordBatch.compression."""
_MESSAGES = 16
"""Index streams have two messages; more are not even looked at."""


def check(data: Buffer, *, what: str, limits: Limits = DEFAULT_LIMITS) -> None:
    """Refuse a stream whose record batches grow past a limit.

    Raises:
        LimitExceeded: If the buffers are declared too large, or larger than zstd can make them.
        FormatError: If it is not a readable stream.
    """
    total = 0
    try:
        reader = pa.ipc.MessageReader.open_stream(pa.py_buffer(data))
        for _ in range(_MESSAGES):
            try:
                message = reader.read_next_message()
            except StopIteration:
                return
            if message.type == "record batch" and message.body is not None:
                total += _declared(message.metadata.to_pybytes(), memoryview(message.body))
            if total > limits.frame_content or total > len(data) * limits.expansion:
                raise LimitExceeded(f"index grows to {total} bytes when it is read", what=what)
    except (pa.ArrowException, OSError, struct.error, MemoryError) as error:
        raise FormatError(f"index is not valid Arrow: {error}", what=what) from error
    raise FormatError("index has too many messages", what=what)


def _declared(metadata: bytes, body: memoryview) -> int:
    """Bytes of all buffers of a record batch, decompressed, as the body declares them."""
    message = _u32(metadata, 0)
    batch = _indirect(metadata, message, _HEADER)
    if batch == 0 or _field(metadata, batch, _COMPRESSION) == 0:
        return len(body)
    vector = _indirect(metadata, batch, _BUFFERS)
    total = 0
    for number in range(_u32(metadata, vector) if vector else 0):
        offset, size = struct.unpack_from("<qq", metadata, vector + 4 + 16 * number)
        if size >= 8 and 0 <= offset <= len(body) - size:
            (raw,) = struct.unpack_from("<q", body, offset)
            total += size if raw == -1 else max(raw, 0)
    return total


def _field(data: bytes, table: int, number: int) -> int:
    """Position of a table's field, or 0 when it is absent."""
    (distance,) = struct.unpack_from("<i", data, table)
    vtable = table - distance
    (size,) = struct.unpack_from("<H", data, vtable)
    slot = 4 + 2 * number
    offset = struct.unpack_from("<H", data, vtable + slot)[0] if slot < size else 0
    return table + int(offset) if offset else 0


def _indirect(data: bytes, table: int, number: int) -> int:
    position = _field(data, table, number)
    return position + _u32(data, position) if position else 0


def _u32(data: bytes, position: int) -> int:
    return int(struct.unpack_from("<I", data, position)[0])
