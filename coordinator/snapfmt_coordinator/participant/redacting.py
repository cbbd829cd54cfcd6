"""State under names that read like a secret's: stored without its values, and its runs listed.

Redaction goes by names. What it takes out of a state may be a credential or a part of the game:
the state is not whole any more, so a restore must not go on from it.
"""

from collections.abc import Iterable, Sequence
from typing import Final, Literal

from snapfmt import PartWriter
from snapfmt.errors import FormatError
from snapfmt.reading.snapshot import Part
from snapfmt_schemas.agent import AgentBoundaryRecord
from snapfmt_schemas.identity import capture_key
from snapfmt_schemas.redacted import RedactedRun
from snapfmt_schemas.resources import ResourceSnapshot

REDACTED: Final = "redacted.jsonl"
COOKIES: Final = "pending_model.model_server_cookies"
"""The one place whose redaction leaves the state whole: an agent opens such a session anew."""
Secrets = Literal["redact", "keep"]
"""`redact`: values under names that read like a secret's are not stored, and a restore lets their
runs start over. `keep`: the server's owner says that nothing in the state is a credential; all
of it is stored as it is, an agent's cookies too."""
Saved = AgentBoundaryRecord | ResourceSnapshot


class Losses:
    """What redaction took out of the state of the runs of one part."""

    def __init__(self) -> None:
        self._paths: dict[str, list[str]] = {}

    def note(self, key: str, paths: Iterable[str]) -> bool:
        """Note where values of a run were replaced; whether it is not whole for any of them."""
        lost = [path for path in paths if not _is_cookie(path)]
        if lost:
            self._paths.setdefault(key, []).extend(lost)
        return bool(lost)

    def write(self, part: PartWriter) -> int:
        """Write the list of the runs that are not whole; how many these are.

        Raises:
            SnapfmtError: If it cannot be written.
        """
        found = [RedactedRun.of(key, tuple(paths)) for key, paths in sorted(self._paths.items())]
        part.records(REDACTED, found, key="capture_key", redact=False)
        return len(found)


def read(part: Part, runs: Sequence[Saved]) -> frozenset[str]:
    """The rollouts of a part that start over, of the runs that it holds.

    Raises:
        FormatError: If the list names a run that the part does not hold.
        SnapfmtError: If it cannot be read.
    """
    rollouts = {capture_key(run.rollout_id, run.attempt_index): run.rollout_id for run in runs}
    listed = listed_runs(part)
    for item in listed:
        if item.capture_key not in rollouts:
            raise FormatError("a run is listed that is not there", what=f"{part.name}/{REDACTED}")
    return frozenset(rollouts[item.capture_key] for item in listed)


def listed_runs(part: Part) -> tuple[RedactedRun, ...]:
    """The list; empty in a part that was written before there was one.

    Raises:
        SnapfmtError: If it cannot be read.
    """
    if all(entry.path != REDACTED for entry in part.entries()):
        return ()
    return tuple(part.records(REDACTED, RedactedRun))


def _is_cookie(place: str) -> bool:
    return place.startswith((f"{COOKIES}.", f"{COOKIES}["))
