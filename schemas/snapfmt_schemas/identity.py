"""Identifiers and digests: each a type with the one pattern that the spec gives."""

import re
from typing import Annotated

from pydantic import Field, StringConstraints

DIGEST_PATTERN = r"^sha256:[0-9a-f]{64}$"
"""Algorithm tag and lower-case hexadecimal digest."""
IDENTITY_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
"""Upstream's rule for rollout, model call and checkpoint ids."""
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._@%+=-]*(/[A-Za-z0-9][A-Za-z0-9._@%+=-]*)*$"
"""Relative, normalised names of parts, entries and tables: no empty, `.` or `..` segment."""

Digest = Annotated[str, StringConstraints(pattern=DIGEST_PATTERN)]
Identity = Annotated[str, StringConstraints(pattern=IDENTITY_PATTERN, max_length=128)]
RolloutId = Annotated[str, StringConstraints(pattern=IDENTITY_PATTERN, max_length=512)]
CaptureKey = RolloutId
ModelCallId = Annotated[str, StringConstraints(min_length=1, max_length=512)]
AttemptId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
RepositoryId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
WriteId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
PartName = Annotated[str, StringConstraints(pattern=NAME_PATTERN, max_length=255)]
EntryPath = Annotated[str, StringConstraints(pattern=NAME_PATTERN, max_length=1024)]
TableName = Annotated[str, StringConstraints(pattern=NAME_PATTERN, max_length=255)]
MAX_COUNT = 2**63 - 1
"""What a signed integer of 64 bits holds: sums and shares of counts are printed and computed."""
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Nanoseconds = Annotated[
    int, Field(ge=0, le=MAX_COUNT, description="Nanoseconds since the Unix epoch.")
]

_LATER_RUN = re.compile(r"(.+)-a([1-9][0-9]*)")


def capture_key(rollout_id: str, attempt_index: int) -> str:
    """Upstream's key of one run: the rollout's id for run 0, `<id>-a<n>` for run n > 0."""
    return rollout_id if attempt_index == 0 else f"{rollout_id}-a{attempt_index}"


def run_of(key: str) -> tuple[str, int]:
    """The rollout and the run that a capture key names."""
    found = _LATER_RUN.fullmatch(key)
    return (key, 0) if found is None else (found[1], int(found[2]))
