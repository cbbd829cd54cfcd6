"""Tagged digests and the checks against them (spec/v1/04-documents.md, Digests)."""

import hashlib
from collections.abc import Iterable
from typing import Protocol

from snapfmt.errors import CorruptObject

TAG = "sha256:"
"""Tag of the one digest algorithm of format version 1."""

Buffer = bytes | bytearray | memoryview


class Hash(Protocol):
    """What hashlib returns."""

    def update(self, data: Buffer, /) -> None:
        """Feed bytes."""

    def hexdigest(self) -> str:
        """Hexadecimal digest of what was fed."""

    def digest(self) -> bytes:
        """Raw digest of what was fed."""


def new_hash() -> Hash:
    """A running hash of the format's algorithm."""
    return hashlib.sha256(usedforsecurity=False)


def digest_of(data: Buffer) -> str:
    """Tagged digest of bytes."""
    return TAG + hashlib.sha256(data, usedforsecurity=False).hexdigest()


def raw_digest(parts: Iterable[Buffer]) -> bytes:
    """The 32 raw bytes of the digest of concatenated parts."""
    running = hashlib.sha256(usedforsecurity=False)
    for part in parts:
        running.update(part)
    return running.digest()


def check(data: Buffer, expected: str, *, what: str) -> None:
    """Compare bytes with a tagged digest.

    Raises:
        CorruptObject: If they differ.
    """
    got = digest_of(data)
    if got != expected:
        raise CorruptObject(
            "stored bytes differ from their digest",
            what=what,
            expected=expected,
            got=got,
            hint="run `snapfmt verify`; restore an older snapshot or a copy of this object",
        )


def check_size(got: int, expected: int, *, what: str) -> None:
    """Compare a size with the declared one.

    Raises:
        CorruptObject: If they differ.
    """
    if got != expected:
        raise CorruptObject(
            "stored bytes are truncated or too long",
            what=what,
            expected=f"{expected} bytes",
            got=f"{got} bytes",
            hint="run `snapfmt verify`",
        )
