"""The probe of a bucket, and what killed processes left of theirs (spec/v1/02-storage.md, S-8)."""

import secrets
from collections.abc import Iterator, Mapping
from typing import Final, Protocol

from snapfmt.errors import ConflictError
from snapfmt.storage.base import Buffer

_PREFIX: Final = ".probe-"
_AGE_NS: Final = 3_600_000_000_000
"""What is that much older than a probe of now was left behind."""


class Probed(Protocol):
    """What a probe needs of a bucket."""

    def create(self, key: str, data: Buffer) -> None:
        """As `storage.base.Store`."""

    def get(self, key: str, *, limit: int) -> bytes:
        """As `storage.base.Store`."""


def probe_name() -> str:
    """A name that nothing else has."""
    return _PREFIX + secrets.token_hex(8)


def left_behind(modified_ns: Mapping[str, int], own: str) -> Iterator[str]:
    """Names of probes that nobody works on any more, by the times of the storage itself."""
    now = modified_ns.get(own, 0)
    for name, modified in modified_ns.items():
        if name.startswith(_PREFIX) and name != own and now - modified > _AGE_NS:
            yield name


def problem(bucket: Probed, key: str) -> str:
    """What makes an exclusive creation impossible there; empty if nothing does."""
    ignored = "(If-None-Match is ignored)"
    bucket.create(key, b"first")
    try:
        bucket.create(key, b"second")
    except ConflictError:
        if bucket.get(key, limit=64) != b"first":
            return f"reports a conflict, but the object was overwritten {ignored}"
        return ""
    return f"overwrites an object that a conditional PUT must not touch {ignored}"
