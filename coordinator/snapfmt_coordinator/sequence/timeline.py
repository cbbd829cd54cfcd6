"""What happened when during a save or a restore, and who waited for what."""

import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Final, Literal

from snapfmt_schemas.timeline import Phase, PhaseTimeline

_WIDTH: Final = 40
_SECOND: Final = 1_000_000_000


class PhaseNotes:
    """What a running phase says about itself."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def count(self, **counts: int) -> None:
        """Notes numbers; a name that comes again replaces its number."""
        self.counts.update(counts)


class TimelineRecorder:
    """Collects the phases of one operation. Thread-safe.

    Times advance with the monotonic clock from the wall clock at the beginning, so that a wall
    clock that is set meanwhile makes no phase end before it starts.
    """

    def __init__(self, operation: Literal["save", "restore"]) -> None:
        self._operation: Literal["save", "restore"] = operation
        self._lock = threading.Lock()
        self._phases: list[Phase] = []
        self._offset = time.time_ns() - time.monotonic_ns()
        self.started_at_ns = self.now_ns()

    def now_ns(self) -> int:
        """Nanoseconds since the epoch, never going back."""
        return time.monotonic_ns() + self._offset

    @asynccontextmanager
    async def phase(
        self, name: str, actor: str = "coordinator", *, waited: Sequence[str] = ()
    ) -> AsyncIterator[PhaseNotes]:
        """Surrounds one step; it is recorded when it ends, also by an error."""
        with self.block(name, actor, waited=waited) as notes:
            yield notes

    @contextmanager
    def block(
        self, name: str, actor: str = "coordinator", *, waited: Sequence[str] = ()
    ) -> Iterator[PhaseNotes]:
        """The same for a step without `await`, such as one in a thread."""
        started, notes = self.now_ns(), PhaseNotes()
        try:
            yield notes
        finally:
            self.add(name, actor, started, self.now_ns(), waited=waited, counts=notes.counts)

    def add(
        self,
        name: str,
        actor: str,
        started_at_ns: int,
        ended_at_ns: int,
        *,
        waited: Sequence[str] = (),
        counts: dict[str, int] | None = None,
    ) -> None:
        """Records a step that was timed elsewhere."""
        phase = Phase(
            name=name,
            actor=actor,
            started_at_ns=started_at_ns,
            ended_at_ns=ended_at_ns,
            waited=tuple(waited),
            counts=dict(counts or {}),
        )
        with self._lock:
            self._phases.append(phase)

    def timeline(self) -> PhaseTimeline:
        """The phases that have ended, in the order in which they began."""
        with self._lock:
            phases = sorted(self._phases, key=lambda item: item.started_at_ns)
        return PhaseTimeline(operation=self._operation, phases=tuple(phases))


def seconds(timeline: PhaseTimeline, name: str, actor: str | None = None) -> float:
    """From the begin of the first phase of a name (of an actor) to the end of the last one."""
    chosen = [
        phase for phase in timeline.phases if phase.name == name and actor in (None, phase.actor)
    ]
    if not chosen:
        return 0.0
    first = min(phase.started_at_ns for phase in chosen)
    return (max(phase.ended_at_ns for phase in chosen) - first) / _SECOND


def render(timeline: PhaseTimeline) -> str:
    """The timeline as plain text: one line per phase with its bar, and who waited.

    save: 0.412 s
      phase    actor        at s  took s |........................................| waited
      gate     coordinator 0.000   0.003 |#                                       | new rollouts
    """
    if not timeline.phases:
        return f"{timeline.operation}: nothing was done"
    begin = min(phase.started_at_ns for phase in timeline.phases)
    whole = max(phase.ended_at_ns for phase in timeline.phases) - begin
    names = max(len("phase"), *(len(phase.name) for phase in timeline.phases))
    actors = max(len("actor"), *(len(phase.actor) for phase in timeline.phases))
    head = f"  {'phase':<{names}}  {'actor':<{actors}}  {'at s':>8}  {'took s':>8}  "
    lines = [f"{timeline.operation}: {whole / _SECOND:.3f} s"]
    lines.append(f"{head}|{'.' * _WIDTH}| waited; counts")
    for phase in timeline.phases:
        at, took = phase.started_at_ns - begin, phase.ended_at_ns - phase.started_at_ns
        first = min(_WIDTH - 1, at * _WIDTH // max(whole, 1))
        length = min(_WIDTH - first, max(1, round(took * _WIDTH / max(whole, 1))))
        bar = f"{' ' * first}{'#' * length}"
        said = ", ".join(phase.waited)
        counts = ", ".join(f"{name} {number}" for name, number in phase.counts.items())
        tail = "; ".join(text for text in (said, counts) if text)
        lines.append(
            f"  {phase.name:<{names}}  {phase.actor:<{actors}}  {at / _SECOND:>8.3f}"
            f"  {took / _SECOND:>8.3f}  |{bar:<{_WIDTH}}| {tail}".rstrip()
        )
    return "\n".join(lines)
