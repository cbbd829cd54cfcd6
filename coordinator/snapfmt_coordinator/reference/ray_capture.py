"""Token-capture rows into the running TransferQueue."""

import asyncio
from typing import Any

import numpy as np
import torch
import transfer_queue as tq
from tensordict import TensorDict

from snapfmt_coordinator.reference.batching import Batcher
from snapfmt_coordinator.reference.capture import PARTITION, CaptureRow


class TransferQueueSink:
    """Puts rows in small batches, one after another, from a worker thread."""

    def __init__(self, *, partition: str = PARTITION) -> None:
        """`partition`: of the queue, which this process must have joined before the first row."""
        self._partition = partition
        self._batches: Batcher[CaptureRow, None] = Batcher(self._store)

    async def put(self, row: CaptureRow) -> None:
        """Returns once the queue has the row."""
        await self._batches.submit(row)

    async def close(self) -> None:
        """Stores what is pending."""
        await self._batches.close()

    async def _store(self, rows: list[CaptureRow]) -> list[None]:
        await asyncio.to_thread(self._put, rows)
        return [None] * len(rows)

    def _put(self, rows: list[CaptureRow]) -> None:
        tq.kv_batch_put(
            keys=[row.key for row in rows],
            partition_id=self._partition,
            fields=TensorDict(fields(rows), batch_size=len(rows)),
            tags=[row.tags for row in rows],
        )


def fields(rows: list[CaptureRow]) -> dict[str, Any]:
    """The columns of rows, as TransferQueue takes them: vectors jagged, the others dense."""
    columns: dict[str, Any] = {}
    for name, first in rows[0].columns.items():
        values = [row.columns[name] for row in rows]
        if isinstance(first, np.ndarray):
            # A copy: arrays made from bytes are read-only, which torch warns about.
            parts = [torch.from_numpy(np.array(value)) for value in values]
            columns[name] = torch.nested.as_nested_tensor(parts, layout=torch.jagged)
        else:
            columns[name] = torch.tensor(values)
    return columns
