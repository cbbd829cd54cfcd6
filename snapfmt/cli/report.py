"""`snapfmt report`: where the time of a save went: every step, when, how long, who waited."""

import argparse
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from snapfmt.cli.command import (
    Command,
    Reference,
    add_repository,
    add_snapshot,
    open_snapshot,
    open_to_look,
)
from snapfmt.cli.output import Block, Console, Fields, Heading, Outcome, Result, Table
from snapfmt.cli.text import duration, moment
from snapfmt.errors import NoMatch

if TYPE_CHECKING:
    from snapfmt_schemas.timeline import Phase, PhaseTimeline

_NARROWEST, _WIDEST = 10, 40
"""Columns of the bar that a step has on a terminal."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of `snapfmt report`."""

    repository: str
    snapshot: Reference | None


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_repository(parser)
    add_snapshot(parser, optional=True, default="default: latest")


def run(options: Options, console: Console) -> Outcome:
    """The timeline that the manifest holds.

    Raises:
        NoMatch: If it holds none.
    """
    snapshot = open_snapshot(open_to_look(options.repository, console), options.snapshot)
    timeline = snapshot.manifest.timeline
    if timeline is None or not timeline.phases:
        raise NoMatch(
            "no timeline was stored with this snapshot",
            what=snapshot.name,
            hint="whoever saves gives it to publish; the coordinator does",
        )
    start, end = _span(timeline.phases)
    waits = _waits(timeline.phases)
    document = {
        "ok": True,
        "name": snapshot.name,
        "number": snapshot.number,
        "operation": timeline.operation,
        "started_at": moment(start),
        "started_at_ns": start,
        "took_ns": end - start,
        "phases": [
            {
                "name": phase.name,
                "actor": phase.actor,
                "offset_ns": phase.started_at_ns - start,
                "took_ns": phase.ended_at_ns - phase.started_at_ns,
                "waited": list(phase.waited),
                "counts": phase.counts,
            }
            for phase in timeline.phases
        ],
        "waited_ns": waits,
    }
    pairs = [
        ("started", moment(start)),
        ("took", duration(end - start)),
        ("steps", str(len(timeline.phases))),
    ]
    blocks: list[Block] = [
        Heading(f"The {timeline.operation} of {snapshot.name}"),
        Fields(pairs),
        Heading("Steps"),
        steps(timeline, width=_bar_width() if console.terminal else 0),
    ]
    if waits:
        rows = [[who, duration(time)] for who, time in waits.items()]
        blocks += [Heading("Who waited"), Table(["who", "in all"], rows, frozenset({"in all"}))]
    return Result(document, blocks)


def steps(timeline: "PhaseTimeline", *, width: int = 0) -> Table:
    """A row for each step; with a bar of that many columns, if any."""
    start, end = _span(timeline.phases)
    columns = ["step", "actor", "start", "took", "waited", "counts"]
    rows = [
        [
            phase.name,
            phase.actor or "-",
            f"+{duration(phase.started_at_ns - start)}",
            duration(phase.ended_at_ns - phase.started_at_ns),
            " ".join(phase.waited) or "-",
            " ".join(f"{name}={count}" for name, count in phase.counts.items()) or "-",
        ]
        for phase in timeline.phases
    ]
    if width:
        columns.insert(4, "when")
        for phase, row in zip(timeline.phases, rows, strict=True):
            row.insert(4, _bar(phase, start, end, width))
    return Table(columns, rows, frozenset({"start", "took"}))


def _span(phases: Sequence["Phase"]) -> tuple[int, int]:
    return (
        min((phase.started_at_ns for phase in phases), default=0),
        max((phase.ended_at_ns for phase in phases), default=0),
    )


def _waits(phases: Sequence["Phase"]) -> dict[str, int]:
    """How long each was held, the longest first; two steps at one time count once."""
    held: dict[str, list[tuple[int, int]]] = {}
    for phase in phases:
        for who in phase.waited:
            held.setdefault(who, []).append((phase.started_at_ns, phase.ended_at_ns))
    total = {}
    for who, spans in held.items():
        total[who], reached = 0, 0
        for begin, end in sorted(spans):
            total[who] += max(end - max(begin, reached), 0)
            reached = max(end, reached)
    return dict(sorted(total.items(), key=lambda item: (-item[1], item[0])))


def _bar(phase: "Phase", start: int, end: int, width: int) -> str:
    """The step within the whole: `···███····`; one that took no time is still seen."""
    whole = max(end - start, 1)
    first = min((phase.started_at_ns - start) * width // whole, width - 1)
    last = -((phase.ended_at_ns - start) * -width // whole)
    length = max(last - first, 1)
    mark, rest = ("█", "·") if _has_blocks() else ("#", ".")
    return rest * first + mark * length + rest * (width - first - length)


def _bar_width() -> int:
    return max(_NARROWEST, min(shutil.get_terminal_size().columns // 4, _WIDEST))


def _has_blocks() -> bool:
    encoding: Any = getattr(sys.stdout, "encoding", None) or ""
    return str(encoding).lower().replace("-", "").startswith("utf")


COMMAND = Command("report", "where the time of a save went", Options, configure, run)
