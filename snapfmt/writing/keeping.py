"""What keeps what: leases, journals, pins, and what snapshots reach (spec/v1/09-retention.md, K-7).

One look at a repository, for whoever removes: a retirement, and a collection. The order of its
steps is what makes removing safe while others save, and is explained in spec/v1 (K-8):
`leaving`, then `held`, then `standing`.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial

from snapfmt.errors import (
    CorruptError,
    FormatError,
    LimitExceeded,
    MissingObject,
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
from snapfmt.threads import together
from snapfmt_schemas.attempt import Lease, Receipt
from snapfmt_schemas.manifest import Manifest

_HINT = "run `snapfmt verify` to see what is wrong; nothing was removed"
_LOOKS = 2
"""A listing may miss a document that gets another name meanwhile."""
_CLOSED = frozenset({layout.RETIRED})
_OPEN = frozenset({layout.MANIFEST, layout.RETIRING})


def reached(store: Store, manifest: Manifest, limits: Limits) -> dict[str, int]:
    """Every object that a snapshot reaches, by its key, and how many bytes of it there must be.

    Raises:
        SnapfmtError: If a part index is missing or damaged, so that this is not known.
    """
    found: dict[str, int] = {}
    looks = [partial(_part, store, receipt, limits) for receipt in manifest.parts]
    for part in together(looks, workers=store.at_once):
        for key, size in part.items():
            found[key] = max(size, found.get(key, 0))
    return found


def folder(number: int) -> str:
    """Key of a snapshot's folder."""
    return f"{layout.SNAPSHOTS}/{layout.snapshot_name(number)}"


@dataclass(slots=True)
class Held:
    """What must stay although no published snapshot may reach it, and why."""

    numbers: dict[int, str] = field(default_factory=dict)
    """Number of a snapshot -> what holds it."""
    objects: dict[str, str] = field(default_factory=dict)
    """Key of an object that a running attempt has written -> that attempt."""
    running: set[str] = field(default_factory=set)
    """Attempts that may be running."""


@dataclass(frozen=True, slots=True)
class Leaving:
    """A snapshot that is no longer published, and what it still reaches."""

    manifest: Manifest
    objects: dict[str, int]
    whole: bool
    """Whether all that it reaches is known."""


class Keeping:
    """One look. What a published snapshot reaches is read once: a number names it for ever."""

    def __init__(
        self, store: Store, *, repository_id: str, limits: Limits, gone: set[int] | None = None
    ) -> None:
        """`gone` are numbers that are known to be retired for good; more are added to it."""
        self.store = store
        self._repository_id = repository_id
        self._limits = limits
        self._gone = set() if gone is None else gone
        self._known: dict[int, dict[str, int]] = {}
        self._seen: set[int] = set()
        """Numbers of which there was a document: there always is one from then on."""
        self.unreadable: set[int] = set()
        """Numbers whose `retiring.json` could not be read by `leaving`: nobody knows its reach."""

    def leaving(self) -> dict[int, Leaving]:
        """The snapshots that are out, and not yet removed; comes before `held`."""
        found: dict[int, Leaving] = {}
        for number in self.numbers(layout.RETIRING):
            try:
                manifest = self._manifest(number, layout.RETIRING)
            except StorageError:
                raise
            except SnapfmtError:
                # Gone: another process was faster. Damaged: verify tells, and nothing of it is
                # removed, since nobody knows what it reached.
                if layout.RETIRING in self.store.names(folder(number)):
                    self.unreadable.add(number)
                continue
            looks = [partial(self._part_left, receipt) for receipt in manifest.parts]
            parts = together(looks, workers=self.store.at_once)
            reach = {layout.object_key(receipt.index_digest): 0 for receipt in manifest.parts}
            for part in parts:
                reach |= part or {}
            found[number] = Leaving(manifest, reach, whole=None not in parts)
        return found

    def _part_left(self, receipt: Receipt) -> dict[str, int] | None:
        """What a part of a snapshot that is out still reaches; None where that is not known."""
        try:
            return _part(self.store, receipt, self._limits)
        except (MissingObject, CorruptError, LimitExceeded):
            # An earlier call removed its packs, and then its index; or nobody can tell.
            return None

    def held(self, *, without: Collection[str] = (), journals: bool = True) -> Held:
        """What running saves and pins hold; attempts of these ids hold nothing.

        `journals`: also the objects that running attempts have written. Leases come before pins:
        who pins holds the one until the other is there.

        Raises:
            RefusedError: If one of them cannot be read.
        """
        found = Held()
        names = {name.removesuffix(".json") for name in self.store.names(layout.ATTEMPTS)}
        for attempt_id in sorted(filter(layout.is_attempt_id, names - set(without))):
            workspace = layout.workspace_key(attempt_id)
            lease = self._lease(attempt_id)
            if lease is not None:
                found.running.add(attempt_id)
                if lease.base is not None:
                    found.numbers[lease.base] = (
                        f"the base of the running save {attempt_id}"
                        if lease.number
                        else "being pinned"
                    )
            elif self.store.has_workspace(workspace):
                raise RefusedError(
                    "a save has no lease, so that nobody knows its base",
                    what=workspace,
                    hint="call clean_up, then again",
                )
            if journals:
                found.objects |= dict.fromkeys(self.store.journal(workspace), attempt_id)
        for name in self.store.names(layout.PINS):
            # Hidden names are documents that were being written, or those of tools.
            if not name.startswith("."):
                key = f"{layout.PINS}/{name}"
                found.numbers[pinned(self.store, key, self._limits)] = f"pinned by {name}"
        for number, reason in found.numbers.items():
            self._check_was_there(number, reason)
        return found

    def _check_was_there(self, number: int, reason: str) -> None:
        """A snapshot that somebody needs has a document, or one that says that it is gone."""
        for _ in range(_LOOKS):
            if number in self._seen or layout.DOCUMENTS & set(self.store.names(folder(number))):
                self._seen.add(number)
                return
        raise RefusedError(
            f"the snapshot is {reason}, and nothing tells what it reached",
            what=layout.snapshot_name(number),
            hint="put its folder back, or unpin it if it never was there; nothing was removed",
        )

    def waiting(self, held: Held, leaving: Mapping[int, Leaving]) -> dict[str, str]:
        """Objects that stay for now, and why.

        Raises:
            RefusedError: If not all of a snapshot that is held can be read.
        """
        found = {key: f"the save {owner} runs" for key, owner in held.objects.items()}
        for number, reason in held.numbers.items():
            if number in leaving and leaving[number].whole:
                text = f"{layout.snapshot_name(number)} is {reason}"
                found |= dict.fromkeys(leaving[number].objects, text)
            elif number in leaving or number in self.unreadable:
                raise RefusedError(
                    f"the snapshot is {reason}, and not all of it can be read",
                    what=layout.snapshot_name(number),
                    hint=_HINT,
                )
        return found

    def standing(self, leaving: Collection[int]) -> set[str]:
        """What snapshots reach that are published, or went out after `leaving` was read.

        Looked at until nothing changes: no listing is one moment, and a save that begins, ends
        and has its base retired during one is met by the next.

        Raises:
            RefusedError: If one of them cannot be read.
        """
        known: dict[int, dict[str, int]] = {}
        before: dict[int, frozenset[str]] | None = None
        while (now := self._documents()) != before:
            for number, names in now.items():
                out_before = number in leaving or number in self.unreadable
                if names & _OPEN and number not in known and not out_before:
                    known[number] = self._standing(number)
            before = now
        return {key for found in known.values() for key in found}

    def _standing(self, number: int) -> dict[str, int]:
        found = self.reach(number)
        if found is not None:
            return found
        # It went out since. A save may have begun on it before, and its lease may not be known.
        try:
            manifest = self._manifest(number, layout.RETIRING)
        except StorageError:
            raise
        except SnapfmtError as error:
            if layout.RETIRING in self.store.names(folder(number)):
                raise _unreadable(number, error) from error
            # Removed by another process, which has seen all who began on it.
            return {}
        found = {}
        for receipt in manifest.parts:
            try:
                found |= _part(self.store, receipt, self._limits)
            except MissingObject:
                # The same: part indexes go only when nothing holds the snapshot.
                continue
            except StorageError:
                raise
            except SnapfmtError as error:
                raise _unreadable(number, error) from error
        return found

    def numbers(self, document: str) -> list[int]:
        """Numbers of the folders that hold this document, or something of its name.

        One that holds a manifest is published, whatever lies beside it: where a name cannot be
        moved, a retirement makes the copy first.
        """
        return sorted(
            number
            for number, names in self._documents().items()
            if document in names and (document == layout.MANIFEST or layout.MANIFEST not in names)
        )

    def _documents(self) -> dict[int, frozenset[str]]:
        """What every snapshot's folder holds."""
        found = dict.fromkeys(self._gone, _CLOSED)
        known = {layout.snapshot_name(number) for number in self._gone}
        for name, names in self.store.folders(layout.SNAPSHOTS, but=known).items():
            number = layout.snapshot_number(name)
            if number is not None:
                found[number] = names
                if names == _CLOSED:
                    # It stays so for ever, and a long run leaves thousands of them.
                    self._gone.add(number)
        return found

    def published(self, number: int) -> Manifest | None:
        """The manifest of a published snapshot; None if it is not published, or not any more."""
        try:
            return self._manifest(number, layout.MANIFEST)
        except (StorageError, UnsupportedFeature, UnsupportedVersion):
            raise
        except SnapfmtError as error:
            if self._is_there(number):
                raise _unreadable(number, error) from error
            return None

    def reach(self, number: int) -> dict[str, int] | None:
        """What a published snapshot reaches; None if it is not published any more."""
        if number not in self._known:
            manifest = self.published(number)
            if manifest is None:
                return None
            try:
                self._known[number] = reached(self.store, manifest, self._limits)
            except (StorageError, UnsupportedFeature, UnsupportedVersion):
                raise
            except SnapfmtError as error:
                if self._is_there(number):
                    raise _unreadable(number, error) from error
                return None
        return self._known[number]

    def _is_there(self, number: int) -> bool:
        return layout.MANIFEST in self.store.names(folder(number))

    def _manifest(self, number: int, document: str) -> Manifest:
        key, limits = layout.snapshot_key(number, document), self._limits
        manifest = compat.decode_root(
            self.store.get(key, limit=limits.manifest_size),
            Manifest,
            what=key,
            size_limit=limits.manifest_size,
            limits=limits,
        )
        compat.require(manifest.features, "collect", what=key)
        if (manifest.number, manifest.repository_id) != (number, self._repository_id):
            raise FormatError("not the manifest of this snapshot", what=key)
        return manifest

    def _lease(self, attempt_id: str) -> Lease | None:
        key, limit = layout.lease_key(attempt_id), self._limits.lease_size
        try:
            return canonical.decode(
                self.store.get(key, limit=limit), Lease, what=key, size_limit=limit
            )
        except MissingObject as error:
            # Over just now, or never begun. Something else of that name cannot be read.
            if key.rpartition("/")[2] not in self.store.names(layout.ATTEMPTS):
                return None
            raise _refused("a lease cannot be read", key, error) from error
        except (CorruptError, RefusedError) as error:
            raise _refused("a lease cannot be read", key, error) from error


def pinned(store: Store, key: str, limits: Limits) -> int:
    """The number that a pin keeps; what else it says does not count.

    Raises:
        RefusedError: If it cannot be read.
    """
    limit = limits.lease_size
    try:
        value = canonical.parse(store.get(key, limit=limit), what=key, size_limit=limit)
    except (MissingObject, CorruptError, RefusedError) as error:
        raise _refused("a pin cannot be read", key, error) from error
    number = value.get("number") if isinstance(value, dict) else None
    # True is no number, and -1 is not that of a snapshot.
    name = layout.snapshot_name(number) if type(number) is int else ""
    found = layout.snapshot_number(name)
    if found is None or not key.endswith(".json"):
        raise RefusedError("a pin does not say which number it pins", what=key, hint=_HINT)
    return found


def _part(store: Store, receipt: Receipt, limits: Limits) -> dict[str, int]:
    data = store.get(layout.object_key(receipt.index_digest), limit=limits.part_index_size)
    return objects(receipt, decode_index(data, receipt, limits))


def _unreadable(number: int, cause: SnapfmtError) -> RefusedError:
    """A snapshot that cannot be read may reach anything: nothing may be removed."""
    return _refused("a snapshot cannot be read", layout.snapshot_name(number), cause)


def _refused(message: str, what: str, cause: SnapfmtError) -> RefusedError:
    return RefusedError(f"{message} ({cause})", what=what, hint=_HINT)
