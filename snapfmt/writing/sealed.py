"""Segments of a table that are written, or taken over from the base."""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from snapfmt.format import batch_index, chunks, segment
from snapfmt.format.columns import Column, concat
from snapfmt.format.digest import digest_of
from snapfmt.limits import KIB
from snapfmt.writing.carry import Carried
from snapfmt.writing.pack import Extent, PackWriter
from snapfmt_schemas.part import Segment

TOGETHER_BYTES = 256 * KIB
"""Batch indexes of a table that are read along with its keys sooner than by themselves."""


@dataclass(slots=True)
class OpenSegment:
    """A segment whose rows are being written."""

    plans: tuple[segment.ColumnPlan, ...]
    begin: int
    head: bytes
    index: batch_index.BatchIndexBuilder
    keys: list[Column]
    logical: int = 0
    position: int = 0


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


def key_array(batches: Sequence[Column]) -> pa.Array:
    """The keys of a segment's batches.

    Made once: each of Arrow's calls gives up the interpreter's lock, and waits to get it back.
    """
    keys = concat(batches)
    return chunks.to_arrow("key", keys, chunks.physical_full(keys.signature))[0]


def seal(segments: Sequence[Closed], packs: PackWriter, what: str) -> list[Sealed]:
    """Write the indexes of a table's segments, next to one another, so that one read gets all.

    Where the batch indexes are large, all keys come after them: who looks for a row reads all
    keys, and then the batch index of one segment.
    """
    apart = sum(len(item.batches) for item in segments) > TOGETHER_BYTES
    ahead = [packs.entry(item.batches, what) for item in segments] if apart else []
    sealed = []
    for number, item in enumerate(segments):
        batches = ahead[number] if apart else packs.entry(item.batches, what)
        keys = batch_index.keys_to_bytes([item.keys])
        sealed.append(Sealed(item, batches, packs.entry(keys, what), digest_of(keys)))
    return sealed


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
