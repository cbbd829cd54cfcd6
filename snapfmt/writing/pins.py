"""Pins: names that keep a snapshot from being retired (spec/v1/09-retention.md, K-2, K-17).

Holds at any time: a pin that was reported as made keeps its snapshot published until it is
unpinned. Until it is made a lease holds the snapshot, so that a pin which was made is never taken
back, and one that was not leaves nothing.
"""

import time
from typing import Final

from pydantic import ValidationError

from snapfmt.errors import (
    ConflictError,
    InputError,
    LeaseExpired,
    NoMatch,
    NotPublished,
    SnapshotBusy,
)
from snapfmt.format import canonical, layout
from snapfmt.limits import Limits
from snapfmt.storage.base import Store
from snapfmt.writing.keeping import folder, pinned
from snapfmt.writing.lease import LEASE_SECONDS, give_back, new_lease, over, take
from snapfmt.writing.presence import present
from snapfmt.writing.reclaim import reclaim
from snapfmt_schemas.pin import Pin

PAUSES_S: Final = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 2.0, 2.5, 2.5)
"""Between two looks at a retirement that runs; about ten seconds in all."""


def pin(store: Store, name: str, number: int, limits: Limits) -> Pin:
    """See `Repository.pin`."""
    try:
        found = Pin(name=name, number=number, created_at_ns=time.time_ns())
    except ValidationError as error:
        raise InputError(f"not a pin: {error.errors()[0]['msg']}", what=f"{name!r}") from error
    _check_published(store, number)
    # A retirement sees this lease, or it was announced before and is seen here.
    lease = new_lease(0, base=number, seconds=LEASE_SECONDS)
    held = layout.lease_key(lease.attempt_id)
    take(store, lease)
    try:
        _let_retirements_end(store, number, limits)
        _let_it_settle(store, number)
        _check_published(store, number)
        _make(store, found, limits)
        if store.size(held) is None:
            raise LeaseExpired(
                "pinning took so long that its lease was taken away",
                what=name,
                hint="pin it again, and look at `snapfmt pins`",
            )
    finally:
        # What fails here is the next clean-up's.
        give_back(store, lease.attempt_id)
    return found


def _check_published(store: Store, number: int) -> None:
    if store.size(layout.manifest_key(number)) is None:
        raise NotPublished(
            "this snapshot is not published",
            what=layout.snapshot_name(number),
            hint="run `snapfmt ls` for those that are",
        )


def _let_retirements_end(store: Store, number: int, limits: Limits) -> None:
    """Wait for those that may have looked before the lease was there; later ones see it."""
    running = present(store, layout.retire_key)
    for pause in PAUSES_S:
        running = _still(store, running, limits)
        if not running:
            return
        time.sleep(pause)
    if _still(store, running, limits):
        raise SnapshotBusy(
            "a retirement runs that may take the snapshot out",
            what=layout.snapshot_name(number),
            hint="pin it again when the retirement is over",
        )


def _still(store: Store, running: set[str], limits: Limits) -> set[str]:
    """Those retirements of these that are not over; what is over can do nothing any more."""
    if running:
        for attempt_id in running.intersection(over(store, limits)):
            reclaim(store, attempt_id)
    return {item for item in running if store.has_workspace(layout.retire_key(item))}


def _let_it_settle(store: Store, number: int) -> None:
    """In a bucket the last request of a retirement that died may still be on its way."""
    both = {layout.MANIFEST, layout.RETIRING}
    for pause in PAUSES_S:
        if not both <= set(store.names(folder(number))):
            return
        time.sleep(pause)


def _make(store: Store, found: Pin, limits: Limits) -> None:
    key = layout.pin_key(found.name)
    try:
        store.create(key, canonical.encode(found))
    except ConflictError:
        if pinned(store, key, limits) != found.number:
            raise ConflictError(
                "the name pins another snapshot", what=found.name, hint="unpin it first"
            ) from None


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
