"""Prompts that were drawn from the loader and are kept to replace failed ones."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from snapfmt_schemas._base import Record
from snapfmt_schemas.ledger import PromptRef
from snapfmt_schemas.opaque import Items, OpaqueObject


class ReservedPrompt(Record):
    """One prompt, by reference, in full, or both."""

    prompt_ref: PromptRef | None = None
    datum: Annotated[
        OpaqueObject | None, Field(description="The prompt itself, like upstream's DatumSpec.")
    ] = None

    @model_validator(mode="after")
    def _something(self) -> Self:
        if self.prompt_ref is None and self.datum is None:
            raise ValueError("a reserved prompt has a prompt_ref or a datum")
        return self


class ReplacementReserve(Record):
    """The reserve, in the order in which it is used; written also when it is empty."""

    SCHEMA: ClassVar[str] = "snapfmt.replacement-reserve"

    schema_version: Literal[1] = 1
    prompts: Items[ReservedPrompt] = ()
