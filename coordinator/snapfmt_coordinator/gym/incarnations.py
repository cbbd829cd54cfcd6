"""Whether one process of a server answers from the begin of a checkpoint to its end.

A participant holds its state in one process. Behind an address with several, each request would
meet another state, and a snapshot would lack what the others hold without anybody noticing.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from snapfmt.errors import ParticipantFailed

REMEMBERED: Final = 64
"""Checkpoints that are remembered; of more, the oldest is forgotten."""
ONE_WORKER: Final = "more than one process answers; run it with one worker"


class Incarnations:
    """Which process of each server answered first, by checkpoint."""

    def __init__(self) -> None:
        self._first: OrderedDict[str, dict[str, str]] = OrderedDict()

    def watch(self, checkpoint_id: str, server: str) -> Callable[[str], None]:
        """What is told of each answer of a server during a checkpoint.

        It raises `ParticipantFailed` when another process answers than the first one. A server
        that was restarted looks the same; then the next checkpoint succeeds.
        """

        def look(incarnation: str) -> None:
            if self._of(checkpoint_id).setdefault(server, incarnation) != incarnation:
                raise ParticipantFailed(
                    f"another process of the server answers than at the begin of checkpoint"
                    f" {checkpoint_id!r}",
                    what=server,
                    hint=f"{ONE_WORKER}, unless it was restarted just now",
                )

        return look

    def _of(self, checkpoint_id: str) -> dict[str, str]:
        first = self._first.setdefault(checkpoint_id, {})
        self._first.move_to_end(checkpoint_id)
        while len(self._first) > REMEMBERED:
            self._first.popitem(last=False)
        return first
