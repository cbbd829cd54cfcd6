"""What of a damaged snapshot can be proven good, and what cannot: piece by piece.

A piece is an entry, a frame of a record file, or a batch of a table's rows: the smallest things
with a digest of their own that something checked says. Cells are not taken one by one: a row
without a cell that it had would be another row.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np

from snapfmt.errors import SnapfmtError, StorageUnavailable
from snapfmt.format import arrow_stream, jsonl
from snapfmt.format.columns import from_values
from snapfmt.reading.segment import SegmentReader
from snapfmt.reading.snapshot import Part, Snapshot
from snapfmt.repair.report import Kept, Loss
from snapfmt.writing.lines import PreparedLine
from snapfmt.writing.rows import Rows
from snapfmt_schemas.part import Entry

_REPEATS = "the key of a row repeats"


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one batch that are good."""

    segment: SegmentReader
    number: int
    chosen: Any
    keys: list[str]

    def read(self) -> Rows:
        """The rows, verified once more."""
        columns = self.segment.read(self.number, self.chosen)
        return [
            (arrow_stream.KEY_COLUMN, from_values(arrow_stream.KEY_SIGNATURE, self.keys)),
            *sorted(columns.items()),
        ]


@dataclass(slots=True)
class TablePieces:
    """Good rows of one table of one part."""

    name: str
    schema_id: str
    batches: list[Batch] = field(default_factory=list)


@dataclass(slots=True)
class FilePieces:
    """Good records of one record file."""

    path: str
    places: list[jsonl.LinePlace] = field(default_factory=list)


@dataclass(slots=True)
class PartPieces:
    """All that is good of one part."""

    part: Part
    entries: list[Entry] = field(default_factory=list)
    files: list[FilePieces] = field(default_factory=list)
    tables: list[TablePieces] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.entries or self.files or self.tables)

    def lines(self, item: FilePieces) -> Iterator[PreparedLine]:
        """The good records of a file, verified once more."""
        entry = self.part.entry(item.path)
        for _, group in groupby(item.places, lambda place: place.frame_offset):
            places = list(group)
            content = self.part.frame(entry, places[0])
            for place in places:
                yield PreparedLine(jsonl.line_of(content, place, what=item.path), place.key)


@dataclass(slots=True)
class Survey:
    """One damaged snapshot, looked through."""

    parts: list[PartPieces] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    entries: int = 0
    records: int = 0
    rows: int = 0
    _keys: dict[str, set[str]] = field(default_factory=dict)
    """Table -> keys that were met, over all parts."""

    @property
    def kept(self) -> Kept:
        """How much is good."""
        return Kept(self.entries, self.records, self.rows)

    def look(self, part: Part) -> None:
        """Sort one part into what is good and what is lost."""
        try:
            index = part.index
        except SnapfmtError as error:
            self._part(part, _reason(error))
            return
        found = PartPieces(part)
        beside = {entry.index for entry in index.entries if entry.media_type == jsonl.MEDIA_TYPE}
        for entry in index.entries:
            if entry.media_type == jsonl.MEDIA_TYPE:
                self._file(found, entry)
            elif entry.path not in beside:
                self._entry(found, entry)
        for table in index.tables:
            pieces = TablePieces(table.name, table.schema_id)
            for segment in part.segments(table.name):
                self._segment(part.name, pieces, segment)
            # A table without rows is one too, unless it lost them.
            if pieces.batches or not table.rows:
                found.tables.append(pieces)
        if found:
            self.parts.append(found)

    def _part(self, part: Part, reason: str) -> None:
        """What its receipt says that it held."""
        receipt = part.receipt
        self.losses.append(Loss("part", part.name, part.name, 1, reason))
        inside = f"its part cannot be read: {reason}"
        if receipt.entries:
            self.losses.append(Loss("entry", part.name, "*", receipt.entries, inside))
        if receipt.records:
            self.losses.append(Loss("records", part.name, "*", receipt.records, inside))
        self.losses += [
            Loss("rows", part.name, item.name, item.rows, inside) for item in receipt.tables
        ]

    def _entry(self, found: PartPieces, entry: Entry) -> None:
        try:
            found.part.stored(entry.path)
        except SnapfmtError as error:
            name = found.part.name
            self.losses.append(Loss("entry", name, entry.path, 1, _reason(error)))
        else:
            found.entries.append(entry)
            self.entries += 1

    def _file(self, found: PartPieces, entry: Entry) -> None:
        part, total = found.part, entry.records or 0
        try:
            places = part.line_places(entry)
        except SnapfmtError as error:
            # Nothing else says where a record lies, and which one it is.
            self.losses.append(Loss("records", part.name, entry.path, total, _reason(error)))
            return
        pieces, seen = FilePieces(entry.path), set[str]()
        for _, group in groupby(places, lambda place: place.frame_offset):
            members = list(group)
            keys = tuple(place.key for place in members)
            try:
                content = part.frame(entry, members[0])
                for place in members:
                    jsonl.line_of(content, place, what=entry.path)
                reason = _REPEATS if seen.intersection(keys) or len({*keys}) < len(keys) else ""
            except SnapfmtError as error:
                reason = _reason(error)
            if reason:
                count = len(members)
                self.losses.append(Loss("records", part.name, entry.path, count, reason, keys))
                continue
            seen.update(keys)
            pieces.places += members
        if pieces.places or not total:
            found.files.append(pieces)
            self.records += len(pieces.places)

    def _segment(self, part: str, pieces: TablePieces, segment: SegmentReader) -> None:
        """Every batch by itself; of a damaged bitmap nothing is known, of a damaged index too."""
        seen = self._keys.setdefault(pieces.name, set())
        keys = _keys(segment)
        try:
            plan = list(segment.plan(0, segment.rows))
        except SnapfmtError as error:
            lost = tuple(keys or ())
            self.losses.append(Loss("rows", part, pieces.name, segment.rows, _reason(error), lost))
            return
        position = 0
        for number, chosen in plan:
            count = chosen.stop - chosen.start if isinstance(chosen, slice) else len(chosen)
            own = None if keys is None else keys[position : position + count]
            position += count
            try:
                if own is None:
                    own = list(np.array(segment.stored_keys(number), object)[chosen])
                segment.read(number, chosen)
                reason = _REPEATS if seen.intersection(own) or len({*own}) < len(own) else ""
            except SnapfmtError as error:
                reason = _reason(error)
            if reason or own is None:
                lost = tuple(own or ())
                self.losses.append(Loss("rows", part, pieces.name, count, reason, lost))
                continue
            seen.update(own)
            pieces.batches.append(Batch(segment, number, chosen, own))
            self.rows += count


def survey(snapshot: Snapshot) -> Survey:
    """Look through all of a snapshot.

    Raises:
        StorageUnavailable: If a storage gives no answer; that is no damage.
    """
    found = Survey()
    for part in snapshot.parts():
        found.look(part)
    return found


def _keys(segment: SegmentReader) -> list[str] | None:
    """Keys of the live rows; None where they cannot be read."""
    try:
        return segment.keys
    except SnapfmtError as error:
        _reason(error)
        return None


def _reason(error: SnapfmtError) -> str:
    if isinstance(error, StorageUnavailable):
        raise error
    return f"{error.code}: {error.message}"
