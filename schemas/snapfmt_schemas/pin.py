"""A name that keeps a snapshot alive."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints

from snapfmt_schemas._base import Record
from snapfmt_schemas.identity import Count, Nanoseconds

PinName = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@%+=-]*$", max_length=200)
]
"""One step of a path; the name of the pin's file without `.json`."""


class Pin(Record):
    """`pins/<name>.json`: as long as it is there, the snapshot is not retired."""

    SCHEMA: ClassVar[str] = "snapfmt.pin"

    schema_version: Literal[1] = 1
    name: PinName
    number: Annotated[Count, Field(description="Number of the snapshot.")]
    created_at_ns: Nanoseconds
