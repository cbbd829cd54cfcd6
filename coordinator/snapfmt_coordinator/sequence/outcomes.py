"""How a save ended, in upstream's words, and whether the run may go on after it."""

from collections.abc import Iterable, Sequence
from typing import Final, Literal

from snapfmt.errors import (
    AttemptClosed,
    AttemptError,
    CommitConflict,
    ControlRefused,
    LeaseExpired,
    OutcomeUnknownError,
    ParticipantFailed,
    SnapfmtError,
    SnapshotExists,
)

Outcome = Literal["completed", "failed", "skipped"]
Reason = Literal[
    "completed",
    "invariant_error",
    "io_error",
    "missing_trainer_anchor",
    "no_data_plane_mutations",
    "optimizer_commit_in_progress",
    "timeout",
    "trainer_state_changed",
]
SkipReason = Literal[
    "missing_trainer_anchor",
    "no_data_plane_mutations",
    "optimizer_commit_in_progress",
    "trainer_state_changed",
]
RETRYABLE: Final = frozenset({"io_error", "timeout"})
"""Reasons after which the next save may well succeed."""
MAX_CONSECUTIVE_FAILURES: Final = 3

_TIMEOUTS: Final = frozenset(
    {
        "deadline_passed",
        # Gym did not come to a standstill in time.
        "agent_prepare_incomplete",
        "ledger_not_quiescent",
        "agent_admission_closed",
        "model_admission_closed",
        "resources_admission_closed",
        # Its lease ran out while this side was busy.
        "stale_checkpoint",
        "unknown_checkpoint",
    }
)
_FAILURES: Final = frozenset(
    {
        # A participant could not write its part.
        "agent_checkpoint_error",
        "resources_checkpoint_error",
        "ledger_not_checkpointable",
        "internal_error",
        # It was started anew, or still serves a coordinator that is gone: its lease ends that.
        "checkpoint_conflict",
        "wrong_phase",
    }
)


def classify(error: BaseException) -> Literal["io_error", "timeout", "invariant_error"]:
    """The reason of a failed save.

    Retryable is what comes from outside and passes: storage, time, a participant that died or
    could not write, another attempt that was first. A refusal is retryable where it says "not
    now". Everything else, such as parts that do not fit together or a request that the other
    side does not understand, is a broken invariant: trying again would hide it.

    Of a group the worst member counts.
    """
    if isinstance(error, BaseExceptionGroup):
        found = {classify(item) for item in error.exceptions}
        if "invariant_error" in found:
            return "invariant_error"
        return "io_error" if "io_error" in found else "timeout"
    if isinstance(error, ControlRefused):
        if error.reason in _TIMEOUTS:
            return "timeout"
        return "io_error" if error.reason in _FAILURES else "invariant_error"
    if isinstance(error, TimeoutError | LeaseExpired | AttemptClosed):
        return "timeout"
    if isinstance(
        error, OSError | ParticipantFailed | CommitConflict | SnapshotExists | OutcomeUnknownError
    ):
        return "io_error"
    return "invariant_error"


class FailureCounter:
    """Consecutive failed saves; a success or a skip starts over."""

    def __init__(self, limit: int = MAX_CONSECUTIVE_FAILURES) -> None:
        self.limit = limit
        self.count = 0

    def record(self, outcome: Outcome, reason: Reason) -> bool:
        """Counts an outcome; whether the run must end because of it."""
        if outcome != "failed":
            self.count = 0
            return False
        self.count += 1
        return reason not in RETRYABLE or self.count >= self.limit


def flatten(errors: Iterable[BaseException]) -> list[BaseException]:
    """The errors, with those of groups in the place of the groups."""
    found: list[BaseException] = []
    for error in errors:
        if isinstance(error, BaseExceptionGroup):
            found += flatten(error.exceptions)
        else:
            found.append(error)
    return found


def grouped(
    errors: Sequence[BaseException],
    what: str,
    *,
    kind: type[AttemptError] = AttemptError,
    hint: str = "",
) -> SnapfmtError:
    """One typed error for all that went wrong in one operation, the first one first.

    A single typed error is returned as it is. Otherwise the result is a `kind`, and its cause
    is that one error, or a group of all of them.
    """
    every = flatten(errors)
    first = every[0]
    if len(every) == 1 and isinstance(first, SnapfmtError):
        return first
    said = [f"{type(item).__name__}: {item}" for item in every]
    message = said[0] if len(said) == 1 else f"{said[0]}; then {'; then '.join(said[1:])}"
    error = kind(message, what=what, hint=hint)
    error.__cause__ = first if len(every) == 1 else BaseExceptionGroup(what, every)
    return error
