"""Remove what nothing reaches: orphans of saves that died, and retirements that were cut short.

Holds at any time, also after a crash (spec/v1/09-retention.md, K-12 to K-15):
  * an object goes only when it was there before the leases were read, no attempt that they name
    wrote it, and no snapshot that is published, held or going out reaches it;
  * a copy that relies on an object of no snapshot sees the collector's workspace, or the
    collector sees the copy's;
  * a dry run writes nothing.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial

from snapfmt.errors import CorruptError, MissingObject, RefusedError
from snapfmt.format import canonical, layout, pack
from snapfmt.limits import Limits
from snapfmt.reading.folders import check_any
from snapfmt.storage.base import Store
from snapfmt.threads import together
from snapfmt.writing.keeping import Keeping, Leaving
from snapfmt.writing.lease import over
from snapfmt.writing.presence import Presence
from snapfmt.writing.reclaim import reclaim
from snapfmt.writing.retire import remove, settle
from snapfmt_schemas.part import PartIndex

PUBLISHED = "reached by a published snapshot"
COPY = "a copy runs that may need it"
SAVE = "a save runs that may have written it"
RETIRED = "of a retired snapshot"
ATTEMPT = "of an attempt that is over"
ORPHAN = "reached by nothing"


@dataclass(frozen=True, slots=True)
class ObjectFate:
    """One object, and why it stays or goes."""

    key: str
    size: int
    """In bytes."""
    removed: bool
    """Whether it goes; in a dry run, whether it would."""
    reason: str


@dataclass(frozen=True, slots=True)
class CollectReport:
    """What a collection did, or would do. Every object that was there comes once."""

    dry_run: bool
    objects: tuple[ObjectFate, ...]
    attempts: tuple[str, ...]
    """Attempts that were over, and were cleaned up."""
    finished: tuple[int, ...]
    """Snapshots whose retirement it finished."""
    waiting: tuple[int, ...]
    """Snapshots whose retirement waits, since something holds what they reached."""

    def totals(self, *, removed: bool) -> dict[str, tuple[int, int]]:
        """Objects and bytes for each reason."""
        found: dict[str, tuple[int, int]] = {}
        for item in self.objects:
            if item.removed is removed:
                count, size = found.get(item.reason, (0, 0))
                found[item.reason] = (count + 1, size + item.size)
        return dict(sorted(found.items()))

    def bytes(self, *, removed: bool) -> int:
        """Bytes of the objects that went, or of those that stayed."""
        return sum(size for _, size in self.totals(removed=removed).values())


@dataclass(frozen=True, slots=True)
class _Plan:
    leaving: dict[int, Leaving]
    waiting: dict[str, str]
    standing: set[str]
    objects: tuple[ObjectFate, ...]

    @property
    def finished(self) -> list[int]:
        """Retirements that nothing holds up."""
        return [
            number
            for number, item in self.leaving.items()
            if item.objects.keys().isdisjoint(self.waiting)
        ]


class Collecting:
    """One collection. Not for use a second time."""

    def __init__(
        self, store: Store, *, repository_id: str, limits: Limits, gone: set[int] | None = None
    ) -> None:
        """`gone` as for `Keeping`."""
        self._store = store
        self._limits = limits
        self._keeping = Keeping(store, repository_id=repository_id, limits=limits, gone=gone)
        self._over: set[str] = set()
        """Objects of attempts that are over."""

    def run(self, *, dry_run: bool) -> CollectReport:
        """See `Repository.collect`."""
        store = self._store
        # First of all: what a save writes that begins later is not among them.
        listed = {
            key: size
            for key, size in store.walk(layout.OBJECTS)
            if layout.object_digest(key) is not None
        }
        attempts = over(store, self._limits)
        self._over.update(*(store.journal(layout.workspace_key(item)) for item in attempts))
        # What is refused is refused here, before anything is changed.
        plan = self._plan(listed, without=attempts, dry_run=True)
        if not dry_run:
            for attempt_id in attempts:
                reclaim(store, attempt_id)
            with Presence(store, layout.collect_key) as seen:
                plan = self._plan(listed, without=[seen.id], dry_run=False)
                remove(store, plan.leaving, plan.standing, plan.waiting)
                gone = [item for item in plan.objects if item.removed and item.reason != RETIRED]
                for item in gone:
                    seen.check()
                    with seen.deleting():
                        store.delete(item.key)
                store.sync([item.key for item in gone])
        return CollectReport(
            dry_run=dry_run,
            objects=plan.objects,
            attempts=tuple(sorted(attempts)),
            finished=tuple(sorted(plan.finished)),
            waiting=tuple(sorted(plan.leaving.keys() - set(plan.finished))),
        )

    def _plan(self, listed: Mapping[str, int], *, without: Collection[str], dry_run: bool) -> _Plan:
        """The order of these looks is what K-8 rests on."""
        keeping = self._keeping
        leaving = keeping.leaving()
        if keeping.unreadable:
            raise RefusedError(
                "what a retired snapshot reached cannot be read",
                what=layout.snapshot_name(min(keeping.unreadable)),
                hint="run `snapfmt verify` to see what is wrong; nothing was removed",
            )
        ended = {item.manifest.attempt_id for item in leaving.values()} if dry_run else set()
        if not dry_run:
            settle(self._store, leaving)
        held = keeping.held(without={*without, *ended})
        copying = any(
            self._store.has_workspace(layout.copy_key(attempt_id)) for attempt_id in held.running
        )
        waiting = keeping.waiting(held, leaving)
        standing = keeping.standing(leaving)
        retired = {key for item in leaving.values() for key in item.objects}

        open_to_doubt = []
        if held.running and not copying:
            settled = standing.union(waiting, retired)
            open_to_doubt = [key for key in listed if key not in settled]
        looks = together(
            [partial(self._owner, key) for key in open_to_doubt], workers=self._store.at_once
        )
        owners = dict(zip(open_to_doubt, looks, strict=True))

        def fate(key: str) -> tuple[bool, str]:
            if key in standing:
                return False, PUBLISHED
            if key in waiting:
                return False, waiting[key]
            if key in retired:
                return True, RETIRED
            if copying:
                return False, COPY
            # A journal may have been lost by a power cut; the object itself tells whose it is.
            if held.running and owners[key] in {None, *held.running}:
                return False, SAVE
            return True, ATTEMPT if key in self._over else ORPHAN

        fates = [ObjectFate(key, size, *fate(key)) for key, size in sorted(listed.items())]
        if any(item.removed and item.reason == ORPHAN for item in fates):
            check_any(self._store)
        return _Plan(leaving, waiting, standing, tuple(fates))

    def _owner(self, key: str) -> str | None:
        """The attempt that wrote an object; None where it does not say, empty if it is gone."""
        store, limit = self._store, self._limits.part_index_size
        try:
            size = store.size(key)
            if size is None:
                return ""
            head = store.get_range(key, 0, min(size, pack.HEADER_SIZE))
            if head.startswith(pack.MAGIC):
                return pack.check_header(head, what=key)
            data = store.get(key, limit=limit)
            return canonical.decode(data, PartIndex, what=key, size_limit=limit).attempt_id
        except MissingObject:
            return ""
        except (CorruptError, RefusedError):
            return None
