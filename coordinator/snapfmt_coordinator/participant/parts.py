"""A participant's part on disk: opened for writing, and read before and after publication.

Everything here blocks, so participants call it in a worker thread.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from snapfmt.errors import ControlRefused, CorruptObject, FormatError, InputError, SnapfmtError
from snapfmt.reading.snapshot import Part
from snapfmt.reading.source import Source
from snapfmt.reading.table import TableReader
from snapfmt.repository import Repository
from snapfmt.writing.part import PartWriter
from snapfmt_coordinator.protocol.codes import Reason, described, refused
from snapfmt_coordinator.protocol.v1 import PublishedPart, ReferenceIndex
from snapfmt_schemas.attempt import Receipt, Ticket

DAMAGED: Final = "verify the snapshot, and restore another one"
LOOK: Final = "look at this server's log, which has the traceback, and at its storage"
_LOG = logging.getLogger(__name__)
WORKERS = 1
"""Encoder threads of a part of JSON records."""


def open_part(ticket: Ticket) -> PartWriter:
    """A writer for the part that a ticket names."""
    return Repository.join(ticket, workers=WORKERS)


def sealed_part(ticket: Ticket, receipt: Receipt) -> Part:
    """A sealed part of the ticket's attempt, before anything is published.

    Raises:
        InputError: If the receipt is of another attempt, or the ticket of another repository.
        SnapfmtError: If it cannot be read.
    """
    if receipt.attempt_id != ticket.attempt_id:
        raise InputError(
            "the receipt is of another attempt",
            what=receipt.part,
            hint="give the receipts of the attempt that the ticket is for",
        )
    repository = Repository.open(ticket.location)
    if repository.id != ticket.repository_id:
        raise InputError(
            "the ticket is for another repository",
            what=ticket.location,
            hint="check that all servers see the same repository at this place",
        )
    source = Source(repository.store, repository.limits)
    return Part(source, receipt, snapshot=f"attempt {ticket.attempt_id}")


def published_part(place: PublishedPart) -> Part:
    """A part of a published snapshot, which must be the one that the place means.

    Raises:
        CorruptObject: If the snapshot has another part of that name.
        SnapfmtError: If it cannot be read.
    """
    part = Repository.open(place.location).snapshot(place.number).part(place.part)
    if part.receipt.index_digest != place.index_digest:
        raise CorruptObject(
            "the snapshot has another part of this name",
            what=place.part,
            expected=place.index_digest,
            got=part.receipt.index_digest,
            hint="name the snapshot that the part was announced for",
        )
    return part


def reference(part: Part, path: str) -> ReferenceIndex:
    """Where a record file of a part lies, as commit and restore both tell it."""
    entry = part.entry(path)
    return ReferenceIndex(
        part=part.name, path=path, digest=entry.digest, records=entry.records or 0
    )


def table_name(kind: str, part: str) -> str:
    """Name of a server's table: `gym/agent/swe` has `items/swe`."""
    return f"{kind}/{part.split('/', 2)[-1]}"


def texts(table: TableReader, *columns: str) -> Iterator[tuple[str, ...]]:
    """Key and texts of every row, in order, each key once.

    Raises:
        FormatError: If a key repeats, or a row has no text there.
        SnapfmtError: If it cannot be read.
    """
    seen: set[str] = set()
    for batch in table.batches(columns if table.num_rows else None):
        found = [batch.columns.get(name) for name in columns]
        values = [item for item in found if item is not None and item.signature.kind == "text"]
        if len(values) != len(columns) or any(item.present is not None for item in values):
            raise FormatError(
                f"rows without text in {', '.join(columns)}", what=table.name, hint=DAMAGED
            )
        for row, key in enumerate(batch.keys):
            if key in seen:
                raise FormatError(f"key {key!r} comes twice", what=table.name, hint=DAMAGED)
            seen.add(key)
            yield key, *(item.value(row) for item in values)


@contextmanager
def failing_as(reason: Reason, doing: str) -> Iterator[None]:
    """Turn whatever fails while a part is written or read into one refusal."""
    try:
        yield
    except ControlRefused:
        raise
    except (SnapfmtError, OSError, ValueError) as error:
        raise failure(reason, doing, error) from error


def failure(reason: Reason, doing: str, error: Exception) -> ControlRefused:
    """The refusal for what failed; the log has the error itself.

    The text of a foreign error may hold state, so its caller is told of its kind only.
    """
    _LOG.error("%s", doing, exc_info=error)
    if isinstance(error, SnapfmtError):
        return refused(
            reason,
            f"{doing}: {error.code}: {error.message}",
            what=error.what,
            hint=error.hint or LOOK,
        )
    return refused(reason, f"{doing}: {described(error)}", hint=LOOK)
