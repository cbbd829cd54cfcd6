"""Parts of snapshots, written on several Ray nodes; test_nodes.py runs it as a process.

Each node gets a ticket and nothing else; credentials come from its environment.
"""

import json
import sys
from typing import Any

import numpy as np
import ray
from ray.cluster_utils import Cluster

from snapfmt import Repository

NODES = 3
ROWS = 200


def values(node: int) -> np.ndarray:
    return np.random.default_rng(node).integers(0, 1000, (ROWS, 64))


@ray.remote
def write(ticket: str, node: int) -> tuple[str, str]:
    with Repository.join(ticket) as part:
        with part.table("rows/train") as table:
            table.append([f"n{node}_{i}" for i in range(ROWS)], {"ids": list(values(node))})
        receipt = part.seal()
    return receipt.model_dump_json(), ray.get_runtime_context().get_node_id()


@ray.remote
def read(location: str, key: str) -> tuple[bytes, str]:
    row = Repository.open(location).snapshot().table("rows/train").row(key)
    return row["ids"].tobytes(), ray.get_runtime_context().get_node_id()


def on_nodes(location: str) -> dict[str, Any]:
    """One snapshot in one place, of parts that the nodes write; they read each other's."""
    from snapfmt_schemas.attempt import Receipt

    repository = Repository.open(location, create=True)
    with repository.begin() as attempt:
        answers = ray.get(
            [
                write.options(resources={f"node{node}": 1}).remote(
                    attempt.ticket(f"rl/node-{node}").model_dump_json(), node
                )
                for node in range(NODES)
            ]
        )
        receipts = [Receipt.model_validate_json(text) for text, _ in answers]
        attempt.publish(receipts)
    found = ray.get(
        [
            # Each node reads what another one wrote.
            read.options(resources={f"node{(node + 1) % NODES}": 1}).remote(
                repository.location, f"n{node}_7"
            )
            for node in range(NODES)
        ]
    )
    return {
        "writers": len({node for _, node in answers}),
        "readers": len({node for _, node in found}),
        "same": all(data == values(node)[7].tobytes() for node, (data, _) in enumerate(found)),
        "rows": repository.snapshot().table("rows/train").num_rows,
        "damage": len(repository.verify().damage),
        "tickets": attempt.id,
    }


def main(locations: list[str]) -> list[dict[str, Any]]:
    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 1,
            "resources": {"node0": 1},
            "include_dashboard": False,
            "object_store_memory": 80_000_000,
        },
    )
    for node in range(1, NODES):
        cluster.add_node(num_cpus=1, resources={f"node{node}": 1}, object_store_memory=80_000_000)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    try:
        return [on_nodes(location) for location in locations]
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1:])))
