"""The controller's state at the cut: copied in memory, and turned back into live objects."""

import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from snapfmt.adapters.transfer_queue.memory import REFERENCE

Indexes = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class FieldCut:
    """`FieldMeta` of one field."""

    dtype: Any
    shape: Any
    is_nested: bool | None
    is_non_tensor: bool | None
    global_indexes: list[int] | None
    """None for those of the rows in which the field is produced."""
    per_sample_shapes: dict[int, Any]


@dataclass(frozen=True, slots=True)
class PartitionCut:
    """`DataPartitionStatus` of one partition, with its own containers and shared leaves.

    Its sets are lists here: the copy of a set takes five times the memory, and most of the time
    of a copy goes into memory that nobody has touched yet.
    """

    partition_id: str
    created_at: float
    production: Any
    consumption: dict[str, Any]
    active: list[int]
    pre_allocated: list[int]
    fields: dict[str, int]
    metas: dict[str, FieldCut]
    backend_meta: dict[int, dict[str, Any]]
    tags: dict[int, Any]
    keys: dict[str, int]
    indexed: list[int]

    def key_of(self) -> dict[int, str]:
        """Global index -> user key."""
        return {index: key for key, index in self.keys.items()}

    def ordered_fields(self) -> list[str]:
        """Fields in the order of their columns."""
        return sorted(self.fields, key=lambda name: self.fields[name])

    def produced(self) -> tuple[Indexes, npt.NDArray[np.bool_]]:
        """Global indexes of rows with a produced field, and which fields those are."""
        names = self.ordered_fields()
        rows, width = self.production.shape
        if not names or rows == 0:
            return np.empty(0, np.int64), np.empty((0, len(names)), np.bool_)
        bits = np.zeros((rows, len(names)), np.bool_)
        for position, name in enumerate(names):
            if self.fields[name] < width:
                bits[:, position] = self.production[:, self.fields[name]].numpy() == 1
        found = np.flatnonzero(bits.any(axis=1)).astype(np.int64)
        return found, bits[found]

    def indexes_of(self, name: str) -> Indexes:
        """Global indexes that the metadata of a field has, ascending."""
        own = self.metas[name].global_indexes
        if own is None:
            found = self.production[:, self.fields[name]].numpy() == 1
            return np.flatnonzero(found).astype(np.int64)
        return ascending(own)

    def known_indexes(self) -> set[int]:
        """Every global index that any part of the partition's state mentions."""
        known = {*self.active, *self.pre_allocated, *self.indexed, *self.tags}
        known.update(self.backend_meta, self.keys.values())
        for status in (self.production.any(dim=1), *self.consumption.values()):
            known.update(np.flatnonzero(status.numpy()).tolist())
        return known


@dataclass(frozen=True, slots=True)
class ControllerCut:
    """Everything that the controller knows, at the cut."""

    partitions: tuple[PartitionCut, ...]
    counter: int
    reusable: list[int]
    allocated: list[int]
    other_indexes: dict[str, list[int]]
    sampler_class: str
    sampler_state: Any
    sampler_settings: dict[str, Any]


@dataclass(frozen=True, slots=True)
class UnitPlan:
    """What one storage unit has to write of one partition."""

    partition_id: str
    table: str
    schema_id: str
    fields: tuple[str, ...]
    indexes: Indexes
    keys: tuple[str | None, ...]
    produced: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Counts:
    """Rows and cells per partition and field; both sides of a cut must agree."""

    rows: dict[str, int] = field(default_factory=dict)
    cells: dict[tuple[str, str], int] = field(default_factory=dict)

    def add(self, partition: str, fields: Sequence[str], produced: npt.NDArray[np.bool_]) -> None:
        """Counts rows of one partition."""
        self.rows[partition] = self.rows.get(partition, 0) + len(produced)
        for name, count in zip(fields, produced.sum(axis=0).tolist(), strict=True):
            if count:
                place = (partition, name)
                self.cells[place] = self.cells.get(place, 0) + count

    def merge(self, other: "Counts") -> None:
        """Adds the counts of another writer or reader."""
        for partition, count in other.rows.items():
            if count:
                self.rows[partition] = self.rows.get(partition, 0) + count
        for place, count in other.cells.items():
            self.cells[place] = self.cells.get(place, 0) + count

    def differences(self, other: "Counts") -> list[str]:
        """What differs, as `partition.field: here != there`."""
        found = []
        for partition in sorted(self.rows.keys() | other.rows.keys()):
            here, there = self.rows.get(partition, 0), other.rows.get(partition, 0)
            if here != there:
                found.append(f"{partition}: {here} != {there} rows")
        for place in sorted(self.cells.keys() | other.cells.keys()):
            here, there = self.cells.get(place, 0), other.cells.get(place, 0)
            if here != there:
                found.append(f"{place[0]}.{place[1]}: {here} != {there} cells")
        return found


def ascending(indexes: Collection[int]) -> Indexes:
    """Global indexes as an array, in order."""
    return np.sort(np.fromiter(indexes, np.int64, len(indexes)))


def copy_controller(
    controller: Any, partitions: Iterable[str] | None
) -> Callable[[], ControllerCut]:
    """Copies the state while the gate is held: containers are copied, leaves are shared.

    Leaves are values that the controller replaces and never changes in place: tags, shapes. The
    large containers are copied as lists; what this returns makes of them what they were, and
    need not be called under the hold.
    """
    manager = controller.index_manager
    wanted = None if partitions is None else set(partitions)
    cuts = []
    others: dict[str, list[int]] = {}
    for partition_id, status in controller.partitions.items():
        indexed = list(manager.partition_to_indexes.get(partition_id, ()))
        if wanted is None or partition_id in wanted:
            cuts.append(_copy_partition(status, indexed))
        else:
            others[partition_id] = indexed
    for partition_id, indexes in manager.partition_to_indexes.items():
        if partition_id not in controller.partitions:
            others[partition_id] = list(indexes)
    counter, reusable = manager.global_index_counter, list(manager.reusable_indexes)
    allocated = list(manager.allocated_indexes)
    sampler_class, sampler_state, sampler_settings = copy_sampler(controller.sampler)
    return lambda: ControllerCut(
        partitions=tuple(cut() for cut in cuts),
        counter=counter,
        reusable=reusable,
        allocated=allocated,
        other_indexes=others,
        sampler_class=sampler_class,
        sampler_state=sampler_state,
        sampler_settings=sampler_settings,
    )


def copied_sizes(controller: Any) -> list[int]:
    """Bytes of each container that `copy_controller` makes, about; requests may go on."""
    manager = controller.index_manager
    lists: list[Collection[Any]] = [manager.allocated_indexes, manager.reusable_indexes]
    lists += list(manager.partition_to_indexes.values())
    sizes = []
    for status in list(controller.partitions.values()):
        lists += [status.global_indexes, status.pre_allocated_global_indexes]
        # Names and values of each.
        lists += 2 * [status.custom_meta, status.keys_mapping]
        sizes += [status.production_status.nbytes]
        sizes += [bits.nbytes for bits in list(status.consumption_status.values())]
        metas = list(status.field_metadata.values())
        sizes += [sys.getsizeof(meta.per_sample_shapes) for meta in metas]
    return sizes + [REFERENCE * len(items) for items in lists]


def copy_sampler(sampler: Any) -> tuple[str, Any, dict[str, Any]]:
    """Class name, own copy of the state, and plain settings of a sampler."""
    kind = type(sampler)
    settings = {
        name: value
        for name, value in vars(sampler).items()
        if not name.startswith("_") and isinstance(value, (bool, int, float, str))
    }
    return f"{kind.__module__}:{kind.__qualname__}", _deep(sampler.save_checkpoint()), settings


def _copy_partition(status: Any, indexed: list[int]) -> Callable[[], PartitionCut]:
    production = status.production_status.clone()
    fields = dict(status.field_name_mapping)
    partition_id, created_at = status.partition_id, status.created_at
    consumption = {task: bits.clone() for task, bits in status.consumption_status.items()}
    active = list(status.global_indexes)
    pre_allocated = list(status.pre_allocated_global_indexes)
    metas = {
        name: FieldCut(
            meta.dtype,
            meta.shape,
            meta.is_nested,
            meta.is_non_tensor,
            _own_indexes(meta.global_indexes, production, fields.get(name)),
            dict(meta.per_sample_shapes),
        )
        for name, meta in status.field_metadata.items()
    }
    # The one leaf that the controller updates in place.
    backend_meta = {i: dict(meta) for i, meta in status.field_custom_backend_meta.items()}
    tags, keys = _pairs(status.custom_meta), _pairs(status.keys_mapping)
    return lambda: PartitionCut(
        partition_id=partition_id,
        created_at=created_at,
        production=production,
        consumption=consumption,
        active=active,
        pre_allocated=pre_allocated,
        fields=fields,
        metas=metas,
        backend_meta=backend_meta,
        tags=dict(zip(*tags, strict=True)),
        keys=dict(zip(*keys, strict=True)),
        indexed=indexed,
    )


def _pairs(items: dict[Any, Any]) -> tuple[list[Any], list[Any]]:
    """The content of a dictionary in less than half of its memory."""
    return list(items), list(items.values())


def _own_indexes(indexes: set[int], production: Any, column: int | None) -> list[int] | None:
    """A copy, unless they are known from the production status.

    The controller marks a row as produced before it adds it to the field's metadata, and takes
    both back together; so where there are as many of the one as of the other, they are the same.
    """
    if column is not None and column < production.shape[1]:
        produced = np.count_nonzero(production[:, column].numpy() == 1)
        if produced == len(indexes):
            return None
    return list(indexes)


def _deep(value: Any) -> Any:
    """Own copy of nested plain containers; samplers change theirs in place."""
    if isinstance(value, dict):
        return {key: _deep(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_deep(item) if isinstance(item, (dict, list, tuple)) else item for item in value]
    if isinstance(value, tuple):
        return tuple(_deep(item) for item in value)
    return set(value) if isinstance(value, set) else value


def install_controller(controller: Any, cut: ControllerCut) -> None:
    """Puts a state into a controller in place of its own; the gate must be held."""
    from transfer_queue.controller import DataPartitionStatus, FieldMeta

    partitions = {}
    indexed: defaultdict[str, set[int]] = defaultdict(set)
    for part in cut.partitions:
        status = DataPartitionStatus(
            partition_id=part.partition_id,
            created_at=part.created_at,
            production_status=part.production,
            consumption_status=part.consumption,
            global_indexes=set(part.active),
            pre_allocated_global_indexes=set(part.pre_allocated),
            field_name_mapping=part.fields,
            field_metadata={
                name: FieldMeta(
                    global_indexes=set(part.indexes_of(name).tolist()),
                    dtype=meta.dtype,
                    shape=meta.shape,
                    is_nested=meta.is_nested,
                    is_non_tensor=meta.is_non_tensor,
                    per_sample_shapes=meta.per_sample_shapes,
                )
                for name, meta in part.metas.items()
            },
            field_custom_backend_meta=part.backend_meta,
            custom_meta=part.tags,
            keys_mapping=part.keys,
            revert_keys_mapping=part.key_of(),
        )
        partitions[part.partition_id] = status
        if part.indexed:
            indexed[part.partition_id] = set(part.indexed)
    manager = controller.index_manager
    before = controller.sampler.save_checkpoint()
    try:
        controller.sampler.load_checkpoint(cut.sampler_state)
    except Exception:
        controller.sampler.load_checkpoint(before)
        raise
    manager.partition_to_indexes = indexed
    manager.reusable_indexes = cut.reusable
    manager.global_index_counter = cut.counter
    manager.allocated_indexes = set(cut.allocated)
    controller.partitions = partitions
