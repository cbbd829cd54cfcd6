"""What lies at the target that a copy may rely on, and what may still be deleted there.

An object is safe to rely on when a published snapshot reaches it that one of the copier's
leases names, or when no retirement that is on its way can have it on its list. The second is
looked at through the documents under snapshots/: a retirement cannot go without changing them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from snapfmt.errors import RefusedError, SnapfmtError, StorageError
from snapfmt.format import compat, layout
from snapfmt.reading.snapshot import Snapshot
from snapfmt.repository import Repository
from snapfmt.writing.keeping import reached
from snapfmt_schemas.manifest import Manifest

State = frozenset[str]
"""Keys of the documents of all snapshots but the one that is copied."""


@dataclass(slots=True)
class Ground:
    """One target. What a published snapshot reaches is kept: its number names it for ever."""

    target: Repository
    _known: dict[int, frozenset[str]] = field(default_factory=dict)

    def state(self, number: int) -> State:
        """The documents that are there now."""
        own = f"{layout.SNAPSHOTS}/{layout.snapshot_name(number)}/"
        walked = self.target.store.walk(layout.SNAPSHOTS)
        return frozenset(key for key, _ in walked if not key.startswith(own))

    def bases(self, state: State, wanted: set[str]) -> dict[int, set[str]]:
        """Published snapshots that together reach as much of `wanted` as any can, newest first."""
        left, found = set(wanted), {}
        for number in sorted(_numbers(state, layout.MANIFEST), reverse=True):
            if not left:
                break
            if common := left & self._reach(number):
                found[number] = common
                left -= common
        return found

    def _reach(self, number: int) -> frozenset[str]:
        if number not in self._known:
            target = self.target
            try:
                manifest = Snapshot.open(
                    target.store, number, repository_id=target.id, limits=target.limits
                ).manifest
                found = reached(target.store, manifest, target.limits)
            except StorageError:
                raise
            except SnapfmtError:
                # Retired just now, which the state says at the next look; or damaged, and then
                # nothing is retired beside it, and nobody can build on it.
                return frozenset()
            self._known[number] = frozenset(found)
        return self._known[number]

    def check_retiring(self, state: State, needed: Mapping[str, int], safe: set[str]) -> None:
        """Refuse while a retirement is not finished that may delete what the copy needs.

        Raises:
            RefusedError: Naming the snapshot that is being retired.
        """
        for number in sorted(_numbers(state, layout.RETIRING)):
            if self._may_take(number, needed, safe):
                raise RefusedError(
                    "the target has not finished to retire a snapshot that shares objects with "
                    "this one",
                    what=layout.snapshot_name(number),
                    hint="let the retirement end, or call keep_latest there, and copy again",
                )

    def _may_take(self, number: int, needed: Mapping[str, int], safe: set[str]) -> bool:
        store, limits = self.target.store, self.target.limits
        key = layout.snapshot_key(number, layout.RETIRING)
        try:
            data = store.get(key, limit=limits.manifest_size)
            manifest = compat.decode_root(
                data, Manifest, what=key, size_limit=limits.manifest_size, limits=limits
            )
            found = reached(store, manifest, limits)
        except StorageError:
            raise
        except SnapfmtError:
            # Its part indexes go last, so that a list of what it reached is there or not needed
            # any more; but nobody can tell which.
            return key.rpartition("/")[2] in store.names(key.rpartition("/")[0])
        return not (found.keys() & needed.keys()) <= safe


def _numbers(state: State, document: str) -> set[int]:
    found = set()
    for key in state:
        _, _, rest = key.partition("/")
        name, _, last = rest.partition("/")
        number = layout.snapshot_number(name)
        if number is not None and last == document:
            found.add(number)
    return found
