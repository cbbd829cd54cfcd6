"""The restore of a queue, as its driver runs it: everything, or nothing at all."""

import time
import uuid
from contextlib import suppress
from typing import Any, Literal

from snapfmt.adapters.transfer_queue import controller as at_controller
from snapfmt.adapters.transfer_queue import controller_part, jobs, names, unit
from snapfmt.adapters.transfer_queue.cluster import Cluster, run
from snapfmt.adapters.transfer_queue.reports import LoadReport
from snapfmt.adapters.transfer_queue.saving import DROP_TIMEOUT_S, wait_for
from snapfmt.adapters.transfer_queue.state import Counts
from snapfmt.errors import FormatError, SnapfmtError
from snapfmt.reading.snapshot import Snapshot

LEASE_S = 15.0
"""After this a restore whose driver died is undone by the actors themselves."""


def load(
    snapshot: Snapshot,
    *,
    controller: Any = None,
    part_prefix: str = "rl/tq",
    sampler_state: Literal["require", "drop"] = "require",
    timeout_s: float = 1800.0,
    hold_timeout_s: float = 30.0,
) -> LoadReport:
    """Restores a saved queue into a fresh one with any number of storage units.

    Every row gets its old global index, so keys, tags, production, consumption and the
    sampler's cursor mean what they meant. Requests of other clients wait until it is done.

    Args:
        snapshot: The snapshot, opened with `Repository.snapshot`.
        controller: Handle of the queue's controller, if it is not the cluster's only one.
        part_prefix: Name under which the parts lie.
        sampler_state: `drop` restores all but the sampler's cursor.
        timeout_s: Time for the whole restore.
        hold_timeout_s: Time to wait for requests that are inside when it begins.

    Raises:
        RestoreRefused: If the queue is not empty, or its sampler or capacity differs.
        NoMatch: If the snapshot holds no queue under `part_prefix`.
        CorruptError: If stored bytes are damaged.
        ParticipantFailed: If an actor of the queue died.
    """
    started = time.monotonic()
    deadline = started + timeout_s
    part = snapshot.part(names.controller_part(part_prefix))
    document = controller_part.read_document(part)
    location = snapshot.location
    cluster = Cluster.connect(controller)
    load_id = uuid.uuid4().hex
    request = unit.LoadRequest(
        location=location,
        number=snapshot.number,
        prefix=part_prefix,
        tables=tuple((item.partition_id, item.table) for item in document.partitions),
        saved_units=document.units,
        units=len(cluster.units),
    )
    prepare = [
        cluster.controller_call(at_controller.prepare, hold_timeout_s),
        *cluster.unit_calls(unit.prepare, hold_timeout_s),
    ]
    run(prepare, timeout_s=hold_timeout_s + 60.0)
    source = (location, snapshot.number, part_prefix)
    try:
        hold = cluster.controller_call(
            at_controller.start_load, load_id, source, sampler_state, hold_timeout_s, LEASE_S
        )
        run([hold], timeout_s=hold_timeout_s + DROP_TIMEOUT_S)
        positions = range(len(cluster.units))
        starts = cluster.unit_calls(unit.start_load, load_id, request, LEASE_S, each=positions)
        run(starts, timeout_s=DROP_TIMEOUT_S)
        polls = [
            cluster.controller_call(at_controller.poll_load, load_id, LEASE_S, jobs.WAIT_S),
            *cluster.unit_calls(jobs.poll, load_id, LEASE_S, jobs.WAIT_S),
        ]
        expected, *loaded = wait_for(polls, deadline)
        counts = Counts()
        for item in loaded:
            counts.merge(item)
        if differences := expected.differences(counts):
            raise FormatError(f"state and rows do not agree: {'; '.join(differences)}")
        read_at = time.monotonic()
        # Nobody sees the state before `finish`: until then every step can be taken back.
        run(
            [cluster.controller_call(at_controller.install, load_id, LEASE_S)],
            timeout_s=DROP_TIMEOUT_S,
        )
        run(cluster.unit_calls(unit.accept_load, load_id, LEASE_S), timeout_s=DROP_TIMEOUT_S)
        held = run(
            [cluster.controller_call(at_controller.finish, load_id)], timeout_s=DROP_TIMEOUT_S
        )[0]
    except BaseException:
        _undo(cluster, load_id)
        raise
    with suppress(SnapfmtError):
        run(cluster.unit_calls(jobs.drop, load_id), timeout_s=DROP_TIMEOUT_S)
    return LoadReport(
        snapshot=snapshot.number,
        user_metadata=document.user_metadata,
        partitions={
            item.partition_id: counts.rows.get(item.partition_id, 0) for item in document.partitions
        },
        rows=sum(counts.rows.values()),
        cells=sum(counts.cells.values()),
        units=len(cluster.units),
        saved_units=document.units,
        read_s=read_at - started,
        held_s=held,
        total_s=time.monotonic() - started,
    )


def _undo(cluster: Cluster, load_id: str) -> None:
    """Units first: the requests stay held until nothing of the restore is left."""
    with suppress(SnapfmtError):
        run(cluster.unit_calls(unit.revoke_load, load_id), timeout_s=DROP_TIMEOUT_S)
    with suppress(SnapfmtError):
        run([cluster.controller_call(jobs.drop, load_id)], timeout_s=DROP_TIMEOUT_S)
