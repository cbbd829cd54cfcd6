"""One try at a snapshot: tickets out, receipts in, then publish or abandon.

Holds at any time (spec/v1/07-writing.md): a manifest lists only parts whose receipts say that
they are durable, and it appears in one exclusive step. An outcome that cannot be known is
raised as such, and nothing is deleted after it.
"""

import contextlib
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Self

from pydantic import ValidationError

from snapfmt._version import __version__
from snapfmt.errors import (
    AttemptClosed,
    CommitConflict,
    CommitOutcomeUnknown,
    ConflictError,
    CorruptError,
    InputError,
    LeaseExpired,
    LimitExceeded,
    MissingObject,
    NotFoundError,
    OutcomeUnknownError,
    SnapfmtError,
)
from snapfmt.format import canonical, digest, layout
from snapfmt.format.reach import check_counts, extents
from snapfmt.limits import DEFAULT_LIMITS, Limits
from snapfmt.reading.snapshot import Snapshot
from snapfmt.storage.base import Store
from snapfmt.threads import together
from snapfmt.writing.base import check_reach
from snapfmt.writing.lease import check_seconds, give_back, renewed
from snapfmt.writing.part import PartWriter
from snapfmt.writing.reclaim import reclaim
from snapfmt_schemas import redaction
from snapfmt_schemas.attempt import Lease, Receipt, Ticket
from snapfmt_schemas.fingerprint import Fingerprint
from snapfmt_schemas.manifest import BaseSnapshot, Features, Manifest, TrainerAnchor
from snapfmt_schemas.part import PartIndex
from snapfmt_schemas.timeline import PhaseTimeline

WRITER = f"snapfmt {__version__}"


class Attempt:
    """A running save; made by `Repository.begin`. Leaving its context abandons it."""

    def __init__(
        self,
        store: Store,
        lease: Lease,
        *,
        repository_id: str,
        base: Snapshot | None = None,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self.id = lease.attempt_id
        self.number = lease.number
        self.base = lease.base
        """Number of the snapshot that the parts may go on with."""
        self._store = store
        self._lease = lease
        self._repository_id = repository_id
        self._base = base
        self._limits = limits
        self._closed = False
        self._pid = os.getpid()
        self._parts: list[PartWriter] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.abandon()

    @property
    def expires_at_ns(self) -> int:
        """When the lease ends, in nanoseconds since the epoch."""
        return self._lease.expires_at_ns

    def ticket(self, part: str) -> Ticket:
        """What another process needs to write this part; JSON-able, without secrets."""
        self._check_open()
        try:
            return Ticket(
                location=self._store.location,
                repository_id=self._repository_id,
                attempt_id=self.id,
                number=self.number,
                part=part,
                deadline_ns=self._lease.expires_at_ns,
            )
        except ValidationError as error:
            raise InputError("not a name of a part", what=part) from error

    def part(self, name: str, *, workers: int | None = None) -> PartWriter:
        """A writer for a part in this process."""
        part = PartWriter(self._store, self.ticket(name), workers=workers, base=self._base)
        self._parts.append(part)
        return part

    def renew(self, seconds: float) -> None:
        """Extend the lease to `seconds` from now.

        Raises:
            LeaseExpired: If the attempt was taken over.
            InputError: If it is no number of seconds.
        """
        self._check_open()
        check_seconds(seconds)
        self._check_lease()
        self._lease = renewed(self._lease, seconds)
        self._store.replace(layout.lease_key(self.id), canonical.encode(self._lease))

    def publish(
        self,
        receipts: Sequence[Receipt],
        *,
        fingerprints: Sequence[Fingerprint] = (),
        anchor: TrainerAnchor | None = None,
        timeline: PhaseTimeline | None = None,
        user_metadata: Mapping[str, Any] | None = None,
        write_id: str | None = None,
        features: Features | None = None,
        extensions: Mapping[str, Any] | None = None,
    ) -> Manifest:
        """Make the snapshot exist, in one exclusive step.

        Raises:
            CommitConflict: If another attempt published this number; nothing was changed.
            CommitOutcomeUnknown: If it may or may not have happened; nothing was deleted.
            LeaseExpired: If the attempt was taken over or its lease ran out; not published.
            InputError: If a receipt belongs to another attempt or a part comes twice.
            SnapfmtError: If a part is not whole, or the storage failed; not published.
        """
        self._check_open()
        if time.time_ns() > self._lease.expires_at_ns:
            raise LeaseExpired("the lease ran out", what=self.id, hint="renew it, or save anew")
        self._check_lease()
        metadata = {} if user_metadata is None else user_metadata
        if not isinstance(metadata, Mapping):
            raise InputError("user_metadata is a mapping", what=repr(metadata)[:80])
        canonical.check_strict(dict(metadata), what="user_metadata")
        if not _are(Fingerprint, fingerprints):
            raise InputError(
                "fingerprints are made by Fingerprint.of", what=repr(fingerprints)[:80]
            )
        _check_fingerprints(fingerprints)
        try:
            self._check_receipts(receipts)
        except NotFoundError:
            # Taken over just now: its objects are gone because the attempt is.
            self._check_lease()
            raise
        try:
            manifest = Manifest(
                features=features or Features(),
                repository_id=self._repository_id,
                number=self.number,
                attempt_id=self.id,
                write_id=write_id or secrets.token_hex(16),
                base=self._reference(),
                created_at_ns=time.time_ns(),
                writer=WRITER,
                parts=tuple(sorted(receipts, key=lambda receipt: receipt.part)),
                fingerprints=tuple(fingerprints),
                anchor=anchor,
                timeline=timeline,
                user_metadata=redaction.redact(dict(metadata))[0],
                extensions=dict(extensions or {}),
            ).sealed()
            data = canonical.encode(manifest)
        except (ValueError, TypeError, RecursionError) as error:
            raise InputError(f"the manifest cannot hold this: {error}") from error
        self._check_readable(data)
        self._commit(manifest, data)
        self._close()
        return manifest

    def _check_readable(self, data: bytes) -> None:
        """Whether a reader gets back what was meant; afterwards it is too late."""
        limit = self._limits.manifest_size
        try:
            found = canonical.decode(
                data, Manifest, what=layout.MANIFEST, size_limit=limit, limits=self._limits
            )
        except CorruptError as error:
            raise InputError(f"the manifest could not be read back: {error}") from error
        if canonical.encode(found) != data:
            raise InputError("the manifest could not be read back as it is")
        what = layout.MANIFEST
        self._limits.check("parts", len(found.parts), what=what)
        self._limits.check("tables", sum(len(item.tables) for item in found.parts), what=what)

    def _commit(self, manifest: Manifest, data: bytes) -> None:
        folder = f"{layout.SNAPSHOTS}/{layout.snapshot_name(self.number)}"
        workspace = layout.workspace_key(self.id)
        try:
            self._store.publish(workspace, folder, layout.MANIFEST, data)
        except SnapfmtError as error:
            outcome = self._read_back(manifest, data, error)
            if outcome == "ours" and not isinstance(error, OutcomeUnknownError):
                self._settle(error)
                return
            if outcome == "theirs":
                raise CommitConflict(
                    "another attempt published this number",
                    what=layout.snapshot_name(self.number),
                    hint="begin a new attempt; it gets the next number",
                ) from error
            if outcome == "unknown" or isinstance(error, OutcomeUnknownError):
                self._closed = True
                raise CommitOutcomeUnknown(
                    f"the publication may or may not have happened ({error})",
                    what=layout.snapshot_name(self.number),
                    hint="`snapfmt attempts` tells it later; nothing was deleted",
                ) from error
            raise
        if self._read_back(manifest, data, None) != "ours":
            # A link in the way, or a folder that another mount hides: readers would not find it.
            self._closed = True
            raise CommitOutcomeUnknown(
                "the publication succeeded, but reading it back did not",
                what=layout.snapshot_name(self.number),
                hint="look whether a link or a mount stands inside the repository",
            )

    def _settle(self, cause: SnapfmtError) -> None:
        """Make a publication durable whose reply was lost."""
        try:
            self._store.sync([layout.manifest_key(self.number)])
        except SnapfmtError as error:
            self._closed = True
            raise CommitOutcomeUnknown(
                f"published, but perhaps not durable yet ({cause}; {error})",
                what=layout.snapshot_name(self.number),
                hint="`snapfmt attempts` tells it later; nothing was deleted",
            ) from error

    def _read_back(self, manifest: Manifest, data: bytes, error: SnapfmtError | None) -> str:
        """Whose manifest lies at the final name: `ours`, `theirs`, `none` or `unknown`."""
        key = layout.manifest_key(self.number)
        try:
            stored = self._store.get(key, limit=self._limits.manifest_size)
            if stored == data:
                return "ours"
            found = canonical.decode(
                stored, Manifest, what=key, size_limit=self._limits.manifest_size
            )
        except MissingObject:
            # A folder in the way without a manifest is no snapshot, and not ours to remove.
            return "theirs" if isinstance(error, ConflictError) else "none"
        except (CorruptError, LimitExceeded):
            return "theirs"
        except SnapfmtError:
            return "unknown"
        return "ours" if found.write_id == manifest.write_id else "theirs"

    def _check_receipts(self, receipts: Sequence[Receipt]) -> None:
        if not _are(Receipt, receipts):
            raise InputError("receipts are what PartWriter.seal returned", what=repr(receipts)[:80])
        names = [receipt.part.casefold() for receipt in receipts]
        if len(set(names)) != len(names):
            raise InputError("a part comes twice", what=", ".join(sorted(names)))
        for receipt in receipts:
            if receipt.attempt_id != self.id:
                raise InputError("the receipt belongs to another attempt", what=receipt.part)
        workers = self._store.at_once
        indexes = together([partial(self._index, item) for item in receipts], workers=workers)
        ends: dict[str, int] = {}
        for receipt, index in zip(receipts, indexes, strict=True):
            if index.part != receipt.part or index.attempt_id != self.id:
                raise InputError(f"the receipt points at part {index.part!r}", what=receipt.part)
            for pack, end in extents(index).items():
                ends[pack] = max(end, ends.get(pack, 0))
        keys = [layout.object_key(pack) for pack in ends]
        sizes = together([partial(self._store.size, key) for key in keys], workers=workers)
        for (pack, end), size in zip(ends.items(), sizes, strict=True):
            if size is None or size < end:
                raise MissingObject(
                    "a part reaches an object that is not there",
                    what=pack,
                    hint="the part's writer lost it; begin a new attempt",
                )
        if self._base is not None:
            check_reach(self._store, self.id, ends, self._base)

    def _reference(self) -> BaseSnapshot | None:
        if self._base is None:
            return None
        return BaseSnapshot(number=self._base.number, write_id=self._base.manifest.write_id)

    def _index(self, receipt: Receipt) -> PartIndex:
        key = layout.object_key(receipt.index_digest)
        data = self._store.get(key, limit=self._limits.part_index_size)
        digest.check_size(len(data), receipt.index_size, what=key)
        digest.check(data, receipt.index_digest, what=key)
        index = canonical.decode(data, PartIndex, what=key, size_limit=self._limits.part_index_size)
        check_counts(index, self._limits, what=key)
        return index

    def abandon(self) -> None:
        """Give the attempt and its open parts up and remove what it wrote.

        A no-op once it is over, and in a forked child, which owns nothing.
        """
        if self._pid != os.getpid():
            return
        for part in self._parts:
            part.abandon()
        if self._closed:
            return
        self._closed = True
        try:
            reclaim(self._store, self.id, by_owner=True)
        except SnapfmtError:
            give_back(self._store, self.id)
            raise

    def _close(self) -> None:
        self._closed = True
        # It is published: what stays behind is the next clean-up's, and no failure of this save.
        with contextlib.suppress(SnapfmtError):
            self._store.drop_workspace(layout.workspace_key(self.id))
            self._store.delete(layout.lease_key(self.id))

    def _check_open(self) -> None:
        if self._closed:
            raise AttemptClosed("the attempt was published or abandoned", what=self.id)

    def _check_lease(self) -> None:
        if not self._store.has_workspace(layout.workspace_key(self.id)):
            raise LeaseExpired("the attempt was taken over", what=self.id, hint="start a new save")


def _are(kind: type, items: object) -> bool:
    return isinstance(items, Sequence) and all(isinstance(item, kind) for item in items)


def _check_fingerprints(fingerprints: Sequence[Fingerprint]) -> None:
    """A fingerprint is stored as it is, or its digest would not match: nothing secret in it."""
    for item in fingerprints:
        _, hidden = redaction.redact(item.content)
        if hidden:
            raise InputError(
                "a fingerprint holds what is secret by its name",
                what=f"{item.name}.{hidden[0]}",
                hint="leave it out before Fingerprint.of; Recipe.of does",
            )
