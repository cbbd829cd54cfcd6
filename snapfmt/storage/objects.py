"""A bucket as a store: whole PUTs, and a publication by one exclusive PUT (spec/v1/02-storage.md).

Holds at any time, also after a crash or a lost reply:
  * an object is there whole or not at all, since each is one PUT;
  * a publication is one PUT that the server refuses when the name is taken, so of many there is
    one; whose it is stands in its metadata, so a lost reply can be looked up;
  * a manifest that says `closed` keeps its name taken for ever: it is what a fence and a
    retirement leave, and to a reader there is nothing;
  * after a fence the name that the owner could have published is taken or closed, so that a
    request of the owner that is still on its way has no effect.
"""

import contextlib
import hashlib
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

from snapfmt.errors import (
    ConflictError,
    InputError,
    LimitExceeded,
    MissingObject,
    OutcomeUnknownError,
    SnapfmtError,
    StorageUnavailable,
    UnsupportedFilesystem,
)
from snapfmt.storage import keys as in_bucket
from snapfmt.storage import probes
from snapfmt.storage.base import CLOSED, OBJECTS, SNAPSHOTS, Buffer, Store, check_key, may_be_closed
from snapfmt.storage.client import ObjectClient, ObjectInfo
from snapfmt.storage.faults import outcome_unknown, truncated, workspace_gone
from snapfmt.storage.marker import LIMIT, Marker, marker_key
from snapfmt.storage.object_sink import ObjectSink
from snapfmt.storage.pieces import Pieces
from snapfmt.storage.retry import RetryPolicy
from snapfmt.threads import REQUESTS, together

T = TypeVar("T")
WRITE_ID: Final = "snapfmt-write-id"
WORKSPACE: Final = "snapfmt-workspace"
READ_SIZE: Final = 8 * 2**20
_SKEW_NS: Final = 5_000_000_000
"""Listings round times, to a second mostly."""


class ObjectStore:
    """Objects and documents as objects of a bucket; implements `storage.base.Store`."""

    def __init__(
        self, client: ObjectClient, *, retry: RetryPolicy | None = None, at_once: int = REQUESTS
    ) -> None:
        self._client = client
        self._at_once = at_once
        self._retry = retry or RetryPolicy()
        self._capabilities: dict[str, bool] | None = None
        self._unsettled: set[str] = set()
        """Workspaces with a publication that may still be on its way."""

    @property
    def location(self) -> str:
        """URL of the bucket and the prefix."""
        return self._client.location

    def parents(self) -> list[Store]:
        """The prefixes around this one, then the bucket."""
        return [ObjectStore(client, retry=self._retry) for client in self._client.parents()]

    @property
    def capabilities(self) -> dict[str, bool]:
        """What the last `prepare` found."""
        return dict(self._capabilities or {})

    @property
    def max_object(self) -> int:
        """What one PUT takes."""
        return self._client.max_object

    @property
    def read_size(self) -> int:
        """A request takes as long as some MiB."""
        return READ_SIZE

    @property
    def at_once(self) -> int:
        """As many as were asked for."""
        return self._at_once

    def prepare(self) -> None:
        """Probe whether the server really refuses to create a name that exists.

        Raises:
            UnsupportedFilesystem: If it does not.
            StorageError: If it cannot be written.
        """
        if self._capabilities is not None:
            return
        key = probes.probe_name()
        try:
            problem = self._probe(key)
        except MissingObject as error:
            raise UnsupportedFilesystem(
                "a PUT was answered with 'not found'",
                what=self.location,
                hint="no such bucket, or the endpoint is not that of an S3 server",
            ) from error
        finally:
            with contextlib.suppress(SnapfmtError):
                self.delete(key)
        if problem:
            raise UnsupportedFilesystem(
                f"the server {problem}",
                what=self.location,
                hint="use a server that honours conditional writes, such as AWS S3 or SeaweedFS",
            )
        self._capabilities = {"conditional_create": True}

    def _probe(self, key: str) -> str:
        """What makes a safe publication impossible here; empty if nothing does."""
        if found := probes.problem(self, key):
            return found
        listed = {info.key: info.modified_ns for info in self._all("", deep=False)}
        if key not in listed:
            return "does not list what it has stored"
        for name in probes.left_behind(listed, key):
            with contextlib.suppress(SnapfmtError):
                self.delete(name)
        return ""

    def get(self, key: str, *, limit: int) -> bytes:
        """The whole object, by one ranged GET."""
        check_key(key)
        data = self._again(lambda: self._client.get(key, 0, limit + 1))
        if len(data) > limit:
            raise LimitExceeded(f"object of more than {limit} bytes", what=key)
        if may_be_closed(key, len(data)) and data == CLOSED:
            raise MissingObject("not there", what=key)
        return data

    def get_range(self, key: str, offset: int, size: int) -> bytes:
        """Exactly these bytes."""
        check_key(key)
        data = self._again(lambda: self._client.get(key, offset, size)) if size else b""
        if len(data) != size or (data and data in CLOSED):
            there = self.size(key)
            if there is None:
                raise MissingObject("not there", what=key)
            if len(data) != size:
                raise truncated(key, offset + size, there)
        return data

    def size(self, key: str) -> int | None:
        """Size by a look at the head."""
        check_key(key)
        info = self._again(lambda: self._client.head(key))
        return None if info is None or in_bucket.is_closed(info) else info.size

    def walk(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Every object below a folder, in order."""
        found = [info for info in self._all(prefix, deep=True) if not in_bucket.is_closed(info)]
        yield from sorted((info.key, info.size) for info in found)

    def holding(self, prefix: str, name: str) -> list[str]:
        """From one listing."""
        return in_bucket.holders(in_bucket.folder_of(prefix), self._all(prefix, deep=True), name)

    def folders(self, prefix: str, *, but: Collection[str] = ()) -> dict[str, frozenset[str]]:
        """From one listing."""
        listed = [(info.key, info.size) for info in self._all(prefix, deep=True)]
        return in_bucket.by_folder(in_bucket.folder_of(prefix), listed, but)

    def not_folders(self, prefix: str) -> list[str]:
        """None: a key hides no other."""
        return []

    def names(self, prefix: str) -> list[str]:
        """Names directly under a folder."""
        folder = in_bucket.folder_of(prefix)
        # Deep where folders are few and small: some servers list one that became empty. Those of
        # snapshots never do, and a long run has thousands.
        deep = prefix not in ("", OBJECTS, SNAPSHOTS)
        found = set()
        for info in self._all(prefix, deep=deep):
            name, below, _ = info.key[len(folder) :].partition("/")
            # A closed name is not there, but its folder is taken.
            if name and (below or not in_bucket.is_closed(info)):
                found.add(name)
        return sorted(found)

    def _all(self, prefix: str, *, deep: bool) -> list[ObjectInfo]:
        folder = in_bucket.folder_of(prefix)
        # Whole each time: a page that is fetched again after an error must not count twice.
        found = self._again(lambda: list(self._client.list(folder, deep=deep)))
        return in_bucket.without_markers(found, folder, deep=deep)

    def create(self, key: str, data: Buffer) -> None:
        """Write a document unless it exists, by one conditional PUT."""
        check_key(key)
        self._create(key, data)

    def replace(self, key: str, data: Buffer) -> None:
        """Write a document over an older one."""
        check_key(key)
        self._put(key, data, {})

    def delete(self, key: str) -> None:
        """Remove an object if it is there."""
        check_key(key)
        self._again(lambda: self._client.delete(key))

    def open_workspace(self, key: str, *, publishes: str) -> None:
        """Note what may be published through it."""
        check_key(publishes)
        self.create(marker_key(key), Marker(publishes).encode())

    def has_workspace(self, key: str) -> bool:
        """Whether it is there and not fenced."""
        marker = self._marker(key)
        return marker is not None and not marker.fenced

    def fence_workspace(self, key: str, *, by_owner: bool = False) -> bool:
        """Close the name that its owner may publish, unless it is taken, then mark it."""
        marker = self._marker(key)
        if marker is None or marker.fenced:
            return False
        # Also the owner itself, after an interrupt: its request runs on in another thread.
        if not by_owner or key in self._unsettled:
            # A conflict: published, by whomever; the owner's request is done or has no effect.
            with contextlib.suppress(ConflictError):
                self._create(marker.publishes, CLOSED)
        name = marker_key(key)
        before = self._again(lambda: self._client.head(name))
        opened = {} if before is None else {"snapfmt-opened-ns": str(before.modified_ns)}
        self._put(name, replace(marker, fenced=True).encode(), opened)
        return True

    def drop_workspace(self, key: str) -> None:
        """Remove the marker; unfinished objects were never sent."""
        self.delete(marker_key(key))

    def journal(self, key: str) -> list[str]:
        """Objects that name this workspace, among those that are not older than it."""
        check_key(key)
        info = self._again(lambda: self._client.head(marker_key(key)))
        if info is None:
            return []
        opened = int(info.metadata.get("snapfmt-opened-ns", "0")) or info.modified_ns
        listed = self._all(OBJECTS, deep=True)
        keys = [item.key for item in listed if item.modified_ns >= opened - _SKEW_NS]
        owners = together([partial(self._owner, item) for item in keys], workers=self._at_once)
        return sorted(item for item, owner in zip(keys, owners, strict=True) if owner == key)

    def _owner(self, key: str) -> str | None:
        info = self._again(lambda: self._client.head(key))
        return None if info is None else info.metadata.get(WORKSPACE)

    def sink(self, workspace: str, name: str) -> ObjectSink:
        """A buffer in memory; the workspace is looked at when it is finished."""
        del name
        return ObjectSink(lambda key, data: self._put_object(key, data, workspace))

    def sync(self, keys: Iterable[str]) -> None:
        """Nothing to do: a PUT that was answered is durable."""

    def publish(self, workspace: str, folder: str, name: str, data: Buffer) -> None:
        """Write the manifest by one conditional PUT."""
        key = f"{folder}/{name}"
        check_key(key)
        marker = self.require_workspace(workspace)
        if marker.publishes != key:
            raise InputError("the workspace was opened to publish something else", what=key)
        if data == CLOSED:
            raise InputError("this document would close its name", what=key)
        self._unsettled.add(workspace)
        try:
            self._create(key, data)
        except OutcomeUnknownError:
            raise
        except SnapfmtError as error:
            self._unsettled.discard(workspace)
            if isinstance(error, ConflictError):
                self.require_workspace(workspace)
            raise
        self._unsettled.discard(workspace)

    def unpublish(self, folder: str, name: str, kept_as: str) -> None:
        """Copy it to the other name, then close this one by one PUT."""
        key = f"{folder}/{name}"
        check_key(key)
        info = self._again(lambda: self._client.head(key))
        if info is None or in_bucket.is_closed(info):
            raise MissingObject("not there", what=key)
        self._put(f"{folder}/{kept_as}", self.get(key, limit=info.size), {})
        self._put(key, CLOSED, {})

    def require_workspace(self, key: str) -> Marker:
        """The workspace's marker.

        Raises:
            LeaseExpired: If it is gone or fenced.
        """
        marker = self._marker(key)
        if marker is None or marker.fenced:
            raise workspace_gone(key)
        return marker

    def _put_object(self, key: str, data: Pieces, workspace: str) -> None:
        """Write a content-named object; the same bytes twice are the same object."""
        check_key(key)
        self.require_workspace(workspace)

        def send() -> None:
            # Before every try: a part that was given up is not sent again.
            data.check()
            self._client.put(
                key, data, exclusive=False, metadata={WORKSPACE: workspace}, sha256=mark
            )

        mark = in_bucket.named_digest(key)
        self._again(send)

    def _marker(self, key: str) -> Marker | None:
        name = marker_key(key)
        check_key(name)
        try:
            data = self._again(lambda: self._client.get(name, 0, LIMIT))
        except MissingObject:
            return None
        return Marker.decode(data, what=name)

    def _put(self, key: str, data: Buffer, metadata: Mapping[str, str]) -> None:
        mark = hashlib.sha256(data).digest()
        self._again(
            lambda: self._client.put(key, data, exclusive=False, metadata=metadata, sha256=mark)
        )

    def _create(self, key: str, data: Buffer) -> None:
        """One conditional PUT, sent again as long as its outcome is not known.

        Raises:
            ConflictError: If the name is taken by another write.
            OutcomeUnknownError: If an earlier try may still take effect.
        """
        write_id = secrets.token_hex(16)
        mark = hashlib.sha256(data).digest()
        perhaps = False
        last: SnapfmtError | None = None
        for _ in self._retry.tries():
            try:
                self._client.put(
                    key, data, exclusive=True, metadata={WRITE_ID: write_id}, sha256=mark
                )
                return
            except ConflictError as error:
                last = error
            except StorageUnavailable as error:
                last, perhaps = error, perhaps or error.sent
                if not error.sent:
                    continue
            except SnapfmtError as error:
                if not perhaps:
                    raise
                raise outcome_unknown(key, error) from error
            try:
                info = self._client.head(key)
            except SnapfmtError:
                perhaps = True
                continue
            if info is not None:
                if info.metadata.get(WRITE_ID) == write_id:
                    return
                raise ConflictError("exists already", what=key) from last
        if perhaps:
            raise outcome_unknown(key, last) from last
        if isinstance(last, ConflictError):
            raise StorageUnavailable(
                "the server keeps reporting a conflict on a name that is not there", what=key
            ) from last
        raise last or StorageUnavailable("not tried", what=key, sent=False)

    def _again(self, request: Callable[[], T]) -> T:
        """Sends a request that may be repeated until it is answered."""
        last: StorageUnavailable | None = None
        for _ in self._retry.tries():
            try:
                return request()
            except StorageUnavailable as error:
                last = error
            except ConflictError as error:
                # It sets no condition: something else was under way at this very moment.
                last = StorageUnavailable(error.message, what=error.what)
        raise last or StorageUnavailable("not tried", what=self.location)
