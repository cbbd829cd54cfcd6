"""How long a save stops the writers of a live TransferQueue, and what its producers notice."""

import argparse
import os
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("TQ_LOGGING_LEVEL", "ERROR")
warnings.filterwarnings("ignore")

import ray
import torch
import transfer_queue as tq
from tensordict import TensorDict

sys.path.insert(0, str(Path(__file__).parent))
from bench_transfer_queue import fill, native_save, restart_queue, start_queue, start_ray, timed
from producers import ProcessProducer, percentile
from results import show
from workloads import Workload

from snapfmt.adapters.transfer_queue import save
from snapfmt.adapters.transfer_queue.saving import prepare_cut

MIB = 1024 * 1024
COLUMNS = 8
TARGET_MS = {100_000: 20.0, 1_000_000: 150.0}
PUT_TARGET_MS = 10.0


def main() -> None:
    """Run the workloads, print a table, and one JSON object as the last line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="20,000 rows, three rounds")
    parser.add_argument("--rounds", type=int, default=0, help="cuts and saves (default 7)")
    parser.add_argument("--units", type=int, default=2)
    parser.add_argument("--rows", type=int, nargs="*", default=[100_000, 1_000_000])
    parser.add_argument("--mib", type=int, default=1024, help="bytes of the heavy rows")
    options = parser.parse_args()
    rounds = options.rounds or (3 if options.quick else 7)
    result: dict[str, Any] = {"rounds": rounds, "units": options.units}
    result |= {"ratios": {}, "spread": {}, "raw": {}}
    start_ray()
    start_queue(options.units)
    try:
        for rows in [20_000] if options.quick else options.rows:
            for width in (1, options.mib * MIB // (rows * COLUMNS * 4)):
                if width == 1 or rows <= 100_000:
                    held(rows, width, rounds, options.units, result)
        restart_queue(options.units)
        producers(96 if options.quick else options.mib, rounds, result)
    finally:
        tq.close()
        ray.shutdown()
    show(result)


def held(rows: int, width: int, rounds: int, units: int, result: dict[str, Any]) -> None:
    """How long the controller and the units stand still; no bytes are written."""
    restart_queue(units)
    put(rows, width)
    prepared = prepare_cut()
    controller, unit = [], []
    for number in range(rounds + 1):
        with prepared.take() as cut:
            if number:
                # The first one finds memory that nobody touched for long.
                controller.append(cut.times.controller_held_s * 1e3)
                unit.append(max(cut.times.units_held_s) * 1e3)
    name = f"{rows} rows of {COLUMNS} columns, {rows * width * COLUMNS * 4 // MIB} MiB"
    result["raw"][name] = {"controller_held_ms": controller, "units_held_ms": unit}
    if rows in TARGET_MS:
        note(result, f"{name}: writers held / target", controller, TARGET_MS[rows])


def put(rows: int, width: int, batch: int = 4096) -> None:
    """Rows of float columns."""
    for start in range(0, rows, batch):
        count = min(batch, rows - start)
        fields = {f"column{number}": torch.zeros(count, width) for number in range(COLUMNS)}
        tq.kv_batch_put(
            keys=[f"p{start + number}" for number in range(count)],
            partition_id="train",
            fields=TensorDict(fields, batch_size=count),
            tags=[{"weight_version": 1}] * count,
        )


def producers(mib: int, rounds: int, result: dict[str, Any]) -> None:
    """Latency of another process's puts: idle, while snapfmt saves, in the queue's own save."""
    fill(Workload("long", "train", mib * MIB // (4096 * 28), 4096, "text"))
    producer = ProcessProducer()
    found: dict[str, list[float]] = {"idle": [], "snapfmt": [], "native": []}
    highest: dict[str, list[float]] = {name: [] for name in found}
    seconds: dict[str, list[float]] = {name: [] for name in found}
    with tempfile.TemporaryDirectory(prefix="snapfmt-bench-") as name:
        for number in range(rounds):
            folder = Path(name)
            saves = {
                "idle": lambda: time.sleep(2.0),
                "snapfmt": lambda folder=folder: save(folder / "ours", full=True),
                "native": lambda folder=folder, number=number: native_save(folder / f"{number}"),
            }
            for kind, work in saves.items():
                with producer.running():
                    seconds[kind].append(timed(work))
                found[kind].append(percentile(producer.latencies_ms, 0.99))
                highest[kind].append(max(producer.latencies_ms))
    result["raw"]["producer"] = {"p99_ms": found, "max_ms": highest, "seconds": seconds}
    note(result, "p99 of a put while snapfmt saves / target", found["snapfmt"], PUT_TARGET_MS)
    for name, other in (("idle", "idle"), ("the queue's own save", "native")):
        pairs = [a / b for a, b in zip(found["snapfmt"], found[other], strict=True)]
        key = f"p99 of a put while snapfmt saves / {name}"
        result["ratios"][key] = statistics.median(pairs)
        result["spread"][key] = [min(pairs), max(pairs)]


def note(result: dict[str, Any], name: str, values: list[float], target: float) -> None:
    """Record values in parts of their target."""
    result["ratios"][name] = statistics.median(values) / target
    result["spread"][name] = [min(values) / target, max(values) / target]


if __name__ == "__main__":
    main()
