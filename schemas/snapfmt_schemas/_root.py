"""The base of documents that carry their own checksum (spec/v1/04-documents.md)."""

import hashlib
import json
from typing import Annotated, Self

from pydantic import Field, model_validator

from snapfmt_schemas._base import Record
from snapfmt_schemas.identity import Digest


class RootDocument(Record):
    """A document that no other one names by its digest, so that it carries its own."""

    checksum: Annotated[
        Digest | None,
        Field(description="Digest of the canonical form of the document without this field."),
    ] = None

    def content_digest(self) -> str:
        """Tagged sha256 of the canonical form without `checksum` (spec/v1/04-documents.md)."""
        value = self.model_dump(mode="json", exclude={"checksum"})
        text = json.dumps(
            value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
        )
        return "sha256:" + hashlib.sha256(text.encode("utf-8") + b"\n").hexdigest()

    def sealed(self) -> Self:
        """The document with its checksum."""
        return self.model_copy(update={"checksum": self.content_digest()})

    @model_validator(mode="after")
    def _checksum(self) -> Self:
        if self.checksum is not None and self.checksum != self.content_digest():
            raise ValueError("checksum is not that of the content; the document was changed")
        return self
