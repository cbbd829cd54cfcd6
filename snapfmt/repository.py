"""The front door: open or create a repository, begin a save, find a snapshot."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from snapfmt.errors import (
    ConflictError,
    InputError,
    LeaseExpired,
    MissingObject,
    NotPublished,
    SnapfmtError,
    SnapshotExists,
    StoreNotFound,
)
from snapfmt.format import compat, layout
from snapfmt.limits import DEFAULT_LIMITS, Limits
from snapfmt.reading.folders import check_all, check_tops
from snapfmt.reading.newest import Selection, newest
from snapfmt.reading.report import VerifyReport
from snapfmt.reading.snapshot import Snapshot
from snapfmt.reading.verify import Progress, verify
from snapfmt.storage.base import Store
from snapfmt.storage.urls import open_store, store_at
from snapfmt.writing.attempt import Attempt
from snapfmt.writing.collect import Collecting, CollectReport
from snapfmt.writing.founding import found
from snapfmt.writing.lease import LEASE_SECONDS, check_seconds, hold, leases, new_lease, over
from snapfmt.writing.part import PartWriter, decode_ticket
from snapfmt.writing.pins import pin, pins, unpin
from snapfmt.writing.reclaim import reclaim
from snapfmt.writing.retire import Retirement
from snapfmt_schemas.attempt import Lease, Ticket
from snapfmt_schemas.fingerprint import Fingerprint
from snapfmt_schemas.identity import MAX_COUNT
from snapfmt_schemas.manifest import RepositoryDocument
from snapfmt_schemas.pin import Pin

R = TypeVar("R", Retirement, Collecting)


class Repository:
    """A folder, or a prefix in a bucket, that holds one run's snapshots."""

    def __init__(self, store: Store, document: RepositoryDocument, *, limits: Limits) -> None:
        self._store = store
        self._document = document
        self._limits = limits
        self._gone: set[int] = set()
        """Numbers that were retired for good."""

    @classmethod
    def open(
        cls,
        location: "str | os.PathLike[str] | Store",
        *,
        create: bool = False,
        limits: Limits = DEFAULT_LIMITS,
        repository_id: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        salvage: bool = False,
    ) -> "Repository":
        """Open the repository at a path or URL; with `create`, make it if there is none.

        A location is a path, `s3://bucket/prefix` with the `storage_options` of s3fs, or a store.
        `salvage` also opens one of pieces of damaged snapshots, to look at them and nothing else.

        Raises:
            StoreNotFound: If there is no repository.
            RefusedError: If it holds pieces of damaged snapshots, and `salvage` is not set.
            UnsupportedVersion, UnsupportedFeature: If this library cannot read it.
            UnsupportedFilesystem: If it cannot be created safely here.
            StorageError: If the storage failed.
        """
        store = store_at(location, create=create, storage_options=storage_options)
        try:
            data = store.get(layout.REPOSITORY_KEY, limit=limits.lease_size)
        except MissingObject as error:
            if not create:
                raise StoreNotFound(
                    "no snapfmt.json here",
                    what=store.location,
                    hint="check the path, or create the repository with create=True",
                ) from error
            found(store, repository_id=repository_id)
            data = store.get(layout.REPOSITORY_KEY, limit=limits.lease_size)
        document = compat.decode_root(
            data, RepositoryDocument, what=layout.REPOSITORY_KEY, size_limit=limits.lease_size
        )
        if not salvage:
            compat.refuse_salvage(document.features, what=store.location)
        return cls(store, document, limits=limits)

    @classmethod
    def create(
        cls,
        location: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, Any] | None = None,
    ) -> "Repository":
        """Make a new repository.

        Raises:
            ConflictError: If there is one already.
        """
        store = open_store(location, create=True, storage_options=storage_options)
        if store.size(layout.REPOSITORY_KEY) is not None:
            raise ConflictError("there is a repository already", what=store.location)
        return cls.open(store, create=True)

    @classmethod
    def join(
        cls,
        ticket: Ticket | str | bytes,
        *,
        workers: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> PartWriter:
        """A writer for the part that a ticket names; for a process that holds nothing else.

        A ticket has no credentials: they come from the environment or `storage_options`.

        Raises:
            InputError: If the ticket is not one, or is another repository's.
            LeaseExpired: If the attempt is over.
        """
        known = ticket if isinstance(ticket, Ticket) else decode_ticket(ticket)
        repository = cls.open(known.location, storage_options=storage_options)
        if repository.id != known.repository_id:
            raise InputError("the ticket is for another repository", what=known.location)
        return PartWriter(repository._store, known, workers=workers)

    @property
    def id(self) -> str:
        """The repository's id, 32 hex digits."""
        return self._document.repository_id

    @property
    def document(self) -> RepositoryDocument:
        """`snapfmt.json`."""
        return self._document

    @property
    def is_salvage(self) -> bool:
        """Whether it holds pieces of damaged snapshots, none of them whole."""
        return compat.SALVAGE in self._document.features.read

    @property
    def location(self) -> str:
        """Absolute path or URL of the repository; holds no secret."""
        return self._store.location

    @property
    def store(self) -> Store:
        """The storage backend."""
        return self._store

    @property
    def limits(self) -> Limits:
        """Bounds that reads obey."""
        return self._limits

    def numbers(self) -> list[int]:
        """Numbers of the published snapshots, ascending."""
        return sorted(
            number
            for name in self._store.holding(layout.SNAPSHOTS, layout.MANIFEST)
            if (number := layout.snapshot_number(name)) is not None and number not in self._gone
        )

    def snapshot(self, number: int | None = None) -> Snapshot:
        """A published snapshot; the newest without a number.

        Raises:
            NotPublished: If there is none.
            UnsupportedVersion, UnsupportedFeature: If this library cannot read it.
            FormatError: If its manifest is damaged.
        """
        if number is None:
            numbers = self.numbers()
            if not numbers:
                raise NotPublished("no snapshot was published here", what=self.location)
            number = numbers[-1]
        _check_number(number, "number")
        return Snapshot.open(self._store, number, repository_id=self.id, limits=self._limits)

    def latest(
        self,
        *,
        fingerprints: Sequence[Fingerprint] = (),
        verify_shallow: bool = True,
        deep: bool = False,
    ) -> Selection:
        """The newest snapshot that is whole and whose fingerprints equal the given ones.

        Raises:
            NoMatch: If none fits; says of each one why.
            FingerprintMismatch: The same, where fingerprints alone were the reason.
            RefusedError: If the repository holds pieces of damaged snapshots.
        """
        compat.refuse_salvage(self._document.features, what=self.location)
        return newest(
            self._store,
            self.numbers(),
            self.snapshot,
            location=self.location,
            fingerprints=fingerprints,
            shallow=verify_shallow,
            deep=deep,
        )

    def begin(
        self,
        *,
        number: int | None = None,
        base: int | None = None,
        lease_seconds: float = LEASE_SECONDS,
        attempt_id: str | None = None,
    ) -> Attempt:
        """Start a save; first cleans up what dead attempts left.

        Raises:
            SnapshotExists: If the number is taken.
            UnsupportedFilesystem: If a safe publication is not possible here.
            StorageError: If the storage cannot be written.
            OutcomeUnknownError: If no answer said whether the save was begun.
        """
        compat.require(self._document.features, "write", what=layout.REPOSITORY_KEY)
        for name, value in (("number", number), ("base", base)):
            if value is not None:
                _check_number(value, name)
        check_seconds(lease_seconds)
        if base is not None and not 0 <= base <= MAX_COUNT:
            raise InputError("base is the number of a snapshot", what=str(base))
        if attempt_id is not None and not layout.is_attempt_id(attempt_id):
            raise InputError("an attempt id is 32 hex digits", what=repr(attempt_id))
        self._store.prepare()
        self.clean_up()
        chosen = self._next_number() if number is None else number
        if layout.snapshot_number(layout.snapshot_name(chosen)) != chosen:
            raise InputError("not a number of a snapshot", what=str(chosen))
        name = layout.snapshot_name(chosen)
        if number is not None and layout.DOCUMENTS & set(
            self._store.names(f"{layout.SNAPSHOTS}/{name}")
        ):
            raise SnapshotExists("the number is or was a snapshot's", what=name)
        lease = new_lease(chosen, base=base, seconds=lease_seconds, attempt_id=attempt_id)
        hold(self._store, lease)
        try:
            known = self._base_of(lease)
        except SnapfmtError:
            reclaim(self._store, lease.attempt_id)
            raise
        return Attempt(self._store, lease, repository_id=self.id, base=known, limits=self._limits)

    def _next_number(self) -> int:
        """Also what was retired keeps its number, as does a folder without a manifest."""
        numbers = map(layout.snapshot_number, self._store.names(layout.SNAPSHOTS))
        return max((number for number in numbers if number is not None), default=0) + 1

    def _base_of(self, lease: Lease) -> Snapshot | None:
        """The base, looked at once the lease is there: a retirement sees one or the other."""
        if self._store.size(layout.lease_key(lease.attempt_id)) is None:
            raise LeaseExpired("the attempt was taken over as it began", what=lease.attempt_id)
        return None if lease.base is None else self.snapshot(lease.base)

    def leases(self) -> list[Lease]:
        """Leases of attempts that were not published, abandoned or cleaned up."""
        return leases(self._store, self._limits)

    def clean_up(self) -> list[str]:
        """Reclaim what attempts left that ran out or whose process is dead; returns their ids.

        So is what has no lease, which no running attempt is without.
        """
        check_tops(self._store)
        gone = over(self._store, self._limits)
        for attempt_id in gone:
            reclaim(self._store, attempt_id)
        return gone

    def retire(self, number: int) -> None:
        """Take a published snapshot out, and remove what nothing else reaches.

        It is out in one step. A crash after that leaves objects that the next call removes.
        The number stays taken.

        Raises:
            NotPublished: If there is none of that number.
            RefusedError: If a running save builds on it, it is pinned, or something is unknown
                that may reach what would go.
            UnsupportedFeature: If a snapshot needs a feature that this library lacks.
            LeaseExpired: If it took so long that another one took it over; retire again.
            StorageError: If the storage failed; it may be out, and the next call goes on.
        """
        _check_number(number, "number")
        self._retirement().retire(number)

    def keep_latest(self, count: int) -> list[int]:
        """Retire all but the newest `count` whole snapshots; returns the numbers, ascending.

        What is pinned or a running save builds on stays as well, and the newest always does.
        Also finishes what earlier calls left. Raises as `retire`.
        """
        return self._retirement().keep_latest(count)

    def surplus(self, count: int) -> list[int]:
        """Numbers that `keep_latest` would retire, ascending; nothing is changed."""
        compat.require(self._document.features, "collect", what=layout.REPOSITORY_KEY)
        return self._of(Retirement).spare(count)

    def _retirement(self) -> Retirement:
        self._check_may_remove()
        self.clean_up()
        return self._of(Retirement)

    def _check_may_remove(self) -> None:
        for operation in ("write", "collect"):
            compat.require(self._document.features, operation, what=layout.REPOSITORY_KEY)

    def _of(self, kind: "type[R]") -> "R":
        check_all(self._store, self._gone)
        return kind(self._store, repository_id=self.id, limits=self._limits, gone=self._gone)

    def collect(self, *, dry_run: bool = False) -> CollectReport:
        """Remove objects that nothing reaches, and finish retirements that were cut short.

        Safe beside saves, copies, readers and other collections. Also cleans up what dead
        attempts left. With `dry_run` nothing is written, and the report says what would go.

        Raises:
            RefusedError: If something is unknown that may reach what would go; nothing went.
            UnsupportedFeature: If a snapshot needs a feature that this library lacks.
            LeaseExpired: If it took so long that another one took it over; collect again.
            StorageError: If the storage failed; the next call goes on.
        """
        self._check_may_remove()
        return self._of(Collecting).run(dry_run=dry_run)

    def pin(self, name: str, number: int) -> Pin:
        """Keep a published snapshot from being retired, until it is unpinned.

        Waits some seconds for a retirement that runs.

        Raises:
            NotPublished: If it is not published, or was taken out meanwhile.
            SnapshotBusy: If a retirement did not end in time; not pinned, so try again.
            LeaseExpired: If it took so long that another one took it for dead; look and try again.
            ConflictError: If the name pins another one.
            InputError: If the name is no name of a pin.
        """
        _check_number(number, "number")
        compat.require(self._document.features, "write", what=layout.REPOSITORY_KEY)
        check_tops(self._store)
        return pin(self._store, name, number, self._limits)

    def unpin(self, name: str) -> None:
        """Remove a pin; `NoMatch` if there is none of that name."""
        unpin(self._store, name)

    def pins(self) -> dict[str, int]:
        """Every pin and the number that it keeps; `RefusedError` if one cannot be read."""
        return pins(self._store, self._limits)

    def verify(
        self,
        number: int | None = None,
        *,
        deep: bool = True,
        decode: bool = True,
        progress: Progress | None = None,
    ) -> VerifyReport:
        """Check one snapshot, or all and what lies beside them; damage is listed, not raised.

        Deep reads and hashes every byte; `decode=False` leaves out what it decodes beyond that,
        which takes several times as long and finds what a faulty writer did, not a faulty disk.
        """
        return verify(
            self._store,
            None if number is None else [number],
            deep=deep,
            decode=decode,
            progress=progress,
            repository_id=self.id,
            limits=self._limits,
        )


def _check_number(value: object, name: str) -> None:
    if type(value) is not int:
        raise InputError(f"{name} is a whole number", what=repr(value))
