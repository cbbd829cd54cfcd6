"""Take snapshots out of a repository: unpublished in one step, then removed object by object.

Holds at any time, also after a crash (spec/v1/09-retention.md):
  * a snapshot goes out only while its retirement is announced, and not if it is pinned then;
  * a snapshot that is published is whole;
  * an object goes only when nothing can reach it any more, as was seen after the step that took
    the last snapshot out that reached it; nothing can reach it later, since a save reaches only
    what it wrote itself and what its base reaches;
  * what is still to be removed is known from `retiring.json`, until all of it is gone.
"""

import contextlib
from collections.abc import Collection, Mapping, Sequence
from functools import partial

from snapfmt.errors import (
    ConflictError,
    InputError,
    MissingObject,
    NotPublished,
    RefusedError,
)
from snapfmt.format import canonical, layout
from snapfmt.limits import Limits
from snapfmt.storage.base import Store
from snapfmt.threads import together
from snapfmt.writing.keeping import Keeping, Leaving, folder
from snapfmt.writing.presence import Presence
from snapfmt.writing.reclaim import reclaim
from snapfmt_schemas.manifest import Manifest


class Retirement:
    """One look at a repository, and the removal of what may go. Not for use a second time."""

    def __init__(
        self, store: Store, *, repository_id: str, limits: Limits, gone: set[int] | None = None
    ) -> None:
        """`gone` as for `Keeping`."""
        self._store = store
        self._keeping = Keeping(store, repository_id=repository_id, limits=limits, gone=gone)

    def retire(self, number: int) -> None:
        """See `Repository.retire`."""
        keeping, name = self._keeping, layout.snapshot_name(number)
        held = self._held()
        if keeping.published(number) is None:
            raise NotPublished(
                "this snapshot is not published",
                what=name,
                hint="run `snapfmt ls` for those that are",
            )
        if number not in held:
            # All of this is needed to remove anything; better to refuse before the first step.
            for other in keeping.numbers(layout.MANIFEST):
                if other != number:
                    keeping.reach(other)
            _, held = self._take_out([number])
        if reason := held.get(number):
            raise RefusedError(f"the snapshot is {reason}", what=name, hint="it was kept")
        self.finish()

    def spare(self, count: int) -> list[int]:
        """Numbers that `keep_latest` would retire, ascending."""
        if type(count) is not int or count < 1:
            raise InputError("keep at least one snapshot", what=repr(count))
        keeping, whole, spare = self._keeping, 0, []
        held = self._held()
        for number in reversed(keeping.numbers(layout.MANIFEST)):
            if whole >= count and number not in held:
                spare += [number] if keeping.published(number) is not None else []
            elif (reach := keeping.reach(number)) is not None:
                # One that lost an object is no snapshot to fall back to, so it does not count.
                whole += all((self._store.size(key) or 0) >= end for key, end in reach.items())
        return sorted(spare)

    def keep_latest(self, count: int) -> list[int]:
        """See `Repository.keep_latest`."""
        # The oldest first, so that what a crash leaves has no gap.
        spare = self.spare(count)
        retired, _ = self._take_out(spare) if spare else ([], {})
        self.finish()
        return retired

    def _held(self, *, without: Collection[str] = ()) -> dict[int, str]:
        """Numbers that may not be retired now, and why."""
        return self._keeping.held(without=without, journals=False).numbers

    def _take_out(self, numbers: Sequence[int]) -> tuple[list[int], dict[int, str]]:
        """Unpublish those that nobody holds; returns them, and why others are held.

        Announced first (K-16): a pin that this look does not find looks for the announcement.
        """
        with Presence(self._store, layout.retire_key) as seen:
            held = self._held(without=[seen.id])
            retired = []
            for number in numbers:
                if number not in held:
                    seen.check()
                    retired += [number] if self._unpublish(number) else []
        return retired, held

    def _unpublish(self, number: int) -> bool:
        """Take it out; False if another process did, which may have died since: go on as well."""
        try:
            self._store.unpublish(folder(number), layout.MANIFEST, layout.RETIRING)
        except MissingObject:
            return False
        return True

    def finish(self) -> None:
        """Remove what snapshots reached that are not published any more, also by earlier calls.

        Raises:
            RefusedError: If something is unknown that may reach it; nothing more was removed.
        """
        keeping = self._keeping
        leaving = keeping.leaving()
        if not leaving:
            return
        settle(self._store, leaving)
        held = keeping.held()
        waiting = keeping.waiting(held, leaving)
        remove(self._store, leaving, keeping.standing(leaving), waiting)


def settle(store: Store, leaving: Mapping[int, Leaving]) -> None:
    """Before anything of them goes: that they are out survives a power cut.

    Lease and workspace that a crash left after the publication hold nothing any more.
    """
    for number, item in leaving.items():
        store.sync([layout.snapshot_key(number, layout.RETIRING)])
        attempt_id = item.manifest.attempt_id
        workspace = layout.workspace_key(attempt_id)
        if (
            store.size(layout.lease_key(attempt_id)) is not None
            or store.has_workspace(workspace)
            or store.journal(workspace)
        ):
            reclaim(store, attempt_id)


def remove(
    store: Store, leaving: Mapping[int, Leaving], kept: set[str], waiting: Collection[str]
) -> list[int]:
    """Delete what these reached and nothing else does; returns those that are done with."""
    closed = []
    stay = kept.union(waiting)
    for number, item in leaving.items():
        _remove(store, item, stay)
        if item.objects.keys().isdisjoint(waiting):
            _close(store, number, item.manifest)
            closed.append(number)
    return closed


def _remove(store: Store, item: Leaving, stay: set[str]) -> None:
    """Packs first: as long as a part index is there, so is the way to its packs."""
    indexes = {layout.object_key(receipt.index_digest) for receipt in item.manifest.parts}
    for group in (item.objects.keys() - indexes, indexes):
        keys = sorted(group - stay)
        sizes = together([partial(store.size, key) for key in keys], workers=store.at_once)
        gone = [key for key, size in zip(keys, sizes, strict=True) if size is not None]
        together([partial(store.delete, key) for key in gone], workers=store.at_once)
        store.sync(gone)


def _close(store: Store, number: int, manifest: Manifest) -> None:
    """Leave what keeps the number taken and names the attempt (spec/v1/07-writing.md, W-9)."""
    rest = manifest.model_copy(
        update={
            "parts": (),
            "fingerprints": (),
            "timeline": None,
            "user_metadata": {},
            "extensions": {},
        }
    )
    with contextlib.suppress(ConflictError):
        store.create(layout.snapshot_key(number, layout.RETIRED), canonical.encode(rest.sealed()))
    store.delete(layout.snapshot_key(number, layout.RETIRING))
