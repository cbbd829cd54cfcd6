"""The replay index: which groups of finished rows the sampler may train on."""

import hashlib
import json
from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from snapfmt_schemas._base import Record
from snapfmt_schemas.completion import HexDigest
from snapfmt_schemas.identity import Count
from snapfmt_schemas.ledger import GroupId, Name
from snapfmt_schemas.lineage import WeightVersion
from snapfmt_schemas.lines import to_value
from snapfmt_schemas.opaque import Items, OpaqueObject

SampleId = Annotated[str, StringConstraints(min_length=1, max_length=1024)]
"""Key of a canonical row, `<group id>_g<generation index>`."""


class KVBatchMeta(Record):
    """Keys of one batch of rows in TransferQueue, with what is known per row."""

    partition_id: Name
    task_name: Name | None = None
    sample_ids: Items[SampleId]
    fields: Items[Name] | None = None
    sequence_lengths: Items[Count] | None = None
    extra_info: OpaqueObject = Field(default_factory=dict)
    tags: Items[OpaqueObject] | None = None

    @model_validator(mode="after")
    def _aligned(self) -> Self:
        if not self.sample_ids:
            raise ValueError("a group has at least one row")
        for name, values in (
            ("sequence_lengths", self.sequence_lengths),
            ("tags", self.tags),
        ):
            if values is not None and len(values) != len(self.sample_ids):
                raise ValueError(f"{len(values)} {name} for {len(self.sample_ids)} sample_ids")
        return self


class ReplayGroup(Record):
    """One group of finished rows."""

    meta: KVBatchMeta
    start_weight: WeightVersion
    end_weight: WeightVersion
    target_step: Count | None = None
    group_id: GroupId


def replay_digest(groups: Iterable[ReplayGroup]) -> str:
    """Sha256 of the compact sorted JSON of the groups, each with all its members."""
    content: list[dict[str, Any]] = [to_value(group) for group in groups]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


class ReplayIndex(Record):
    """Every group in the replay buffer, and a digest that ties it to the rows."""

    SCHEMA: ClassVar[str] = "snapfmt.replay-index"

    schema_version: Literal[1] = 1
    storage: Literal["tq_checkpoint"] = "tq_checkpoint"
    partition_id: Name
    saved_capacity: Annotated[Count, Field(description="Groups that the buffer may hold.")]
    manifest_digest: Annotated[HexDigest, Field(description="See `replay_digest`.")]
    groups: Items[ReplayGroup] = ()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        group_ids = [group.group_id for group in self.groups]
        if len(set(group_ids)) != len(group_ids):
            raise ValueError("group ids must be unique")
        samples = self.sample_ids()
        if len(set(samples)) != len(samples):
            raise ValueError("sample ids must be unique")
        for group in self.groups:
            if group.meta.partition_id != self.partition_id:
                raise ValueError(
                    f"group {group.group_id!r} is in partition {group.meta.partition_id!r},"
                    f" the index is of {self.partition_id!r}"
                )
        if self.manifest_digest != replay_digest(self.groups):
            raise ValueError("manifest_digest is not that of the groups")
        return self

    @classmethod
    def of(cls, groups: Iterable[ReplayGroup], *, partition_id: str, saved_capacity: int) -> Self:
        """The index of these groups, with its digest."""
        kept = tuple(groups)
        return cls(
            partition_id=partition_id,
            saved_capacity=saved_capacity,
            manifest_digest=replay_digest(kept),
            groups=kept,
        )

    def sample_ids(self) -> tuple[str, ...]:
        """Keys of all rows, group by group."""
        return tuple(key for group in self.groups for key in group.meta.sample_ids)

    def wrong_sizes(self, generations_per_prompt: int) -> tuple[str, ...]:
        """Ids of the groups that do not have that many rows."""
        return tuple(
            group.group_id
            for group in self.groups
            if len(group.meta.sample_ids) != generations_per_prompt
        )
