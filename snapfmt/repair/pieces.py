"""The place for pieces: a repository of its own, which nothing takes for one to restore from."""

import contextlib
from typing import Any

from snapfmt.errors import CommitConflict, SnapfmtError
from snapfmt.format import compat, layout
from snapfmt.limits import Limits
from snapfmt.reading.snapshot import Snapshot
from snapfmt.repair.report import Loss
from snapfmt.repair.survey import PartPieces, Survey
from snapfmt.repository import Repository
from snapfmt.storage.base import Store
from snapfmt.writing.attempt import Attempt
from snapfmt.writing.lease import LEASE_SECONDS, hold, new_lease, over
from snapfmt.writing.reclaim import reclaim
from snapfmt_schemas.attempt import Receipt
from snapfmt_schemas.manifest import Features, Manifest

FEATURES = Features(read=(compat.SALVAGE,), write=(compat.SALVAGE,), collect=(compat.SALVAGE,))
MEMBER = "salvage"
"""Of the extensions of a manifest: what its pieces are of, and what is lost."""
LOSSES = 10_000
"""That a manifest lists; the report has all."""


def tidy(pieces: Repository) -> None:
    """Remove what an earlier try left that was killed."""
    for attempt_id in over(pieces.store, pieces.limits):
        # Nothing but a repair of the same source writes here, so that no name need be closed.
        reclaim(pieces.store, attempt_id, by_owner=True)


def salvage(pieces: Repository, snapshot: Snapshot, survey: Survey) -> bool:
    """Write what is good of a damaged snapshot under its number; returns whether this wrote it.

    Raises:
        CommitConflict: If pieces of another snapshot have the number.
        SnapfmtError: As a save.
    """
    original = snapshot.manifest
    if original.number in pieces.numbers():
        _check_same(pieces, original)
        return False
    with _begin(pieces.store, original.number, pieces.id, pieces.limits) as attempt:
        receipts = [_write(attempt, part) for part in survey.parts]
        attempt.publish(
            receipts,
            anchor=original.anchor,
            user_metadata=original.user_metadata,
            features=FEATURES,
            extensions={MEMBER: _said(original, survey.losses)},
        )
    return True


def _check_same(pieces: Repository, original: Manifest) -> None:
    there = pieces.snapshot(original.number).manifest.extensions.get(MEMBER)
    if not isinstance(there, dict) or there.get("write_id") != original.write_id:
        raise CommitConflict(
            "the place for pieces has those of another snapshot of this number",
            what=layout.snapshot_name(original.number),
            hint="give an empty place",
        )


def _said(original: Manifest, losses: list[Loss]) -> dict[str, Any]:
    return {
        "number": original.number,
        "write_id": original.write_id,
        "attempt_id": original.attempt_id,
        "repository_id": original.repository_id,
        "created_at_ns": original.created_at_ns,
        "fingerprints": {item.name: item.digest for item in original.fingerprints},
        "losses": [item.as_json(0) for item in losses[:LOSSES]],
        "more_losses": max(len(losses) - LOSSES, 0),
    }


def _begin(store: Store, number: int, owner: str, limits: Limits) -> Attempt:
    """A save of its own: `Repository.begin` refuses here, as anybody else's save is to be."""
    store.prepare()
    lease = new_lease(number, base=None, seconds=LEASE_SECONDS)
    hold(store, lease)
    return Attempt(store, lease, repository_id=owner, limits=limits)


def _write(attempt: Attempt, found: PartPieces) -> Receipt:
    """One part, under its name, by the writer of every part."""
    part = found.part
    with attempt.part(part.name, workers=1) as writer:
        for entry in found.entries:
            writer.stage(entry.path, part.stored(entry.path), media_type=entry.media_type)
        for item in found.files:
            writer.records(item.path, found.lines(item), redact=False)
        for table in found.tables:
            with writer.table(table.name, schema_id=table.schema_id) as rows:
                rows.append_stored(batch.read() for batch in table.batches)
        _renew(attempt)
        return writer.seal()


def _renew(attempt: Attempt) -> None:
    # Tickets keep the deadline of their making: a part that took longer than a lease fails.
    with contextlib.suppress(SnapfmtError):
        attempt.renew(LEASE_SECONDS)
