"""The root document of a snapshot, and the document at the root of a repository."""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from snapfmt_schemas._base import Record
from snapfmt_schemas._root import RootDocument
from snapfmt_schemas.attempt import Receipt
from snapfmt_schemas.fingerprint import Fingerprint
from snapfmt_schemas.identity import AttemptId, Count, Nanoseconds, RepositoryId, WriteId
from snapfmt_schemas.timeline import PhaseTimeline

FeatureName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]*$", max_length=64)]


class Features(Record):
    """Names of what a program must know, per operation (spec/v1/08-reading.md)."""

    read: tuple[FeatureName, ...] = ()
    write: tuple[FeatureName, ...] = ()
    collect: tuple[FeatureName, ...] = ()


class TrainerAnchor(Record):
    """The trainer's place when the cut was taken."""

    train_step: Count
    trainer_version: Count
    epoch: Count
    bootstrap_fingerprint: str | None = None


class BaseSnapshot(Record):
    """The published snapshot that this one was saved against."""

    number: Count
    write_id: WriteId


class Manifest(RootDocument):
    """Root of one snapshot; its existence is the publication (spec/v1/04-documents.md)."""

    SCHEMA: ClassVar[str] = "snapfmt.manifest"

    format_version: Literal[1] = 1
    features: Features = Features()
    repository_id: RepositoryId
    number: Count
    attempt_id: AttemptId
    write_id: WriteId
    base: BaseSnapshot | None = None
    created_at_ns: Nanoseconds
    writer: Annotated[str, Field(max_length=255)]
    parts: tuple[Receipt, ...]
    fingerprints: tuple[Fingerprint, ...] = ()
    anchor: TrainerAnchor | None = None
    timeline: PhaseTimeline | None = None
    user_metadata: Annotated[
        dict[str, Any], Field(description="The caller's own JSON; never interpreted.")
    ] = Field(default_factory=dict)
    extensions: Annotated[
        dict[str, Any], Field(description="The only place for unknown fields.")
    ] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _unique(self) -> Self:
        names = [receipt.part.casefold() for receipt in self.parts]
        if len(set(names)) != len(names):
            raise ValueError("part names must be unique, also without regard to case")
        kinds = [fingerprint.name for fingerprint in self.fingerprints]
        if len(set(kinds)) != len(kinds):
            raise ValueError("fingerprint names must be unique")
        return self


class RepositoryDocument(RootDocument):
    """`snapfmt.json`: what the repository is and what its storage was seen to do."""

    SCHEMA: ClassVar[str] = "snapfmt.repository"

    format_version: Literal[1] = 1
    repository_id: RepositoryId
    features: Features = Features()
    created_at_ns: Nanoseconds
    writer: Annotated[str, Field(max_length=255)]
    capabilities: dict[str, bool] = Field(default_factory=dict)
    extensions: dict[str, Any] = Field(default_factory=dict)
