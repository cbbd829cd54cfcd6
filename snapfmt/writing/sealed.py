"""Segments of a table that are written, or taken over from the base."""

from dataclasses import dataclass

import pyarrow as pa

from snapfmt.format import segment
from snapfmt.format.digest import digest_of
from snapfmt.writing.carry import Carried
from snapfmt.writing.pack import Extent
from snapfmt_schemas.part import Segment


@dataclass(frozen=True, slots=True)
class Closed:
    """A segment whose rows are written; its keys and its batch index are not."""

    plans: tuple[segment.ColumnPlan, ...]
    rows: int
    data: Extent
    head: bytes
    batches: bytes
    keys: pa.Array
    logical: int


@dataclass(frozen=True, slots=True)
class Sealed:
    """A segment that is written."""

    segment: Closed
    batches: Extent
    keys: Extent
    keys_digest: str


@dataclass(frozen=True, slots=True)
class Placed:
    """Which rows one segment of a closed table has, in order."""

    keys: pa.Array | None
    """Keys of rows that were written; None for rows of the base."""
    base: Carried | None = None
    """Rows of the base that were carried."""


def carried_document(item: Carried, bitmap: Extent | None, mark: str) -> Segment:
    """The entry in the part index of a segment of the base; `mark` is the bitmap's digest."""
    document = item.segment.document
    if bitmap is None:
        return document
    live = {"live": bitmap.location(), "live_digest": mark, "live_rows": item.rows}
    return document.model_copy(update=live)


def written_document(sealed: Sealed) -> Segment:
    """The entry in the part index of a segment that was written; after the packs were closed."""
    item = sealed.segment
    return Segment(
        rows=item.rows,
        columns=tuple(how.spec() for how in item.plans[1:]),
        data=item.data.location(),
        head_size=len(item.head),
        head_digest=digest_of(item.head),
        batches=sealed.batches.location(),
        batches_digest=digest_of(item.batches),
        keys=sealed.keys.location(),
        keys_digest=sealed.keys_digest,
        live_rows=item.rows,
        logical_bytes=item.logical,
    )
