"""Which runs a participant lets in: those whose names a snapshot can hold."""

import re
from functools import cache
from typing import Final

from pydantic import TypeAdapter, ValidationError

from snapfmt_coordinator.protocol.codes import refused
from snapfmt_schemas.identity import RolloutId

_LIKE_A_LATER_RUN: Final = re.compile(r"-a[1-9][0-9]*$", re.ASCII)


@cache
def _rollout_ids() -> TypeAdapter[str]:
    return TypeAdapter(RolloutId)


def check_run(rollout_id: str, attempt_index: int) -> None:
    """Refuse a run whose name would spoil every save of this server.

    Raises:
        ControlRefused: `invalid_request`.
    """
    if type(attempt_index) is not int or attempt_index < 0:
        raise refused(
            "invalid_request",
            "a run number is a whole number from 0",
            what=repr(attempt_index),
            hint="count the runs of a rollout 0, 1, 2 and so on",
        )
    try:
        _rollout_ids().validate_python(rollout_id, strict=True)
    except ValidationError as error:
        raise refused(
            "invalid_request",
            f"not a rollout id: {error.errors(include_input=False, include_url=False)[0]['msg']}",
            what=repr(rollout_id)[:80],
            hint="use letters, digits and ._- and no '-a<number>' at the end",
        ) from None
    if _LIKE_A_LATER_RUN.search(rollout_id):
        raise refused(
            "invalid_request",
            "a rollout id must not end like the capture key of a later run",
            what=rollout_id,
            hint="choose ids that do not end in -a<number>",
        )
