"""What one writer contributes: entries, tables, segments, listed in a part index."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from snapfmt_schemas._base import Record
from snapfmt_schemas.identity import (
    AttemptId,
    Count,
    Digest,
    EntryPath,
    PartName,
    TableName,
)


class Location(Record):
    """Where the bytes of an entry lie: one contiguous range of one pack."""

    pack: Annotated[Digest, Field(description="Digest, and so the name, of the pack.")]
    offset: Count
    size: Count


class Entry(Record):
    """One logical file of a part."""

    path: EntryPath
    media_type: Annotated[str, Field(min_length=1, max_length=255)]
    location: Location
    digest: Annotated[Digest, Field(description="Digest of the stored bytes of the entry.")]
    records: Annotated[Count | None, Field(description="Records, if it holds records.")] = None
    index: Annotated[
        EntryPath | None, Field(description="Entry that locates its single records.")
    ] = None


ColumnKind = Literal["tensor", "ndarray", "text", "bytes", "value"]


class ColumnSpec(Record):
    """One logical column of a segment (spec/v1/06-tables.md)."""

    name: Annotated[str, Field(min_length=1, max_length=1024)]
    kind: ColumnKind
    dtype: Annotated[str, Field(description="Logical dtype; empty unless tensor or ndarray.")] = ""
    ndim: Annotated[Count, Field(description="Dimensions of one row's value.")] = 0
    physical: Annotated[
        str, Field(description="Arrow type that stores one element, after narrowing.")
    ]


class Segment(Record):
    """An immutable run of rows of one table, all with the same column types."""

    rows: Annotated[Count, Field(description="Rows stored.")]
    columns: tuple[ColumnSpec, ...]
    data: Annotated[Location, Field(description="Arrow IPC stream of the rows.")]
    head_size: Annotated[Count, Field(description="Bytes of the stream's schema message.")]
    head_digest: Annotated[Digest, Field(description="Digest of those bytes.")]
    batches: Annotated[Location, Field(description="Batch index.")]
    batches_digest: Digest
    keys: Annotated[Location, Field(description="Keys of the rows, in order.")]
    keys_digest: Digest
    live: Annotated[Location | None, Field(description="Bitmap of the live rows; null: all.")] = (
        None
    )
    live_digest: Digest | None = None
    live_rows: Annotated[Count, Field(description="Rows that belong to the table.")]
    logical_bytes: Annotated[Count, Field(description="Bytes of the values, uncompressed.")]

    @model_validator(mode="after")
    def _live(self) -> Self:
        if (self.live is None) != (self.live_digest is None):
            raise ValueError("live and live_digest go together")
        if self.live_rows > self.rows or (self.live is None and self.live_rows != self.rows):
            raise ValueError("live_rows must equal rows without a bitmap and never exceed it")
        names = [column.name for column in self.columns]
        if len(set(names)) != len(names):
            raise ValueError("column names of a segment must be unique")
        return self


class Table(Record):
    """Keyed rows of one schema: a list of segments with their live rows."""

    name: TableName
    schema_id: Annotated[
        str, Field(description="Registered row schema, or empty for free columns.")
    ] = ""
    rows: Count
    segments: tuple[Segment, ...]

    @model_validator(mode="after")
    def _rows(self) -> Self:
        if sum(segment.live_rows for segment in self.segments) != self.rows:
            raise ValueError("rows must be the sum of the segments' live rows")
        return self


class PartIndex(Record):
    """Everything that one part holds; stored as an object, named by its digest."""

    SCHEMA: ClassVar[str] = "snapfmt.part-index"

    schema_version: Literal[1] = 1
    part: PartName
    attempt_id: AttemptId
    entries: tuple[Entry, ...] = ()
    tables: tuple[Table, ...] = ()

    @model_validator(mode="after")
    def _unique(self) -> Self:
        paths = [entry.path for entry in self.entries]
        if len({path.casefold() for path in paths}) != len(paths):
            raise ValueError("entry paths must be unique, also without regard to case")
        known = set(paths)
        for entry in self.entries:
            if entry.index is not None and entry.index not in known:
                raise ValueError(f"entry {entry.path!r} names an index that is not an entry")
        names = [table.name.casefold() for table in self.tables]
        if len(set(names)) != len(names):
            raise ValueError("table names must be unique, also without regard to case")
        return self
