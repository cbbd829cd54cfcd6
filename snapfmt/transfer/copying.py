"""One snapshot from one repository to another: objects first, then the manifest, byte for byte."""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from snapfmt.errors import (
    CommitConflict,
    CommitOutcomeUnknown,
    ConflictError,
    FormatError,
    InputError,
    MissingObject,
    NotPublished,
    OutcomeUnknownError,
    RefusedError,
    SnapfmtError,
    SnapshotExists,
)
from snapfmt.format import canonical, compat, layout
from snapfmt.repository import Repository
from snapfmt.storage.base import Store
from snapfmt.transfer.checks import (
    check_call,
    check_flag,
    check_location,
    check_pair,
    check_repository,
    check_whole,
)
from snapfmt.transfer.claim import (
    Claim,
    foreign_objects,
    hurriedly_close,
    quietly_close,
    refuse_collectors,
    sweep,
)
from snapfmt.transfer.ground import Ground
from snapfmt.transfer.moving import Mover, Progress, check_fit, sizes
from snapfmt.transfer.parallel import Stopped
from snapfmt.transfer.sides import at
from snapfmt_schemas.manifest import Manifest

_ROUNDS = 20
"""Times that the target may change under a copy before it gives up."""


@dataclass(frozen=True, slots=True)
class CopyReport:
    """What one copy did."""

    number: int
    write_id: str
    published: bool
    """Whether the snapshot was not at the target before."""
    objects_sent: int
    objects_skipped: int
    """Objects that the target had already; 0 where nothing was looked at, since all was there."""
    bytes_sent: int
    bytes_skipped: int
    seconds: float


def open_target(
    location: "str | os.PathLike[str] | Store",
    source: Repository,
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> Repository:
    """The repository at a path or URL that takes copies of `source`'s; made if there is none.

    Raises:
        InputError: If an argument is of the wrong type.
        RefusedError: If it is another run's.
        SnapfmtError: As `Repository.open`.
    """
    check_repository(source, "source")
    check_location(location)
    compat.refuse_salvage(source.document.features, what=source.location)
    with at("target"):
        target = Repository.open(
            location,
            create=True,
            limits=source.limits,
            repository_id=source.id,
            storage_options=storage_options,
        )
    check_pair(source, target)
    return target


def copy_snapshot(
    source: Repository,
    target: Repository,
    number: int,
    *,
    deep: bool = False,
    workers: int = 4,
    progress: Progress | None = None,
    ground: Ground | None = None,
    check: Callable[[], None] | None = None,
) -> CopyReport:
    """Make a published snapshot of `source` a snapshot of `target`; the same one, byte for byte.

    What the target has with the right size is not sent again; with `deep`, what it has is hashed,
    and sent again where it differs, also of a snapshot that is there already. `workers` objects
    are sent at a time; small ones of a bucket, of which each costs a request, as many more as it
    takes together. `ground` keeps what
    was learned about the target from one copy to the next. `check` is called several times a
    second, in this thread: what it raises ends the copy.

    An error of one of the two places says which in its hint: "at the source", "at the target".

    Raises:
        InputError: If an argument is of the wrong type.
        NotPublished: If the source has it not, or not any more.
        CommitConflict: If the target has another snapshot of that number.
        SnapshotExists: If the target retired it; a number is used once.
        CommitOutcomeUnknown: If it may or may not have been published; copy again.
        CorruptError: If the source is damaged; nothing was published.
        RefusedError: If the target is another run's, or is deleting what the copy needs.
        LimitExceeded: If the target has no objects so large; nothing was sent.
        LeaseExpired: If the copy was taken over; copy again.
        StorageError: If a storage failed; what was sent stays, and is not sent again.
    """
    began = time.monotonic()
    check_repository(source, "source")
    check_repository(target, "target")
    check_whole(number, "number")
    check_whole(workers, "workers", least=1)
    check_flag(deep, "deep")
    check_call(progress, "progress")
    check_call(check, "check")
    given: object = ground
    if given is not None and (not isinstance(given, Ground) or given.target is not target):
        raise InputError("ground is a Ground of this target", what=type(ground).__name__)
    check_pair(source, target)
    try:
        with at("source", source.location):
            copy = _Copy(
                source, target, number, workers, progress, ground or Ground(target), check or _go_on
            )
        with at("target", target.location):
            published = copy.run(deep=deep)
    except MissingObject as error:
        with at("source", source.location):
            manifest = source.store.size(layout.manifest_key(number))
        if manifest is None:
            raise NotPublished(
                "the snapshot was retired at the source while it was copied",
                what=layout.snapshot_name(number),
            ) from error
        raise
    sent, total = copy.sent, sum(copy.objects.values())
    bytes_sent = sum(copy.objects[key] for key in sent)
    return CopyReport(
        number=number,
        write_id=copy.manifest.write_id,
        published=published,
        objects_sent=len(sent),
        objects_skipped=len(copy.objects) - len(sent),
        bytes_sent=bytes_sent,
        bytes_skipped=total - bytes_sent,
        seconds=time.monotonic() - began,
    )


def _go_on() -> None:
    """Nobody wants the copy to end."""


class _Copy:
    """One run of `copy_snapshot`."""

    def __init__(
        self,
        source: Repository,
        target: Repository,
        number: int,
        workers: int,
        progress: Progress | None,
        ground: Ground,
        check: Callable[[], None],
    ) -> None:
        self._source = source
        self._target = target
        self._number = number
        self._workers = workers
        self._progress = progress
        self._ground = ground
        self._check = check
        self.sent: set[str] = set()
        snapshot = source.snapshot(number)
        key = layout.manifest_key(number)
        self.manifest = snapshot.manifest
        # What it reaches must be known, as to a collector.
        compat.require(self.manifest.features, "collect", what=key)
        self._data = canonical.encode(self.manifest)
        if source.store.get(key, limit=source.limits.manifest_size) != self._data:
            raise FormatError("manifest is not in canonical form", what=key)
        self._snapshot = snapshot
        self.objects: dict[str, int] = {}

    def run(self, *, deep: bool) -> bool:
        """Returns whether it was published by this."""
        target = self._target
        compat.require(target.document.features, "write", what=layout.REPOSITORY_KEY)
        there = self._is_there()
        if there and not deep:
            return False
        source = self._source
        with at("source", source.location):
            self.objects = sizes(
                source.store,
                self._snapshot,
                source.limits,
                workers=self._workers,
                tick=self._check,
            )
        check_fit(self._snapshot, self.objects, most=target.store.max_object)
        target.store.prepare()
        sweep(target)
        claim = Claim(target.store, self._number)

        def tick() -> None:
            self._check()
            claim.renew_if_due()

        try:
            mover = Mover(
                source.store,
                target.store,
                claim.workspace,
                self.objects,
                self._workers,
                tick,
                self._progress,
                self.sent,
            )
            self._complete(claim, mover, deep=deep)
            self._check()
            published = not there and self._publish(claim)
            # Something may have been deleted since by who looked before the copy held it. From
            # now on the snapshot itself holds all of it.
            self._repair(mover)
        except OutcomeUnknownError:
            # It may appear yet: what holds its objects stays until its time runs out.
            raise
        except Stopped:
            hurriedly_close(claim)
            raise
        except Exception:
            quietly_close(claim)
            raise
        except BaseException:
            hurriedly_close(claim)
            raise
        quietly_close(claim)
        return published

    def _is_there(self) -> bool:
        """Whether the target has this very snapshot.

        Raises:
            CommitConflict, SnapshotExists: If the number is another's, or was retired.
            CorruptError: If the target's manifest is damaged.
        """
        store, key, limit = self._target.store, self._key, self._source.limits.manifest_size
        try:
            found = store.get(key, limit=limit)
        except MissingObject:
            names = store.names(self._folder)
            if {layout.RETIRING, layout.RETIRED}.intersection(names):
                raise SnapshotExists(
                    "the target had this snapshot and retired it; a number is used once",
                    what=self._key,
                ) from None
            return False
        if found == self._data:
            return True
        other = compat.decode_root(found, Manifest, what=f"{key} at the target", size_limit=limit)
        if other.write_id == self.manifest.write_id:
            raise FormatError("the target's manifest is not that of the source", what=key)
        raise self._conflict()

    def _complete(self, claim: Claim, mover: Mover, *, deep: bool) -> None:
        """Have every object at the target, and hold it there."""
        refuse_collectors(self._target.store)
        if foreign_objects(self._target.store).intersection(self.objects):
            raise RefusedError(
                "an unfinished save at the target claims objects of this snapshot",
                what=self._target.location,
                hint="call clean_up there once that save is over",
            )
        for turn in range(_ROUNDS):
            state = self._ground.state(self._number)
            present = mover.present(deep=deep and turn == 0)
            if turn == 0:
                mover.report(present)
            bases = self._ground.bases(state, present)
            for base in bases:
                claim.hold(base)
            held = {key for keys in bases.values() for key in keys}
            self._ground.check_retiring(state, self.objects, held)
            mover.send(self.objects.keys() - present)
            # Nothing was published or retired since the leases were made: the bases are still
            # published, and no list of a retirement has what they do not reach.
            if self._ground.state(self._number) == state:
                self._target.store.sync(self.objects)
                return
        raise RefusedError(
            "the target changes faster than the copy can follow",
            what=self._target.location,
            hint="copy again later; what was sent is not sent again",
        )

    def _repair(self, mover: Mover) -> None:
        if missing := self.objects.keys() - mover.present(deep=False):
            mover.send(missing)
            self._target.store.sync(missing)

    @property
    def _key(self) -> str:
        return layout.manifest_key(self._number)

    @property
    def _folder(self) -> str:
        return f"{layout.SNAPSHOTS}/{layout.snapshot_name(self._number)}"

    def _publish(self, claim: Claim) -> bool:
        claim.check()
        store = self._target.store
        try:
            store.publish(claim.workspace, self._folder, layout.MANIFEST, self._data)
        except SnapfmtError as error:
            return self._after(error)
        if not self._is_readable():
            raise CommitOutcomeUnknown(
                "the publication succeeded, but reading it back did not",
                what=self._key,
                hint="look whether a link or a mount stands inside the repository",
            )
        return True

    def _after(self, error: SnapfmtError) -> bool:
        """What an error of the publication means: another copier's success, ours, or a failure."""
        try:
            there = self._is_there()
            if there:
                self._target.store.sync([self._key])
        except ConflictError:
            raise
        except SnapfmtError as second:
            raise CommitOutcomeUnknown(
                f"the publication may or may not have happened ({error}; {second})",
                what=self._key,
                hint="copy again: what was sent is not sent again",
            ) from error
        if there:
            return not isinstance(error, ConflictError)
        if isinstance(error, OutcomeUnknownError):
            raise CommitOutcomeUnknown(
                f"the publication may or may not have happened ({error})",
                what=self._key,
                hint="copy again: what was sent is not sent again",
            ) from error
        if isinstance(error, ConflictError):
            raise self._conflict() from error
        raise error

    def _is_readable(self) -> bool:
        try:
            return self._is_there()
        except SnapfmtError:
            return False

    def _conflict(self) -> CommitConflict:
        return CommitConflict(
            "the target has another snapshot of this number, or had one",
            what=self._key,
            hint="two runs wrote under one repository id; copy to another place",
        )
