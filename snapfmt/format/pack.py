"""The pack: entries of one attempt, back to back in one object (spec/v1/03-layout.md, Packs)."""

import struct

from snapfmt.errors import FormatError

MAGIC = b"SNAPPACK"
VERSION = 1
HEADER_SIZE = 64
ALIGNMENT = 64
"""Entries start at multiples of this."""
TARGET_SIZE = 128 * 1024 * 1024
"""A pack is closed at the first end of an entry past this size."""


def header(attempt_id: str, nonce: str) -> bytes:
    """First 64 bytes of a pack.

    The attempt's id and a nonce make every pack unique, so that the leftovers of a dead attempt
    belong to nobody else.
    """
    fixed = struct.pack(
        "<8sII16s16s",
        MAGIC,
        VERSION,
        HEADER_SIZE,
        bytes.fromhex(attempt_id),
        bytes.fromhex(nonce),
    )
    return fixed.ljust(HEADER_SIZE, b"\0")


def check_header(data: bytes, *, what: str) -> str:
    """The attempt id in a pack's header.

    Raises:
        FormatError: If it is no pack of this version.
    """
    if len(data) < HEADER_SIZE or data[:8] != MAGIC:
        raise FormatError("object is not a pack", what=what)
    _, version, size, attempt, _ = struct.unpack_from("<8sII16s16s", data)
    if version != VERSION or size != HEADER_SIZE:
        raise FormatError(f"pack version {version}, expected {VERSION}", what=what)
    return bytes(attempt).hex()


def padding(size: int) -> int:
    """Bytes to add after `size` bytes so that the next entry is aligned."""
    return -size % ALIGNMENT
