"""What a storage backend must do: keys and bytes, and nothing else (spec/v1/02-storage.md)."""

from collections.abc import Collection, Iterable, Iterator
from typing import Final, Protocol

from snapfmt.errors import FormatError

Buffer = bytes | bytearray | memoryview
OBJECTS: Final = "objects"
"""The folder of content-named objects."""
SNAPSHOTS: Final = "snapshots"
"""The folder of the snapshots' folders."""
PUBLISHED: Final = "manifest.json"
"""The document whose creation is a publication."""


CLOSED: Final = b'{"closed":true}\n'
"""What stands under `PUBLISHED` where a name is only kept taken: to every reader, nothing."""


def may_be_closed(key: str, size: int) -> bool:
    """Whether it is a closed name by its size; nothing else of that name is so short and whole."""
    return size == len(CLOSED) and key.rpartition("/")[2] == PUBLISHED


def check_key(key: str) -> list[str]:
    """The steps of a key.

    Raises:
        FormatError: If it is not a relative, normalised path.
    """
    steps = key.split("/")
    if not key or any(step in ("", ".", "..") or "\0" in step for step in steps):
        raise FormatError("key is not a relative, normalised path", what=key)
    return steps


class Sink(Protocol):
    """One object while it is written; invisible until it is finished."""

    held: int
    """Bytes of it that are in memory until it is finished; 0 where they are on a disk."""
    is_sent: bool
    """Whether its bytes begin their way only when it is finished, as those into a bucket do."""

    def write(self, data: Buffer) -> None:
        """Append bytes."""

    def finish(self, key: str) -> None:
        """Make the object durable and visible under `key`, replacing an equal one."""

    def discard(self) -> None:
        """Drop what was written; nothing becomes visible.

        What is held in memory may also be dropped by another thread while it is being finished:
        then it may or may not become visible, and `finish` may fail.
        """


class Store(Protocol):
    """A place for immutable objects and a few small documents.

    Keys are relative, `/`-separated and normalised. On return from a write the bytes survive a
    crash of the machine. No reader ever sees a part of them.
    """

    @property
    def location(self) -> str:
        """Path or URL that opens this store again; holds no secret."""

    def parents(self) -> "list[Store]":
        """The places around this one, innermost first, as far as they can be looked at."""

    @property
    def capabilities(self) -> dict[str, bool]:
        """What was probed."""

    @property
    def max_object(self) -> int:
        """Bytes that one object may have."""

    @property
    def read_size(self) -> int:
        """Bytes worth fetching in one request; 0 where many small reads cost no more."""

    @property
    def at_once(self) -> int:
        """Small requests worth sending at once; 1 where one takes no longer than a call."""

    def prepare(self) -> None:
        """Find out, once, whether a safe publication is possible here; before the first write.

        Raises:
            UnsupportedFilesystem: If it is not.
            StorageError: If it cannot be written.
        """

    def get(self, key: str, *, limit: int) -> bytes:
        """The whole object.

        Raises:
            MissingObject: If there is none.
            LimitExceeded: If it is larger than `limit`.
            StorageError: If it cannot be read.
        """

    def get_range(self, key: str, offset: int, size: int) -> bytes:
        """Exactly `size` bytes from `offset`.

        Raises:
            MissingObject: If there is no such object.
            CorruptObject: If the object ends before.
            StorageError: If it cannot be read.
        """

    def size(self, key: str) -> int | None:
        """Bytes of the object, or None if there is none."""

    def walk(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Every key under a folder, with its size, in order."""

    def holding(self, prefix: str, name: str) -> list[str]:
        """Folders directly under one in which `size` finds a document of this name, in order.

        Also those in which it fails, since the document may be there.
        """

    def folders(self, prefix: str, *, but: Collection[str] = ()) -> dict[str, frozenset[str]]:
        """What `names` tells of every folder directly under one, but these; in few requests."""

    def names(self, prefix: str) -> list[str]:
        """Names directly under a folder, in order; empty if there is none."""

    def not_folders(self, prefix: str) -> list[str]:
        """Names directly under a folder of what is none, and cannot be looked into, in order.

        Empty where every name of a key may have others below it.
        """

    def create(self, key: str, data: Buffer) -> None:
        """Write a document unless the key exists.

        Raises:
            ConflictError: If it exists.
            StorageError: If it could not be written.
        """

    def replace(self, key: str, data: Buffer) -> None:
        """Write a document in one step, over an older one if there is one."""

    def delete(self, key: str) -> None:
        """Remove a document or object if it is there."""

    def open_workspace(self, key: str, *, publishes: str) -> None:
        """Make a folder for the temporary files of one attempt.

        `publishes` is the one document that may be published through it.

        Raises:
            ConflictError: If it exists.
        """

    def has_workspace(self, key: str) -> bool:
        """Whether the workspace is still there, not fenced."""

    def fence_workspace(self, key: str, *, by_owner: bool = False) -> bool:
        """Take a workspace away from its owner: no write or publication through it can follow.

        `by_owner`: the caller is the owner, and no publication of its own is on its way.

        Returns whether it was there. What lay in it stays readable under `journal`. The name
        that its owner might publish may be closed by it (see `CLOSED`).
        """

    def drop_workspace(self, key: str) -> None:
        """Remove a workspace, fenced or not, with all that lies in it."""

    def journal(self, key: str) -> list[str]:
        """Keys of the objects that were finished through this workspace, also after a fence."""

    def sink(self, workspace: str, name: str) -> Sink:
        """A new object, written into a workspace first.

        Raises:
            LeaseExpired: If the workspace is gone; where nothing is sent yet, `finish` says so.
        """

    def sync(self, keys: Iterable[str]) -> None:
        """Make the directory entries of these keys durable."""

    def publish(self, workspace: str, folder: str, name: str, data: Buffer) -> None:
        """Create `folder/name` from a staged folder, in one exclusive step.

        Raises:
            ConflictError: If the folder is there already.
            LeaseExpired: If the workspace is gone.
            OutcomeUnknownError: If it may or may not have happened.
            StorageError: If it did not happen.
        """

    def unpublish(self, folder: str, name: str, kept_as: str) -> None:
        """Give `folder/name` the name `folder/kept_as`; the folder stays taken.

        The name goes in one step; before it, both may be there.

        Raises:
            MissingObject: If there is no `folder/name`.
            StorageError: If it did not happen, or may be undone by a crash of the machine.
        """
