"""A run whose saved state is not all of its state."""

from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field, StringConstraints

from snapfmt_schemas._base import Record
from snapfmt_schemas.identity import CaptureKey, Count
from snapfmt_schemas.opaque import Items

MAX_PATHS: Final = 16
"""Paths that a record names; `replaced` counts all."""
MAX_PATH: Final = 256
"""Characters of a path that are kept."""

Path = Annotated[str, StringConstraints(min_length=1, max_length=MAX_PATH)]


class RedactedRun(Record):
    """A run in whose state redaction replaced something; a restore lets it start over.

    It says where, never what was there.
    """

    SCHEMA: ClassVar[str] = "snapfmt.redacted-run"

    schema_version: Literal[1] = 1
    capture_key: CaptureKey
    replaced: Annotated[Count, Field(ge=1, description="Values that were replaced.")]
    paths: Annotated[
        Items[Path],
        Field(
            max_length=MAX_PATHS,
            description="Where they stood; of many the first ones, of a long one the beginning.",
        ),
    ]

    @classmethod
    def of(cls, key: str, paths: tuple[str, ...]) -> "RedactedRun":
        """The record of a run, from the paths that `redact` gave."""
        # Members of a state are named by its owner: any text, also what is no Unicode.
        shown = (path.encode("ascii", "backslashreplace").decode() for path in paths[:MAX_PATHS])
        return cls(
            capture_key=key,
            replaced=len(paths),
            paths=tuple(path[:MAX_PATH] for path in shown),
        )
