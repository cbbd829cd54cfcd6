"""The save of a live queue, as its driver runs it.

Order of the cut (spec/v1/06-tables.md): every unit gathers references to its values while writers
go on; then the driver asks the controller once, and waits. The controller holds its requests; every
unit looks again at the rows that changed since, and the controller copies its state meanwhile; when
all have done so the requests go on. A put is allocate, store, notify, and a clear is mark, delete,
forget, each starting and ending at the controller: while it stands still, a cell that counts as
produced lies in its unit. Writing comes after.

No message of the driver lies inside the hold, so it may die there. A unit that does not answer
holds the queue until the hold's lease ends; what was cut then is not a cut.

Values are taken by reference. What is replaced or cleared later does not touch the cut; a value
that somebody changes in place inside a storage unit would, and nothing in TransferQueue does so.
"""

import os
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from snapfmt.adapters.transfer_queue import controller as at_controller
from snapfmt.adapters.transfer_queue import unit
from snapfmt.adapters.transfer_queue.cluster import Cluster, run
from snapfmt.adapters.transfer_queue.held_cut import (
    CUT_LEASE_S,
    DROP_TIMEOUT_S,
    CutTimes,
    HeldCut,
    TicketSource,
    base_in,
    drop,
    wait_for,
)
from snapfmt.adapters.transfer_queue.reports import SaveReport
from snapfmt.errors import InputError, NotPublished
from snapfmt.repository import Repository
from snapfmt.writing.attempt import Attempt
from snapfmt_schemas.fingerprint import Fingerprint
from snapfmt_schemas.manifest import TrainerAnchor
from snapfmt_schemas.timeline import PhaseTimeline

__all__ = ["DROP_TIMEOUT_S", "PreparedCut", "prepare_cut", "save", "take_cut", "wait_for"]


@dataclass(frozen=True, slots=True)
class PreparedCut:
    """A queue whose actors are ready for a cut: what takes time and holds nobody is done."""

    cluster: Cluster
    partitions: tuple[str, ...] | None
    hold_timeout_s: float
    hold_lease_s: float
    lease_s: float

    def take(self) -> HeldCut:
        """Takes the cut; may be called again for another one. Raises as `take_cut`."""
        cut_id = uuid.uuid4().hex
        try:
            times = _take_cut(self, cut_id)
        except BaseException:
            drop(self.cluster, cut_id)
            raise
        return HeldCut(self.cluster, cut_id, times, lease_s=self.lease_s)

    def base_in(self, repository: Repository) -> int | None:
        """The newest snapshot of a repository to build on; see `HeldCut.base_in`."""
        return base_in(self.cluster, repository)


def prepare_cut(
    controller: Any = None,
    *,
    partitions: Sequence[str] | None = None,
    hold_timeout_s: float = 10.0,
    hold_lease_s: float = 5.0,
    lease_s: float = CUT_LEASE_S,
) -> PreparedCut:
    """Finds a queue and readies its actors, so that a caller who holds others need not wait.

    The arguments are those of `take_cut`.

    Raises:
        NoMatch: If there is no queue.
        ParticipantFailed: If an actor of the queue died.
        DeadlineExceeded: If a request inside the queue does not end in time.
    """
    cluster = Cluster.connect(controller)
    run(
        [
            cluster.controller_call(at_controller.prepare, hold_timeout_s),
            *cluster.unit_calls(unit.prepare, hold_timeout_s),
        ],
        timeout_s=2 * hold_timeout_s + 60.0,
    )
    chosen = None if partitions is None else tuple(partitions)
    return PreparedCut(cluster, chosen, hold_timeout_s, hold_lease_s, lease_s)


def take_cut(
    controller: Any = None,
    *,
    partitions: Sequence[str] | None = None,
    hold_timeout_s: float = 10.0,
    hold_lease_s: float = 5.0,
    lease_s: float = CUT_LEASE_S,
) -> HeldCut:
    """Takes references to all rows of a live queue; its writers are held for milliseconds.

    Args:
        controller: Handle of the queue's controller, if it is not the cluster's only one.
        partitions: The partitions to save; all without it.
        hold_timeout_s: Time to wait for requests that are inside when the cut begins.
        hold_lease_s: After this the queue goes on when a unit has not answered; there is no cut.
        lease_s: After this without a sign of life the actors let go of the cut.

    Raises:
        CutInconsistent: If a hold ended before the cut was taken.
        NoMatch: If there is no queue, or no such partition.
        ParticipantFailed: If an actor of the queue died.
        DeadlineExceeded: If a request inside the queue does not end in time.
    """
    return prepare_cut(
        controller,
        partitions=partitions,
        hold_timeout_s=hold_timeout_s,
        hold_lease_s=hold_lease_s,
        lease_s=lease_s,
    ).take()


def save(
    repository: Repository | str | os.PathLike[str] | None = None,
    *,
    controller: Any = None,
    partitions: Sequence[str] | None = None,
    part_prefix: str = "rl/tq",
    attempt: TicketSource | None = None,
    base: int | None = None,
    full: bool = False,
    schemas: Mapping[str, str] | None = None,
    user_metadata: Mapping[str, Any] | None = None,
    fingerprints: Sequence[Fingerprint] = (),
    anchor: TrainerAnchor | None = None,
    timeline: PhaseTimeline | None = None,
    timeout_s: float = 600.0,
    hold_timeout_s: float = 10.0,
    hold_lease_s: float = 5.0,
) -> SaveReport:
    """Saves a consistent cut of a live queue; its writers are held for milliseconds.

    Without `attempt` the cut is published as a snapshot of `repository`; with one the receipts
    come back for the caller to publish together with other parts.

    Rows that lie in the newest snapshot which this running queue published there, and did not
    change since, are not written again. A queue remembers its saves in its units: after a restart
    or a restore the first one is full. Changes are known from the queue's own puts and clears
    and from torch's version counters; `snapfmt.adapters.transfer_queue.remember` says what is
    not seen.

    Args:
        repository: Where to publish; a path is created when it is new.
        controller: Handle of the queue's controller, if it is not the cluster's only one.
        partitions: The partitions to save; all without it.
        part_prefix: Name under which the parts lie.
        attempt: A running attempt that takes the parts; it may have a base.
        base: The snapshot to build on, instead of the newest that this queue published.
        full: Write every row, so that nothing hangs on the bytes of an older snapshot.
        schemas: Partition -> id of its row schema, such as `CANONICAL.schema_id`.
        user_metadata: The caller's own JSON, given back by `load`.
        fingerprints: Stored with the snapshot that this call publishes.
        anchor: Likewise.
        timeline: Likewise.
        timeout_s: Time for the whole save.
        hold_timeout_s: Time to wait for requests that are inside when the cut begins.
        hold_lease_s: After this the queue goes on when a unit has not answered; there is no cut.

    Raises:
        CutInconsistent: If the cut does not fit together; nothing was published.
        ParticipantFailed: If an actor of the queue died; nothing was published.
        DeadlineExceeded: If the time did not suffice; nothing was published.
        SnapfmtError: If a value has no exact form, or storage failed; nothing was published.
    """
    started = time.monotonic()
    deadline = started + timeout_s
    prepared = prepare_cut(
        controller,
        partitions=partitions,
        hold_timeout_s=hold_timeout_s,
        hold_lease_s=hold_lease_s,
    )
    if base is not None and (full or attempt is not None):
        raise InputError("a base goes with neither a full save nor an attempt of one's own")
    opened = _open(repository) if attempt is None else None
    own = None if opened is None else _begin(prepared, opened, base, full=full)
    source = own if own is not None else attempt
    if source is None:
        raise InputError("save needs a repository or an attempt")
    cut: HeldCut | None = None
    try:
        cut = prepared.take()
        cut_at = time.monotonic()
        receipts, counts = cut.write(
            source,
            part_prefix=part_prefix,
            schemas=schemas,
            user_metadata=user_metadata,
            timeout_s=deadline - cut_at,
            full=full,
        )
        written_at = time.monotonic()
        snapshot = None
        if own is not None and opened is not None:
            manifest = own.publish(
                receipts,
                fingerprints=fingerprints,
                anchor=anchor,
                timeline=timeline,
                user_metadata=user_metadata,
            )
            snapshot = opened.snapshot(manifest.number)
    finally:
        if cut is not None:
            cut.drop()
        if own is not None:
            own.abandon()
    ended = time.monotonic()
    return SaveReport(
        receipts=receipts,
        snapshot=snapshot,
        base=None if own is None else own.base,
        controller_held_s=cut.times.controller_held_s,
        units_held_s=cut.times.units_held_s,
        longest_wait_s=cut.times.longest_wait_s,
        quiesce_s=cut.times.quiesce_s,
        cut_s=cut.times.cut_s,
        write_s=written_at - cut_at,
        publish_s=ended - written_at,
        total_s=ended - started,
        rows=sum(counts.rows.values()),
        cells=sum(counts.cells.values()),
        logical_bytes=sum(table.logical_bytes for item in receipts for table in item.tables),
        stored_bytes=sum(item.stored_bytes for item in receipts),
    )


def _begin(
    prepared: PreparedCut, repository: Repository, base: int | None, *, full: bool
) -> Attempt:
    if full or base is not None:
        return repository.begin(base=base)
    try:
        return repository.begin(base=prepared.base_in(repository))
    except NotPublished:
        # Retired since it was looked for.
        return repository.begin()


def _open(repository: Repository | str | os.PathLike[str] | None) -> Repository:
    if repository is None:
        raise InputError("save needs a repository or an attempt")
    if isinstance(repository, Repository):
        return repository
    return Repository.open(repository, create=True)


def _take_cut(prepared: PreparedCut, cut_id: str) -> CutTimes:
    cluster, timeout_s = prepared.cluster, prepared.hold_timeout_s
    lease_s, kept_s = prepared.hold_lease_s, prepared.lease_s
    run(cluster.unit_calls(unit.gather, cut_id, timeout_s, kept_s), timeout_s=2 * timeout_s)
    started = time.monotonic()
    cut = cluster.controller_call(
        at_controller.take_cut,
        cut_id,
        prepared.partitions,
        cluster.unit_calls(unit.take_cut, cut_id, timeout_s, kept_s),
        timeout_s,
        lease_s,
        kept_s,
    )
    patience_s = at_controller.CONNECT_S + timeout_s + lease_s + DROP_TIMEOUT_S
    taken = run([cut], timeout_s=patience_s)[0]
    ended = time.monotonic()
    waits = run(cluster.unit_calls(unit.longest_wait), timeout_s=DROP_TIMEOUT_S)
    return CutTimes(
        controller_held_s=taken.held_s,
        units_held_s=tuple(report.held_s for report in taken.units),
        longest_wait_s=max(taken.longest_wait_s, *waits),
        quiesce_s=max(taken.waited_s, *(report.waited_s for report in taken.units)),
        cut_s=ended - started,
    )
