"""Everything that a queue holds, as digests that can be compared after a restore."""

import hashlib
from typing import Any

import numpy as np

from snapfmt.adapters.transfer_queue.cluster import Cluster, run
from snapfmt.adapters.transfer_queue.pins import spilled_values
from snapfmt.adapters.transfer_queue.state import copy_controller


def census(cluster: Cluster, *, timeout_s: float = 60.0) -> dict[str, Any]:
    """Every row, tag, key, status and cursor of a queue at rest, as JSON-able text.

    Values come as type, dtype, shape and digest of their bytes; nothing leaves the actors.
    """
    state, *units = run(
        [
            cluster.controller_call(controller_census),
            *cluster.unit_calls(unit_census),
        ],
        timeout_s=timeout_s,
    )
    cells: dict[str, dict[str, str]] = {}
    for found in units:
        for field, values in found.items():
            cells.setdefault(field, {}).update(values)
    return {"state": state, "cells": cells}


def unit_census(unit: Any) -> dict[str, dict[str, str]]:
    """Runs in a unit: field -> global index -> mark of the value."""
    spilled = spilled_values(unit.storage_data)
    marks: dict[str, dict[str, str]] = {}
    # Copies, for a queue that is not at rest: another thread may add a field or a row meanwhile.
    for field, values in unit.storage_data.field_data.copy().items():
        for index, value in values.copy().items():
            whole = value if spilled is None else spilled.load(value)[0]
            marks.setdefault(field, {})[str(index)] = mark(whole)
    return marks


def controller_census(controller: Any) -> dict[str, Any]:
    """Runs in the controller: its whole state as plain text and numbers."""
    cut = copy_controller(controller, None)()
    return {
        "partitions": {part.partition_id: _partition(part) for part in cut.partitions},
        "counter": cut.counter,
        "reusable": cut.reusable,
        "allocated": sorted(cut.allocated),
        "sampler": [cut.sampler_class, repr(cut.sampler_state)],
    }


def _partition(part: Any) -> dict[str, Any]:
    return {
        "created_at": repr(part.created_at),
        "shape": list(part.production.shape),
        "production": part.production.nonzero().tolist(),
        "consumption": {
            task: bits.nonzero()[:, 0].tolist() for task, bits in part.consumption.items()
        },
        "active": sorted(part.active),
        "pre_allocated": sorted(part.pre_allocated),
        "indexed": sorted(part.indexed),
        "fields": part.fields,
        "metas": {
            name: [
                repr(meta.dtype),
                repr(meta.shape),
                meta.is_nested,
                meta.is_non_tensor,
                part.indexes_of(name).tolist(),
                repr(sorted(meta.per_sample_shapes.items())),
            ]
            for name, meta in part.metas.items()
        },
        "tags": {str(index): repr(tag) for index, tag in sorted(part.tags.items())},
        "backend_meta": {str(i): repr(meta) for i, meta in sorted(part.backend_meta.items())},
        "keys": [[key, index] for key, index in part.keys.items()],
    }


def mark(value: Any) -> str:
    """Type, dtype, shape and digest of one value's bytes."""
    kind = type(value)
    if kind.__module__ == "torch":
        import torch

        raw = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return f"tensor {value.dtype} {tuple(value.shape)} {_digest(raw)}"
    if isinstance(value, np.ndarray):
        return f"ndarray {value.dtype} {value.shape} {_digest(value.tobytes())}"
    return f"{kind.__name__} {_digest(repr(value).encode('utf-8', 'surrogatepass'))}"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
