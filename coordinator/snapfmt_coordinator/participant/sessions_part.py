"""The part of a resources server: its sessions, and how it keeps them. Blocks; no live state."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from snapfmt.errors import FormatError
from snapfmt.reading.snapshot import Part
from snapfmt_coordinator.participant import parts, redacting
from snapfmt_coordinator.participant.redacting import Secrets
from snapfmt_coordinator.protocol.v1 import Committed, Mode
from snapfmt_schemas._base import Record
from snapfmt_schemas.attempt import Ticket
from snapfmt_schemas.identity import Count, capture_key
from snapfmt_schemas.lines import from_line
from snapfmt_schemas.resources import ResourceSnapshot

SESSIONS: Final = "sessions.jsonl"
SERVER: Final = "server.json"
_STATE: Final = b', "state": '
"""What divides a line into what is ours and the session's own state."""
Session = tuple[str, int, int, dict[str, Any]]
"""Rollout, run, revision, state."""


class SavedServer(Record):
    """`server.json`."""

    schema_version: Literal[1] = 1
    server_name: str
    mode: Mode
    sessions: Count


@dataclass(frozen=True, slots=True)
class SessionCut:
    """The sessions at the cut; each state is the cut's own."""

    sessions: Sequence[Session]
    taken_at: float


def write(
    cut: SessionCut, server_name: str, mode: Mode, ticket: Ticket, secrets: Secrets = "redact"
) -> Committed:
    """Write and seal the part.

    Raises:
        SnapfmtError: If it cannot be written, or a state is not JSON.
    """
    records = [
        ResourceSnapshot(
            rollout_id=rollout_id,
            attempt_index=attempt_index,
            state_revision=revision,
            state=state,
            created_at=cut.taken_at,
        )
        for rollout_id, attempt_index, revision, state in cut.sessions
    ]
    records.sort(key=lambda item: capture_key(item.rollout_id, item.attempt_index))
    server = SavedServer(server_name=server_name, mode=mode, sessions=len(records))
    with parts.open_part(ticket) as part:
        redacted = redacting.write(part, SESSIONS, records, secrets)
        part.json(SERVER, server.model_dump(mode="json"))
        receipt = part.seal()
    return Committed(
        state="committed_paused",
        ready=True,
        records=len(records),
        sessions=len(records),
        redacted=redacted,
        receipt=receipt,
    )


def read(part: Part) -> tuple[SavedServer, tuple[ResourceSnapshot, ...]]:
    """Read and check the part.

    Raises:
        FormatError: If its files do not agree.
        SnapfmtError: If it cannot be read.
    """
    server = read_server(part)
    sessions = tuple(part.records(SESSIONS, ResourceSnapshot))
    if len(sessions) != server.sessions:
        raise FormatError(
            f"{len(sessions)} sessions, the server's document says {server.sessions}",
            what=part.name,
        )
    if len({item.rollout_id for item in sessions}) != len(sessions):
        raise FormatError("a rollout has two sessions", what=part.name)
    return server, sessions


def read_server(part: Part) -> SavedServer:
    """What the part says of its server.

    Raises:
        FormatError: If it does not say it.
        SnapfmtError: If it cannot be read.
    """
    try:
        return SavedServer.model_validate_json(part.read(SERVER))
    except ValueError as error:
        raise FormatError(f"not a server document: {error}", what=part.name) from error


def revisions(part: Part) -> dict[str, int]:
    """The revision of each session, by capture key; blocks.

    States are opaque and may be large: one frame of them is in memory at a time, and only what
    stands before a state is parsed.

    Raises:
        SnapfmtError: If it cannot be read.
    """
    found: dict[str, int] = {}
    for line in part.lines(SESSIONS):
        rollout_id, attempt_index, revision = _head(line, part.name)
        found[capture_key(rollout_id, attempt_index)] = revision
    return found


def _head(line: bytes, what: str) -> tuple[str, int, int]:
    head, found, _ = line.partition(_STATE)
    try:
        value = json.loads(head + b"}" if found else line)
        return value["rollout_id"], value["attempt_index"], value["state_revision"]
    except (ValueError, LookupError, RecursionError):
        pass
    # Its fields are in another order.
    try:
        record = from_line(ResourceSnapshot, line)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"not a session: {error}", what=what) from error
    return record.rollout_id, record.attempt_index, record.state_revision
