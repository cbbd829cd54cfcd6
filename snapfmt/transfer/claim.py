"""A copier's place at its target: leases that hold what it builds on, and a workspace.

Holds at any time (spec/v1/14-copies.md):
  * the workspace lies one step below that of a save, so that a clean-up which takes the lease
    away deletes no object and closes no name: both may be another copier's as well;
  * a snapshot whose objects a copier relies on is the base of one of its leases.
"""

import time

from snapfmt.errors import LeaseExpired, RefusedError, SnapfmtError
from snapfmt.format import canonical, layout
from snapfmt.reading.folders import check_tops
from snapfmt.repository import Repository
from snapfmt.storage.base import Store
from snapfmt.threads import run_for
from snapfmt.writing.lease import (
    LEASE_SECONDS,
    give_back,
    is_over,
    new_lease,
    renewed,
    take,
    without_lease,
)
from snapfmt.writing.presence import present
from snapfmt_schemas.attempt import Lease

_CLOSE_S = 0.75


class Claim:
    """The leases and the workspace of one copy. Not thread-safe."""

    def __init__(self, store: Store, number: int, *, lease_seconds: float = LEASE_SECONDS) -> None:
        """Open it; the workspace may publish the snapshot of that number and nothing else."""
        self._store = store
        self._number = number
        self._seconds = lease_seconds
        self._leases: dict[str, Lease] = {}
        self.id = self._lease(None)
        self.workspace = layout.copy_key(self.id)
        try:
            store.open_workspace(self.workspace, publishes=layout.manifest_key(number))
        except Exception:
            self.close()
            raise
        except BaseException:
            hurriedly_close(self)
            raise

    def hold(self, base: int) -> None:
        """Keep what this snapshot reaches; the caller looks afterwards whether it is published."""
        if all(lease.base != base for lease in self._leases.values()):
            self._lease(base)

    def _lease(self, base: int | None) -> str:
        lease = new_lease(self._number, base=base, seconds=self._seconds)
        take(self._store, lease)
        self._leases[lease.attempt_id] = lease
        return lease.attempt_id

    def renew_if_due(self) -> None:
        """Extend the leases once half of their time is over.

        Raises:
            LeaseExpired: If one was taken away.
        """
        now = time.time_ns()
        for attempt_id, lease in self._leases.items():
            if lease.expires_at_ns - now > self._seconds * 1e9 / 2:
                continue
            self._check(attempt_id)
            later = renewed(lease, self._seconds)
            self._store.replace(layout.lease_key(attempt_id), canonical.encode(later))
            self._leases[attempt_id] = later

    def check(self) -> None:
        """Whether all is still there, just before the publication.

        Raises:
            LeaseExpired: If something was taken away, or time ran out.
        """
        for attempt_id, lease in self._leases.items():
            if time.time_ns() > lease.expires_at_ns:
                raise LeaseExpired("the copy's lease ran out", what=attempt_id, hint="copy again")
            self._check(attempt_id)
        if not self._store.has_workspace(self.workspace):
            raise LeaseExpired("the copy was taken over", what=self.id, hint="copy again")

    def _check(self, attempt_id: str) -> None:
        if self._store.size(layout.lease_key(attempt_id)) is None:
            raise LeaseExpired("the copy was taken over", what=attempt_id, hint="copy again")

    def close(self) -> None:
        """Give it back; objects that were sent stay, and the next copy uses them."""
        failed: SnapfmtError | None = None
        for attempt_id in list(self._leases):
            try:
                _remove(self._store, attempt_id)
            except SnapfmtError as error:
                give_back(self._store, attempt_id)
                failed = failed or error
            del self._leases[attempt_id]
        if failed is not None:
            raise failed


def sweep(target: Repository) -> None:
    """Remove what copiers, collectors and retirements left that are over; saves are not touched.

    The clean-up of saves does the same on its way, but leaves the workspace in a bucket.

    Raises:
        RefusedError: If something that is no folder hides what is there.
    """
    store = target.store
    check_tops(store)
    for lease in target.leases():
        if is_over(lease):
            outer = layout.workspace_key(lease.attempt_id)
            if _is_no_save(store, lease.attempt_id) or not store.has_workspace(outer):
                _remove(store, lease.attempt_id)
    for attempt_id in without_lease(store):
        if _is_no_save(store, attempt_id):
            _remove(store, attempt_id)


def refuse_collectors(store: Store) -> None:
    """Comes after the copy's own workspace: then one of the two sees the other.

    Raises:
        RefusedError: If objects are being collected, those that the copy relies on perhaps.
    """
    if collectors := present(store, layout.collect_key):
        raise RefusedError(
            "a collection runs at the target",
            what=min(collectors),
            hint="copy again when it is over; what was sent is not sent again",
        )


def _is_no_save(store: Store, attempt_id: str) -> bool:
    return any(map(store.has_workspace, layout.inner_keys(attempt_id)))


def is_copier(store: Store, attempt_id: str) -> bool:
    """Whether a copy, and not a save, works under this id."""
    return store.has_workspace(layout.copy_key(attempt_id))


def foreign_objects(store: Store) -> set[str]:
    """Objects that unfinished saves at the target may take away with them."""
    found: set[str] = set()
    for name in {item.removesuffix(".fenced") for item in store.names(layout.ATTEMPTS)}:
        if layout.is_attempt_id(name) and not is_copier(store, name):
            found.update(store.journal(layout.workspace_key(name)))
    return found


def _remove(store: Store, attempt_id: str) -> None:
    outer = layout.workspace_key(attempt_id)
    # One step on a disk, so that a copier which still runs loses all of it at once. In a bucket
    # there is no such workspace, and nothing is closed.
    store.fence_workspace(outer, by_owner=True)
    for key in layout.inner_keys(attempt_id):
        store.drop_workspace(key)
    store.drop_workspace(outer)
    store.delete(layout.lease_key(attempt_id))


def hurriedly_close(claim: Claim) -> None:
    """Give it back, unless that takes too long: then the next copy does, as after a crash."""
    run_for(_CLOSE_S, claim.close)


def quietly_close(claim: Claim) -> None:
    """Give it back; what fails is left to the next copy."""
    try:
        claim.close()
    except SnapfmtError:
        return
