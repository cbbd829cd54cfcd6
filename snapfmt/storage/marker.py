"""The marker of a workspace in a bucket (spec/v1/02-storage.md, S-13)."""

import json
from dataclasses import dataclass
from typing import Final

from snapfmt.errors import FormatError

NAME: Final = "workspace"
LIMIT: Final = 4096
"""Bytes of the document, at most."""


@dataclass(frozen=True, slots=True)
class Marker:
    """What may be published through a workspace, and whether its owner was shut out."""

    publishes: str
    """The key of the document."""
    fenced: bool = False

    def encode(self) -> bytes:
        """The document."""
        return json.dumps({"publishes": self.publishes, "fenced": self.fenced}).encode()

    @classmethod
    def decode(cls, data: bytes, *, what: str) -> "Marker":
        """The marker that a document holds.

        Raises:
            FormatError: If it holds none.
        """
        try:
            found = json.loads(data)
            return cls(str(found["publishes"]), bool(found["fenced"]))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise FormatError("not a workspace's marker", what=what) from error


def marker_key(workspace: str) -> str:
    """Where the marker of a workspace lies."""
    return f"{workspace}/{NAME}"
