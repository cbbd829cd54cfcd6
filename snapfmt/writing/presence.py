"""What a collection and a retirement show while they work (spec/v1/09-retention.md, K-12, K-16).

A lease, and then a workspace one level below that of a save, whose name says what is done.
Others see it; and a clean-up that takes it away is seen by whoever made it.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Final, Self

from snapfmt.errors import LeaseExpired, SnapfmtError, StorageUnavailable
from snapfmt.format import canonical, layout
from snapfmt.storage.base import Store
from snapfmt.threads import run_for
from snapfmt.writing.lease import LEASE_SECONDS, give_back, new_lease, renewed, take

LATE_S: Final = 300.0
"""A request that was not answered is carried out within this time, or never (K-14)."""
_CLOSE_S: Final = 0.75


class Presence:
    """The lease and the workspace of one collection or retirement."""

    def __init__(self, store: Store, workspace: Callable[[str], str]) -> None:
        """`workspace`: its key for an attempt id, `layout.collect_key` or `layout.retire_key`."""
        self._store = store
        # It saves nothing: no number, no base.
        self._lease = new_lease(0, base=None, seconds=LEASE_SECONDS)
        self.id = self._lease.attempt_id
        self._workspace = workspace(self.id)
        self._late = False

    def __enter__(self) -> Self:
        key = layout.lease_key(self.id)
        take(self._store, self._lease)
        try:
            self._store.open_workspace(self._workspace, publishes=key)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._late:
            # Where that fails, it lasts as long as the lease did anyway.
            run_for(_CLOSE_S, self._run_out)
            return
        # What fails here is the next clean-up's.
        with contextlib.suppress(SnapfmtError):
            self._store.drop_workspace(self._workspace)
            self._store.drop_workspace(layout.workspace_key(self.id))
        give_back(self._store, self.id)

    @contextlib.contextmanager
    def deleting(self) -> Iterator[None]:
        """Within it a request is sent that others must see this for, as long as it is on its way.

        Where it was not answered, this is not taken away at the end, but runs out.
        """
        try:
            yield
        except BaseException as error:
            self._late = isinstance(error, StorageUnavailable) or not isinstance(error, Exception)
            raise

    def _run_out(self) -> None:
        later = renewed(self._lease, LATE_S)
        self._store.replace(layout.lease_key(self.id), canonical.encode(later))

    def check(self) -> None:
        """Come before each step that others rely on to be seen.

        Raises:
            LeaseExpired: If somebody took this for dead, so that nobody waits for it any more.
        """
        left = self._lease.expires_at_ns - time.time_ns()
        if left < 0 or not self._store.has_workspace(self._workspace):
            raise LeaseExpired(
                "this was taken over, or took too long",
                what=self._workspace,
                hint="call it again; it goes on with what is left",
            )
        if left < LEASE_SECONDS * 1e9 / 2:
            self._lease = renewed(self._lease, LEASE_SECONDS)
            self._store.replace(layout.lease_key(self.id), canonical.encode(self._lease))


def present(store: Store, workspace: Callable[[str], str]) -> set[str]:
    """Ids under which such a workspace is there."""
    names = {name.removesuffix(".json") for name in store.names(layout.ATTEMPTS)}
    return {
        attempt_id
        for attempt_id in names
        if layout.is_attempt_id(attempt_id) and store.has_workspace(workspace(attempt_id))
    }
