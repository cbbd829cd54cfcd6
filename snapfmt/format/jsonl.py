"""JSON lines in zstd frames, with an index for single records (spec/v1/05-records.md)."""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from snapfmt.errors import CorruptObject, FormatError, InvalidRecord
from snapfmt.format import batch_index, digest, zframes
from snapfmt.limits import DEFAULT_LIMITS, Limits

MEDIA_TYPE = "application/vnd.snapfmt.jsonl+zstd"
INDEX_MEDIA_TYPE = "application/vnd.snapfmt.jsonl-index+arrow"
FRAME_TARGET = 256 * 1024
"""A frame is closed at the first line past this many bytes."""

INDEX_SCHEMA = pa.schema(
    [
        ("key", pa.large_string()),
        ("frame_offset", pa.int64()),
        ("frame_size", pa.int64()),
        ("frame_content", pa.int64()),
        ("frame_digest", pa.binary(32)),
        ("line_offset", pa.int64()),
        ("line_size", pa.int64()),
    ]
)
"""One row per record: its frame, and its line within the frame without the newline."""


class LinesEncoder:
    """Packs lines into frames; `add` returns the bytes of every frame that is complete."""

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._lines: list[tuple[str, bytes]] = []
        self._size = 0
        self._offset = 0
        self._index: dict[str, list[object]] = {name: [] for name in INDEX_SCHEMA.names}
        self._compressor = zframes.compressor(checksum=True)

    @property
    def records(self) -> int:
        """Lines added so far."""
        return len(self._index["key"]) + len(self._lines)

    def add(self, key: str, line: bytes) -> bytes:
        """Append one line without its newline.

        Raises:
            InvalidRecord: If the line holds a newline, or is longer than a reader takes.
        """
        if len(line) + FRAME_TARGET > min(self._limits.record_line, self._limits.frame_content):
            raise InvalidRecord(f"a JSON line of {len(line)} bytes is too long", what=key)
        if b"\n" in line or b"\r" in line:
            raise InvalidRecord("a JSON line must not hold a line break", what=key)
        self._lines.append((key, line))
        self._size += len(line) + 1
        return self.flush() if self._size >= FRAME_TARGET else b""

    def flush(self) -> bytes:
        """The frame of the lines that are still open, or nothing."""
        if not self._lines:
            return b""
        content = b"".join(line + b"\n" for _, line in self._lines)
        frame: bytes = self._compressor.compress(content)
        mark = digest.raw_digest([frame])
        position = 0
        for key, line in self._lines:
            row = (key, self._offset, len(frame), len(content), mark, position, len(line))
            for name, value in zip(INDEX_SCHEMA.names, row, strict=True):
                self._index[name].append(value)
            position += len(line) + 1
        self._offset += len(frame)
        self._lines.clear()
        self._size = 0
        return frame

    def index(self) -> bytes:
        """The index entry; call after the last flush."""
        batch = pa.record_batch(list(self._index.values()), schema=INDEX_SCHEMA)
        return batch_index.to_stream(batch)


@dataclass(frozen=True, slots=True)
class LinePlace:
    """Where one record lies."""

    key: str
    frame_offset: int
    frame_size: int
    frame_content: int
    frame_digest: bytes
    line_offset: int
    line_size: int


def read_index(data: bytes, *, what: str, limits: Limits = DEFAULT_LIMITS) -> list[LinePlace]:
    """The places of all records, in order.

    Raises:
        FormatError: If it is not a record index.
    """
    batch = batch_index.read_stream(data, INDEX_SCHEMA, what=what, limits=limits)
    columns = [batch.column(name).to_pylist() for name in INDEX_SCHEMA.names]
    return [LinePlace(*row) for row in zip(*columns, strict=True)]


def frame_content(
    frame: bytes, place: LinePlace, *, what: str, limits: Limits = DEFAULT_LIMITS
) -> bytes:
    """Decompressed lines of one frame, after its digest was checked.

    Raises:
        CorruptObject: If the frame differs from its digest.
    """
    if digest.raw_digest([frame]) != place.frame_digest:
        raise CorruptObject("frame differs from its digest", what=what)
    return zframes.decompress(frame, content_size=place.frame_content, what=what, limits=limits)


def line_of(content: bytes, place: LinePlace, *, what: str) -> bytes:
    """One line of a frame's content.

    Raises:
        FormatError: If the index does not point at a line.
    """
    end = place.line_offset + place.line_size
    ok = (
        0 <= place.line_offset <= end < len(content)
        and content[end : end + 1] == b"\n"
        and (place.line_offset == 0 or content[place.line_offset - 1 : place.line_offset] == b"\n")
    )
    if not ok:
        raise FormatError("index does not point at a line", what=what)
    return content[place.line_offset : end]


def split(content: bytes, *, what: str) -> Iterator[bytes]:
    """Lines of a frame's content.

    Raises:
        FormatError: If the last line has no end.
    """
    if content and not content.endswith(b"\n"):
        raise FormatError("last line has no end", what=what)
    yield from content.split(b"\n")[:-1]
