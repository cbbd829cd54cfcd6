"""The base of an attempt: what a part may go on with (spec/v1/07-writing.md, W-13)."""

from collections.abc import Iterable
from functools import partial

from snapfmt.errors import FormatError, InputError, LeaseExpired, MissingObject, NotPublished
from snapfmt.format import canonical, compat, layout, pack
from snapfmt.format.reach import extents
from snapfmt.limits import DEFAULT_LIMITS, Limits
from snapfmt.reading.segment import SegmentReader
from snapfmt.reading.snapshot import Part, Snapshot
from snapfmt.storage.base import Store
from snapfmt.threads import together
from snapfmt_schemas.attempt import Lease, Ticket
from snapfmt_schemas.manifest import Manifest


def open_base(store: Store, ticket: Ticket, limits: Limits = DEFAULT_LIMITS) -> Snapshot | None:
    """The snapshot that a running attempt builds on, as its lease names it, or None.

    Raises:
        LeaseExpired: If the attempt is over.
        NotPublished: If the base is not published any more.
    """
    key = layout.lease_key(ticket.attempt_id)
    try:
        data = store.get(key, limit=limits.lease_size)
    except MissingObject as error:
        raise LeaseExpired(
            "the attempt was abandoned or taken over; nothing was published",
            what=ticket.attempt_id,
            hint="start a new save",
        ) from error
    lease = canonical.decode(data, Lease, what=key, size_limit=limits.lease_size)
    if lease.attempt_id != ticket.attempt_id:
        raise FormatError("the lease is another attempt's", what=key)
    if lease.base is None:
        return None
    return snapshot_of(store, lease.base, repository_id=ticket.repository_id, limits=limits)


def snapshot_of(store: Store, number: int, *, repository_id: str, limits: Limits) -> Snapshot:
    """The base of a running attempt, also when it was taken out since the attempt began.

    The attempt's lease holds what it reaches until the attempt is over.

    Raises:
        NotPublished: If it is gone.
    """
    try:
        return Snapshot.open(store, number, repository_id=repository_id, limits=limits)
    except NotPublished:
        key = layout.snapshot_key(number, layout.RETIRING)
        try:
            data = store.get(key, limit=limits.manifest_size)
        except MissingObject:
            data = b""
        if not data:
            raise
    manifest = compat.decode_root(
        data, Manifest, what=key, size_limit=limits.manifest_size, limits=limits
    )
    if (manifest.number, manifest.repository_id) != (number, repository_id):
        raise FormatError("not the manifest of this snapshot", what=key)
    return Snapshot(store, manifest, limits=limits)


def part_of(base: Snapshot | None, name: str) -> Part | None:
    """The base's part of that name, None where there is none."""
    return base.part(name) if base is not None and name in base.part_names() else None


def segments_of(base: Snapshot | None, part: str, table: str) -> list[SegmentReader]:
    """The segments of the base's table in the part of that name; none where it has none."""
    found = part_of(base, part)
    return [] if found is None else found.segments(table)


def check_reach(store: Store, attempt_id: str, packs: Iterable[str], base: Snapshot) -> None:
    """Refuse packs that neither the attempt wrote nor its base reaches.

    Nothing would hold them: a retirement could remove them while the save runs. The base is
    looked at only where a pack is not the attempt's own.

    Raises:
        InputError: Naming the pack.
    """
    names = sorted(packs)
    owners = together([partial(_owner, store, name) for name in names], workers=store.at_once)
    foreign = [name for name, owner in zip(names, owners, strict=True) if owner != attempt_id]
    if not foreign:
        return
    base.prefetch()
    reached = {name for part in base.parts() for name in extents(part.index)}
    for name in foreign:
        if name not in reached:
            raise InputError(
                "a part reaches a pack that neither the attempt wrote nor its base reaches",
                what=name,
                hint=f"carry only what {base.name} holds",
            )


def _owner(store: Store, name: str) -> str:
    key = layout.object_key(name)
    return pack.check_header(store.get_range(key, 0, pack.HEADER_SIZE), what=key)
