"""What a part index reaches (spec/v1/04-documents.md, Part index)."""

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
