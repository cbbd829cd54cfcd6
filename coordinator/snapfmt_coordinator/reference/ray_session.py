"""How a process joins the Ray cluster of the run, and its queue."""

import time
from typing import Final

import ray

from snapfmt.errors import DeadlineExceeded

NAMESPACE: Final = "snapfmt"
"""Ray namespace of the run's named actors."""
CONTROLLER: Final = "TransferQueueController"
"""TransferQueue's name of its own controller."""
QUEUE_S: Final = 120.0
"""How long whoever joins the queue waits for its start."""
_POLL_S: Final = 0.05


def connect(address: str, namespace: str = NAMESPACE) -> None:
    """Joins the cluster as a driver of its own; does nothing when this process has joined."""
    if ray.is_initialized():
        return
    ray.init(
        address=address,
        namespace=namespace,
        log_to_driver=False,
        logging_level="ERROR",
        configure_logging=False,
    )


def join_queue(timeout_s: float = QUEUE_S) -> None:
    """Becomes a client of the cluster's queue, once that has been started; blocks.

    Raises:
        DeadlineExceeded: If there is none in time. TransferQueue itself would start another one.
    """
    import transfer_queue as tq

    until = time.monotonic() + timeout_s
    while not any(
        entry["name"] == CONTROLLER for entry in ray.util.list_named_actors(all_namespaces=True)
    ):
        if time.monotonic() > until:
            raise DeadlineExceeded(f"no TransferQueue was started within {timeout_s} s")
        time.sleep(_POLL_S)
    tq.init()
