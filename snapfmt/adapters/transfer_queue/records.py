"""`controller.json`: the part of the queue's state that is not rows (spec/v1/06-tables.md)."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from snapfmt_schemas._base import Record
from snapfmt_schemas.identity import Count

Runs = Annotated[
    tuple[tuple[Count, Count], ...], Field(description="Ordered indexes as [start, count].")
]


class PartitionRecord(Record):
    """One partition; its rows lie in `state/<table>`, its fields in `fields/<table>`."""

    partition_id: str
    table: Annotated[str, Field(description="Last segment of its tables' names.")]
    created_at: Annotated[float, Field(description="Seconds since the Unix epoch.")]
    status_rows: Annotated[Count, Field(description="Rows allocated in the status tensors.")]
    status_columns: Annotated[Count, Field(description="Columns allocated in them.")]
    tasks: Annotated[tuple[str, ...], Field(description="Consumers, in the order they came.")]
    rows: Annotated[Count, Field(description="Rows of `state/<table>`.")]
    fields: Annotated[Count, Field(description="Rows of `fields/<table>`.")]


class IndexRecord(Record):
    """Allocation of global indexes."""

    counter: Count
    reusable: Runs
    allocated: Annotated[Runs, Field(description="Indexes that count as active, ascending.")]


class SamplerRecord(Record):
    """The sampler's cursor. The class is only compared, never imported."""

    name: Annotated[str, Field(description="module:qualified name of its class.")]
    settings: dict[str, Any]
    state: Annotated[str, Field(description="Tagged JSON of its checkpoint.")]


class ControllerRecord(Record):
    """Root of the part that the controller writes."""

    SCHEMA: ClassVar[str] = "snapfmt.transfer-queue"

    schema_version: Literal[1] = 1
    transfer_queue_version: str
    units: Annotated[Count, Field(description="Storage units of the saved queue.")]
    partitions: tuple[PartitionRecord, ...]
    indexes: IndexRecord
    sampler: SamplerRecord
    user_metadata: Annotated[dict[str, Any], Field(description="The caller's own JSON.")]
