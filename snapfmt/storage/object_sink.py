"""One object while it is written to a bucket, in memory."""

from collections.abc import Callable

from snapfmt.storage.base import Buffer
from snapfmt.storage.pieces import Pieces


class ObjectSink:
    """Implements `storage.base.Sink`."""

    def __init__(self, send: Callable[[str, Pieces], None]) -> None:
        """`send` writes the whole object under a key."""
        self._send = send
        self._pieces = Pieces()
        self.held = 0
        self.is_sent = True

    def write(self, data: Buffer) -> None:
        """Keep the bytes; what may still change is copied."""
        self._pieces.add(data if isinstance(data, bytes) else bytes(data))
        self.held = len(self._pieces)

    def finish(self, key: str) -> None:
        """Send it in one PUT, as it lies there."""
        try:
            self._send(key, self._pieces)
        finally:
            self.discard()

    def discard(self) -> None:
        """Forget the bytes; a PUT that is on its way is not tried again."""
        self._pieces.drop()
        self.held = 0
