"""The one base class of every record: frozen, strict, closed."""

from typing import ClassVar

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """A typed, versioned document.

    Every record that is stored on its own carries a schema id (`SCHEMA`) and a version of
    that schema (`VERSION`), independent of the format's version (spec/v1/05-records.md).
    Field order is the order of the stored JSON.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        validate_default=True,
        ser_json_inf_nan="constants",
    )

    SCHEMA: ClassVar[str] = ""
    """Stable id of the schema, such as `snapfmt.manifest`; empty for a part of another record."""
    VERSION: ClassVar[int] = 1
    """Version of that schema."""

    @classmethod
    def document_type(cls) -> str:
        """Media type of one such document, with the schema's version."""
        return f"application/vnd.{cls.SCHEMA}.v{cls.VERSION}+json"
