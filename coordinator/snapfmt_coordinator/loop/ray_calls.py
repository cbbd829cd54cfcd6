"""Calls to actors whose errors arrive as what they were."""

from collections.abc import Awaitable
from typing import Any

from ray import exceptions

from snapfmt.errors import ParticipantFailed, SnapfmtError


def typed(error: Exception, what: str) -> SnapfmtError:
    """The error behind one that Ray raised."""
    cause = getattr(error, "cause", None)
    for found in (cause, error):
        if isinstance(found, SnapfmtError):
            return found
    if isinstance(error, exceptions.RayActorError):
        return ParticipantFailed("an actor died", what=what)
    text = str(cause or error).strip().splitlines()
    return ParticipantFailed(
        f"{type(cause or error).__name__}: {text[-1] if text else ''}", what=what
    )


async def answer(call: Awaitable[Any], what: str) -> Any:
    """The answer of a call to an actor.

    Raises:
        SnapfmtError: What the actor raised; `ParticipantFailed` when it died.
    """
    try:
        return await call
    except exceptions.RayError as error:
        raise typed(error, what) from error
