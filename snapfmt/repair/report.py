"""What a repair says: what is whole, what was saved in pieces, and all that is lost."""

from dataclasses import dataclass, field
from typing import Any, Literal

LossKind = Literal["snapshot", "part", "entry", "records", "rows"]
Outcome = Literal["whole", "pieces", "lost", "unknown"]
KEYS_SHOWN = 1000
"""Keys of one loss that `as_json` lists; the count says how many there are."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Something of a snapshot that no copy has."""

    kind: LossKind
    part: str
    """Empty where a whole snapshot is lost."""
    name: str
    """Of the snapshot, part, entry or table."""
    count: int
    """Snapshots, parts, entries, records or rows."""
    reason: str
    keys: tuple[str, ...] = ()
    """Of the records or rows, where they are known; then there are `count` of them."""

    def as_json(self, keys: int = KEYS_SHOWN) -> dict[str, Any]:
        """Plain values, with at most so many keys."""
        return {
            "kind": self.kind,
            "part": self.part,
            "name": self.name,
            "count": self.count,
            "reason": self.reason,
            "keys": list(self.keys[:keys]),
        }


@dataclass(frozen=True, slots=True)
class Kept:
    """How much of a damaged snapshot can be read, and was checked."""

    entries: int = 0
    """Record files are counted by their records."""
    records: int = 0
    rows: int = 0


@dataclass(frozen=True, slots=True)
class SnapshotRepair:
    """What became of one snapshot."""

    number: int
    outcome: Outcome
    """`whole`: it is in the new repository, the same byte for byte. `pieces`: some of it can be
    read. `lost`: nothing. `unknown`: it needs a newer version of this library."""
    write_id: str = ""
    """Empty where the manifest is lost."""
    written: bool = False
    """Whether this run wrote it, whole or its pieces; if not, it was there or was not asked for."""
    salvaged: bool = False
    """Whether its pieces are in the place for pieces."""
    moved: int = 0
    """Objects that are not, or not whole, where they belong in the source, and were elsewhere."""
    bytes_sent: int = 0
    kept: Kept = Kept()
    losses: tuple[Loss, ...] = ()
    findings: tuple[str, ...] = ()
    """What an audit found of it, with all copies together."""

    def as_json(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        return {
            "number": self.number,
            "outcome": self.outcome,
            "write_id": self.write_id,
            "written": self.written,
            "salvaged": self.salvaged,
            "moved": self.moved,
            "bytes_sent": self.bytes_sent,
            "kept": {
                "entries": self.kept.entries,
                "records": self.kept.records,
                "rows": self.kept.rows,
            },
            "losses": [item.as_json() for item in self.losses],
            "findings": list(self.findings),
        }


@dataclass(slots=True)
class RepairReport:
    """What one repair found and did."""

    source: str
    target: str = ""
    """Empty if nothing is whole: then none was made."""
    pieces: str = ""
    """Where pieces went; empty if nobody asked for them, or there are none."""
    snapshots: list[SnapshotRepair] = field(default_factory=list)
    """Ascending."""
    retired: list[int] = field(default_factory=list)
    """Numbers that the source retired; they are not brought back."""
    unpublished: list[int] = field(default_factory=list)
    """Numbers whose folder holds no manifest in any copy: never published, or it is lost."""
    unreached_objects: int = 0
    """Objects of the source that no readable manifest reaches."""
    document: str = ""
    """What was wrong with `snapfmt.json`; empty if nothing."""
    closed: int | None = None
    """A number that the target keeps taken, so that no later save gets that of a lost snapshot."""
    others: list[str] = field(default_factory=list)
    """What was found of the other copies that kept them from being used."""
    seconds: float = 0.0

    def numbers(self, outcome: Outcome) -> list[int]:
        """Of the snapshots with this outcome."""
        return [item.number for item in self.snapshots if item.outcome == outcome]

    @property
    def whole(self) -> list[int]:
        """Numbers that are in the target, byte for byte."""
        return self.numbers("whole")

    @property
    def ok(self) -> bool:
        """Whether every snapshot is whole, and nothing may be missing."""
        return all(item.outcome == "whole" for item in self.snapshots)

    def as_json(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        return {
            "ok": self.ok,
            "source": self.source,
            "target": self.target,
            "pieces": self.pieces,
            "snapshots": [item.as_json() for item in self.snapshots],
            "retired": self.retired,
            "unpublished": self.unpublished,
            "unreached_objects": self.unreached_objects,
            "document": self.document,
            "closed": self.closed,
            "others": self.others,
            "seconds": round(self.seconds, 6),
        }
