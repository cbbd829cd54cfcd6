"""What ties Gym's parts to one another and to the others, read from parts; everything blocks.

Reads what grows with the runs, and of what grows with their bytes no more than must be: no
conversation and no state is parsed, and one frame of them is in memory at a time.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from snapfmt.errors import FormatError
from snapfmt.reading.snapshot import Part
from snapfmt_coordinator.gym.parts import GymParts
from snapfmt_coordinator.participant import redacting, sessions_part
from snapfmt_coordinator.participant.agent_part import BOUNDARIES
from snapfmt_coordinator.protocol.v1 import ReferenceIndex
from snapfmt_schemas._base import Record
from snapfmt_schemas.agent import BoundaryHead
from snapfmt_schemas.continuation import Continuation
from snapfmt_schemas.identity import capture_key
from snapfmt_schemas.lineage import ExternalStorageReference
from snapfmt_schemas.lines import from_line
from snapfmt_schemas.redacted import RedactedRun

R = TypeVar("R", bound=Record)
PartOf = Callable[[str], Part]
"""Finds a part of the cut by name."""
Revisions = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class SavedRun:
    """A run that an agent server saved a boundary of."""

    agent: str
    """Name of its server."""
    rollout_id: str
    attempt_index: int
    revisions: Revisions | None
    """Per resource server that it used; None: unknown, so all were used."""

    @property
    def capture_key(self) -> str:
        """The run's key."""
        return capture_key(self.rollout_id, self.attempt_index)


@dataclass(frozen=True, slots=True)
class RedactedRuns:
    """The runs of one server whose state is not whole."""

    server: str
    component: str
    runs: tuple[RedactedRun, ...]


@dataclass(frozen=True, slots=True)
class GymIndexes:
    """The lists that tie Gym's parts together."""

    continuations: tuple[tuple[str, Continuation], ...]
    """Each with the name of its agent server."""
    references: tuple[ExternalStorageReference, ...]
    runs: tuple[SavedRun, ...] = ()
    """All that agents saved, also those without a committed model call."""
    redacted: tuple[RedactedRuns, ...] = ()
    """Of each server that has some."""
    sessions: Mapping[str, Revisions] = field(default_factory=dict)
    """Revision by capture key, of every server that exports its sessions."""

    def redacted_keys(self) -> frozenset[str]:
        """Capture keys of the runs whose state is not whole; a restore lets them start over."""
        return frozenset(run.capture_key for item in self.redacted for run in item.runs)


def read_indexes(part_of: PartOf, gym: GymParts) -> GymIndexes:
    """Reads them from their parts.

    Raises:
        CorruptError: If an entry is damaged, or is not the one that was announced.
        NotFoundError: If a part or an entry is not there.
    """
    lines = {
        part: tuple(_lines(part_of, index, Continuation))
        for part, index in gym.continuation_indexes.items()
    }
    runs = tuple(
        run
        for part, found in lines.items()
        for run in _runs(part_of(part), gym.participants[part].server_name, found)
    )
    return GymIndexes(
        tuple(
            (gym.participants[part].server_name, line)
            for part, found in lines.items()
            for line in found
        ),
        tuple(
            line
            for index in gym.storage_reference_indexes.values()
            for line in _lines(part_of, index, ExternalStorageReference)
        ),
        runs,
        tuple(_redacted(part_of, gym)),
        dict(_sessions(part_of, gym)),
    )


def _lines(part_of: PartOf, index: ReferenceIndex, model: type[R]) -> list[R]:
    part = part_of(index.part)
    entry = part.entry(index.path)
    what = f"{index.part}/{index.path}"
    if entry.digest != index.digest:
        raise FormatError("the entry is not the one that its server announced", what=what)
    lines = list(part.records(index.path, model))
    if len(lines) != index.records:
        raise FormatError(f"{len(lines)} records, announced were {index.records}", what=what)
    return lines


def _runs(part: Part, server: str, lines: Sequence[Continuation]) -> Iterator[SavedRun]:
    """Every run of an agent's part; only the records that have no continuation are parsed."""
    for line in lines:
        yield SavedRun(server, line.rollout_id, line.attempt_index, line.resource_state_revisions)
    what = f"{part.name}/{BOUNDARIES}"
    continued = {line.rollout_id for line in lines}
    places = part.line_places(part.entry(BOUNDARIES))
    names = {place.key for place in places}
    if lost := continued - names:
        raise FormatError(f"the continuation of {min(lost)} has no record", what=what)
    if names == continued:
        return
    for place, text in zip(places, part.lines(BOUNDARIES), strict=False):
        if place.key in continued:
            continue
        try:
            record = from_line(BoundaryHead, text)
        except (ValueError, RecursionError) as error:
            raise FormatError(f"not a boundary record: {error}", what=what) from error
        if record.rollout_id != place.key or record.last_committed_model_call_id is not None:
            raise FormatError(f"record and continuation index disagree on {place.key}", what=what)
        yield SavedRun(
            server, record.rollout_id, record.attempt_index, record.resource_state_revisions
        )


def _redacted(part_of: PartOf, gym: GymParts) -> Iterator[RedactedRuns]:
    for part, who in gym.participants.items():
        if who.component in ("agent", "resources") and (
            runs := redacting.listed_runs(part_of(part))
        ):
            yield RedactedRuns(who.server_name, who.component, runs)


def _sessions(part_of: PartOf, gym: GymParts) -> Iterator[tuple[str, Revisions]]:
    for part, who in gym.participants.items():
        if who.component == "resources":
            found = part_of(part)
            if sessions_part.read_server(found).mode == "export_restore":
                yield who.server_name, sessions_part.revisions(found)
