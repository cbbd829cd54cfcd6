"""The places of a repair: what is known of the source, and new repositories to write into."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qs

from snapfmt.errors import (
    FormatError,
    InputError,
    RefusedError,
    SnapfmtError,
    StorageUnavailable,
    StoreNotFound,
    UnsupportedFeature,
    UnsupportedVersion,
)
from snapfmt.format import canonical, compat, layout
from snapfmt.limits import Limits
from snapfmt.reading import checks
from snapfmt.repository import Repository
from snapfmt.storage.base import Store
from snapfmt.storage.urls import is_store, store_at
from snapfmt.writing.founding import found
from snapfmt_schemas.manifest import Features, Manifest, RepositoryDocument

MARK: Final = "repair"
"""Of the extensions of a repository document: which repair made it."""


def check_apart(kept: Sequence[Any], written: Sequence[Any]) -> None:
    """Refuse to write into a place that is read, or beneath it, or around it.

    Raises:
        InputError: If two of the places are not apart.
    """
    given = [_path(item) for item in (*kept, *written)]
    for place, one in enumerate(given):
        for other in given[max(place + 1, len(kept)) :]:
            if _meet(one, other):
                raise InputError(
                    "source, other copies, target and pieces are places apart",
                    what=other[1],
                    hint="choose another place for what is written",
                )


def _meet(one: tuple[str, str], other: tuple[str, str]) -> bool:
    """Whether one of two places is the other or within it; where that may be, it is."""
    if one[0] and other[0] and one[0] != other[0]:
        return False
    first, second = f"{one[1]}/", f"{other[1]}/"
    return first.startswith(second) or second.startswith(first)


def _path(location: Any) -> tuple[str, str]:
    """The server, where it is named, and the path there."""
    text = location.location if is_store(location) else location
    if not isinstance(text, (str, os.PathLike)):
        raise InputError("a location is a path or a URL as text", what=repr(text))
    text = os.fspath(text)
    if "://" in text and not text.startswith("file://"):
        path, _, query = text.partition("?")
        servers = parse_qs(query).get("endpoint_url", [""])
        return servers[0], path.rstrip("/").replace("s3a://", "s3://", 1)
    return "", os.path.realpath(text.removeprefix("file://"))


@dataclass(slots=True)
class Known:
    """What several copies of one repository say together, before any object is looked at."""

    document: RepositoryDocument
    document_problem: str = ""
    manifests: dict[int, Manifest] = field(default_factory=dict)
    data: dict[str, bytes] = field(default_factory=dict)
    """Key of a manifest -> its bytes."""
    lost: dict[int, str] = field(default_factory=dict)
    """Numbers with a manifest that no copy has good, and why."""
    unknown: dict[int, str] = field(default_factory=dict)
    """Numbers whose manifest needs a newer version."""
    retired: list[int] = field(default_factory=list)
    unpublished: list[int] = field(default_factory=list)
    others: list[str] = field(default_factory=list)

    @property
    def highest(self) -> int:
        """The highest number that any copy knows; 0 if none."""
        return max(
            [*self.manifests, *self.lost, *self.unknown, *self.retired, *self.unpublished],
            default=0,
        )


@dataclass(frozen=True, slots=True)
class _Read:
    """What one copy has as the manifest of a number."""

    manifest: Manifest | None
    data: bytes = b""
    error: SnapfmtError | None = None


def look(stores: Sequence[Store], limits: Limits) -> Known:
    """Read the documents of all copies; the first one is the source.

    Raises:
        StoreNotFound: If the source is no repository.
        RefusedError: If another copy is another repository's, or one needs a newer version.
        FormatError: If nobody can say which repository the source is.
        StorageUnavailable: If a storage gives no answer.
    """
    reads: dict[int, list[_Read]] = {}
    retired: set[int] = set()
    for store in stores:
        for name in store.names(layout.SNAPSHOTS):
            number = layout.snapshot_number(name)
            if number is None:
                continue
            members = reads.setdefault(number, [])
            try:
                inside = set(store.names(f"{layout.SNAPSHOTS}/{name}"))
            except StorageUnavailable:
                raise
            except SnapfmtError as error:
                # Its documents are lost, unless another copy has them.
                members.append(_Read(None, error=error))
                continue
            if layout.MANIFEST in inside:
                members.append(_manifest(store, number, limits))
            elif store is stores[0] and inside & {layout.RETIRING, layout.RETIRED}:
                retired.add(number)
    known = Known(*_document(stores, reads, limits))
    for number, members in sorted(reads.items()):
        if number in retired:
            known.retired.append(number)
        elif not members:
            known.unpublished.append(number)
        else:
            _choose(known, number, members)
    return known


def _manifest(store: Store, number: int, limits: Limits) -> _Read:
    key, size = layout.manifest_key(number), limits.manifest_size
    try:
        data = store.get(key, limit=size)
        found = compat.decode_root(data, Manifest, what=key, size_limit=size, limits=limits)
        if found.number != number:
            raise FormatError(f"manifest says it is snapshot {found.number}", what=key)
        if canonical.encode(found) != data:
            raise FormatError("manifest is not in canonical form", what=key)
    except StorageUnavailable:
        raise
    except SnapfmtError as error:
        return _Read(None, error=error)
    return _Read(found, data)


def _choose(known: Known, number: int, members: list[_Read]) -> None:
    own = known.document.repository_id
    good = [item for item in members if item.manifest and item.manifest.repository_id == own]
    if good and good[0].manifest:
        known.manifests[number] = good[0].manifest
        known.data[layout.manifest_key(number)] = good[0].data
        if any(item.data != good[0].data for item in good):
            known.others.append(
                f"snapshot {number}: another copy has another snapshot of this number; "
                "only objects were taken from it"
            )
        return
    errors = [item.error for item in members if item.error]
    newer = [e for e in errors if isinstance(e, (UnsupportedFeature, UnsupportedVersion))]
    if newer:
        known.unknown[number] = str(newer[0])
    else:
        known.lost[number] = str(errors[0]) if errors else "manifest of another repository"


def _document(
    stores: Sequence[Store], reads: dict[int, list[_Read]], limits: Limits
) -> tuple[RepositoryDocument, str]:
    """The first good `snapfmt.json`, or one made anew from what the manifests say."""
    problem, found = "", None
    for store in stores:
        try:
            item = _root(store, limits)
        except (UnsupportedFeature, UnsupportedVersion, StorageUnavailable):
            raise
        except SnapfmtError as error:
            problem = problem or str(error) if store is stores[0] else problem
            continue
        compat.refuse_salvage(item.features, what=store.location)
        if found is not None and found.repository_id != item.repository_id:
            raise RefusedError(
                "another copy is that of another repository",
                what=store.location,
                hint=f"its id is {item.repository_id}, the source's is {found.repository_id}",
            )
        found = found or item
    if found is not None:
        return found, problem
    manifests = [item.manifest for members in reads.values() for item in members if item.manifest]
    ids = {item.repository_id for item in manifests}
    if not reads:
        raise StoreNotFound("no repository here", what=stores[0].location)
    if len(ids) != 1:
        raise FormatError(
            f"{layout.REPOSITORY_KEY} cannot be read, and no manifests agree whose it was: "
            f"{problem}",
            what=stores[0].location,
        )
    first = min(manifests, key=lambda item: item.created_at_ns)
    made = RepositoryDocument(
        repository_id=first.repository_id, created_at_ns=first.created_at_ns, writer=first.writer
    )
    return made, problem


def _root(store: Store, limits: Limits) -> RepositoryDocument:
    key, size = layout.REPOSITORY_KEY, limits.lease_size
    return compat.decode_root(
        store.get(key, limit=size), RepositoryDocument, what=key, size_limit=size
    )


@dataclass(frozen=True, slots=True)
class Place:
    """A place for a new repository that a repair fills, or has begun to fill."""

    location: Any
    of: str
    """Id of the repository that is repaired."""
    repository_id: str | None
    """Of the new one; None for one of its own."""
    features: Features

    def look(self, limits: Limits) -> Repository | None:
        """What is there already of this repair; writes nothing.

        Raises:
            RefusedError: If anything else is there.
            SnapfmtError: As `Repository.open`.
        """
        try:
            store = store_at(self.location)
        except StoreNotFound:
            return None
        if store.size(layout.REPOSITORY_KEY) is None:
            strange = [name for name in store.names("") if not _may_be_there(name)]
            if strange:
                raise _not_empty(store, strange[0])
            return None
        repository = Repository.open(store, limits=limits, salvage=True)
        mark = repository.document.extensions.get(MARK)
        made_for = mark.get("of") if isinstance(mark, dict) else None
        if (
            made_for != self.of
            or repository.document.features != self.features
            or repository.id != (self.repository_id or repository.id)
        ):
            raise _not_empty(store, layout.REPOSITORY_KEY)
        return repository

    def open(self, limits: Limits) -> Repository:
        """The repository, made if nothing is there. Raises as `look`, and as a writer does."""
        known = self.look(limits)
        if known is None:
            found(
                store_at(self.location, create=True),
                repository_id=self.repository_id,
                features=self.features,
                extensions={MARK: {"of": self.of, "began_at_ns": time.time_ns()}},
            )
            known = self.look(limits)
        if known is None:
            raise StoreNotFound("what was written is not there", what=layout.REPOSITORY_KEY)
        return known


def _may_be_there(name: str) -> bool:
    """What a first try leaves that was killed at once, and what file systems put anywhere."""
    return checks.tolerated(name) or (name.startswith(".") and name.endswith(".tmp"))


def _not_empty(store: Store, name: str) -> RefusedError:
    return RefusedError(
        "a repair writes into an empty place, and nothing was written here",
        what=store.location,
        hint=f"choose another place; {name} is there",
    )
