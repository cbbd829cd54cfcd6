"""Producers that put one row after the other into a live TransferQueue, and time each put."""

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import ray
import torch
import transfer_queue as tq
from tensordict import TensorDict

COLUMNS = 8
PARTITION = "live"


class Putter:
    """Puts rows of a few small columns, in the process that it is made in."""

    def __init__(self) -> None:
        self._stopped = False
        tq.init()

    def ready(self) -> bool:
        """One put, so that nothing is connected later."""
        self._put(0)
        return True

    def stop(self) -> None:
        """End `run`."""
        self._stopped = True

    def run(self) -> list[float]:
        """Milliseconds of each put."""
        self._stopped, found = False, []
        while not self._stopped:
            started = time.perf_counter()
            self._put(len(found) % 64)
            found.append((time.perf_counter() - started) * 1e3)
            time.sleep(0.002)
        return found

    def _put(self, number: int) -> None:
        fields = {f"column{column}": torch.zeros(1, 64) for column in range(COLUMNS)}
        tq.kv_batch_put(
            keys=[f"live{number}"],
            partition_id=PARTITION,
            fields=TensorDict(fields, batch_size=1),
            tags=[{"weight_version": 1}],
        )


_PUTTER: Any = ray.remote(num_cpus=0, max_concurrency=2)(Putter)


class ProcessProducer:
    """A process that puts while a block runs."""

    def __init__(self) -> None:
        self.latencies_ms: list[float] = []
        self._actor = _PUTTER.remote()
        ray.get(self._actor.ready.remote())

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Within the context; afterwards the latencies are there."""
        running = self._actor.run.remote()
        time.sleep(0.3)
        try:
            yield
        finally:
            ray.get(self._actor.stop.remote())
            self.latencies_ms = ray.get(running)


class ThreadProducer:
    """A thread of the driver that saves, which puts while a block runs."""

    def __init__(self) -> None:
        self.latencies_ms: list[float] = []
        self._putter = Putter()
        self._putter.ready()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Within the context; afterwards the latencies are there."""
        thread = threading.Thread(target=self._run)
        thread.start()
        time.sleep(0.3)
        try:
            yield
        finally:
            self._putter.stop()
            thread.join()

    def _run(self) -> None:
        self.latencies_ms = self._putter.run()


class NoProducer:
    """Nobody puts."""

    latencies_ms: tuple[float, ...] = ()

    def running(self) -> contextlib.AbstractContextManager[None]:
        """Nothing happens."""
        return contextlib.nullcontext()


def percentile(values: list[float], share: float) -> float:
    """The value below which this share of the others lies."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]
