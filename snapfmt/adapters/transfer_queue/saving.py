"""The save of a live queue, as its driver runs it.

Order of the cut (spec/v1/06-tables.md): the controller's requests are held; every unit takes
references to its values; the controller copies its state; the requests go on. A put is allocate,
store, notify, and a clear is mark, delete, forget, each starting and ending at the controller:
while it stands still, a cell that counts as produced lies in its unit. Writing comes after.

Values are taken by reference. What is replaced or cleared later does not touch the cut; a value
that somebody changes in place inside a storage unit would, and nothing in TransferQueue does so.
"""

import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from snapfmt.adapters.transfer_queue import controller as at_controller
from snapfmt.adapters.transfer_queue import jobs, names, unit
from snapfmt.adapters.transfer_queue.cluster import Call, Cluster, run
from snapfmt.adapters.transfer_queue.reports import SaveReport
from snapfmt.adapters.transfer_queue.state import Counts
from snapfmt.errors import CutInconsistent, DeadlineExceeded, InputError, SnapfmtError
from snapfmt.format import canonical
from snapfmt.repository import Repository
from snapfmt_schemas.attempt import Receipt, Ticket
from snapfmt_schemas.fingerprint import Fingerprint
from snapfmt_schemas.manifest import TrainerAnchor
from snapfmt_schemas.timeline import PhaseTimeline

CUT_LEASE_S = 30.0
"""How long an actor keeps a cut of a driver that does not ask for it."""
DROP_TIMEOUT_S = 30.0
_POLL_S = (0.005, 0.03)


class TicketSource(Protocol):
    """A running save attempt, as far as a writer of parts needs it; `snapfmt.Attempt` is one."""

    def ticket(self, part: str) -> Ticket:
        """What another process needs to write this part."""
        ...


@dataclass(frozen=True, slots=True)
class _Cut:
    cut_id: str
    controller_held_s: float
    units_held_s: tuple[float, ...]
    longest_wait_s: float
    quiesce_s: float
    cut_s: float


def save(
    repository: Repository | str | os.PathLike[str] | None = None,
    *,
    controller: Any = None,
    partitions: Sequence[str] | None = None,
    part_prefix: str = "rl/tq",
    attempt: TicketSource | None = None,
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

    Args:
        repository: Where to publish; a path is created when it is new.
        controller: Handle of the queue's controller, if it is not the cluster's only one.
        partitions: The partitions to save; all without it.
        part_prefix: Name under which the parts lie.
        attempt: A running attempt that takes the parts.
        schemas: Partition -> id of its row schema, such as `CANONICAL.schema_id`.
        user_metadata: The caller's own JSON, given back by `load`.
        fingerprints: Stored with the snapshot that this call publishes.
        anchor: Likewise.
        timeline: Likewise.
        timeout_s: Time for the whole save.
        hold_timeout_s: Time to wait for requests that are inside when the cut begins.
        hold_lease_s: After this the queue goes on by itself when this process dies.

    Raises:
        CutInconsistent: If the cut does not fit together; nothing was published.
        ParticipantFailed: If an actor of the queue died; nothing was published.
        DeadlineExceeded: If the time did not suffice; nothing was published.
        SnapfmtError: If a value has no exact form, or storage failed; nothing was published.
    """
    started = time.monotonic()
    deadline = started + timeout_s
    cluster = Cluster.connect(controller)
    opened = _open(repository) if attempt is None else None
    own = opened.begin() if opened is not None else None
    source = own if own is not None else attempt
    if source is None:
        raise InputError("save needs a repository or an attempt")
    cut_id = uuid.uuid4().hex
    try:
        cut = _take_cut(cluster, cut_id, partitions, hold_timeout_s, hold_lease_s)
        cut_at = time.monotonic()
        receipts, counts = _write(
            cluster,
            cut_id,
            source,
            deadline,
            prefix=part_prefix,
            schemas=dict(schemas or {}),
            user_metadata=dict(user_metadata or {}),
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
        _drop(cluster, cut_id)
        if own is not None:
            own.abandon()
    ended = time.monotonic()
    return SaveReport(
        receipts=receipts,
        snapshot=snapshot,
        controller_held_s=cut.controller_held_s,
        units_held_s=cut.units_held_s,
        longest_wait_s=cut.longest_wait_s,
        quiesce_s=cut.quiesce_s,
        cut_s=cut.cut_s,
        write_s=written_at - cut_at,
        publish_s=ended - written_at,
        total_s=ended - started,
        rows=sum(counts.rows.values()),
        cells=sum(counts.cells.values()),
        logical_bytes=sum(table.logical_bytes for item in receipts for table in item.tables),
        stored_bytes=sum(item.stored_bytes for item in receipts),
    )


def _open(repository: Repository | str | os.PathLike[str] | None) -> Repository:
    if repository is None:
        raise InputError("save needs a repository or an attempt")
    if isinstance(repository, Repository):
        return repository
    return Repository.open(repository, create=True)


def _take_cut(
    cluster: Cluster,
    cut_id: str,
    partitions: Sequence[str] | None,
    timeout_s: float,
    lease_s: float,
) -> _Cut:
    # First everything that takes time and holds nobody.
    prepare = [
        cluster.controller_call(at_controller.prepare, timeout_s),
        *cluster.unit_calls(unit.prepare, timeout_s),
    ]
    run(prepare, timeout_s=2 * timeout_s + 60.0)
    started = time.monotonic()
    hold = cluster.controller_call(at_controller.hold, cut_id, timeout_s, lease_s)
    copy = cluster.controller_call(at_controller.copy, cut_id, partitions, CUT_LEASE_S)
    cuts = cluster.unit_calls(unit.take_cut, cut_id, timeout_s, CUT_LEASE_S)
    release = cluster.controller_call(at_controller.release, cut_id)
    try:
        waited = run([hold], timeout_s=2 * timeout_s)[0]
        _, *reports = run([copy, *cuts], timeout_s=2 * timeout_s)
    finally:
        # Whatever happened: the queue goes on now, not when the lease ends.
        released = run([release], timeout_s=DROP_TIMEOUT_S)[0]
    ended = time.monotonic()
    if released.held_s is None:
        raise CutInconsistent(
            "the controller's hold ended before all cuts were taken",
            hint="save again, or allow a longer hold",
        )
    waits = run(cluster.unit_calls(unit.longest_wait), timeout_s=DROP_TIMEOUT_S)
    return _Cut(
        cut_id=cut_id,
        controller_held_s=released.held_s,
        units_held_s=tuple(report.held_s for report in reports),
        longest_wait_s=max(released.longest_wait_s, *waits),
        quiesce_s=max(waited, *(report.waited_s for report in reports)),
        cut_s=ended - started,
    )


def _write(
    cluster: Cluster,
    cut_id: str,
    source: TicketSource,
    deadline: float,
    *,
    prefix: str,
    schemas: dict[str, str],
    user_metadata: dict[str, Any],
) -> tuple[tuple[Receipt, ...], Counts]:
    units = len(cluster.units)
    planning = cluster.controller_call(at_controller.plan, cut_id, units, schemas)
    plan = run([planning], timeout_s=_left(deadline))[0]
    calls = [
        Call(handle, name, unit.start_write, (cut_id, ticket, own))
        for handle, name, ticket, own in zip(
            cluster.units,
            cluster.unit_names,
            [_ticket(source, names.unit_part(prefix, position)) for position in range(units)],
            plan.units,
            strict=True,
        )
    ]
    calls.append(
        cluster.controller_call(
            at_controller.start_write,
            cut_id,
            _ticket(source, names.controller_part(prefix)),
            units,
            cluster.version,
            user_metadata,
        )
    )
    run(calls, timeout_s=_left(deadline))
    polls = [
        *cluster.unit_calls(jobs.poll, cut_id, CUT_LEASE_S),
        cluster.controller_call(jobs.poll, cut_id, CUT_LEASE_S),
    ]
    *written, controller_receipt = wait_for(polls, deadline)
    counts = Counts()
    for item in written:
        counts.merge(item.counts)
    if differences := plan.counts.differences(counts):
        raise CutInconsistent(f"controller and units do not agree: {'; '.join(differences)}")
    receipts = [Receipt.model_validate_json(item.receipt) for item in written]
    receipts.append(Receipt.model_validate_json(controller_receipt))
    return tuple(receipts), counts


def _ticket(source: TicketSource, part: str) -> str:
    return canonical.encode(source.ticket(part)).decode()


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise DeadlineExceeded("the save did not end in time", hint="allow a longer timeout_s")
    return left


def wait_for(
    polls: Sequence[Call], deadline: float, also: Callable[[], object] | None = None
) -> list[Any]:
    """Polls jobs until all are done; their results, or the first error of any.

    Raises:
        DeadlineExceeded: If they are not done in time.
        SnapfmtError: What one of them raised.
    """
    pause = _POLL_S[0]
    while True:
        statuses: list[jobs.Status] = run(polls, timeout_s=_left(deadline))
        for status in statuses:
            if status.error is not None:
                raise status.error
        if all(status.done for status in statuses):
            return [status.result for status in statuses]
        if also is not None:
            also()
        time.sleep(min(pause, _left(deadline)))
        pause = min(pause * 1.5, _POLL_S[1])


def _drop(cluster: Cluster, cut_id: str) -> None:
    """Lets go of the cut everywhere; an actor that does not answer lets go by itself."""
    calls = [
        cluster.controller_call(jobs.drop, cut_id),
        *cluster.unit_calls(jobs.drop, cut_id),
    ]
    with suppress(SnapfmtError):
        run(calls, timeout_s=DROP_TIMEOUT_S)
