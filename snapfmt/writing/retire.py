"""Take snapshots out of a repository: unpublished in one step, then removed object by object.

Holds at any time, also after a crash (spec/v1/09-retention.md):
  * a snapshot that is published is whole;
  * an object goes only when nothing can reach it any more, as was seen after the step that took
    the last snapshot out that reached it; nothing can reach it later, since a save reaches only
    what it wrote itself and what its base reaches;
  * what is still to be removed is known from `retiring.json`, until all of it is gone.
"""

import contextlib
from dataclasses import dataclass, field

from snapfmt.errors import (
    ConflictError,
    CorruptError,
    FormatError,
    InputError,
    LimitExceeded,
    MissingObject,
    NotPublished,
    RefusedError,
    SnapfmtError,
    StorageError,
    UnsupportedFeature,
    UnsupportedVersion,
)
from snapfmt.format import canonical, compat, layout
from snapfmt.format.reach import decode_index, objects
from snapfmt.limits import Limits
from snapfmt.storage.base import Store
from snapfmt.writing.attempt import reclaim
from snapfmt_schemas.attempt import Lease, Receipt
from snapfmt_schemas.manifest import Manifest

_HINT = "run `snapfmt verify` to see what is wrong; nothing was removed"


def reached(store: Store, manifest: Manifest, limits: Limits) -> dict[str, int]:
    """Every object that a snapshot reaches, by its key, and how many bytes of it there must be.

    Raises:
        SnapfmtError: If a part index is missing or damaged, so that this is not known.
    """
    found: dict[str, int] = {}
    for receipt in manifest.parts:
        for key, size in _part(store, receipt, limits).items():
            found[key] = max(size, found.get(key, 0))
    return found


@dataclass(slots=True)
class Held:
    """What must stay although no published snapshot may reach it, and why."""

    numbers: dict[int, str] = field(default_factory=dict)
    """Number of a snapshot -> what holds it."""
    objects: set[str] = field(default_factory=set)
    """Keys of objects that running attempts have written."""


@dataclass(slots=True)
class _Leaving:
    """A snapshot that is no longer published, and what it still reaches."""

    manifest: Manifest
    objects: dict[str, int]
    whole: bool
    """Whether all that it reaches is known."""


class Retirement:
    """One look at a repository, and the removal of what may go. Not for use a second time."""

    def __init__(
        self, store: Store, *, repository_id: str, limits: Limits, gone: set[int] | None = None
    ) -> None:
        """`gone` are numbers that are known to be retired for good; more are added to it."""
        self._store = store
        self._repository_id = repository_id
        self._limits = limits
        self._gone = set() if gone is None else gone
        self._known: dict[int, dict[str, int]] = {}
        """What published snapshots reach; a number names one snapshot for ever."""

    def retire(self, number: int) -> None:
        """See `Repository.retire`."""
        name, held = layout.snapshot_name(number), self.held()
        if self._published(number) is None:
            raise NotPublished(
                "this snapshot is not published",
                what=name,
                hint="run `snapfmt ls` for those that are",
            )
        if reason := held.numbers.get(number):
            raise RefusedError(f"the snapshot is {reason}", what=name, hint="it was kept")
        # All of this is needed to remove anything; better to refuse before the first step.
        for other in self._numbers(layout.MANIFEST):
            if other != number:
                self._reach(other)
        self._unpublish(number)
        self.finish()

    def keep_latest(self, count: int) -> list[int]:
        """See `Repository.keep_latest`."""
        if type(count) is not int or count < 1:
            raise InputError("keep at least one snapshot", what=repr(count))
        held, whole, spare = self.held(), 0, []
        for number in reversed(self._numbers(layout.MANIFEST)):
            if whole >= count and number not in held.numbers:
                spare += [number] if self._published(number) is not None else []
            elif (reach := self._reach(number)) is not None:
                # One that lost an object is no snapshot to fall back to, so it does not count.
                whole += all((self._store.size(key) or 0) >= end for key, end in reach.items())
        # The oldest first, so that what a crash leaves has no gap.
        retired = [number for number in reversed(spare) if self._unpublish(number)]
        self.finish()
        return retired

    def _unpublish(self, number: int) -> bool:
        """Take it out; False if another process did, which may have died since: go on as well."""
        try:
            self._store.unpublish(_folder(number), layout.MANIFEST, layout.RETIRING)
        except MissingObject:
            return False
        return True

    def finish(self) -> None:
        """Remove what snapshots reached that are not published any more, also by earlier calls.

        Raises:
            RefusedError: If something is unknown that may reach it; nothing more was removed.
        """
        leaving = self._leaving()
        if not leaving:
            return
        # Leases and pins first, then what is published. A save that ends in between is met as
        # published; one that begins in between finds its base gone and gives up.
        held = self.held()
        waiting = set(held.objects)
        for number, reason in held.numbers.items():
            if number in leaving and leaving[number].whole:
                waiting |= leaving[number].objects.keys()
            elif layout.RETIRING in self._store.names(_folder(number)):
                raise RefusedError(
                    f"the snapshot is {reason}, and not all of it can be read",
                    what=layout.snapshot_name(number),
                    hint=_HINT,
                )
        kept: set[str] = set()
        for number in self._numbers(layout.MANIFEST):
            kept |= (self._reach(number) or {}).keys()
        for number, item in leaving.items():
            self._remove(item, kept | waiting)
            if waiting.isdisjoint(item.objects):
                self._close(number, item.manifest)

    def _leaving(self) -> dict[int, _Leaving]:
        found: dict[int, _Leaving] = {}
        for number in self._numbers(layout.RETIRING):
            try:
                manifest = self._manifest(number, layout.RETIRING)
            except StorageError:
                raise
            except SnapfmtError:
                # Gone: another process was faster. Damaged: verify tells, and nothing of it is
                # removed, since nobody knows what it reached.
                continue
            # The step that took it out must survive a power cut before anything of it goes.
            self._store.sync([layout.snapshot_key(number, layout.RETIRING)])
            self._drop_leftovers(manifest.attempt_id)
            item = _Leaving(manifest, {}, whole=True)
            for receipt in manifest.parts:
                try:
                    item.objects |= _part(self._store, receipt, self._limits)
                except (MissingObject, CorruptError, LimitExceeded):
                    # An earlier call removed its packs, and then it; or nobody can tell.
                    item.objects[layout.object_key(receipt.index_digest)] = 0
                    item.whole = False
            found[number] = item
        return found

    def _drop_leftovers(self, attempt_id: str) -> None:
        """Lease and workspace that a crash left after the publication hold nothing any more."""
        workspace = layout.workspace_key(attempt_id)
        if (
            self._store.size(layout.lease_key(attempt_id)) is not None
            or self._store.has_workspace(workspace)
            or self._store.journal(workspace)
        ):
            reclaim(self._store, attempt_id)

    def _remove(self, item: _Leaving, keep: set[str]) -> None:
        """Packs first: as long as a part index is there, so is the way to its packs."""
        indexes = {layout.object_key(receipt.index_digest) for receipt in item.manifest.parts}
        for group in (item.objects.keys() - indexes, indexes):
            gone = [key for key in sorted(group - keep) if self._store.size(key) is not None]
            for key in gone:
                self._store.delete(key)
            self._store.sync(gone)

    def _close(self, number: int, manifest: Manifest) -> None:
        """Leave what keeps the number taken and names the attempt (spec/v1/07-writing.md, W-9)."""
        rest = manifest.model_copy(
            update={
                "parts": (),
                "fingerprints": (),
                "timeline": None,
                "user_metadata": {},
                "extensions": {},
            }
        )
        with contextlib.suppress(ConflictError):
            self._store.create(
                layout.snapshot_key(number, layout.RETIRED), canonical.encode(rest.sealed())
            )
        self._store.delete(layout.snapshot_key(number, layout.RETIRING))

    def held(self) -> Held:
        """What running saves and pins hold.

        Raises:
            RefusedError: If one of them cannot be read.
        """
        found = Held()
        names = {name.removesuffix(".json") for name in self._store.names(layout.ATTEMPTS)}
        for attempt_id in sorted(filter(layout.is_attempt_id, names)):
            workspace = layout.workspace_key(attempt_id)
            lease = self._lease(attempt_id)
            if lease is not None and lease.base is not None:
                found.numbers[lease.base] = f"the base of the running save {attempt_id}"
            if lease is None and self._store.has_workspace(workspace):
                raise RefusedError(
                    "a save has no lease, so that nobody knows its base",
                    what=workspace,
                    hint="call clean_up, then again",
                )
            found.objects.update(self._store.journal(workspace))
        for name in self._store.names(layout.PINS):
            # Hidden names are documents that were being written, or those of tools.
            if not name.startswith("."):
                found.numbers[self._pinned(f"{layout.PINS}/{name}")] = f"pinned by {name}"
        return found

    def _lease(self, attempt_id: str) -> Lease | None:
        key, limit = layout.lease_key(attempt_id), self._limits.lease_size
        try:
            return canonical.decode(
                self._store.get(key, limit=limit), Lease, what=key, size_limit=limit
            )
        except MissingObject as error:
            # Over just now, or never begun. Something else of that name cannot be read.
            if key.rpartition("/")[2] not in self._store.names(layout.ATTEMPTS):
                return None
            raise _refused("a lease cannot be read", key, error) from error
        except (CorruptError, RefusedError) as error:
            raise _refused("a lease cannot be read", key, error) from error

    def _pinned(self, key: str) -> int:
        limit = self._limits.lease_size
        try:
            value = canonical.parse(self._store.get(key, limit=limit), what=key, size_limit=limit)
        except (MissingObject, CorruptError, RefusedError) as error:
            raise _refused("a pin cannot be read", key, error) from error
        number = value.get("number") if isinstance(value, dict) else None
        # True is no number, and -1 is not that of a snapshot.
        name = layout.snapshot_name(number) if type(number) is int else ""
        found = layout.snapshot_number(name)
        if found is None or not key.endswith(".json"):
            raise RefusedError("a pin does not say which number it pins", what=key, hint=_HINT)
        return found

    def _numbers(self, document: str) -> list[int]:
        """Numbers of the folders that hold this document, or something of its name.

        One that holds a manifest is published, whatever lies beside it: where a name cannot be
        moved, a retirement makes the copy first.
        """
        found = []
        for name in self._store.names(layout.SNAPSHOTS):
            number = layout.snapshot_number(name)
            if number is None or number in self._gone:
                continue
            names = self._store.names(_folder(number))
            if document in names and (document == layout.MANIFEST or layout.MANIFEST not in names):
                found.append(number)
            elif names == [layout.RETIRED]:
                # It stays so for ever, and a long run leaves thousands of them.
                self._gone.add(number)
        return sorted(found)

    def _manifest(self, number: int, document: str) -> Manifest:
        key, limits = layout.snapshot_key(number, document), self._limits
        manifest = compat.decode_root(
            self._store.get(key, limit=limits.manifest_size),
            Manifest,
            what=key,
            size_limit=limits.manifest_size,
            limits=limits,
        )
        compat.require(manifest.features, "collect", what=key)
        if (manifest.number, manifest.repository_id) != (number, self._repository_id):
            raise FormatError("not the manifest of this snapshot", what=key)
        return manifest

    def _published(self, number: int) -> Manifest | None:
        """The manifest of a published snapshot; None if it is not published, or not any more."""
        try:
            return self._manifest(number, layout.MANIFEST)
        except (StorageError, UnsupportedFeature, UnsupportedVersion):
            raise
        except SnapfmtError as error:
            if self._is_there(number):
                raise _unreadable(number, error) from error
            return None

    def _reach(self, number: int) -> dict[str, int] | None:
        """What a published snapshot reaches; None if it is not published any more."""
        if number not in self._known:
            manifest = self._published(number)
            if manifest is None:
                return None
            try:
                self._known[number] = reached(self._store, manifest, self._limits)
            except (StorageError, UnsupportedFeature, UnsupportedVersion):
                raise
            except SnapfmtError as error:
                if self._is_there(number):
                    raise _unreadable(number, error) from error
                return None
        return self._known[number]

    def _is_there(self, number: int) -> bool:
        return layout.MANIFEST in self._store.names(_folder(number))


def _folder(number: int) -> str:
    return f"{layout.SNAPSHOTS}/{layout.snapshot_name(number)}"


def _part(store: Store, receipt: Receipt, limits: Limits) -> dict[str, int]:
    data = store.get(layout.object_key(receipt.index_digest), limit=limits.part_index_size)
    return objects(receipt, decode_index(data, receipt, limits))


def _unreadable(number: int, cause: SnapfmtError) -> RefusedError:
    """A snapshot that cannot be read may reach anything: nothing may be removed."""
    return _refused("a snapshot cannot be read", layout.snapshot_name(number), cause)


def _refused(message: str, what: str, cause: SnapfmtError) -> RefusedError:
    return RefusedError(f"{message} ({cause})", what=what, hint=_HINT)
