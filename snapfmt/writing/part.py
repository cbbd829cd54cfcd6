"""A part while it is written: stage entries, records and tables, then seal.

Holds at any time, also after a crash (spec/v1/07-writing.md):
  * an object is visible only whole, durable and under its content's name;
  * a part index lists only objects that are durable;
  * a receipt exists only for a part index that is durable.
Hence: packs, then the part index, then the receipt.
"""

import json
import os
import time
from collections.abc import Iterable
from typing import Any, Self

from pydantic import TypeAdapter, ValidationError

from snapfmt.errors import (
    AttemptClosed,
    DeadlineExceeded,
    InputError,
    InvalidRecord,
    LeaseExpired,
    NoMatch,
    SnapfmtError,
)
from snapfmt.format import canonical, digest, jsonl, layout, pack
from snapfmt.format.columns import is_utf8
from snapfmt.format.digest import Buffer
from snapfmt.format.reach import check_counts
from snapfmt.limits import DEFAULT_LIMITS
from snapfmt.reading.snapshot import Snapshot
from snapfmt.storage.base import Store
from snapfmt.threads import Pool
from snapfmt.writing.base import open_base, part_of, segments_of
from snapfmt.writing.convert import converter_for
from snapfmt.writing.lines import PreparedLine, prepare
from snapfmt.writing.pack import Extent, PackWriter, check_fits
from snapfmt.writing.table import TableWriter
from snapfmt_schemas import redaction
from snapfmt_schemas._base import Record
from snapfmt_schemas.attempt import Receipt, TableSummary, Ticket
from snapfmt_schemas.identity import EntryPath, TableName
from snapfmt_schemas.part import Entry, PartIndex

JSON = "application/json"
_PATH: TypeAdapter[str] = TypeAdapter(EntryPath)
_TABLE: TypeAdapter[str] = TypeAdapter(TableName)


class PartWriter:
    """What one writer contributes to a snapshot. Not thread-safe: one thread per part."""

    def __init__(
        self,
        store: Store,
        ticket: Ticket,
        *,
        workers: int | None = None,
        base: Snapshot | None = None,
    ) -> None:
        """Open the part that a ticket names; `workers` encoder threads (default: the cores).

        `base` is that of the attempt, where it is at hand; it is read when it is asked for.
        """
        if workers is not None and (type(workers) is not int or workers < 1):
            raise InputError("workers is a whole number, at least 1", what=repr(workers))
        self.name = ticket.part
        self._store = store
        self._ticket = ticket
        self._workspace = layout.workspace_key(ticket.attempt_id)
        self._check_lease()
        self._packs = PackWriter(store, self._workspace, ticket.attempt_id)
        self._entries: dict[str, tuple[Entry, Extent | None]] = {}
        self._claimed: set[str] = set()
        self._tables: dict[str, TableWriter] = {}
        self._pool = Pool(
            workers or min(4, os.cpu_count() or 1), thread_name_prefix="snapfmt-encode"
        )
        self._done = False
        self._records = 0
        self._base = base
        self._base_known = base is not None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.abandon()

    def stage(
        self,
        path: str,
        data: Buffer | Iterable[Buffer],
        *,
        media_type: str = "application/octet-stream",
    ) -> None:
        """Write one entry of opaque bytes, given whole or in pieces.

        Raises:
            InputError: If the path is taken or not a relative, normalised one.
            LimitExceeded: If the storage has no object so large, as a bucket above 5 GiB.
            StorageError: If it cannot be written.
        """
        self._check_open()
        self._claim(path)
        if not hasattr(data, "__iter__"):
            raise InputError(f"bytes expected, not {type(data).__name__}", what=path)
        pieces, size = data, 0
        if isinstance(data, (bytes, bytearray, memoryview)):
            pieces, size = [data], len(data)
            # Before any of it is taken: the part may go on without it.
            check_fits(self._store, pack.HEADER_SIZE + size, f"entry {path}")
        running = digest.new_hash()
        with self._packs.writing(f"entry {path}", size=size) as extents:
            for piece in pieces:
                if not isinstance(piece, (bytes, bytearray, memoryview)):
                    raise InputError(f"bytes expected, not {type(piece).__name__}", what=path)
                owned = bytes(piece)
                running.update(owned)
                self._packs.write(owned)
        (extent,) = extents
        self._add(path, media_type, extent, digest.TAG + running.hexdigest())

    def json(self, path: str, value: Any, *, redact: bool = True) -> None:
        """Write one JSON document: sorted keys, no NaN, by default without secrets."""
        canonical.check_strict(value, what=path)
        try:
            if redact:
                value, _ = redaction.redact(value)
            text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
        except (TypeError, ValueError, AttributeError, RecursionError) as error:
            raise InputError(f"not strict JSON: {error}", what=path) from error
        self.stage(path, text.encode(), media_type=JSON)

    def records(
        self,
        path: str,
        items: Iterable[Record | bytes | PreparedLine],
        *,
        key: str | None = None,
        redact: bool = True,
    ) -> int:
        """Write JSON lines, zstd-compressed, with an index at `<path>.index`; returns how many.

        `items` are records, or lines that are kept byte for byte. `key` names the field that
        finds a single record; without it the line's number does. With `redact`, what is secret
        by its name (cookies, tokens, keys) is replaced before it is written. A prepared line is
        stored as it is, under its own key.

        Raises:
            InvalidRecord: If a line is not a JSON object or a key repeats.
        """
        self._check_open()
        if not hasattr(items, "__iter__"):
            raise InputError("records are a sequence", what=path)
        self._claim(path)
        self._claim(f"{path}.index")
        encoder = jsonl.LinesEncoder()
        seen: set[str] = set()
        running = digest.new_hash()
        with self._packs.writing(f"records {path}") as extents:
            for number, item in enumerate(items):
                line = item
                if not isinstance(line, PreparedLine):
                    line = prepare(line, key, redact=redact, what=f"{path}:{number}")
                name = line.key or str(number)
                if name in seen:
                    raise InvalidRecord(f"line {number} repeats the key {name!r}", what=path)
                seen.add(name)
                if frame := encoder.add(name, line.data):
                    running.update(frame)
                    self._packs.write(frame)
            if frame := encoder.flush():
                running.update(frame)
                self._packs.write(frame)
        (extent,) = extents
        index = encoder.index()
        place = self._packs.entry(index, f"records {path}")
        self._add(
            path,
            jsonl.MEDIA_TYPE,
            extent,
            digest.TAG + running.hexdigest(),
            count=len(seen),
            index=f"{path}.index",
        )
        self._add(f"{path}.index", jsonl.INDEX_MEDIA_TYPE, place, digest.digest_of(index))
        self._records += len(seen)
        return len(seen)

    @property
    def base(self) -> Snapshot | None:
        """The snapshot that the attempt builds on, None without one.

        Raises:
            LeaseExpired: If the attempt is over.
            NotPublished: If the base was retired.
        """
        if not self._base_known:
            self._check_open()
            self._base = open_base(self._store, self._ticket)
            self._base_known = True
        return self._base

    def carry(self, path: str) -> None:
        """Take an entry of the base's part of this name over, without reading a byte of it.

        The index of a record file comes with it.

        Raises:
            NoMatch: If the base has no such entry.
            InputError: If the path is taken.
        """
        self._check_open()
        part = part_of(self.base, self.name)
        if part is None:
            raise NoMatch("the attempt has no base with this part", what=self.name)
        entry = part.entry(path)
        entries = [entry] if entry.index is None else [entry, part.entry(entry.index)]
        for item in entries:
            self._claim(item.path)
        for item in entries:
            self._entries[item.path] = (item, None)
            self._claimed.add(item.path.casefold())
        self._records += entry.records or 0

    def table(self, name: str, *, schema_id: str = "") -> TableWriter:
        """A new table; use it as a context manager or close it before `seal`."""
        self._check_open()
        _check_name(name, _TABLE)
        if type(schema_id) is not str or not is_utf8(schema_id):
            raise InputError("schema_id is text", what=repr(schema_id)[:80])
        if name.casefold() in {known.casefold() for known in self._tables}:
            raise InputError("the part has this table already", what=name)
        writer = TableWriter(
            name,
            schema_id=schema_id,
            packs=self._packs,
            executor=self._pool,
            converter=converter_for,
            base=lambda: segments_of(self.base, self.name, name),
        )
        self._tables[name] = writer
        return writer

    def seal(self) -> Receipt:
        """Make everything durable and close the part.

        Raises:
            LeaseExpired: If the attempt is over.
            DeadlineExceeded: If the ticket's deadline has passed.
            StorageError: If something could not be written.
        """
        self._check_open()
        self._check_deadline()
        try:
            for table in self._tables.values():
                table.close()
            self._packs.end_packs()
            # Made while the last pack is synced, and written when it is durable.
            index = PartIndex(
                part=self.name,
                attempt_id=self._ticket.attempt_id,
                entries=tuple(
                    entry
                    if extent is None
                    else entry.model_copy(update={"location": extent.location()})
                    for entry, extent in self._entries.values()
                ),
                tables=tuple(table.table() for table in self._tables.values()),
            )
            check_counts(index, DEFAULT_LIMITS, what=self.name)
            data = canonical.encode(index)
            DEFAULT_LIMITS.check("part_index_size", len(data), what=self.name)
            self._packs.close()
            name = self._packs.object(data)
            self._store.sync(self._packs.keys)
        except BaseException:
            self.abandon()
            raise
        self._finish()
        return Receipt(
            part=self.name,
            attempt_id=self._ticket.attempt_id,
            index_digest=name,
            index_size=len(data),
            entries=len(index.entries),
            records=self._records,
            tables=tuple(
                TableSummary(
                    name=table.name,
                    rows=table.rows,
                    logical_bytes=sum(item.logical_bytes for item in table.segments),
                )
                for table in index.tables
            ),
            stored_bytes=self._packs.stored_bytes,
            new_objects=len(self._packs.keys),
        )

    def abandon(self) -> None:
        """Give the part up; a no-op after `seal`, and in a forked child, which owns nothing."""
        if not self._done and self._packs.is_owner:
            self._packs.discard()
            self._finish()

    def _finish(self) -> None:
        self._done = True
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _check_open(self) -> None:
        if self._done:
            raise AttemptClosed("the part was sealed or abandoned", what=self.name)
        self._packs.check_owner()

    def _check_lease(self) -> None:
        if not self._store.has_workspace(self._workspace):
            raise LeaseExpired(
                "the attempt was abandoned or taken over; nothing was published",
                what=self._ticket.attempt_id,
                hint="start a new save",
            )
        self._check_deadline()

    def _check_deadline(self) -> None:
        if time.time_ns() > self._ticket.deadline_ns:
            raise DeadlineExceeded("the ticket's deadline has passed", what=self.name)

    def _claim(self, path: str) -> None:
        _check_name(path, _PATH)
        if path.casefold() in self._claimed:
            raise InputError("the part has this entry already", what=path)

    def _add(
        self,
        path: str,
        media_type: str,
        extent: Extent,
        mark: str,
        *,
        count: int | None = None,
        index: str | None = None,
    ) -> None:
        # The location is a stand-in until the pack is closed and has a name.
        stand_in = {"pack": digest.TAG + "0" * 64, "offset": 0, "size": 0}
        try:
            entry = Entry.model_validate(
                {
                    "path": path,
                    "media_type": media_type,
                    "location": stand_in,
                    "digest": mark,
                    "records": count,
                    "index": index,
                }
            )
        except ValidationError as error:
            raise InputError(f"not an entry: {error.errors()[0]['msg']}", what=path) from error
        self._entries[path] = (entry, extent)
        self._claimed.add(path.casefold())


def decode_ticket(text: str | bytes) -> Ticket:
    """A ticket from its JSON.

    Raises:
        InputError: If it is none.
    """
    if not isinstance(text, (str, bytes)):
        raise InputError("a ticket is JSON text", what=repr(text)[:80])
    try:
        # What no JSON in UTF-8 holds is refused by the decoder.
        data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        return canonical.decode(data, Ticket, what="ticket", size_limit=DEFAULT_LIMITS.lease_size)
    except SnapfmtError as error:
        raise InputError(f"not a ticket: {error}") from error


def _check_name(path: str, kind: TypeAdapter[str]) -> None:
    try:
        kind.validate_python(path, strict=True)
    except ValidationError as error:
        raise InputError(
            "not a relative, normalised name",
            what=path,
            hint="use letters, digits and ._@%+=- in segments divided by /",
        ) from error
