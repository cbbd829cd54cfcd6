"""Bounded zstd: nothing is allocated before the header was checked (spec/v1/11-limits.md)."""

import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import zstandard

from snapfmt.errors import CorruptObject, LimitExceeded
from snapfmt.limits import DEFAULT_LIMITS, Limits

LEVEL = 1
"""Compression level of the writer; readers do not depend on it."""
FAST_LEVEL = -1
"""For floating-point numbers, whose mantissas do not shrink: 4 times as fast, 5% larger."""

_MAGIC = b"\x28\xb5\x2f\xfd"
_RLE = 1
_WORD = struct.Struct("<I")
_PACK_TOGETHER, _UNPACK_TOGETHER = "multi_compress_to_buffer", "multi_decompress_to_buffer"
"""Features of zstandard's C backend: many frames in one call that lets other threads run."""

Buffer = bytes | bytearray | memoryview


class Frame(NamedTuple):
    """One frame, how large its content is said to be, and what it holds."""

    data: Buffer
    content_size: int
    what: str


def compressor(*, checksum: bool = False, level: int = LEVEL) -> zstandard.ZstdCompressor:
    """A compressor whose frames carry their content size."""
    return zstandard.ZstdCompressor(level=level, write_content_size=True, write_checksum=checksum)


def decompress(
    frame: Buffer, *, content_size: int, what: str, limits: Limits = DEFAULT_LIMITS
) -> bytes:
    """Exactly one frame of exactly `content_size` bytes.

    Raises:
        LimitExceeded: If the content or the window passes a limit.
        CorruptObject: If it is not such a frame.
    """
    try:
        _check(Frame(frame, content_size, what), limits)
        data: bytes = zstandard.ZstdDecompressor().decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CorruptObject(f"compressed block cannot be read: {error}", what=what) from error
    if len(data) != content_size:
        raise CorruptObject("compressed block has another size", what=what)
    return data


def decompress_all(frames: Sequence[Frame], *, limits: Limits = DEFAULT_LIMITS) -> list[memoryview]:
    """What `decompress` gives for each frame, in order, by one call for all of them.

    Threads that give up the interpreter's lock for every small buffer wait for one another. The
    contents share one block of memory.

    Raises:
        LimitExceeded: If a content or a window passes a limit.
        CorruptObject: If one of them is not such a frame.
    """
    if len(frames) > 1 and _UNPACK_TOGETHER in zstandard.backend_features:
        # Where it is given no frame, or an empty content, zstandard's call ends the process.
        full = [frame for frame in frames if frame.content_size > 0]
        try:
            together = full and all(_ends(frame, _check(frame, limits)) for frame in full)
            contents = iter(_decompress(full) if together else ())
        except (zstandard.ZstdError, MemoryError):
            # One by one tells which frame it is, and claims no more memory than one may.
            together = False
        if together:
            return [
                next(contents) if frame.content_size > 0 else _alone(frame, limits)
                for frame in frames
            ]
    return [_alone(frame, limits) for frame in frames]


def _alone(frame: Frame, limits: Limits) -> memoryview:
    data, size, what = frame
    return memoryview(decompress(data, content_size=size, what=what, limits=limits))


def _decompress(frames: Sequence[Frame]) -> Iterator[memoryview]:
    sizes = struct.pack(f"={len(frames)}Q", *[frame.content_size for frame in frames])
    found = zstandard.ZstdDecompressor().multi_decompress_to_buffer(
        [frame.data for frame in frames], decompressed_sizes=sizes
    )
    contents: list[Any] = [found[number] for number in range(len(found))]
    return map(memoryview, contents)


def _check(frame: Frame, limits: Limits) -> zstandard.FrameParameters:
    """The header alone, before anything is allocated."""
    data, size, what = frame
    if size > limits.frame_content or size > len(data) * limits.expansion:
        raise LimitExceeded(f"compressed block of {size} bytes", what=what)
    header = zstandard.get_frame_parameters(data)
    if header.content_size != size:
        raise CorruptObject(
            "compressed block has another size",
            what=what,
            expected=str(size),
            got=str(header.content_size),
        )
    if header.window_size > max(1 << limits.frame_window_log, size):
        raise LimitExceeded(f"zstd window of {header.window_size} bytes", what=what)
    return header


def _ends(frame: Frame, header: zstandard.FrameParameters) -> bool:
    """Whether a frame begins and ends with its bytes, by the sizes of its blocks."""
    data = frame.data
    length = len(data)
    if data[:4] != _MAGIC:
        return False
    position, last = zstandard.frame_header_size(data), 0
    while not last:
        if position + 3 > length:
            return False
        # Three bytes; the one before them is the header's or another block's.
        (word,) = _WORD.unpack_from(data, position - 1)
        last, kind, size = word >> 8 & 1, word >> 9 & 3, word >> 11
        position += 3 + (1 if kind == _RLE else size)
    return position + (4 if header.has_checksum else 0) == length


def compress_all(
    compressor: zstandard.ZstdCompressor, contents: Sequence[Buffer]
) -> Sequence[Buffer]:
    """A frame for each content, none of which is empty: the bytes that `compress` gives.

    In one call where zstandard has it, so that the interpreter's lock is given up once.
    """
    if contents and _PACK_TOGETHER in zstandard.backend_features:
        # Each is a buffer, which zstandard's type stubs do not say.
        frames: Any = compressor.multi_compress_to_buffer(list(contents))
        return [memoryview(frame) for frame in frames]
    return [compressor.compress(content) for content in contents]
