"""Whether the parts of one cut fit together; the same rules before a publish and a restore."""

from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final, TypeVar

from snapfmt.errors import FormatError
from snapfmt.reading.snapshot import Part
from snapfmt_coordinator.gym.parts import GymParts
from snapfmt_coordinator.protocol.v1 import ReferenceIndex
from snapfmt_coordinator.sequence.ports import LedgerFacts
from snapfmt_schemas._base import Record
from snapfmt_schemas.continuation import Continuation
from snapfmt_schemas.lineage import ExternalStorageReference

R = TypeVar("R", bound=Record)
PartOf = Callable[[str], Part]
"""Finds a part of the cut by name."""
_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class GymIndexes:
    """The two lists that tie Gym's parts to the others."""

    continuations: tuple[tuple[str, Continuation], ...]
    """Each with the name of its agent server."""
    references: tuple[ExternalStorageReference, ...]


def read_indexes(part_of: PartOf, gym: GymParts) -> GymIndexes:
    """Reads both from their parts; blocking.

    Raises:
        CorruptError: If an entry is damaged, or is not the one that was announced.
        NotFoundError: If a part or an entry is not there.
    """
    return GymIndexes(
        tuple(
            (gym.participants[part].server_name, line)
            for part, index in gym.continuation_indexes.items()
            for line in _lines(part_of, index, Continuation)
        ),
        tuple(
            line
            for index in gym.storage_reference_indexes.values()
            for line in _lines(part_of, index, ExternalStorageReference)
        ),
    )


def _lines(part_of: PartOf, index: ReferenceIndex, model: type[R]) -> list[R]:
    part = part_of(index.part)
    entry = part.entry(index.path)
    what = f"{index.part}/{index.path}"
    if entry.digest != index.digest:
        raise FormatError("the entry is not the one that its server announced", what=what)
    lines = list(part.records(index.path, model))
    if len(lines) != index.records:
        raise FormatError(f"{len(lines)} records, announced were {index.records}", what=what)
    return lines


def problems(indexes: GymIndexes | None, ledger: LedgerFacts, rows: AbstractSet[str]) -> list[str]:
    """Where Gym's parts, the ledger and the token-capture rows contradict one another.

    `indexes` is None when Gym took no part; `rows` has the keys of the token-capture rows.
    """
    found = _missing("the ledger names", ledger.required_rows(), rows)
    if indexes is None:
        return found
    if owed := ledger.pending_acknowledgements():
        found.append(f"{owed} acknowledgements are owed to Gym")
    roots = {
        line.capture_key: line.last_committed_model_call_id for _, line in indexes.continuations
    }
    if len(roots) != len(indexes.continuations):
        found.append("a run has more than one continuation")
    unknown = roots.keys() - ledger.dispatched_runs()
    found += _some("Gym continues runs that the ledger has not dispatched", unknown)
    keys = [reference.key for reference in indexes.references]
    if len(set(keys)) != len(keys):
        found.append("a storage reference repeats its key")
    found += _missing("the model's lineage names", keys, rows)
    loose = {
        reference.key
        for reference in indexes.references
        if roots.get(reference.capture_key) != reference.boundary_model_call_id
    }
    found += _some("storage references of no continuation", loose)
    referred = {reference.capture_key for reference in indexes.references}
    found += _some("continuations without lineage", roots.keys() - referred)
    return found


def _missing(who: str, keys: Iterable[str], rows: AbstractSet[str]) -> list[str]:
    return _some(f"{who} token-capture rows that the cut has not", set(keys) - rows)


def _some(text: str, items: AbstractSet[str]) -> list[str]:
    if not items:
        return []
    shown = ", ".join(sorted(items)[:_SHOWN])
    more = f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
    return [f"{text}: {shown}{more}"]
