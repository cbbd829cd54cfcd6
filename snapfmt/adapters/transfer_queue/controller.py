"""What runs inside the queue's controller: the cut, the plan, the writer; and the restore."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from snapfmt.adapters.transfer_queue import controller_part, names, records
from snapfmt.adapters.transfer_queue.cluster import Call, answers, ask, identify_unit, run
from snapfmt.adapters.transfer_queue.hold import Gate, install_gate
from snapfmt.adapters.transfer_queue.jobs import Holding, Status, holding_of, holdings_of, keep
from snapfmt.adapters.transfer_queue.memory import at_hand
from snapfmt.adapters.transfer_queue.state import (
    ControllerCut,
    Counts,
    UnitPlan,
    copied_sizes,
    copy_controller,
    copy_sampler,
    install_controller,
)
from snapfmt.adapters.transfer_queue.unit import CutReport
from snapfmt.errors import CutInconsistent, LeaseExpired, NoMatch, RestoreRefused, some_of
from snapfmt_schemas.collector import without_collections

REQUESTS = ("_handle_request",)
"""Every request of a client passes this method of the controller."""
CONNECT_S = 30.0
"""Time for the controller's first call to the units."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What the units have to write, and what they must find."""

    units: tuple[Any, ...]
    counts: Counts


@dataclass(frozen=True, slots=True)
class Taken:
    """How the controller was held, and what the units say of their cuts."""

    held_s: float
    waited_s: float
    longest_wait_s: float
    units: tuple[CutReport, ...]


@dataclass(slots=True)
class _Load:
    """A restore in this controller; `before` is there between install and finish."""

    cut: ControllerCut | None = None
    before: ControllerCut | None = None


def _gate(controller: Any, timeout_s: float = 30.0) -> Gate:
    return install_gate(controller, REQUESTS, timeout_s=timeout_s)


def prepare(controller: Any, timeout_s: float) -> int:
    """Installs the gate and imports what a save needs, so that no hold waits for it."""
    import_module("snapfmt.adapters.torch_values")
    import_module("snapfmt.repository")
    _gate(controller, timeout_s)
    return len(controller.partitions)


def take_cut(
    controller: Any,
    cut_id: str,
    partitions: Sequence[str] | None,
    units: Sequence[Call],
    timeout_s: float,
    hold_lease_s: float,
    lease_s: float,
) -> Taken:
    """Stops the requests, has the units take their cuts, copies the state meanwhile, goes on.

    `units` are the calls for the units' cuts. Nothing that its driver does or does not do lies
    inside the hold; a unit that does not answer can make it last as long as its lease.

    Raises:
        NoMatch: If a partition that was asked for is not there.
        CutInconsistent: If the hold ended before all cuts were taken.
        ParticipantFailed: If a unit died.
        DeadlineExceeded: If a request inside the queue does not end in time.
    """
    gate = _gate(controller)
    # The first call to a unit opens a connection: not under the hold.
    run([Call(call.actor, call.name, identify_unit) for call in units], timeout_s=CONNECT_S)
    above = at_hand(copied_sizes(controller))
    with without_collections():
        waited = gate.hold(cut_id, lease_s=hold_lease_s, timeout_s=timeout_s)
        try:
            copied, reports = _cut_under_hold(controller, partitions, units, hold_lease_s)
        finally:
            # Whatever happened: the queue goes on now, not when the lease ends.
            held = gate.release(cut_id)
    del above
    if held is None:
        raise CutInconsistent(
            "the controller's hold ended before all cuts were taken",
            hint="save again, or allow a longer hold",
        )
    keep(controller, cut_id, Holding(copied(), lease_s=lease_s, release=lambda _: None))
    return Taken(held, waited, gate.longest_wait, tuple(reports))


def _cut_under_hold(
    controller: Any, partitions: Sequence[str] | None, units: Sequence[Call], timeout_s: float
) -> tuple[Callable[[], ControllerCut], list[CutReport]]:
    for partition in partitions or ():
        if partition not in controller.partitions:
            hint = some_of(sorted(controller.partitions))
            raise NoMatch("the queue has no such partition", what=partition, hint=hint)
    asked = ask(units)
    try:
        copied = copy_controller(controller, partitions)
    finally:
        # Also after an error, so that no unit takes its cut when the driver has let go of it.
        reports = answers(asked, timeout_s=timeout_s)
    return copied, reports


def plan(controller: Any, cut_id: str, units: int, schemas: dict[str, str]) -> Plan:
    """Says what each unit has to write; the plans stay in the object store of this node."""
    import ray

    cut: ControllerCut = holding_of(controller, cut_id).content
    tables = names.table_names(part.partition_id for part in cut.partitions)
    counts = Counts()
    plans: list[list[UnitPlan]] = [[] for _ in range(units)]
    for part in cut.partitions:
        fields = tuple(part.ordered_fields())
        indexes, produced = part.produced()
        counts.add(part.partition_id, fields, produced)
        key_of = part.key_of()
        for position, own in enumerate(plans):
            chosen = indexes % units == position
            some = indexes[chosen]
            own.append(
                UnitPlan(
                    partition_id=part.partition_id,
                    table=tables[part.partition_id],
                    schema_id=schemas.get(part.partition_id, ""),
                    fields=fields,
                    indexes=some,
                    keys=tuple(key_of.get(index) for index in some.tolist()),
                    produced=produced[chosen],
                )
            )
    return Plan(tuple(ray.put(own) for own in plans), counts)


def start_write(
    controller: Any,
    cut_id: str,
    ticket: str,
    units: int,
    version: str,
    user_metadata: dict[str, Any],
) -> None:
    """Writes the controller's part in the background; `poll` gives the receipt as JSON."""
    holding = holding_of(controller, cut_id)

    def write() -> str:
        from snapfmt.repository import Repository

        cut: ControllerCut = holding.content

        def document(**fields: Any) -> records.ControllerRecord:
            return records.ControllerRecord(
                transfer_queue_version=version,
                units=units,
                user_metadata=user_metadata,
                **fields,
            )

        with Repository.join(ticket) as part:
            controller_part.write_controller(
                part,
                cut,
                tables=names.table_names(item.partition_id for item in cut.partitions),
                document=document,
                check=holding.check,
            )
            return part.seal().model_dump_json()

    holding.start(write, "snapfmt-write")


def start_load(
    controller: Any,
    load_id: str,
    source: tuple[str, int, str],
    sampler_state: str,
    timeout_s: float,
    lease_s: float,
) -> None:
    """Holds the requests and reads the saved state; `poll_load` gives the `Counts`.

    Raises:
        RestoreRefused: If the queue is not empty.
    """
    gate = _gate(controller)
    gate.hold(load_id, lease_s=lease_s, timeout_s=timeout_s)
    if controller.partitions:
        gate.release(load_id)
        raise RestoreRefused(
            f"the queue has partitions already: {', '.join(sorted(controller.partitions))}",
            hint="restore into a fresh queue",
        )
    load = _Load()

    def release_load(_: Holding) -> None:
        if load.before is not None:
            install_controller(controller, load.before)
        gate.release(load_id)

    holding = Holding(load, lease_s=lease_s, release=release_load)
    keep(controller, load_id, holding)
    sampler = controller.sampler

    def read() -> Counts:
        from snapfmt.repository import Repository

        location, number, prefix = source
        part = Repository.open(location).snapshot(number).part(names.controller_part(prefix))
        document = controller_part.read_document(part)
        # A shape for every cell: none is garbage, and to look at all of them takes longer.
        with without_collections():
            cut, counts = controller_part.read_controller(part, document, holding.check)
        load.cut = _with_sampler(cut, sampler, drop=sampler_state == "drop")
        return counts

    holding.start(read, "snapfmt-load")


def _with_sampler(cut: ControllerCut, sampler: Any, *, drop: bool) -> ControllerCut:
    """The state with a sampler state that this sampler can take.

    Raises:
        RestoreRefused: If the saved cursor belongs to another sampler.
    """
    kind, state, settings = copy_sampler(sampler)
    if drop or not any(cut.sampler_state.values()):
        return dataclasses.replace(cut, sampler_state=state)
    differences = [
        f"{name}: {saved!r} != {settings.get(name)!r}"
        for name, saved in cut.sampler_settings.items()
        if settings.get(name) != saved
    ]
    if kind != cut.sampler_class:
        differences.insert(0, f"{cut.sampler_class} != {kind}")
    if differences:
        raise RestoreRefused(
            f"the saved sampler has a cursor that this sampler cannot continue: "
            f"{'; '.join(differences)}",
            hint="start the queue with the saved sampler, or load with sampler_state='drop'",
        )
    return cut


def poll_load(controller: Any, load_id: str, lease_s: float, wait_s: float = 0.0) -> Status:
    """Progress of the load; asking renews its hold too.

    Raises:
        LeaseExpired: If the hold has ended.
    """
    status = holding_of(controller, load_id).status(lease_s, wait_s)
    if not _gate(controller).renew(load_id, lease_s):
        raise LeaseExpired("the controller's hold has ended")
    return status


def install(controller: Any, load_id: str, lease_s: float) -> None:
    """Puts the saved state in place of the empty one; nobody sees it before `finish`."""
    poll_load(controller, load_id, lease_s)
    load: _Load = holding_of(controller, load_id).content
    if load.cut is None:
        raise RestoreRefused("the state was not read yet")
    before = copy_controller(controller, None)()
    install_controller(controller, load.cut)
    load.before = before


def finish(controller: Any, load_id: str) -> float:
    """The restored state counts; requests go on. Returns the seconds they were held.

    Raises:
        LeaseExpired: If the hold had ended, and with it the restore.
    """
    holding = holdings_of(controller).pop(load_id)
    load: _Load = holding.content
    gate = _gate(controller)
    if not holding.end():
        raise LeaseExpired("the controller's hold has ended; nothing was restored")
    load.before = None
    return gate.release(load_id) or 0.0
