"""Tells a caller which step ran, on whom, and for how long."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

Observe = Callable[[str, str, int, int, dict[str, int]], None]
"""Gets (step, actor, start, end, counts) of each step; times in nanoseconds since the epoch."""

DISCOVER: Final = "discover"
ACKNOWLEDGE: Final = "acknowledge"
PAUSE: Final = "prepare.pause"
PARK: Final = "prepare.park"
FREEZE: Final = "prepare.freeze"
DRAIN: Final = "prepare.drain"
INTERRUPT: Final = "prepare.interrupt"
HOLD: Final = "commit"
WRITE: Final = "write"
RESUME: Final = "resume"
LOAD: Final = "load"
DISCARD: Final = "discard"
RETIRE: Final = "retire"
FAILED: Final = "failed"
"""Count of a step that raised; it is 1."""


@contextmanager
def observed(observe: Observe | None, step: str, actor: str) -> Iterator[dict[str, int]]:
    """Times its body and reports it, also when it raises; the body fills in the counts."""
    counts: dict[str, int] = {}
    started = time.time_ns()
    try:
        yield counts
    except BaseException:
        counts[FAILED] = 1
        raise
    finally:
        if observe is not None:
            # The wall clock may have been set back meanwhile.
            observe(step, actor, started, max(started, time.time_ns()), counts)
