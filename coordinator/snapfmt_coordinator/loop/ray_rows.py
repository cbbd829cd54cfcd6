"""Rows of TransferQueue as numpy columns; used inside actors.

Torch and TransferQueue are imported where they are used: whoever makes the actors imports their
modules, and would pay seconds for what only the actors need.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def get(partition: str, keys: Sequence[str], fields: Sequence[str]) -> list[dict[str, Any]]:
    """The named fields of rows, in the order of the keys."""
    import transfer_queue as tq

    if not keys:
        return []
    data = tq.kv_batch_get(list(keys), partition, select_fields=list(fields))
    columns = {name: [_plain(value) for value in data[name].unbind()] for name in fields}
    return [{name: columns[name][row] for name in fields} for row in range(len(keys))]


def put(
    partition: str,
    keys: Sequence[str],
    vectors: Mapping[str, Sequence[Any]],
    scalars: Mapping[str, Any],
    tags: Sequence[Mapping[str, Any]] | None = None,
) -> None:
    """Puts rows: one ragged vector or one scalar for each key and field."""
    import torch
    import transfer_queue as tq
    from tensordict import TensorDict

    fields = {name: jagged(values) for name, values in vectors.items()}
    fields |= {name: torch.from_numpy(np.asarray(value)) for name, value in scalars.items()}
    tq.kv_batch_put(
        keys=list(keys),
        partition_id=partition,
        fields=TensorDict(fields, batch_size=len(keys)),
        tags=None if tags is None else [dict(tag) for tag in tags],
    )


def tags(partition: str) -> dict[str, dict[str, Any]]:
    """Keys of a partition, each with its tag; empty when there is no such partition."""
    import transfer_queue as tq

    found: dict[str, dict[str, Any]] = tq.kv_list(partition).get(partition, {})
    return found


def clear(partition: str, keys: Sequence[str]) -> None:
    """Clears rows."""
    import transfer_queue as tq

    if keys:
        tq.kv_clear(list(keys), partition)


def jagged(rows: Sequence[Any]) -> Any:
    """A column of vectors of different length."""
    import torch

    tensors = [torch.from_numpy(np.array(row)) for row in rows]
    return torch.nested.as_nested_tensor(tensors, layout=torch.jagged)


def _plain(value: Any) -> Any:
    array = value.numpy()
    return array.item() if array.ndim == 0 else array
