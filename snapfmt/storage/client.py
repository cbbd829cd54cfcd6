"""What a bucket can do: whole objects under keys, and one atomic step, the exclusive create.

A client does not try again (its HTTP library may, on a broken connection). Trying again, and
finding out what a lost reply meant, is the work of `storage.objects.ObjectStore`, the same for
every client (spec/v1/02-storage.md).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from snapfmt.storage.pieces import Body


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One object as a listing or a look at its head shows it."""

    key: str
    size: int
    modified_ns: int = 0
    """By the server's clock, in nanoseconds since the epoch; often whole seconds."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Empty in a listing."""


class ObjectClient(Protocol):
    """A bucket, or a prefix in one. Thread-safe.

    Every method raises `StorageUnavailable` when there was no usable answer, so that the request
    may or may not have been carried out (`sent=False`: it was not), and another `StorageError`
    when trying again is of no use.
    """

    @property
    def location(self) -> str:
        """URL that opens it again, given the same credentials; holds no secret."""

    def parents(self) -> "Sequence[ObjectClient]":
        """The prefixes around this one, innermost first, and last the bucket itself."""

    @property
    def max_object(self) -> int:
        """Bytes that one PUT may have."""

    def put(
        self,
        key: str,
        data: Body,
        *,
        exclusive: bool,
        metadata: Mapping[str, str],
        sha256: bytes | None = None,
    ) -> None:
        """Write a whole object in one request; `exclusive`: unless the key exists.

        `sha256` is that of `data`, for a server that compares it. `data` may be `Pieces`, which
        `bytes` joins where a client cannot send them as they are.

        Raises:
            ConflictError: If it exists, or is being written by someone else just now.
            UnsupportedFilesystem: If the server cannot create exclusively.
        """

    def get(self, key: str, offset: int, size: int) -> bytes:
        """At most `size` bytes from `offset`; fewer where the object ends.

        Raises:
            MissingObject: If there is none.
        """

    def head(self, key: str) -> ObjectInfo | None:
        """Size, time and metadata; None if there is none."""

    def list(self, prefix: str, *, deep: bool) -> Iterator[ObjectInfo]:
        """Objects whose key begins with `prefix`, in no promised order.

        Not `deep`: only up to the next `/`; what lies below shows once, as a key that ends in it.
        """

    def delete(self, key: str) -> None:
        """Remove an object; no error if it is not there."""
