"""The part of a resources server: its sessions, and how it keeps them. Blocks; no live state."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from pydantic import ValidationError

from snapfmt import PartWriter
from snapfmt.errors import FormatError, InvalidRecord
from snapfmt.reading.snapshot import Part
from snapfmt.writing.lines import prepare
from snapfmt_coordinator.participant import parts
from snapfmt_coordinator.participant.on_base import UNMARKED, SaveMemory, TableOnBase
from snapfmt_coordinator.participant.redacting import Losses, Secrets
from snapfmt_coordinator.protocol.codes import described
from snapfmt_coordinator.protocol.v1 import Committed, Mode
from snapfmt_schemas._base import Record
from snapfmt_schemas.attempt import Ticket
from snapfmt_schemas.identity import Count, capture_key
from snapfmt_schemas.lines import from_line
from snapfmt_schemas.resources import ResourceSnapshot

SESSIONS: Final = "sessions"
"""The table of sessions, with the server's name behind it."""
SESSION, REVISION = "session", "state_revision"
"""Its columns: a session as one line of JSON, and its revision."""
OLD_SESSIONS: Final = "sessions.jsonl"
"""The sessions of a part that was written before there was such a table."""
SERVER: Final = "server.json"
_HEAD: Final = ("rollout_id", "attempt_index", "state_revision")
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
    marks: Sequence[int] = ()
    """Of each session, see `on_base`; none: every session is written."""


def write(
    cut: SessionCut,
    server_name: str,
    mode: Mode,
    ticket: Ticket,
    secrets: Secrets = "redact",
    memory: SaveMemory | None = None,
) -> Committed:
    """Write and seal the part; sessions that the base holds, by what is remembered, are carried.

    Raises:
        SnapfmtError: If it cannot be written, or a state is not JSON.
    """
    marks = cut.marks or [UNMARKED] * len(cut.sessions)
    order = sorted(range(len(cut.sessions)), key=lambda at: capture_key(*cut.sessions[at][:2]))
    sessions = [cut.sessions[at] for at in order]
    own_marks = np.array([marks[at] for at in order], np.int64)
    keys = [session_key(*session[:2]) for session in sessions]
    if len({session[0] for session in sessions}) != len(sessions):
        raise InvalidRecord(
            "a rollout has two sessions",
            what=ticket.part,
            hint="a store exports one session of each rollout",
        )
    server = SavedServer(server_name=server_name, mode=mode, sessions=len(sessions))

    def body(part: PartWriter, table: TableOnBase) -> int:
        losses = Losses()
        left = own_marks.copy()

        def columns(rows: list[int]) -> dict[str, Any]:
            found = []
            for row in rows:
                key = capture_key(*sessions[row][:2])
                record = _record(sessions[row], cut.taken_at, key)
                line = prepare(record, None, redact=secrets == "redact", what=key)
                found.append(line.data.decode("ascii"))
                if losses.note(key, line.hidden):
                    # Written and listed by every save, so that it need not be remembered.
                    left[row] = UNMARKED
            return {SESSION: found, REVISION: [sessions[row][2] for row in rows]}

        table.write(parts.table_name(SESSIONS, part.name), keys, left, columns)
        redacted = losses.write(part)
        part.json(SERVER, server.model_dump(mode="json"))
        return redacted

    redacted, receipt = (memory or SaveMemory()).write(ticket, body)
    return Committed(
        state="committed_paused",
        ready=True,
        records=len(sessions),
        sessions=len(sessions),
        redacted=redacted,
        receipt=receipt,
    )


def _record(session: Session, created_at: float, what: str) -> ResourceSnapshot:
    rollout_id, attempt_index, revision, state = session
    try:
        return ResourceSnapshot(
            rollout_id=rollout_id,
            attempt_index=attempt_index,
            state_revision=revision,
            state=state,
            created_at=created_at,
        )
    except ValidationError as error:
        # Not as its cause: its text quotes the state, and this one comes into a log.
        raise InvalidRecord(
            f"the session cannot be saved: {described(error)}",
            what=what,
            hint="a state is a JSON object: lists instead of tuples, keys of text, finite numbers",
        ) from None


def read(part: Part) -> tuple[SavedServer, tuple[ResourceSnapshot, ...]]:
    """Read and check the part.

    Raises:
        FormatError: If its files do not agree.
        SnapfmtError: If it cannot be read.
    """
    server = read_server(part)
    sessions = tuple(records(part))
    if len(sessions) != server.sessions:
        raise FormatError(
            f"{len(sessions)} sessions, the server's document says {server.sessions}",
            what=part.name,
            hint=parts.DAMAGED,
        )
    if len({item.rollout_id for item in sessions}) != len(sessions):
        raise FormatError("a rollout has two sessions", what=part.name, hint=parts.DAMAGED)
    return server, sessions


def records(part: Part) -> Iterator[ResourceSnapshot]:
    """Every session of the part, in no order.

    Raises:
        FormatError: If a row is no session, or is that of another run.
        SnapfmtError: If it cannot be read.
    """
    if _is_old(part):
        yield from part.records(OLD_SESSIONS, ResourceSnapshot)
        return
    known = revisions(part)
    for key, line in parts.texts(part.table(parts.table_name(SESSIONS, part.name)), SESSION):
        try:
            record = from_line(ResourceSnapshot, line.encode())
        except (ValueError, RecursionError) as error:
            raise FormatError(
                f"not a session: {error}",
                what=f"{part.name}/{key}",
                hint=parts.DAMAGED,
            ) from error
        run = capture_key(record.rollout_id, record.attempt_index)
        if key != session_key(record.rollout_id, record.attempt_index) or (
            record.state_revision != known.get(run)
        ):
            raise FormatError(
                "a row is not the session that it says",
                what=f"{part.name}/{key}",
                hint=parts.DAMAGED,
            )
        yield record


def read_server(part: Part) -> SavedServer:
    """What the part says of its server.

    Raises:
        FormatError: If it does not say it.
        SnapfmtError: If it cannot be read.
    """
    try:
        return SavedServer.model_validate_json(part.read(SERVER))
    except ValueError as error:
        raise FormatError(
            f"not a server document: {error}",
            what=part.name,
            hint=parts.DAMAGED,
        ) from error


def revisions(part: Part) -> dict[str, int]:
    """The revision of each session, by capture key; blocks. No state is read.

    Raises:
        SnapfmtError: If it cannot be read.
    """
    if _is_old(part):
        return _old_revisions(part)
    table = part.table(parts.table_name(SESSIONS, part.name))
    found: dict[str, int] = {}
    for batch in table.batches([REVISION] if table.num_rows else None):
        values = batch.columns.get(REVISION)
        for row, key in enumerate(batch.keys):
            name = _run_of(key, f"{part.name}/{table.name}")
            revision = None if values is None else values.value(row)
            if type(revision) is not int or name in found:
                raise FormatError(
                    "a session has no revision, or comes twice",
                    what=f"{part.name}/{key}",
                    hint=parts.DAMAGED,
                )
            found[name] = revision
    return found


def session_key(rollout_id: str, attempt_index: int) -> str:
    """Key of a session's row."""
    return f"{rollout_id}/{attempt_index}"


def _run_of(key: str, what: str) -> str:
    """The capture key of the run that a session's row is of."""
    rollout_id, _, number = key.partition("/")
    if not number.isdecimal() or session_key(rollout_id, int(number)) != key:
        raise FormatError(f"{key!r} is not the key of a session", what=what, hint=parts.DAMAGED)
    return capture_key(rollout_id, int(number))


def _is_old(part: Part) -> bool:
    """Whether it was written before sessions were rows."""
    return any(entry.path == OLD_SESSIONS for entry in part.entries())


def _old_revisions(part: Part) -> dict[str, int]:
    """States are opaque and may be large: only what stands before a state is parsed."""
    found: dict[str, int] = {}
    for line in part.lines(OLD_SESSIONS):
        rollout_id, attempt_index, revision = _head(line, part.name)
        found[capture_key(rollout_id, attempt_index)] = revision
    return found


def _head(line: bytes, what: str) -> tuple[str, int, int]:
    head, found, _ = line.partition(_STATE)
    try:
        value = json.loads(head + b"}" if found else line)
        rollout_id, attempt_index, revision = map(value.__getitem__, _HEAD)
        if [type(item) for item in (rollout_id, attempt_index, revision)] == [str, int, int]:
            return rollout_id, attempt_index, revision
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        pass
    # Its fields are in another order, or it is no session.
    try:
        record = from_line(ResourceSnapshot, line)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"not a session: {error}", what=what, hint=parts.DAMAGED) from error
    return record.rollout_id, record.attempt_index, record.state_revision
