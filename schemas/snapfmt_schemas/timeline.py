"""How long each step of a save or a restore took, and who waited for what."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from snapfmt_schemas._base import Record
from snapfmt_schemas.identity import Count, Nanoseconds


class Phase(Record):
    """One step, on one participant or on the coordinator."""

    name: Annotated[str, Field(min_length=1, max_length=128)]
    actor: Annotated[str, Field(max_length=255, description="Who did it.")] = ""
    started_at_ns: Nanoseconds
    ended_at_ns: Nanoseconds
    waited: Annotated[tuple[str, ...], Field(description="Who was held while it ran.")] = ()
    counts: dict[str, Count] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _order(self) -> Self:
        if self.ended_at_ns < self.started_at_ns:
            raise ValueError(f"phase {self.name!r} ends before it starts")
        return self


class PhaseTimeline(Record):
    """The steps of one save or restore, in the order in which they started."""

    SCHEMA: ClassVar[str] = "snapfmt.timeline"

    schema_version: Literal[1] = 1
    operation: Literal["save", "restore"]
    phases: tuple[Phase, ...] = ()
