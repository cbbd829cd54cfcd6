"""What a part index reaches (spec/v1/04-documents.md, Part index)."""

from snapfmt.limits import Limits
from snapfmt_schemas.part import PartIndex


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
