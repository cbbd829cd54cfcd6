"""One repair: look at everything, copy what is whole, save the pieces of the rest."""

import contextlib
import os
import time
from collections.abc import Sequence

from snapfmt.errors import (
    ConflictError,
    CorruptError,
    MissingObject,
    RefusedError,
    SnapfmtError,
    StorageUnavailable,
)
from snapfmt.format import layout
from snapfmt.limits import DEFAULT_LIMITS, Limits
from snapfmt.reading import checks
from snapfmt.reading.folders import files
from snapfmt.reading.snapshot import Snapshot
from snapfmt.reading.verify import Progress, verify
from snapfmt.repair.gathered import Gathered
from snapfmt.repair.pieces import FEATURES, salvage, tidy
from snapfmt.repair.places import Known, Place, check_apart, look
from snapfmt.repair.report import Loss, RepairReport, SnapshotRepair
from snapfmt.repair.survey import survey
from snapfmt.repository import Repository
from snapfmt.storage.base import CLOSED, Store
from snapfmt.storage.urls import store_at
from snapfmt.transfer.checks import check_call, check_whole
from snapfmt.transfer.claim import sweep
from snapfmt.transfer.copying import CopyReport, copy_snapshot
from snapfmt.transfer.ground import Ground
from snapfmt.transfer.sides import at
from snapfmt.writing.keeping import reached

Where = str | os.PathLike[str] | Store
"""What `Repository.open` opens."""


def repair(
    source: Where,
    target: Where,
    *,
    also: Sequence[Where] = (),
    pieces: Where | None = None,
    workers: int = 4,
    progress: Progress | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> RepairReport:
    """Make a new repository of what is provably good in a damaged one (spec/v1/15-repair.md).

    Every snapshot that is whole is copied byte for byte, under its number, into `target`, which
    is empty or one that an earlier call began. `also` are other copies of the same repository,
    as a push makes them: a snapshot that is whole with the objects of all copies together is
    whole. `pieces` is another empty place: it gets what is good of the snapshots that are not
    whole, as a repository that nothing restores from.

    The source and the other copies are read and never written. A call that was interrupted may
    be made again: it goes on. `progress` is called with bytes that were handled.

    Raises:
        StoreNotFound: If the source is no repository.
        RefusedError: If a place to write into is not empty, a copy is another repository's, or
            the source needs a newer version of this library; nothing was written.
        InputError: If places are not apart, or an argument is of the wrong type.
        StorageError: If a storage failed; call again.
        CommitOutcomeUnknown: If something may or may not have been written; call again.
    """
    began = time.monotonic()
    check_whole(workers, "workers", least=1)
    check_call(progress, "progress")
    places = [target] if pieces is None else [target, pieces]
    check_apart([source, *also], places)
    with at("source"):
        stores = [store_at(item) for item in (source, *also)]
        known = look(stores, limits)
    owner, features = known.document.repository_id, known.document.features
    new = Place(target, owner, owner, features)
    asked = None if pieces is None else Place(pieces, owner, None, FEATURES)
    with at("target"):
        # Before all is read, which may take hours.
        for place in filter(None, (new, asked)):
            place.look(limits)
    return _Repair(stores, known, workers, progress, limits).run(new, asked, began)


class _Repair:
    """One run of `repair`."""

    def __init__(
        self,
        stores: Sequence[Store],
        known: Known,
        workers: int,
        progress: Progress | None,
        limits: Limits,
    ) -> None:
        self._known = known
        self._first = stores[0]
        self._gathered = Gathered(stores, known.data)
        self._source = Repository(self._gathered, known.document, limits=limits)
        self._workers = workers
        self._progress = progress
        self._limits = limits
        self._results: dict[int, SnapshotRepair] = {}

    def run(self, target: Place, pieces: Place | None, began: float) -> RepairReport:
        known, source = self._known, self._source
        harmed = self._audit()
        whole = [number for number in known.manifests if number not in harmed]
        report = RepairReport(
            source=source.location,
            retired=known.retired,
            unpublished=known.unpublished,
            document=known.document_problem,
            others=known.others,
        )
        for number, reason in known.lost.items():
            loss = Loss("snapshot", "", layout.snapshot_name(number), 1, reason)
            self._results[number] = SnapshotRepair(number, "lost", losses=(loss,))
        for number, reason in known.unknown.items():
            self._results[number] = SnapshotRepair(number, "unknown", findings=(reason,))
        if whole:
            opened = self._target(target, whole)
            report.target = opened.location
            self._copy(opened, whole)
            report.closed = self._close_numbers(opened, whole)
        place = None
        if pieces is not None and harmed:
            with at("target"):
                place = pieces.open(self._limits)
                tidy(place)
            report.pieces = place.location
        for number, findings in harmed.items():
            self._results[number] = self._damaged(number, findings, place)
        report.snapshots = [self._results[number] for number in sorted(self._results)]
        report.unreached_objects = self._unreached()
        report.seconds = time.monotonic() - began
        return report

    def _audit(self) -> dict[int, tuple[str, ...]]:
        """Numbers that are not whole, ascending, and what is wrong with each."""
        audit = verify(
            self._gathered,
            sorted(self._known.manifests),
            deep=True,
            progress=self._progress,
            repository_id=self._source.id,
            limits=self._limits,
        )
        found: dict[int, list[str]] = {}
        for item in [*audit.damage, *audit.unknown]:
            for number in item.snapshots:
                found.setdefault(number, []).append(f"{item.rule}: {item.path}: {item.message}")
        for number in [item for item in found if checks.was_retired(self._first, item)]:
            # While it was looked at; what went with it is no damage.
            del found[number], self._known.manifests[number]
            self._known.retired = sorted([*self._known.retired, number])
        return {number: tuple(found[number]) for number in sorted(found)}

    def _target(self, place: Place, whole: list[int]) -> Repository:
        """The new repository, or one that was begun and that nobody saved into since."""
        with at("target"):
            target = place.open(self._limits)
            sweep(target)
            if strange := set(target.numbers()) - set(whole):
                raise RefusedError(
                    "the target has snapshots that this repair does not make",
                    what=target.location,
                    hint=f"choose an empty place; snapshot {min(strange)} is there",
                )
        return target

    def _copy(self, target: Repository, whole: list[int]) -> None:
        ground = Ground(target)
        for number in whole:
            copied = copy_snapshot(
                self._source,
                target,
                number,
                workers=self._workers,
                progress=self._progress,
                ground=ground,
            )
            self._results[number] = self._as_whole(copied)

    def _as_whole(self, copied: CopyReport) -> SnapshotRepair:
        manifest = self._known.manifests[copied.number]
        keys = reached(self._gathered, manifest, self._limits)
        return SnapshotRepair(
            copied.number,
            "whole",
            write_id=copied.write_id,
            written=copied.published,
            moved=len(self._gathered.moved(keys)),
            bytes_sent=copied.bytes_sent,
        )

    def _close_numbers(self, target: Repository, whole: list[int]) -> int | None:
        """Keep a later save from getting the number of a snapshot that is lost here.

        The number above is closed, and not the lost one: that one may be found elsewhere yet.
        """
        number = self._known.highest + 1
        if number == max(whole) + 1:
            return None
        folder = f"{layout.SNAPSHOTS}/{layout.snapshot_name(number)}"
        if layout.DOCUMENTS.isdisjoint(target.store.names(folder)):
            # A conflict is another repair that does the same, or an earlier try of this one.
            with contextlib.suppress(ConflictError), at("target"):
                target.store.create(layout.manifest_key(number), CLOSED)
        return number

    def _damaged(
        self, number: int, findings: tuple[str, ...], place: Repository | None
    ) -> SnapshotRepair:
        manifest = self._known.manifests[number]
        snapshot = Snapshot(self._gathered, manifest, limits=self._limits)
        found = survey(snapshot)
        written = salvaged = False
        if place is not None and found.parts:
            written, salvaged = salvage(place, snapshot, found), True
        return SnapshotRepair(
            number,
            "pieces" if found.parts else "lost",
            write_id=manifest.write_id,
            written=written,
            salvaged=salvaged,
            kept=found.kept,
            losses=tuple(found.losses),
            findings=findings,
        )

    def _unreached(self) -> int:
        """Objects of the source that no manifest which can be read leads to."""
        reach: set[str] = set()
        for manifest in self._known.manifests.values():
            for receipt in manifest.parts:
                try:
                    part = manifest.model_copy(update={"parts": (receipt,)})
                    reach.update(reached(self._gathered, part, self._limits))
                except StorageUnavailable:
                    raise
                except (CorruptError, MissingObject, SnapfmtError):
                    reach.add(layout.object_key(receipt.index_digest))
        objects = files(self._first, layout.OBJECTS, lambda *_: None)
        return sum(layout.object_digest(key) is not None and key not in reach for key, _ in objects)
