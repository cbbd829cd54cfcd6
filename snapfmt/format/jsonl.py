"""JSON lines in zstd frames, with an index for single records (spec/v1/05-records.md)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from snapfmt.errors import CorruptObject, FormatError, InvalidRecord
from snapfmt.format import batch_index, digest, zframes
from snapfmt.format.columns import offsets_of
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


@dataclass(frozen=True, slots=True)
class _Frame:
    """A frame that was written, and how long its lines are."""

    offset: int
    size: int
    content: int
    digest: bytes
    lines: npt.NDArray[np.int64]


class LinesEncoder:
    """Packs lines into frames; `add` returns the bytes of every frame that is complete."""

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self._longest = min(limits.record_line, limits.frame_content) - FRAME_TARGET
        self._keys: list[str] = []
        self._lines: list[bytes] = []
        self._size = 0
        self._offset = 0
        self._frames: list[_Frame] = []
        self._compressor = zframes.compressor(checksum=True)

    def add(self, key: str, line: bytes) -> bytes:
        """Append one line without its newline.

        Raises:
            InvalidRecord: If the line holds a newline, or is longer than a reader takes.
        """
        if len(line) > self._longest:
            raise InvalidRecord(f"a JSON line of {len(line)} bytes is too long", what=key)
        if b"\n" in line or b"\r" in line:
            raise InvalidRecord("a JSON line must not hold a line break", what=key)
        self._keys.append(key)
        self._lines.append(line)
        self._size += len(line) + 1
        return self.flush() if self._size >= FRAME_TARGET else b""

    def flush(self) -> bytes:
        """The frame of the lines that are still open, or nothing."""
        if not self._lines:
            return b""
        content = b"\n".join([*self._lines, b""])
        frame: bytes = self._compressor.compress(content)
        sizes = np.fromiter(map(len, self._lines), np.int64, len(self._lines))
        mark = digest.raw_digest([frame])
        self._frames.append(_Frame(self._offset, len(frame), len(content), mark, sizes))
        self._offset += len(frame)
        self._lines.clear()
        self._size = 0
        return frame

    def index(self) -> bytes:
        """The index entry; call after the last flush."""
        frames = self._frames
        counts = [len(item.lines) for item in frames]
        per_frame = np.array([(item.offset, item.size, item.content) for item in frames], np.int64)
        marks = pa.py_buffer(
            b"".join(item.digest * count for item, count in zip(frames, counts, strict=True))
        )
        none = [np.empty(0, np.int64)]
        columns = [
            pa.array(self._keys, pa.large_string()),
            *(pa.array(item) for item in np.repeat(per_frame.reshape(-1, 3), counts, axis=0).T),
            pa.FixedSizeBinaryArray.from_buffers(pa.binary(32), sum(counts), [None, marks]),
            pa.array(np.concatenate([offsets_of(item.lines + 1)[:-1] for item in frames] or none)),
            pa.array(np.concatenate([item.lines for item in frames] or none)),
        ]
        return batch_index.to_stream(pa.record_batch(columns, schema=INDEX_SCHEMA))


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


class LineIndex:
    """A decoded index: one row per record, of which few are asked for."""

    def __init__(self, data: bytes, *, what: str, limits: Limits = DEFAULT_LIMITS) -> None:
        """Raises FormatError if it is not a record index."""
        self._batch = batch_index.read_stream(data, INDEX_SCHEMA, what=what, limits=limits)

    def __len__(self) -> int:
        return int(self._batch.num_rows)

    def places(self) -> list[LinePlace]:
        """The places of all records, in order."""
        return _places(self._batch)

    def frames(self) -> list[LinePlace]:
        """The place of the first record of each frame, in order."""
        offsets = self._batch.column("frame_offset").to_numpy()
        first = np.ones(len(offsets), np.bool_)
        first[1:] = offsets[1:] != offsets[:-1]
        return _places(self._batch.take(pa.array(np.flatnonzero(first))))

    def find(self, key: str) -> LinePlace | None:
        """The place of the record of that key."""
        row = pc.index(self._batch.column("key"), pa.scalar(key, pa.large_string())).as_py()
        return None if row < 0 else _places(self._batch.slice(row, 1))[0]


def _places(batch: pa.RecordBatch) -> list[LinePlace]:
    columns: Sequence[list[Any]] = [batch.column(name).to_pylist() for name in INDEX_SCHEMA.names]
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


def split(content: bytes, *, what: str) -> list[bytes]:
    """Lines of a frame's content.

    Raises:
        FormatError: If the last line has no end.
    """
    if content and not content.endswith(b"\n"):
        raise FormatError("last line has no end", what=what)
    return content.split(b"\n")[:-1]
