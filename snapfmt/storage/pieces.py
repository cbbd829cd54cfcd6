"""The bytes of one object in pieces, as they were written: to be sent without joining them."""

from collections.abc import Iterator
from typing import Final

from snapfmt.errors import AttemptClosed
from snapfmt.storage.base import Buffer

BLOCK: Final = 2**18
"""Bytes that are handed to a connection at once."""


class Pieces:
    """Bytes that nobody joins; may be gone through any number of times, as a retry needs it."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0
        self._dropped = False

    def add(self, piece: bytes) -> None:
        """Append bytes."""
        self._pieces.append(piece)
        self._size += len(piece)

    def drop(self) -> None:
        """Forget the bytes, also while another thread sends them: its request breaks off."""
        self._dropped = True
        self._pieces = []

    def check(self) -> None:
        """Raises:
        AttemptClosed: If the bytes were dropped.
        """
        if self._dropped:
            raise AttemptClosed("the object was given up before it was sent")

    def __len__(self) -> int:
        return self._size

    def __bytes__(self) -> bytes:
        """A copy in one piece, for a client that knows no better."""
        data = b"".join(self._pieces)
        self.check()
        return data

    def blocks(self) -> Iterator[Buffer]:
        """All of it in blocks of at most `BLOCK` bytes: views of large pieces, small ones joined.

        Raises:
            AttemptClosed: If the bytes were dropped, also meanwhile.
        """
        small = bytearray()
        for number in range(len(self._pieces)):
            pieces = self._pieces
            self.check()
            piece = pieces[number]
            is_small = len(piece) < BLOCK // 4
            if small and (not is_small or len(small) + len(piece) > BLOCK):
                yield bytes(small)
                small.clear()
            if is_small:
                small += piece
                continue
            whole = memoryview(piece)
            for begin in range(0, len(piece), BLOCK):
                self.check()
                yield whole[begin : begin + BLOCK]
        self.check()
        if small:
            yield bytes(small)


Body = Buffer | Pieces
"""What a whole object may be given as: `len` says its size, and `bytes` makes it one piece."""
