"""A cut of a live queue while its driver has it: write it, look at its keys, let go of it."""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol, Self

from snapfmt.adapters.transfer_queue import controller as at_controller
from snapfmt.adapters.transfer_queue import jobs, names, unit
from snapfmt.adapters.transfer_queue.cluster import Call, Cluster, run
from snapfmt.adapters.transfer_queue.jobs import holding_of
from snapfmt.adapters.transfer_queue.state import ControllerCut, Counts
from snapfmt.errors import (
    AttemptClosed,
    CutInconsistent,
    DeadlineExceeded,
    NotFoundError,
    SnapfmtError,
)
from snapfmt.format import canonical
from snapfmt.repository import Repository
from snapfmt_schemas.attempt import Receipt, Ticket

CUT_LEASE_S = 30.0
"""How long an actor keeps a cut of a driver that does not ask for it."""
DROP_TIMEOUT_S = 30.0


class TicketSource(Protocol):
    """A running save attempt, as far as a writer of parts needs it; `snapfmt.Attempt` is one."""

    def ticket(self, part: str) -> Ticket:
        """What another process needs to write this part."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CutTimes:
    """How a cut held the queue. Times in seconds; `SaveReport` says what each one is."""

    controller_held_s: float
    units_held_s: tuple[float, ...]
    longest_wait_s: float
    quiesce_s: float
    cut_s: float


class HeldCut:
    """References to every row of a queue at one moment, until they are written or dropped.

    The queue's actors let go of it by themselves when nobody renews, writes or asks for
    `lease_s`. Leaving its context drops it. Not thread-safe, except that `renew`, `keys` and
    `drop` may run beside a `write`; a dropped cut ends the write with an error.
    """

    def __init__(self, cluster: Cluster, cut_id: str, times: CutTimes, *, lease_s: float) -> None:
        self.times = times
        self.lease_s = lease_s
        self._cluster = cluster
        self._cut_id = cut_id
        self._written = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.drop()

    def write(
        self,
        source: TicketSource,
        *,
        part_prefix: str = "rl/tq",
        schemas: Mapping[str, str] | None = None,
        user_metadata: Mapping[str, Any] | None = None,
        timeout_s: float = 600.0,
        full: bool = False,
    ) -> tuple[tuple[Receipt, ...], Counts]:
        """Writes and seals the parts, while the queue goes on; once per cut.

        If the attempt has a base that this queue wrote (`base_in`), only rows that are new or
        changed since are written; with `full`, all are.

        Raises:
            AttemptClosed: If the cut was written already, or is gone.
            CutInconsistent: If controller and units do not agree.
            ParticipantFailed: If an actor of the queue died.
            DeadlineExceeded: If the time did not suffice.
            SnapfmtError: If a value has no exact form, or storage failed.
        """
        if self._written:
            raise AttemptClosed("the cut was written already", hint="take a new one")
        self._written = True
        return _write(
            self._cluster,
            self._cut_id,
            source,
            time.monotonic() + timeout_s,
            prefix=part_prefix,
            schemas=dict(schemas or {}),
            user_metadata=dict(user_metadata or {}),
            lease_s=self.lease_s,
            full=full,
        )

    def base_in(self, repository: Repository) -> int | None:
        """The newest snapshot of a repository that a save of this queue can build on.

        None where the running queue wrote none that is still published and whole. Give it to
        `Repository.begin(base=...)`.

        Raises:
            ParticipantFailed: If an actor of the queue died.
            StorageError: If the storage failed.
        """
        return base_in(self._cluster, repository)

    def keys(self, partition: str) -> frozenset[str]:
        """Keys of the rows with values that the cut has of a partition; empty without such rows.

        Raises:
            AttemptClosed: If the cut is gone.
            ParticipantFailed: If the controller died.
        """
        call = self._cluster.controller_call(row_keys, self._cut_id, partition)
        return frozenset(run([call], timeout_s=DROP_TIMEOUT_S)[0])

    def renew(self) -> None:
        """Keeps the cut for `lease_s` from now.

        Raises:
            AttemptError: If it is gone, in whole or in part.
        """
        run(_polls(self._cluster, self._cut_id, self.lease_s), timeout_s=DROP_TIMEOUT_S)

    def drop(self) -> None:
        """Lets go of the cut everywhere; an actor that does not answer lets go by itself."""
        drop(self._cluster, self._cut_id)


def base_in(cluster: Cluster, repository: Repository) -> int | None:
    """See `HeldCut.base_in`."""
    answers: list[list[tuple[str, int, str]]]
    answers = run(cluster.unit_calls(unit.remembered), timeout_s=DROP_TIMEOUT_S)
    known = set(chain.from_iterable(answers))
    here = {(number, attempt) for owner, number, attempt in known if owner == repository.id}
    for number, attempt_id in sorted(here, reverse=True):
        try:
            snapshot = repository.snapshot(number)
        except NotFoundError:
            continue
        if snapshot.manifest.attempt_id != attempt_id:
            continue
        # What it lost would be lost to all that build on it; a full save is whole again.
        if repository.verify(number, deep=False).ok:
            return number
    return None


def row_keys(controller: Any, cut_id: str, partition: str) -> list[str]:
    """Runs in the controller: keys of the rows with values that a cut has of a partition."""
    cut: ControllerCut = holding_of(controller, cut_id).content
    for part in cut.partitions:
        if part.partition_id == partition:
            key_of = part.key_of()
            indexes, _ = part.produced()
            return [key_of[index] for index in indexes.tolist() if index in key_of]
    return []


def _write(
    cluster: Cluster,
    cut_id: str,
    source: TicketSource,
    deadline: float,
    *,
    prefix: str,
    schemas: dict[str, str],
    user_metadata: dict[str, Any],
    lease_s: float,
    full: bool,
) -> tuple[tuple[Receipt, ...], Counts]:
    units = len(cluster.units)
    planning = cluster.controller_call(at_controller.plan, cut_id, units, schemas)
    plan = run([planning], timeout_s=_left(deadline))[0]
    calls = [
        Call(handle, name, unit.start_write, (cut_id, ticket, own, full))
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
    *written, controller_receipt = wait_for(_polls(cluster, cut_id, lease_s, jobs.WAIT_S), deadline)
    counts = Counts()
    for item in written:
        counts.merge(item.counts)
    if differences := plan.counts.differences(counts):
        raise CutInconsistent(f"controller and units do not agree: {'; '.join(differences)}")
    receipts = [Receipt.model_validate_json(item.receipt) for item in written]
    receipts.append(Receipt.model_validate_json(controller_receipt))
    return tuple(receipts), counts


def _polls(cluster: Cluster, cut_id: str, lease_s: float, wait_s: float = 0.0) -> list[Call]:
    """Asks every actor for its progress, units first; renews the cut's lease."""
    return [
        *cluster.unit_calls(jobs.poll, cut_id, lease_s, wait_s),
        cluster.controller_call(jobs.poll, cut_id, lease_s, wait_s),
    ]


def _ticket(source: TicketSource, part: str) -> str:
    return canonical.encode(source.ticket(part)).decode()


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise DeadlineExceeded("the save did not end in time", hint="allow a longer timeout_s")
    return left


def wait_for(polls: Sequence[Call], deadline: float) -> list[Any]:
    """Polls jobs until all are done; their results, or the first error of any.

    The actors wait before they answer, see `jobs.WAIT_S`.

    Raises:
        DeadlineExceeded: If they are not done in time.
        SnapfmtError: What one of them raised.
    """
    while True:
        statuses: list[jobs.Status] = run(polls, timeout_s=_left(deadline))
        for status in statuses:
            if status.error is not None:
                raise status.error
        if all(status.done for status in statuses):
            return [status.result for status in statuses]


def drop(cluster: Cluster, cut_id: str) -> None:
    """Lets go of the cut everywhere; an actor that does not answer lets go by itself."""
    calls = [
        cluster.controller_call(jobs.drop, cut_id),
        *cluster.unit_calls(jobs.drop, cut_id),
    ]
    with suppress(SnapfmtError):
        run(calls, timeout_s=DROP_TIMEOUT_S)
