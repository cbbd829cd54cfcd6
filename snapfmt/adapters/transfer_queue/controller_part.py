"""The controller's part: its state as tables and one JSON record, and back.

Tables of a partition (spec/v1/06-tables.md): `state/<table>` has one row per row of the queue,
also for rows without values; `fields/<table>` has one row per field.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np

from snapfmt.adapters.transfer_queue import names, records
from snapfmt.adapters.transfer_queue.state import (
    ControllerCut,
    Counts,
    FieldCut,
    Indexes,
    PartitionCut,
    ascending,
)
from snapfmt.errors import FormatError, UnsupportedValue, UnsupportedVersion
from snapfmt.format import tagged
from snapfmt.format.columns import MISSING, Column
from snapfmt.reading.snapshot import Part
from snapfmt.writing.part import PartWriter

DOCUMENT = "controller.json"
FLAGS = ("active", "pre_allocated", "indexed", "allocated")
"""Bits of the column `flags`, in order."""
_CHUNK = 1024


def write_controller(
    part: PartWriter,
    cut: ControllerCut,
    *,
    tables: dict[str, str],
    document: Callable[..., records.ControllerRecord],
    check: Callable[[], None],
) -> None:
    """Stages everything that `cut` holds; `document` gets the fields that depend on it.

    Raises:
        UnsupportedValue: If a tag or the sampler holds a value without an exact stored form.
    """
    written = []
    for partition in cut.partitions:
        check()
        table = tables[partition.partition_id]
        rows = _write_state(part, partition, cut.allocated, table, check)
        _write_fields(part, partition, table)
        written.append(
            records.PartitionRecord(
                partition_id=partition.partition_id,
                table=table,
                created_at=partition.created_at,
                status_rows=partition.production.shape[0],
                status_columns=partition.production.shape[1],
                tasks=tuple(partition.consumption),
                rows=rows,
                fields=len(partition.fields),
            )
        )
    try:
        sampler = tagged.encode(cut.sampler_state)
    except UnsupportedValue as error:
        raise UnsupportedValue(
            f"state of the sampler: {error.message}", what=cut.sampler_class, hint=error.hint
        ) from error
    # Indexes of partitions that were left out go back to the pool, or they would be lost.
    left_out = sorted(set().union(*cut.other_indexes.values()))
    record = document(
        partitions=tuple(written),
        indexes=records.IndexRecord(
            counter=cut.counter,
            reusable=_runs([*cut.reusable, *left_out]),
            allocated=_runs(sorted(set(cut.allocated).difference(left_out))),
        ),
        sampler=records.SamplerRecord(
            name=cut.sampler_class, settings=cut.sampler_settings, state=sampler
        ),
    )
    part.stage(DOCUMENT, record.model_dump_json().encode(), media_type=record.document_type())


def _runs(indexes: Sequence[int]) -> tuple[tuple[int, int], ...]:
    return tuple((start, count) for start, count in names.runs(indexes))


def _write_state(
    part: PartWriter,
    cut: PartitionCut,
    allocated: list[int],
    table: str,
    check: Callable[[], None],
) -> int:
    import torch

    known = cut.known_indexes()
    if not known:
        return 0
    keyed = list(cut.keys.items())
    unkeyed = sorted(known.difference(cut.keys.values()))
    indexes = np.fromiter((*cut.keys.values(), *unkeyed), np.int64, len(known))
    row_keys = [names.row_key(key, index) for key, index in keyed]
    row_keys += [names.row_key(None, index) for index in unkeyed]
    columns = [cut.fields[name] for name in cut.ordered_fields()]
    width = cut.production.shape[1]
    produced = torch.zeros(len(known), len(columns), dtype=torch.int8)
    rows = torch.from_numpy(indexes)
    for position, column in enumerate(columns):
        if column < width:
            produced[:, position] = _pick(cut.production[:, column], rows)
    consumed = torch.zeros(len(known), len(cut.consumption), dtype=torch.int8)
    for position, bits in enumerate(cut.consumption.values()):
        consumed[:, position] = _pick(bits, rows)
    groups = (cut.active, cut.pre_allocated, cut.indexed, allocated)
    flags = torch.zeros(len(known), len(groups), dtype=torch.bool)
    for position, group in enumerate(groups):
        flags[:, position] = torch.from_numpy(np.isin(indexes, ascending(group)))
    with part.table(f"state/{table}") as writer:
        for start in range(0, len(known), _CHUNK):
            check()
            chunk = slice(start, start + _CHUNK)
            some = indexes[chunk].tolist()
            writer.append(
                row_keys[chunk],
                {
                    "global_index": rows[chunk],
                    "flags": flags[chunk],
                    "produced": produced[chunk],
                    "consumed": consumed[chunk],
                    "tag": [cut.tags.get(index, MISSING) for index in some],
                    "backend_meta": [cut.backend_meta.get(index, MISSING) for index in some],
                },
            )
    return len(known)


def _pick(bits: Any, rows: Any) -> Any:
    """Bits of the given rows; rows beyond the tensor are 0."""
    padded = bits.new_zeros(max(len(bits), int(rows.max()) + 1 if len(rows) else 0))
    padded[: len(bits)] = bits
    return padded[rows]


def _write_fields(part: PartWriter, cut: PartitionCut, table: str) -> None:
    import torch

    fields = cut.ordered_fields()
    if not fields:
        return
    rows: dict[str, list[Any]] = {
        name: []
        for name in (
            "column",
            "meta",
            "global_indexes",
            "sample_indexes",
            "sample_shapes",
            "mixed_shapes",
        )
    }
    for name in fields:
        meta = cut.metas.get(name)
        row = dict.fromkeys(rows, MISSING) | {"column": torch.tensor(cut.fields[name])}
        if meta is not None:
            row |= _field_row(name, meta, cut.indexes_of(name))
        for column, value in row.items():
            rows[column].append(value)
    with part.table(f"fields/{table}") as writer:
        writer.append(fields, rows)


def _field_row(name: str, meta: FieldCut, indexes: Indexes) -> dict[str, Any]:
    import torch

    if meta.dtype is not None and not isinstance(meta.dtype, torch.dtype):
        raise UnsupportedValue(f"dtype {meta.dtype!r} of a field's metadata", what=name)
    shapes = list(meta.per_sample_shapes.values())
    widths, kinds = set(map(len, shapes)), set(map(type, shapes))
    lists = list in kinds
    row: dict[str, Any] = {
        "meta": {
            "dtype": None if meta.dtype is None else str(meta.dtype).removeprefix("torch."),
            "shape": _plain(meta.shape),
            "is_nested": meta.is_nested,
            "is_non_tensor": meta.is_non_tensor,
            "sample_lists": lists,
        },
        "global_indexes": torch.from_numpy(indexes),
        "sample_indexes": torch.tensor(list(meta.per_sample_shapes), dtype=torch.int64),
    }
    if len(widths) > 1 or (lists and len(kinds) > 1):
        row["mixed_shapes"] = [_plain(shape) for shape in shapes]
    else:
        width = max(widths, default=0)
        flat = np.fromiter(chain.from_iterable(shapes), np.int64, len(shapes) * width)
        row["sample_shapes"] = torch.from_numpy(flat.reshape(len(shapes), width))
    return row


def _plain(shape: Any) -> Any:
    """A shape as list or tuple, whichever it is; `torch.Size` is a tuple."""
    return shape if shape is None or type(shape) is list else tuple(shape)


def read_document(part: Part) -> records.ControllerRecord:
    """The root record of the controller's part.

    Raises:
        UnsupportedVersion: If another version of these adapters wrote it.
        FormatError: If it is not such a record.
    """
    from pydantic import ValidationError

    entry = part.entry(DOCUMENT)
    if entry.media_type != records.ControllerRecord.document_type():
        raise UnsupportedVersion(
            f"state of a queue as {entry.media_type}", what=DOCUMENT, hint="upgrade snapfmt"
        )
    try:
        return records.ControllerRecord.model_validate_json(part.read(DOCUMENT))
    except ValidationError as error:
        raise FormatError(f"not the state of a queue: {error}", what=DOCUMENT) from error


def read_controller(
    part: Part, document: records.ControllerRecord, check: Callable[[], None]
) -> tuple[ControllerCut, Counts]:
    """The controller's state, and how many rows and cells the units must hold.

    Raises:
        CorruptError: If stored bytes are damaged or do not fit together.
    """
    counts = Counts()
    partitions = []
    for item in document.partitions:
        check()
        partition = _read_partition(part, item, check)
        _, produced = partition.produced()
        counts.add(item.partition_id, partition.ordered_fields(), produced)
        partitions.append(partition)
    cut = ControllerCut(
        partitions=tuple(partitions),
        counter=document.indexes.counter,
        reusable=names.unrun(document.indexes.reusable),
        allocated=names.unrun(document.indexes.allocated),
        other_indexes={},
        sampler_class=document.sampler.name,
        sampler_state=tagged.decode(document.sampler.state),
        sampler_settings=document.sampler.settings,
    )
    return cut, counts


def _read_partition(
    part: Part, item: records.PartitionRecord, check: Callable[[], None]
) -> PartitionCut:
    import torch

    fields, metas = _read_fields(part, item)
    production = torch.zeros(item.status_rows, item.status_columns, dtype=torch.int8)
    consumption = {task: torch.zeros(item.status_rows, dtype=torch.int8) for task in item.tasks}
    cut = PartitionCut(
        partition_id=item.partition_id,
        created_at=item.created_at,
        production=production,
        consumption=consumption,
        active=[],
        pre_allocated=[],
        fields=fields,
        metas=metas,
        backend_meta={},
        tags={},
        keys={},
        indexed=[],
    )
    columns = torch.tensor([fields[name] for name in cut.ordered_fields()], dtype=torch.int64)
    groups = (cut.active, cut.pre_allocated, cut.indexed)
    targets: tuple[tuple[str, dict[int, Any]], ...]
    targets = (("tag", cut.tags), ("backend_meta", cut.backend_meta))
    found = 0
    for keys, batch in _batches(part, f"state/{item.table}"):
        check()
        rows = len(keys)
        found += rows
        indexes = _vectors(batch, "global_index", rows, 1)[:, 0].astype(np.int64)
        flags = _vectors(batch, "flags", rows, len(FLAGS))
        produced = _vectors(batch, "produced", rows, len(fields))
        consumed = _vectors(batch, "consumed", rows, len(item.tasks))
        _set_status(item, production, indexes, columns, produced)
        for position, bits in enumerate(consumption.values()):
            _set_status(item, bits, indexes, None, consumed[:, position])
        for position, group in enumerate(groups):
            group.extend(indexes[flags[:, position] != 0].tolist())
        for row, (key, index) in enumerate(zip(keys, indexes.tolist(), strict=True)):
            if (user := names.user_key(key)) is not None:
                cut.keys[user] = index
            for name, target in targets:
                value: Any = batch[name].value(row) if name in batch else MISSING
                if value is not MISSING:
                    target[index] = value
    if found != item.rows:
        raise FormatError(f"state has {found} rows, not {item.rows}", what=item.partition_id)
    return cut


def _set_status(
    item: records.PartitionRecord, target: Any, indexes: Indexes, columns: Any, bits: Any
) -> None:
    """Writes status bits; only rows with a set bit must lie inside the tensor."""
    import torch

    chosen = bits.any(axis=1) if columns is not None else bits != 0
    rows = torch.from_numpy(indexes[chosen])
    values = torch.from_numpy(np.ascontiguousarray(bits[chosen])).to(torch.int8)
    inside = len(rows) == 0 or (int(rows.min()) >= 0 and int(rows.max()) < len(target))
    if columns is not None and len(columns):
        inside = inside and int(columns.max()) < target.shape[1]
    if not inside:
        raise FormatError("status lies outside of its tensor", what=item.partition_id)
    if len(rows) == 0:
        return
    if columns is None:
        target[rows] = values
    else:
        target[rows[:, None], columns] = values


def _read_fields(
    part: Part, item: records.PartitionRecord
) -> tuple[dict[str, int], dict[str, FieldCut]]:
    fields: dict[str, int] = {}
    metas: dict[str, FieldCut] = {}
    for keys, batch in _batches(part, f"fields/{item.table}"):
        for row, name in enumerate(keys):
            values = {column: batch[column].value(row) for column in batch}
            fields[name] = int(values["column"])
            if values.get("meta", MISSING) is not MISSING:
                metas[name] = _field_cut(name, values)
    if len(fields) != item.fields or sorted(fields.values()) != list(range(len(fields))):
        raise FormatError("fields and their columns do not fit", what=item.partition_id)
    ordered = sorted(fields.items(), key=lambda pair: pair[1])
    return dict(ordered), metas


def _field_cut(name: str, values: dict[str, Any]) -> FieldCut:
    import torch

    meta = values["meta"]
    dtype = None
    if meta["dtype"] is not None:
        dtype = getattr(torch, meta["dtype"], None)
        if not isinstance(dtype, torch.dtype):
            raise FormatError(f"dtype {meta['dtype']!r} is not one of torch", what=name)
    shapes = values.get("mixed_shapes", MISSING)
    if shapes is MISSING:
        shapes = values["sample_shapes"].tolist()
        if not meta["sample_lists"]:
            shapes = list(map(tuple, shapes))
    return FieldCut(
        dtype=dtype,
        shape=meta["shape"],
        is_nested=meta["is_nested"],
        is_non_tensor=meta["is_non_tensor"],
        global_indexes=values["global_indexes"].tolist(),
        per_sample_shapes=dict(zip(values["sample_indexes"].tolist(), shapes, strict=True)),
    )


def _batches(part: Part, table: str) -> Iterator[tuple[list[str], dict[str, Column]]]:
    """Batches of a table that is left out when it has no rows."""
    if table in part.table_names():
        for batch in part.table(table).batches():
            yield batch.keys, batch.columns


def _vectors(batch: dict[str, Column], name: str, rows: int, width: int) -> Any:
    """A column whose every row is a vector of `width` elements, as a matrix."""
    if name not in batch or len(batch[name].values) != rows * width:
        raise FormatError(f"column {name} does not have {width} elements a row", what=name)
    return batch[name].values.reshape(rows, width)
