"""TransferQueue as the sequences see it: cuts of it, and loads into it."""

import asyncio
from typing import Any, Final

from snapfmt import Repository, Snapshot
from snapfmt.adapters import transfer_queue
from snapfmt.adapters.transfer_queue.cluster import Cluster, run
from snapfmt.errors import InputError
from snapfmt_coordinator.loop.saved import CANONICAL_PARTITION, STAGING_PARTITION
from snapfmt_coordinator.sequence.ports import TicketSource
from snapfmt_schemas.attempt import Receipt
from snapfmt_schemas.rows import CANONICAL, TOKEN_CAPTURE

SCHEMAS: Final = (
    (CANONICAL_PARTITION, CANONICAL.schema_id),
    (STAGING_PARTITION, TOKEN_CAPTURE.schema_id),
)
_CALL_S: Final = 60.0


class QueueDataPlane:
    """Implements `sequence.ports.DataPlane` and `DataPlaneLoader`."""

    def __init__(self) -> None:
        self._ready: transfer_queue.PreparedCut | None = None

    async def prepare(self, repository: Repository) -> int | None:
        """Finds the queue and readies its actors; the newest snapshot that holds its rows."""
        self._ready = ready = await asyncio.to_thread(transfer_queue.prepare_cut)
        return await asyncio.to_thread(ready.base_in, repository)

    async def take_cut(self) -> "QueueCut":
        """References to all rows; the queue stands for milliseconds."""
        if self._ready is None:
            raise InputError("a cut needs prepare() first")
        return QueueCut(await asyncio.to_thread(self._ready.take))

    async def load(self, snapshot: Snapshot) -> None:
        """Loads all rows of a snapshot into the empty queue; all or nothing."""
        await asyncio.to_thread(transfer_queue.load, snapshot)

    async def unload(self) -> None:
        """Empties the queue again."""
        await asyncio.to_thread(_unload)


class QueueCut:
    """Implements `sequence.ports.HeldCut`."""

    def __init__(self, held: transfer_queue.HeldCut) -> None:
        self._held = held

    @property
    def lease_s(self) -> float:
        """Seconds after which an unused cut is let go of."""
        return self._held.lease_s

    async def write(self, source: TicketSource) -> tuple[Receipt, ...]:
        """Writes and seals its parts."""

        def write() -> tuple[Receipt, ...]:
            return self._held.write(source, schemas=dict(SCHEMAS))[0]

        return await asyncio.to_thread(write)

    async def keys(self, partition: str) -> frozenset[str]:
        """Keys of the rows of a partition."""
        return await asyncio.to_thread(self._held.keys, partition)

    async def renew(self) -> None:
        """Keeps it for `lease_s` from now."""
        await asyncio.to_thread(self._held.renew)

    async def drop(self) -> None:
        """Lets go of it."""
        await asyncio.to_thread(self._held.drop)


def _unload() -> None:
    cluster = Cluster.connect()
    calls = [cluster.controller_call(_empty_controller), *cluster.unit_calls(_empty_unit)]
    run(calls, timeout_s=_CALL_S)


def _empty_controller(controller: Any) -> None:
    manager = controller.index_manager
    manager.partition_to_indexes.clear()
    manager.reusable_indexes, manager.allocated_indexes = [], set()
    manager.global_index_counter = 0
    controller.partitions = {}


def _empty_unit(unit: Any) -> None:
    data = unit.storage_data
    data.clear(list(data._active_keys.union(*data.field_data.values())))
    data.field_data.clear()
