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
        self._small = bytearray()
        """The end, small pieces joined: many of them would take many times their bytes."""
        self._size = 0
        self._dropped = False

    def add(self, piece: bytes) -> None:
        """Append bytes."""
        self._size += len(piece)
        is_small = len(piece) < BLOCK // 4
        if self._small and (not is_small or len(self._small) + len(piece) > BLOCK):
            self._pieces.append(bytes(self._small))
            self._small.clear()
        if is_small:
            self._small += piece
        else:
            self._pieces.append(piece)

    def drop(self) -> None:
        """Forget the bytes, also while another thread sends them: its request breaks off."""
        self._dropped = True
        self._pieces, self._small = [], bytearray()

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
        data = b"".join([*self._pieces, self._small])
        self.check()
        return data

    def blocks(self) -> Iterator[Buffer]:
        """All of it in blocks of at most `BLOCK` bytes.

        Raises:
            AttemptClosed: If the bytes were dropped, also meanwhile.
        """
        for number in range(len(self._pieces) + 1):
            whole = memoryview(self._piece(number))
            for begin in range(0, len(whole), BLOCK):
                self.check()
                yield whole[begin : begin + BLOCK]
        self.check()

    def _piece(self, number: int) -> bytes:
        """One piece, and not the list of them, which must not outlive `drop`."""
        pieces, small = self._pieces, self._small
        self.check()
        return pieces[number] if number < len(pieces) else bytes(small)


Body = Buffer | Pieces
"""What a whole object may be given as: `len` says its size, and `bytes` makes it one piece."""
