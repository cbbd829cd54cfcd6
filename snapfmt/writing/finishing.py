"""Objects that are synced or sent while the next one is written; each by a thread of its own.

What a bucket is sent waits in memory until it is there, so that it can be sent again. So the
bytes are bounded as well as the number: who writes the next one waits.
"""

import threading
from collections.abc import Callable
from typing import Final

from snapfmt.limits import MIB
from snapfmt.storage.base import Sink

FINISHING: Final = 2
"""Objects that are being synced or sent while the next one is written."""
HELD_BYTES = 224 * MIB
"""Bytes of a part that may lie in memory in sinks while one of them is being sent."""


class Finishing:
    """The objects of one part that are being finished."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._sinks: list[Sink] = []
        self._left: list[Sink] = []
        """Those that nobody waits for."""
        self._given_up = False

    def make_room(self, current: Sink, size: int) -> None:
        """Wait until `size` more bytes of an object may be held, or nothing is being finished."""

        def fits() -> bool:
            held = current.held + sum(sink.held for sink in self._sinks)
            return not current.held or held + size <= HELD_BYTES

        self._wait(fits)

    def start(self, sink: Sink, work: Callable[[], None]) -> None:
        """Let a thread do the work, which raises nothing, once there are few enough."""
        self._wait(lambda: len(self._sinks) < FINISHING)
        with self._changed:
            if self._given_up:
                sink.discard()
                return
            self._sinks.append(sink)

        def run() -> None:
            try:
                work()
            finally:
                with self._changed:
                    self._sinks.remove(sink)
                    self._changed.notify_all()

        # A daemon: a request that is stuck keeps no process from its end.
        thread = threading.Thread(target=run, name="snapfmt-pack-finish", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            # There is none to be had: who writes the next one waits.
            run()
        except BaseException:
            with self._changed:
                self._sinks.remove(sink)
            raise

    def wait(self) -> None:
        """Until all are finished, but those that were given up on their way."""
        with self._changed:
            self._changed.wait_for(lambda: all(sink in self._left for sink in self._sinks))

    def give_up(self) -> None:
        """Drop what waits in memory, also what is on its way, and hold nobody up any more.

        A request may be stuck for minutes. An object that it still brings about is an orphan,
        as after a crash.
        """
        with self._changed:
            self._given_up = True
            self._left += [sink for sink in self._sinks if sink.held]
            for sink in self._left:
                sink.discard()
            self._changed.notify_all()

    def _wait(self, enough: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._given_up or not self._sinks or enough())
