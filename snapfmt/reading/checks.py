"""Checks of what a part holds against what is said about it, for the audit."""

import json

from snapfmt.errors import FormatError
from snapfmt.reading.snapshot import Part
from snapfmt_schemas.attempt import Receipt


def receipt_problem(part: Part, receipt: Receipt) -> str:
    """What a part index says otherwise than its receipt, or nothing."""
    index = part.index
    held = tuple(
        (table.name, table.rows, sum(item.logical_bytes for item in table.segments))
        for table in index.tables
    )
    said = tuple((table.name, table.rows, table.logical_bytes) for table in receipt.tables)
    if held != said or len(index.entries) != receipt.entries:
        return "part index does not hold what its receipt says"
    if sum(entry.records or 0 for entry in index.entries) != receipt.records:
        return "part index does not hold as many records as its receipt says"
    return ""


def check_records(part: Part, path: str) -> None:
    """Every line decodes, and the index points at each of them in order.

    Raises:
        FormatError: If not.
    """
    entry = part.entry(path)
    what = f"{part.name}/{path}"
    places = part.line_places(entry)
    for line, place in zip(part.lines(path), places, strict=True):
        if len(line) != place.line_size:
            raise FormatError("index does not point at the lines", what=what)
        try:
            json.loads(line)
        except (ValueError, RecursionError) as error:
            raise FormatError(f"not a JSON line: {error}", what=what) from error
