"""What an attempt left behind is removed, unless it was published (spec/v1/07-writing.md, W-9)."""

from collections.abc import Iterable, Iterator

from snapfmt.errors import NotFoundError, SnapfmtError, StorageUnavailable
from snapfmt.format import canonical, compat, layout
from snapfmt.limits import DEFAULT_LIMITS
from snapfmt.reading.folders import hidden
from snapfmt.storage.base import Store
from snapfmt_schemas.attempt import Lease
from snapfmt_schemas.manifest import Manifest


def reclaim(store: Store, attempt_id: str, *, by_owner: bool = False) -> int:
    """Remove what an attempt left behind, unless it was published; returns objects removed.

    The workspace is fenced first, so that its owner, should it still run, can publish nothing
    any more. Its packs carry the attempt's id: nobody else's bytes are in them.
    """
    workspace = layout.workspace_key(attempt_id)
    store.fence_workspace(workspace, by_owner=by_owner)
    removed = 0
    keys = store.journal(workspace)
    if keys and not _published(store, attempt_id, _numbers(store, attempt_id, by_owner)):
        for key in keys:
            if layout.object_digest(key) is not None and store.size(key) is not None:
                store.delete(key)
                removed += 1
    for key in layout.inner_keys(attempt_id):
        store.drop_workspace(key)
    store.drop_workspace(workspace)
    store.delete(layout.lease_key(attempt_id))
    return removed


def _numbers(store: Store, attempt_id: str, by_owner: bool) -> Iterator[int]:
    """Where an attempt may have published: the number of its lease first; without one, any.

    A lease of somebody else may be damaged. But what was published by an attempt that is not
    cleaned up yet is not retired for good.
    """
    key = layout.lease_key(attempt_id)
    passed: frozenset[str] | None = frozenset({layout.RETIRED})
    try:
        limit = DEFAULT_LIMITS.lease_size
        lease = canonical.decode(store.get(key, limit=limit), Lease, what=key, size_limit=limit)
        yield lease.number
        if by_owner:
            return
    except StorageUnavailable:
        raise
    except SnapfmtError:
        passed = None
    for name, names in store.folders(layout.SNAPSHOTS).items():
        number = layout.snapshot_number(name)
        if number is not None and names != passed:
            yield number


def _published(store: Store, attempt_id: str, numbers: Iterable[int]) -> bool:
    """Whether one of these snapshots is or was published by the attempt; in doubt, yes.

    An outage is no doubt but an error: what is asked again later is not lost. A snapshot that
    was retired counts: newer snapshots may use what the attempt wrote.
    """
    if hidden(store):
        return True
    limit = DEFAULT_LIMITS.manifest_size
    for number in numbers:
        # In the order in which a retirement moves them, so that one of them is met.
        for document in (layout.MANIFEST, layout.RETIRING, layout.RETIRED):
            try:
                key = layout.snapshot_key(number, document)
                data = store.get(key, limit=limit)
                found = compat.decode_root(data, Manifest, what=key, size_limit=limit)
            except NotFoundError:
                continue
            except StorageUnavailable:
                raise
            except SnapfmtError:
                return True
            if found.attempt_id == attempt_id:
                return True
    return False
