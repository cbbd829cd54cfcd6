"""The part of a resources server: its sessions, and how it keeps them. Blocks; no live state."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from snapfmt.errors import FormatError
from snapfmt.reading.snapshot import Part
from snapfmt_coordinator.participant import parts
from snapfmt_coordinator.protocol.v1 import Committed, Mode
from snapfmt_schemas._base import Record
from snapfmt_schemas.attempt import Ticket
from snapfmt_schemas.identity import Count, capture_key
from snapfmt_schemas.resources import ResourceSnapshot

SESSIONS: Final = "sessions.jsonl"
SERVER: Final = "server.json"
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


def write(cut: SessionCut, server_name: str, mode: Mode, ticket: Ticket) -> Committed:
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
        # A cut has one session of each rollout, so the rollout's id finds its record.
        part.records(SESSIONS, records, key="rollout_id")
        part.json(SERVER, server.model_dump(mode="json"))
        receipt = part.seal()
    return Committed(
        state="committed_paused",
        ready=True,
        records=len(records),
        sessions=len(records),
        receipt=receipt,
    )


def read(part: Part) -> tuple[SavedServer, tuple[ResourceSnapshot, ...]]:
    """Read and check the part.

    Raises:
        FormatError: If its files do not agree.
        SnapfmtError: If it cannot be read.
    """
    try:
        server = SavedServer.model_validate_json(part.read(SERVER))
    except ValueError as error:
        raise FormatError(f"not a server document: {error}", what=part.name) from error
    sessions = tuple(part.records(SESSIONS, ResourceSnapshot))
    if len(sessions) != server.sessions:
        raise FormatError(
            f"{len(sessions)} sessions, the server's document says {server.sessions}",
            what=part.name,
        )
    if len({item.rollout_id for item in sessions}) != len(sessions):
        raise FormatError("a rollout has two sessions", what=part.name)
    return server, sessions
