"""What a part index reaches (spec/v1/04-documents.md, Part index)."""

from snapfmt.errors import FormatError
from snapfmt.format import canonical, digest, layout
from snapfmt.limits import Limits
from snapfmt_schemas.attempt import Receipt
from snapfmt_schemas.part import PartIndex


def decode_index(data: bytes, receipt: Receipt, limits: Limits) -> PartIndex:
    """The part index that a receipt names, from its bytes.

    Raises:
        CorruptError: If it is damaged or another part's.
        LimitExceeded: If a bound is passed.
    """
    what = layout.object_key(receipt.index_digest)
    digest.check_size(len(data), receipt.index_size, what=what)
    digest.check(data, receipt.index_digest, what=what)
    index = canonical.decode(
        data, PartIndex, what=what, size_limit=limits.part_index_size, limits=limits
    )
    check_counts(index, limits, what=what)
    if index.part != receipt.part or index.attempt_id != receipt.attempt_id:
        raise FormatError(f"part index is that of {index.part!r}", what=receipt.part)
    return index


def objects(receipt: Receipt, index: PartIndex) -> dict[str, int]:
    """Every object that a part reaches, by its key, and how many bytes of it there must be."""
    found = {layout.object_key(name): end for name, end in extents(index).items()}
    found[layout.object_key(receipt.index_digest)] = receipt.index_size
    return found


def extents(index: PartIndex) -> dict[str, int]:
    """Every pack that a part index reaches, and the end of the last byte that it reaches."""
    places = [entry.location for entry in index.entries]
    for table in index.tables:
        for item in table.segments:
            places += [item.data, item.batches, item.keys]
            places += [item.live] if item.live is not None else []
    found: dict[str, int] = {}
    for place in places:
        found[place.pack] = max(found.get(place.pack, 0), place.offset + place.size)
    return found


def check_counts(index: PartIndex, limits: Limits, *, what: str) -> None:
    """Compare the counts of a part index with the limits; writers and readers do it alike.

    Raises:
        LimitExceeded: If one is larger.
    """
    segments = [item for table in index.tables for item in table.segments]
    limits.check("entries", len(index.entries), what=what)
    limits.check("tables", len(index.tables), what=what)
    limits.check("segments", len(segments), what=what)
    limits.check("columns", max((len(item.columns) for item in segments), default=0), what=what)
