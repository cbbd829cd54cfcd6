"""A published snapshot: its manifest, parts, entries and tables, verified as read."""

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TypeVar

from snapfmt.errors import (
    FingerprintMismatch,
    FormatError,
    MissingObject,
    NoMatch,
    NotPublished,
    SnapfmtError,
    some_of,
)
from snapfmt.format import compat, jsonl, layout
from snapfmt.format.columns import is_utf8
from snapfmt.format.reach import decode_index
from snapfmt.limits import DEFAULT_LIMITS, Limits
from snapfmt.reading.lazy import lazy
from snapfmt.reading.segment import SegmentReader
from snapfmt.reading.source import Source
from snapfmt.reading.table import TableReader
from snapfmt.storage.base import Store
from snapfmt.threads import together
from snapfmt_schemas import lines
from snapfmt_schemas._base import Record
from snapfmt_schemas.attempt import Receipt
from snapfmt_schemas.fingerprint import Fingerprint
from snapfmt_schemas.manifest import Manifest
from snapfmt_schemas.part import Entry, PartIndex

R = TypeVar("R", bound=Record)


class Snapshot:
    """One published, immutable cut."""

    def __init__(self, store: Store, manifest: Manifest, *, limits: Limits) -> None:
        self.manifest = manifest
        self._source = Source(store, limits)
        self._parts: dict[str, Part] = {}

    @classmethod
    def open(
        cls,
        store: Store,
        number: int,
        *,
        repository_id: str | None = None,
        limits: Limits = DEFAULT_LIMITS,
    ) -> "Snapshot":
        """Read and check the manifest of a snapshot; see `Repository.snapshot`."""
        key = layout.manifest_key(number)
        try:
            data = store.get(key, limit=limits.manifest_size)
        except MissingObject as error:
            raise NotPublished(
                "this snapshot was not published",
                what=layout.snapshot_name(number),
                hint="run `snapfmt ls` for those that were",
            ) from error
        manifest = compat.decode_root(
            data, Manifest, what=key, size_limit=limits.manifest_size, limits=limits
        )
        limits.check("parts", len(manifest.parts), what=key)
        limits.check("tables", sum(len(item.tables) for item in manifest.parts), what=key)
        if manifest.number != number:
            raise FormatError(f"manifest says it is snapshot {manifest.number}", what=key)
        if repository_id is not None and manifest.repository_id != repository_id:
            raise FormatError("manifest belongs to another repository", what=key)
        return cls(store, manifest, limits=limits)

    @property
    def number(self) -> int:
        """The snapshot's number."""
        return self.manifest.number

    @property
    def location(self) -> str:
        """Path that opens the snapshot's repository in another process."""
        return self._source.store.location

    @property
    def name(self) -> str:
        """The snapshot's name, `snapshot_000042`."""
        return layout.snapshot_name(self.number)

    def require(self, fingerprints: Sequence[Fingerprint]) -> None:
        """Refuse unless every given fingerprint equals the stored one of its name.

        Raises:
            FingerprintMismatch: Saying field by field what differs.
        """
        stored = {item.name: item for item in self.manifest.fingerprints}
        differences: list[str] = []
        for wanted in fingerprints:
            found = stored.get(wanted.name)
            if found is None:
                differences.append(f"{wanted.name}: not in the snapshot")
            elif found.digest != wanted.digest:
                differences += found.differences(wanted)
        if differences:
            raise FingerprintMismatch(
                "the snapshot was taken by a run that differs",
                what=self.name,
                hint="snapshot != this run; restore with the old configuration",
                differences=tuple(differences),
            )

    def part_names(self) -> list[str]:
        """Names of the parts, in order."""
        return [receipt.part for receipt in self.manifest.parts]

    def part(self, name: str) -> "Part":
        """One part.

        Raises:
            NoMatch: If there is none of that name.
        """
        if name not in self._parts:
            for receipt in self.manifest.parts:
                if receipt.part == name:
                    self._parts[name] = Part(self._source, receipt, snapshot=self.name)
                    break
            else:
                raise NoMatch(
                    f"{self.name} has no such part",
                    what=name,
                    hint=some_of(self.part_names()),
                )
        return self._parts[name]

    def parts(self) -> Iterator["Part"]:
        """Every part, in order."""
        return (self.part(name) for name in self.part_names())

    def prefetch(self) -> None:
        """Read the indexes of all parts together, where a request takes long.

        What fails is told when it is asked for.
        """
        workers = self._source.store.at_once
        if workers > 1:
            together([partial(_index_of, part) for part in self.parts()], workers=workers)

    def table_names(self) -> list[str]:
        """Names of the tables over all parts, sorted; reads the manifest only."""
        return sorted({item.name for receipt in self.manifest.parts for item in receipt.tables})

    def table(self, name: str) -> TableReader:
        """A table, with the rows that every part holds of it.

        Raises:
            NoMatch: If no part has such a table.
        """
        segments = [
            item
            for receipt in self.manifest.parts
            if any(table.name == name for table in receipt.tables)
            for item in self.part(receipt.part).segments(name)
        ]
        if name not in self.table_names():
            raise NoMatch(
                f"{self.name} has no such table", what=name, hint=some_of(self.table_names())
            )
        return TableReader(name, segments, source=self._source)


def _index_of(part: "Part") -> None:
    with contextlib.suppress(SnapfmtError):
        part.index  # noqa: B018 - is kept


class Part:
    """What one writer contributed."""

    def __init__(self, source: Source, receipt: Receipt, *, snapshot: str) -> None:
        self.receipt = receipt
        self.name = receipt.part
        self._source = source
        self._what = f"{snapshot}/{receipt.part}"

    @lazy
    def index(self) -> PartIndex:
        """The part index, checked against the receipt.

        Raises:
            CorruptError: If it is damaged or is another part's.
        """
        key, limits = layout.object_key(self.receipt.index_digest), self._source.limits
        data = self._source.store.get(key, limit=limits.part_index_size)
        return decode_index(data, self.receipt, limits)

    def entries(self) -> list[Entry]:
        """The part's entries, in the order they were staged."""
        return list(self.index.entries)

    def entry(self, path: str) -> Entry:
        """One entry.

        Raises:
            NoMatch: If the part has none of that path.
        """
        for item in self.index.entries:
            if item.path == path:
                return item
        raise NoMatch(f"{self._what} has no such entry", what=path)

    def stored(self, path: str) -> bytes:
        """The stored bytes of an entry, verified."""
        item = self.entry(path)
        return self._source.entry(item.location, item.digest, what=f"{self._what}/{path}")

    def read(self, path: str) -> bytes:
        """The bytes of an entry as they were staged; lines of a record file, decompressed."""
        if self.entry(path).media_type == jsonl.MEDIA_TYPE:
            return b"".join(line + b"\n" for line in self.lines(path))
        return self.stored(path)

    def lines(self, path: str) -> Iterator[bytes]:
        """The lines of a record file, verified, one frame in memory at a time."""
        for found in self._frames(path):
            yield from found

    def _frames(self, path: str) -> Iterator[list[bytes]]:
        """The lines of each frame."""
        item, what = self.entry(path), f"{self._what}/{path}"
        position = 0
        for place in self._line_index(item).frames():
            if place.frame_offset != position:
                raise FormatError("frames do not follow one another", what=what)
            position += place.frame_size
            yield jsonl.split(self.frame(item, place), what=what)
        if position != item.location.size:
            raise FormatError("frames do not cover the entry", what=what)

    def records(self, path: str, model: type[R]) -> Iterator[R]:
        """The records of a file, each validated.

        Raises:
            FormatError: If a line is not such a record; names the line.
        """
        number = 0
        for found in self._frames(path):
            many = lines.from_lines(model, found)
            yield from many or (
                _record(line, model, f"{self._what}/{path}:{row}")
                for row, line in enumerate(found, number)
            )
            number += len(found)

    def record(self, path: str, key: str, model: type[R]) -> R:
        """One record by its key; reads one frame.

        Raises:
            NoMatch: If no record has the key.
        """
        item, what = self.entry(path), f"{self._what}/{path}"
        place = self._line_index(item).find(key) if is_utf8(key) else None
        if place is None:
            raise NoMatch(f"{what} has no such record", what=key)
        line = jsonl.line_of(self.frame(item, place), place, what=what)
        return _record(line, model, f"{what}[{key}]")

    def line_places(self, item: Entry) -> list[jsonl.LinePlace]:
        """Where the records of a record file lie, in order."""
        return self._line_index(item).places()

    def _line_index(self, item: Entry) -> jsonl.LineIndex:
        if item.media_type != jsonl.MEDIA_TYPE or item.index is None:
            raise FormatError("entry is not a record file", what=f"{self._what}/{item.path}")
        what = f"{self._what}/{item.index}"
        index = jsonl.LineIndex(self.stored(item.index), what=what, limits=self._source.limits)
        if len(index) != item.records:
            raise FormatError(f"index has {len(index)} records, not {item.records}", what=what)
        return index

    def frame(self, item: Entry, place: jsonl.LinePlace) -> bytes:
        """The lines of the frame in which a record lies, verified.

        Raises:
            CorruptError: If it is damaged.
        """
        data = self._source.unchecked(item.location, place.frame_offset, place.frame_size)
        return jsonl.frame_content(
            data, place, what=f"{self._what}/{item.path}", limits=self._source.limits
        )

    def table_names(self) -> list[str]:
        """Names of the part's tables."""
        return [table.name for table in self.index.tables]

    def table(self, name: str) -> TableReader:
        """This part's share of a table.

        Raises:
            NoMatch: If the part has none of that name.
        """
        if name not in self.table_names():
            raise NoMatch(f"{self._what} has no such table", what=name)
        return TableReader(name, self.segments(name), source=self._source)

    def segments(self, name: str) -> list[SegmentReader]:
        """The segments of this part's share of a table."""
        return [
            SegmentReader(self._source, item, what=f"{self._what}/{name} segment {number}")
            for table in self.index.tables
            if table.name == name
            for number, item in enumerate(table.segments)
        ]


def _record(line: bytes, model: type[R], what: str) -> R:
    try:
        return lines.from_line(model, line)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"not a {model.__name__}: {error}", what=what) from error
