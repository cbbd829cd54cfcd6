"""What each part of the run does and what it waits for, as intervals on the wall clock."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal

Doing = Literal["working", "waiting", "parked", "paused"]
ROLLOUT_PUMP: Final = "rollout pump"
GYM: Final = "gym runs"
ENGINES: Final = "generation engines"
REASSEMBLER: Final = "rollout reassembler"
TRAINER: Final = "trainer"
ADVANTAGE: Final = "advantage pool"
REFIT: Final = "refit"
CHECKPOINT: Final = "trainer checkpoint"
WATCHDOG: Final = "stall watchdog"
TIME_LIMITS: Final = "rollout time limits"
PARTS: Final = (
    ROLLOUT_PUMP,
    GYM,
    ENGINES,
    REASSEMBLER,
    TRAINER,
    ADVANTAGE,
    REFIT,
    CHECKPOINT,
    WATCHDOG,
    TIME_LIMITS,
)
"""The ten parts of a run that a save may make wait."""
GATE: Final = "dispatch gate"
BARRIER: Final = "data-plane barrier"
ADMISSION: Final = "gym admission"
DATA: Final = "finished groups"
SHORTEST_WAIT_S: Final = 0.001
MOST_INTERVALS: Final = 100_000
"""Older intervals of one process are forgotten."""


@dataclass(frozen=True, slots=True)
class Interval:
    """One stretch of time of one part; `end` is None while it lasts. Unix seconds."""

    part: str
    doing: Doing
    start: float
    end: float | None
    what: str = ""
    """What it waits for, or works on."""

    def overlap(self, start: float, end: float) -> float:
        """Seconds of it that lie between two times."""
        own_end = end if self.end is None else self.end
        return max(0.0, min(own_end, end) - max(self.start, start))


class ActivityLog:
    """Intervals of the parts that live in one process; they may overlap."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._intervals: deque[Interval] = deque(maxlen=MOST_INTERVALS)
        self._open: dict[int, Interval] = {}
        self._next = 0

    def begin(self, part: str, doing: Doing, what: str = "") -> int:
        """An interval begins; the number ends it."""
        self._next += 1
        self._open[self._next] = Interval(part, doing, self._clock(), None, what)
        return self._next

    def end(self, number: int) -> None:
        """It ends; no error when it has. A wait that is none is forgotten."""
        begun = self._open.pop(number, None)
        if begun is None:
            return
        end = self._clock()
        if begun.doing != "waiting" or end - begun.start >= SHORTEST_WAIT_S:
            self._intervals.append(Interval(begun.part, begun.doing, begun.start, end, begun.what))

    @contextmanager
    def during(self, part: str, doing: Doing, what: str = "") -> Iterator[None]:
        """An interval around a block."""
        number = self.begin(part, doing, what)
        try:
            yield
        finally:
            self.end(number)

    def intervals(self) -> list[Interval]:
        """All of them, also those that last."""
        return sorted([*self._intervals, *self._open.values()], key=lambda interval: interval.start)

    def rows(self) -> list[list[Any]]:
        """The same as JSON values."""
        return [[i.part, i.doing, i.start, i.end, i.what] for i in self.intervals()]


class State:
    """A part that is in exactly one state at a time."""

    def __init__(self, log: ActivityLog, part: str, doing: Doing, what: str = "") -> None:
        self._log = log
        self._part = part
        self._now = (doing, what)
        self._number = log.begin(part, doing, what)

    def change(self, doing: Doing, what: str = "") -> None:
        """From now on it does this."""
        if (doing, what) != self._now:
            self._log.end(self._number)
            self._now = (doing, what)
            self._number = self._log.begin(self._part, doing, what)


def from_rows(rows: Iterable[Iterable[Any]]) -> list[Interval]:
    """Intervals from `ActivityLog.rows`."""
    return sorted((Interval(*row) for row in rows), key=lambda interval: interval.start)


@dataclass(frozen=True, slots=True)
class Share:
    """Seconds of one part within one phase, by what it did."""

    seconds: dict[tuple[Doing, str], float]
    finished: int
    """Pieces of work that ended within the phase."""

    def of(self, doing: Doing, what: str | None = None) -> float:
        """Seconds in one state; `what` narrows it down."""
        return sum(
            seconds
            for (state, reason), seconds in self.seconds.items()
            if state == doing and what in (None, reason)
        )


def share(intervals: Iterable[Interval], part: str, start: float, end: float) -> Share:
    """What a part did between two times; overlapping intervals add up."""
    seconds: dict[tuple[Doing, str], float] = {}
    finished = 0
    for interval in intervals:
        if interval.part != part:
            continue
        overlap = interval.overlap(start, end)
        if overlap > 0.0:
            key = (interval.doing, interval.what)
            seconds[key] = seconds.get(key, 0.0) + overlap
        if interval.doing == "working" and interval.end is not None:
            finished += start <= interval.end <= end
    return Share(seconds, finished)
