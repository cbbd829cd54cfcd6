"""Errors of a copy say which of its two repositories they are about."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from snapfmt.errors import SnapfmtError

Side = Literal["source", "target"]
_KNOWN = "side"


@contextmanager
def at(side: Side, location: str = "") -> Iterator[None]:
    """Typed errors from inside name this side in their hint, unless they name one already.

    `location` holds no secret; empty where the place is not open yet.
    """
    try:
        yield
    except SnapfmtError as error:
        _name(error, side, location)
        raise


def _name(error: SnapfmtError, side: Side, location: str) -> None:
    if _KNOWN in error.__dict__:
        return
    place = f"at the {side}"
    if location and location != error.what:
        place = f"{place} {location}"
    hint = f"{error.hint}; {place}" if error.hint else place
    SnapfmtError.__init__(error, error.message, what=error.what, hint=hint)
    # Kept with the error, also on its way to another process.
    error.__dict__[_KNOWN] = side
