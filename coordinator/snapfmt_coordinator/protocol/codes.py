"""Why a participant refuses, and the HTTP status of each reason."""

from types import MappingProxyType
from typing import Any, Final, Literal, get_args

from pydantic import ValidationError

from snapfmt.errors import ControlRefused, SnapfmtError
from snapfmt_schemas._base import Record

Reason = Literal[
    # upstream's
    "duplicate_execution",
    "agent_admission_closed",
    "stale_attempt",
    "agent_prepare_incomplete",
    "completed_execution_acknowledgement_error",
    "agent_checkpoint_error",
    "resources_checkpoint_error",
    "resources_admission_closed",
    "ledger_mismatch",
    "ledger_not_checkpointable",
    "ledger_not_quiescent",
    "not_a_policy_instance",
    # what upstream leaves without a name
    "model_admission_closed",
    "unauthorized",
    "invalid_request",
    "request_too_large",
    "unknown_checkpoint",
    "stale_checkpoint",
    "checkpoint_conflict",
    "wrong_phase",
    "deadline_passed",
    "unknown_execution",
    "restart_only",
    "topology_mismatch",
    "internal_error",
]
"""Stable words; a reason is never renamed or used anew."""

CONFLICT: Final = 409
_OTHERS: Final = {
    "unauthorized": 401,
    "unknown_checkpoint": 404,
    "unknown_execution": 404,
    "deadline_passed": 408,
    "stale_checkpoint": 410,
    "request_too_large": 413,
    "invalid_request": 422,
    "internal_error": 500,
}
STATUS: Final = MappingProxyType(
    {reason: _OTHERS.get(reason, CONFLICT) for reason in get_args(Reason)}
)
"""HTTP status of every reason; 409 where nothing says more."""


class Refusal(Record):
    """Body of every answer that is not 2xx, under the key `error`."""

    code: Reason
    message: str
    what: str = ""
    hint: str = ""


def refused(reason: Reason, message: str, *, what: str = "", hint: str = "") -> ControlRefused:
    """The error for a reason."""
    return ControlRefused(message, reason=reason, status=STATUS[reason], what=what, hint=hint)


def to_body(error: ControlRefused) -> dict[str, Any]:
    """The answer's JSON body."""
    fields = {"message": error.detail, "what": error.what, "hint": error.hint}
    return {"error": {"code": error.reason, **fields}}


def from_body(status: int, body: Any) -> ControlRefused | None:
    """The error that an answer carries, or None when it carries none of ours."""
    if not isinstance(body, dict):
        return None
    try:
        refusal = Refusal.model_validate(body.get("error"))
    except ValidationError:
        return None
    return ControlRefused(
        refusal.message,
        reason=refusal.code,
        status=status,
        what=refusal.what,
        hint=refusal.hint,
    )


def internal(error: Exception) -> ControlRefused:
    """What a caller is told of an error that no reason foresees."""
    if isinstance(error, ControlRefused):
        return error
    if isinstance(error, SnapfmtError):
        return refused("internal_error", f"{error.code}: {error.message}", what=error.what)
    return refused("internal_error", described(error))


def described(error: Exception) -> str:
    """What may be told of a foreign error: its text can hold state, and state can be secret."""
    if isinstance(error, ValidationError):
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        place = ".".join(str(item) for item in first["loc"])
        return f"{error.title}: {place}: {first['msg']}"
    if isinstance(error, OSError) and error.strerror:
        return f"{type(error).__name__}: {error.strerror}"
    return type(error).__name__
