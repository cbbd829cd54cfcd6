"""Pins: names that keep a snapshot from being retired (spec/v1/09-retention.md, K-2)."""

import time

from pydantic import ValidationError

from snapfmt.errors import ConflictError, InputError, NoMatch, NotPublished
from snapfmt.format import canonical, layout
from snapfmt.limits import Limits
from snapfmt.storage.base import Store
from snapfmt.writing.keeping import pinned
from snapfmt_schemas.pin import Pin


def pin(store: Store, name: str, number: int, limits: Limits) -> Pin:
    """See `Repository.pin`."""
    try:
        found = Pin(name=name, number=number, created_at_ns=time.time_ns())
    except ValidationError as error:
        raise InputError(f"not a pin: {error.errors()[0]['msg']}", what=f"{name!r}") from error
    gone = NotPublished(
        "this snapshot is not published",
        what=layout.snapshot_name(number),
        hint="run `snapfmt ls` for those that are",
    )
    manifest = layout.manifest_key(number)
    if store.size(manifest) is None:
        raise gone
    key = layout.pin_key(name)
    try:
        store.create(key, canonical.encode(found))
    except ConflictError:
        if pinned(store, key, limits) != number:
            raise ConflictError(
                "the name pins another snapshot", what=name, hint="unpin it first"
            ) from None
    # Only now: a retirement has seen the pin, or taken the snapshot out before this look, or is
    # between its look at the pins and its first step. In that case it still keeps the objects.
    if store.size(manifest) is None:
        store.delete(key)
        raise gone
    return found


def unpin(store: Store, name: str) -> None:
    """See `Repository.unpin`."""
    if name not in [known for known, _ in _names(store)]:
        raise NoMatch("no pin of this name", what=name, hint="run `snapfmt pins` for those there")
    store.delete(layout.pin_key(name))


def pins(store: Store, limits: Limits) -> dict[str, int]:
    """See `Repository.pins`."""
    return {name: pinned(store, key, limits) for name, key in _names(store)}


def _names(store: Store) -> list[tuple[str, str]]:
    found = [name for name in store.names(layout.PINS) if not name.startswith(".")]
    return [(name.removesuffix(".json"), f"{layout.PINS}/{name}") for name in found]
