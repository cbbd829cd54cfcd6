"""What callers hand over is looked at before anything is done with it."""

import math
import os
from typing import Any

from snapfmt.errors import InputError, RefusedError
from snapfmt.repository import Repository
from snapfmt.storage.urls import is_store


def check_repository(value: object, name: str) -> None:
    """Raises:
    InputError: If it is not an open repository.
    """
    if not isinstance(value, Repository):
        raise InputError(
            f"{name} is an open Repository", what=_shown(value), hint="Repository.open opens one"
        )


def check_whole(value: object, name: str, *, least: int | None = None) -> None:
    """Raises:
    InputError: If it is not a whole number of at least `least`.
    """
    if type(value) is not int or (least is not None and value < least):
        bound = "" if least is None else f" of at least {least}"
        raise InputError(f"{name} is a whole number{bound}", what=_shown(value))


def check_seconds(value: object, name: str, *, zero: bool = False) -> None:
    """Raises:
    InputError: If it is not a finite number above 0, or 0 where that is allowed.
    """
    # A whole number may be too large for a float.
    good = type(value) in (int, float) and -1e15 < value < 1e15 and math.isfinite(value)  # type: ignore[operator, arg-type]
    if not good or value < 0 or (value == 0 and not zero):  # type: ignore[operator]
        bound = "of at least 0" if zero else "above 0"
        raise InputError(f"{name} is a finite number of seconds {bound}", what=_shown(value))


def check_call(value: object, name: str) -> None:
    """Raises:
    InputError: If it is neither None nor something that can be called.
    """
    if value is not None and not callable(value):
        raise InputError(f"{name} is a function or None", what=_shown(value))


def check_flag(value: object, name: str) -> None:
    """Raises:
    InputError: If it is not True or False.
    """
    if not isinstance(value, bool):
        raise InputError(f"{name} is True or False", what=_shown(value))


def check_location(value: object) -> None:
    """Raises:
    InputError: If it is nothing that `Repository.open` opens.
    """
    if not isinstance(value, (str, bytes, os.PathLike)) and not is_store(value):
        raise InputError("not a path, a URL or a store", what=_shown(value))


def check_pair(source: Repository, target: Repository) -> None:
    """Whether the target takes snapshots of the source.

    Raises:
        RefusedError: If it is another run's, or has other features.
    """
    if source.id != target.id:
        raise RefusedError(
            "the target is another repository: its snapshots are those of another run",
            what=target.location,
            hint=f"its id is {target.id}, the source's is {source.id}; choose an empty place",
        )
    if source.document.features != target.document.features:
        raise RefusedError(
            "the two repositories do not have the same features", what=target.location
        )


def _shown(value: Any) -> str:
    """Its kind only, unless it is a number: a text may hold a secret."""
    return repr(value) if isinstance(value, (bool, int, float)) else type(value).__name__
