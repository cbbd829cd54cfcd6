"""How a server process joins the Ray cluster of the run."""

from typing import Final

import ray

NAMESPACE: Final = "snapfmt"
"""Ray namespace of the run's named actors."""


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
