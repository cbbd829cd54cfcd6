"""Leases: what a save, a copy or a collector holds while it runs (spec/v1/07-writing.md, W-10)."""

import contextlib
import secrets
import socket
import time
from collections.abc import Iterable, Sequence
from typing import Final

from snapfmt.errors import ConflictError, InputError, SnapfmtError, StorageUnavailable
from snapfmt.format import canonical, layout
from snapfmt.limits import Limits
from snapfmt.storage.base import Store
from snapfmt.writing.owner import current_owner, has_this_clock, is_dead
from snapfmt_schemas.attempt import Lease

LEASE_SECONDS: Final = 3600.0
"""How long a lease lasts before others may take what it holds, unless it is renewed or says so."""
MAX_LEASE_SECONDS: Final = 366 * 24 * 3600.0
"""No lease is longer than this many seconds."""
SKEW_NS = 3_600_000_000_000
"""How far the clock of another machine may be off, in nanoseconds, before it costs a save."""


def new_lease(
    number: int, *, base: int | None, seconds: float, attempt_id: str | None = None
) -> Lease:
    """A lease of this process that ends in so many seconds."""
    now = time.time_ns()
    return Lease(
        attempt_id=attempt_id or secrets.token_hex(16),
        number=number,
        base=base,
        started_at_ns=now,
        expires_at_ns=now + int(seconds * 1e9),
        owner=current_owner(socket.gethostname()),
    )


def check_seconds(value: object) -> None:
    """Whether a lease may last so long.

    Raises:
        InputError: If it is no number, or too large a one.
    """
    number = value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
    if number is None or not -MAX_LEASE_SECONDS < number < MAX_LEASE_SECONDS:
        raise InputError("a lease lasts a number of seconds, at most a year", what=repr(value)[:80])


def take(store: Store, lease: Lease) -> None:
    """Make a lease. One that fails leaves none, of which this process would stay the owner."""
    try:
        store.create(layout.lease_key(lease.attempt_id), canonical.encode(lease))
    except ConflictError:
        raise
    except SnapfmtError:
        give_back(store, lease.attempt_id)
        raise


def give_back(store: Store, attempt_id: str) -> None:
    """Delete a lease if it can be; what is left of its attempt is over for every clean-up then.

    It takes no descriptor, so that it works where there are none left.
    """
    with contextlib.suppress(SnapfmtError):
        store.delete(layout.lease_key(attempt_id))


def hold(store: Store, lease: Lease) -> None:
    """Make a save's lease, and then its workspace, which names what it may publish."""
    take(store, lease)
    try:
        store.open_workspace(
            layout.workspace_key(lease.attempt_id), publishes=layout.manifest_key(lease.number)
        )
    except SnapfmtError:
        give_back(store, lease.attempt_id)
        raise


def renewed(lease: Lease, seconds: float) -> Lease:
    """The same lease, with so many seconds from now."""
    return lease.model_copy(
        update={
            "expires_at_ns": time.time_ns() + int(seconds * 1e9),
            "generation": lease.generation + 1,
        }
    )


def is_over(lease: Lease) -> bool:
    """Whether its owner is provably dead, or its time has run out.

    Machines do not have the same time: a lease of another one is over an hour later.
    """
    if is_dead(lease.owner):
        return True
    skew = 0 if has_this_clock(lease.owner) else SKEW_NS
    return time.time_ns() > lease.expires_at_ns + skew


def leases(store: Store, limits: Limits) -> list[Lease]:
    """Every lease that can be read."""
    return _leases(store, store.names(layout.ATTEMPTS), limits)


def _leases(store: Store, names: Iterable[str], limits: Limits) -> list[Lease]:
    found = []
    for attempt_id in _holders(names):
        key = layout.lease_key(attempt_id)
        try:
            data = store.get(key, limit=limits.lease_size)
            found.append(canonical.decode(data, Lease, what=key, size_limit=limits.lease_size))
        except StorageUnavailable:
            raise
        except SnapfmtError:
            continue
    return found


def _holders(names: Iterable[str]) -> list[str]:
    """Ids of the attempts whose lease is among these names."""
    found = [name.removesuffix(".json") for name in names if name.endswith(".json")]
    return [name for name in found if layout.is_attempt_id(name)]


def without_lease(store: Store) -> list[str]:
    """Attempts that have a workspace, fenced or not, but no lease; a power cut may leave one."""
    return _without_lease(store, store.names(layout.ATTEMPTS))


def _without_lease(store: Store, names: Sequence[str]) -> list[str]:
    found = {name.removesuffix(".fenced") for name in names}
    bare = {name for name in found if layout.is_attempt_id(name)}.difference(_holders(names))
    # A lease is made before its workspace, so it is among names that are read later.
    return sorted(bare.difference(_holders(store.names(layout.ATTEMPTS)))) if bare else []


def over(store: Store, limits: Limits) -> list[str]:
    """Attempts that are over and left something."""
    names = store.names(layout.ATTEMPTS)
    gone = [lease.attempt_id for lease in _leases(store, names, limits) if is_over(lease)]
    return gone + _without_lease(store, names)
