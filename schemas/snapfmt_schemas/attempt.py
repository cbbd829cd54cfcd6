"""Documents of a running save: lease, ticket, receipt."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from snapfmt_schemas._base import Record
from snapfmt_schemas.identity import (
    AttemptId,
    Count,
    Digest,
    Nanoseconds,
    PartName,
    RepositoryId,
    TableName,
)


class Owner(Record):
    """Who runs an attempt; lets the next save on the same host see that it is dead."""

    host: str
    boot_id: str = ""
    pid: Count = 0
    pid_started: Annotated[
        str, Field(description="Start time of the process, as the kernel says.")
    ] = ""


class Lease(Record):
    """`attempts/<attempt id>.json`: keeps what a running save has written."""

    SCHEMA: ClassVar[str] = "snapfmt.lease"

    schema_version: Literal[1] = 1
    attempt_id: AttemptId
    number: Count
    base: Annotated[Count | None, Field(description="Number of the base snapshot.")] = None
    started_at_ns: Nanoseconds
    expires_at_ns: Nanoseconds
    generation: Annotated[Count, Field(description="Renewals so far.")] = 0
    owner: Owner


class Ticket(Record):
    """What a remote writer needs to write its part into an attempt. Holds no secret."""

    SCHEMA: ClassVar[str] = "snapfmt.ticket"

    schema_version: Literal[1] = 1
    location: Annotated[str, Field(min_length=1, description="Path or URL of the repository.")]
    repository_id: RepositoryId
    attempt_id: AttemptId
    number: Count
    part: PartName
    deadline_ns: Nanoseconds


class TableSummary(Record):
    """Name and size of one table of a part, so that a listing reads no part index."""

    name: TableName
    rows: Count
    logical_bytes: Count


class Receipt(Record):
    """What a writer hands back for a sealed part; the manifest's reference to it."""

    SCHEMA: ClassVar[str] = "snapfmt.receipt"

    schema_version: Literal[1] = 1
    part: PartName
    attempt_id: AttemptId
    index_digest: Annotated[
        Digest, Field(description="Digest, and so the name, of the part index.")
    ]
    index_size: Count
    entries: Count
    records: Count
    tables: tuple[TableSummary, ...] = ()
    stored_bytes: Annotated[Count, Field(description="Bytes of the objects this part wrote.")]
    new_objects: Annotated[Count, Field(description="Objects that this part wrote.")]
    extensions: dict[str, Any] = Field(default_factory=dict)
