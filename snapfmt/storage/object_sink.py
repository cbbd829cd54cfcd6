"""One object while it is written to a bucket, in memory."""

from collections.abc import Callable

from snapfmt.storage.base import Buffer


class ObjectSink:
    """Implements `storage.base.Sink`."""

    def __init__(self, send: Callable[[str, Buffer], None]) -> None:
        """`send` writes the whole object under a key."""
        self._send = send
        self._pieces: list[bytes] = []

    def write(self, data: Buffer) -> None:
        """Keep the bytes; what may still change is copied."""
        self._pieces.append(data if isinstance(data, bytes) else bytes(data))

    def finish(self, key: str) -> None:
        """Send it in one PUT."""
        pieces, self._pieces = self._pieces, []
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        # Not twice in memory while it is being sent.
        pieces.clear()
        self._send(key, data)

    def discard(self) -> None:
        """Forget the bytes."""
        self._pieces.clear()
