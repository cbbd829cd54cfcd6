"""The agents' part: boundary records and the continuation index. Blocks; no live state."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from snapfmt.errors import FormatError, InvalidRecord
from snapfmt.reading.snapshot import Part
from snapfmt_coordinator.participant import parts, redacting
from snapfmt_coordinator.participant.redacting import Secrets
from snapfmt_coordinator.protocol.v1 import Committed, ReferenceIndex
from snapfmt_schemas import redaction
from snapfmt_schemas.agent import AgentBoundaryRecord
from snapfmt_schemas.attempt import Ticket
from snapfmt_schemas.continuation import Continuation
from snapfmt_schemas.identity import capture_key

BOUNDARIES: Final = "boundaries.jsonl"
CONTINUATIONS: Final = "continuations.jsonl"


@dataclass(frozen=True, slots=True)
class SavedRuns:
    """What a part holds."""

    records: tuple[AgentBoundaryRecord, ...]
    index: ReferenceIndex
    redacted: frozenset[str] = frozenset()
    """Rollouts whose record is not whole: they start over."""


def continuations(records: Sequence[AgentBoundaryRecord]) -> list[Continuation]:
    """The continuation index of records, in upstream's order."""
    found = [line for record in records if (line := record.continuation()) is not None]
    return sorted(found, key=lambda line: (line.capture_key, line.last_committed_model_call_id))


def write(
    records: Sequence[AgentBoundaryRecord], ticket: Ticket, secrets: Secrets = "redact"
) -> Committed:
    """Write and seal the part.

    Raises:
        SnapfmtError: If it cannot be written.
    """
    if secrets == "redact":
        for record in records:
            _check_names(record)
    lines = continuations(records)
    ordered = sorted(
        records, key=lambda record: capture_key(record.rollout_id, record.attempt_index)
    )
    with parts.open_part(ticket) as part:
        redacted = redacting.write(part, BOUNDARIES, ordered, secrets)
        part.records(CONTINUATIONS, lines, key="capture_key", redact=False)
        receipt = part.seal()
    index = parts.reference(parts.sealed_part(ticket, receipt), CONTINUATIONS)
    return Committed(
        state="committed_paused",
        ready=True,
        records=len(ordered),
        rollouts=len(ordered),
        redacted=redacted,
        receipt=receipt,
        continuation_index=index,
    )


def read(part: Part) -> SavedRuns:
    """Read and check the part.

    Raises:
        FormatError: If index and records differ, or a rollout is there twice.
        SnapfmtError: If it cannot be read.
    """
    records = tuple(part.records(BOUNDARIES, AgentBoundaryRecord))
    index = list(part.records(CONTINUATIONS, Continuation))
    if len({record.rollout_id for record in records}) != len(records):
        raise FormatError("a rollout has two boundary records", what=part.name)
    expected = continuations(records)
    if index != expected:
        known = {line.capture_key: line for line in expected}
        other = [line.capture_key for line in index if known.get(line.capture_key) != line]
        missing = known.keys() - {line.capture_key for line in index}
        raise FormatError(
            "the continuation index does not agree with the boundary records",
            what=f"{part.name}: {(other or sorted(missing) or ['order'])[0]}",
        )
    return SavedRuns(records, parts.reference(part, CONTINUATIONS), redacting.read(part, records))


def _check_names(record: AgentBoundaryRecord) -> None:
    """Redaction would replace the revision of a server whose name reads like a secret's."""
    revisions = record.resource_state_revisions or {}
    for name in revisions:
        if redaction.secret_kind(name, revisions) == "all":
            raise InvalidRecord(
                "the resource server's name reads like that of a secret, so its revision"
                " would not be stored",
                what=name,
                hint="rename the server",
            )
