"""Where the training data loader was when the cut was taken."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from snapfmt_schemas._base import Record
from snapfmt_schemas.identity import Count
from snapfmt_schemas.opaque import OpaqueValue


class LoaderPlace(Record):
    """The loader's place in its epoch, and its own state to go on from there."""

    SCHEMA: ClassVar[str] = "snapfmt.loader-place"

    schema_version: Literal[1] = 1
    epoch: Count
    batches: Annotated[Count, Field(description="Batches drawn in this epoch.")]
    state: Annotated[
        OpaqueValue, Field(description="What the loader's `state_dict()` gave, as JSON.")
    ] = None
