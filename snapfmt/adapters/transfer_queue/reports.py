"""What a save and a load tell their caller."""

from dataclasses import dataclass, field
from typing import Any

from snapfmt.reading.snapshot import Snapshot
from snapfmt_schemas.attempt import Receipt


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveReport:
    """One save of a queue. Times in seconds."""

    receipts: tuple[Receipt, ...]
    snapshot: Snapshot | None
    """None when the caller publishes the receipts."""
    base: int | None = None
    """The snapshot that this one builds on; None for a full save."""
    controller_held_s: float
    """How long requests could not enter the controller."""
    units_held_s: tuple[float, ...]
    """How long rows could not be changed, per unit."""
    longest_wait_s: float
    """Longest time that any request really waited at a gate."""
    quiesce_s: float
    """Longest wait for requests that were inside already; nothing is held meanwhile."""
    cut_s: float
    """From the first call of the cut to its last answer, as the driver saw it."""
    write_s: float
    publish_s: float
    total_s: float
    rows: int
    cells: int
    logical_bytes: int
    stored_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """One restore of a queue. Times in seconds."""

    snapshot: int
    user_metadata: dict[str, Any]
    partitions: dict[str, int] = field(default_factory=dict)
    """Rows that have values, per partition."""
    rows: int
    cells: int
    units: int
    saved_units: int
    read_s: float
    held_s: float
    total_s: float
