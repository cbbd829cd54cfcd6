"""A local Ray with a real TransferQueue, shared by the cluster tests."""

import os
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from snapfmt import Repository
from snapfmt.adapters.transfer_queue.cluster import Call, Cluster, run
from snapfmt.adapters.transfer_queue.state import copy_controller
from snapfmt.demo.census import census

CALL_S = 30.0


class Lab:
    """The one queue of the test session; started anew only when a test needs other units."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self.shape: tuple[int, bool] | None = None

    def start(self, units: int, *, ssd: bool = False) -> "Lab":
        """An empty queue with so many storage units."""
        import transfer_queue as tq
        from omegaconf import OmegaConf

        if self.shape == (units, ssd):
            self.empty()
            return self
        self.stop()
        storage: dict[str, Any] = {"num_data_storage_units": units}
        if ssd:
            spill = {"enabled": True, "path": str(self.scratch / "ssd"), "threshold_bytes": 1024}
            storage["ssd_offload"] = spill
        tq.init(OmegaConf.create({"backend": {"SimpleStorage": storage}}))
        self.shape = (units, ssd)
        return self

    def stop(self) -> None:
        """Ends the queue."""
        import transfer_queue as tq

        tq.close()
        self.shape = None

    def empty(self) -> None:
        """Brings the running queue back to where it began."""
        cluster = self.cluster
        run(
            [cluster.controller_call(_empty_controller), *cluster.unit_calls(_empty_unit)],
            timeout_s=CALL_S,
        )

    @property
    def cluster(self) -> Cluster:
        """The queue's actors."""
        return Cluster.connect()

    @property
    def client(self) -> Any:
        """The queue's client in this process."""
        import transfer_queue as tq

        return tq.get_client()

    def on_controller(self, function: Any, *arguments: Any) -> Any:
        """Runs a function in the controller."""
        return run([self.cluster.controller_call(function, *arguments)], timeout_s=CALL_S)[0]

    def on_unit(self, position: int, function: Any, *arguments: Any) -> Any:
        """Runs a function in one storage unit."""
        cluster = self.cluster
        name = cluster.unit_names[position]
        return run([Call(cluster.units[position], name, function, arguments)], timeout_s=CALL_S)[0]

    def sampler(self, sampler: Any) -> None:
        """Gives the queue another sampler."""
        import ray

        ray.get(self.cluster.controller.register_sampler.remote(sampler), timeout=CALL_S)

    def census(self) -> dict[str, Any]:
        """Everything that the queue holds."""
        return census(self.cluster)

    def is_empty(self) -> bool:
        """Whether nothing is left, not even an index that was given out."""
        found = self.census()
        return not any(found["cells"].values()) and not found["state"]["partitions"]

    def put(
        self, partition: str, keys: list[str], fields: dict[str, Any] | None, **options: Any
    ) -> None:
        """Puts keyed rows."""
        import transfer_queue as tq
        from tensordict import TensorDict

        data = None if fields is None else TensorDict(fields, batch_size=len(keys))
        tq.kv_batch_put(keys=keys, partition_id=partition, fields=data, **options)

    def clear(self, partition: str, keys: list[str]) -> None:
        """Clears keyed rows."""
        import transfer_queue as tq

        tq.kv_clear(keys, partition)

    def put_keyless(self, partition: str, fields: dict[str, Any], count: int) -> None:
        """Puts rows without keys."""
        from tensordict import TensorDict

        self.client.put(TensorDict(fields, batch_size=count), partition_id=partition)

    def fetch(
        self, partition: str, task: str, fields: list[str], size: int, **sampling: Any
    ) -> list[int]:
        """Global indexes of a consumer's next batch."""
        config = {"task_name": task, "partition_id": partition, **sampling}
        meta = self.client.get_meta(
            data_fields=fields,
            batch_size=size,
            partition_id=partition,
            task_name=task,
            sampling_config=config,
        )
        return list(meta.global_indexes)

    def stand_in(self, act: Any, repository: Repository) -> "Interfering":
        """A save attempt that does something between the cut and the writing."""
        return Interfering(repository, act)


class Interfering:
    """An attempt whose first ticket runs `act`: the cut is taken, nothing is written yet."""

    def __init__(self, repository: Repository, act: Any) -> None:
        self.attempt = repository.begin()
        self._act = act

    def ticket(self, part: str) -> Any:
        """As `Attempt.ticket`."""
        act, self._act = self._act, lambda: None
        act()
        return self.attempt.ticket(part)


def _empty_controller(controller: Any) -> None:
    from collections import defaultdict

    from transfer_queue.sampler import SequentialSampler

    manager = controller.index_manager
    manager.partition_to_indexes = defaultdict(set)
    manager.reusable_indexes, manager.allocated_indexes = [], set()
    manager.global_index_counter = 0
    controller.partitions = {}
    controller.register_sampler(SequentialSampler)


def _empty_unit(unit: Any) -> None:
    data = unit.storage_data
    data.clear(list(data._active_keys.union(*data.field_data.values())))
    data.field_data.clear()


@pytest.fixture(scope="session")
def session_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    import ray

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.init(
            num_cpus=4,
            include_dashboard=False,
            object_store_memory=100_000_000,
            log_to_driver=False,
            logging_level="ERROR",
        )
    lab = Lab(tmp_path_factory.mktemp("queue"))
    yield lab
    lab.stop()
    ray.shutdown()


@pytest.fixture
def lab(session_lab: Lab) -> Lab:
    """The session's queue; a test says with `lab.start` which one it needs."""
    return session_lab


@pytest.fixture
def pid() -> Any:
    """Process id of an actor, for a test that kills it."""
    return lambda _actor: os.getpid()


def eventually(check: Any, *, within: float = 60.0) -> None:
    """Waits until `check()` is true."""
    deadline = time.monotonic() + within
    while not check():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


@pytest.fixture(name="eventually")
def eventually_fixture() -> Any:
    return eventually


@pytest.fixture
def controller_state() -> Any:
    """Runs in the controller: its state, as the adapter copies it."""
    return lambda controller: copy_controller(controller, None)()
