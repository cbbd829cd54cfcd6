"""Save of a live TransferQueue: snapfmt against the queue's own checkpoint, interleaved."""

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("TQ_LOGGING_LEVEL", "ERROR")
warnings.filterwarnings("ignore")

import psutil
import ray
import transfer_queue as tq
from omegaconf import OmegaConf

sys.path.insert(0, str(Path(__file__).parent))
from results import exact, show
from workloads import Workload

from snapfmt import Repository
from snapfmt.adapters.transfer_queue import load, save

MIB = 1024 * 1024


def main() -> None:
    """Run the workloads, print a table, and one JSON object as the last line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small workloads, three rounds")
    parser.add_argument("--rounds", type=int, default=0, help="paired rounds (default 5)")
    parser.add_argument("--units", type=int, default=2)
    parser.add_argument("--ids", choices=("text", "uniform"), default="text")
    parser.add_argument("--directory", default=None, help="where to write")
    parser.add_argument("--only", choices=("long", "short", "dense"), default=None)
    options = parser.parse_args()
    rounds = options.rounds or (3 if options.quick else 5)
    gib_rows = (96 if options.quick else 1024) * MIB // (4096 * 28)
    workloads = {
        "long": Workload("long", "train", gib_rows, 4096, options.ids),
        "short": Workload("short", "staging", 1024 if options.quick else 8192, 100, options.ids),
        "dense": Workload("dense", "dense", 256 if options.quick else 2048, 1024, options.ids),
    }
    result: dict[str, Any] = {"rounds": rounds, "units": options.units, "ids": options.ids}
    result |= {"ratios": {}, "spread": {}, "raw": {}}
    start_ray()
    try:
        for name, workload in workloads.items():
            if options.only in (None, name):
                measure(workload, rounds, options, result)
    finally:
        ray.shutdown()
    show(result)


def measure(
    workload: Workload, rounds: int, options: argparse.Namespace, result: dict[str, Any]
) -> None:
    """One workload: fill a queue, then pairs of saves, then pairs of loads."""
    folder = Path(tempfile.mkdtemp(prefix="snapfmt-bench-", dir=options.directory))
    start_queue(options.units)
    try:
        logical = fill(workload)
        native: list[float] = []
        ours: list[float] = []
        peaks: list[float] = []
        reports = []
        for _ in range(rounds):
            shutil.rmtree(folder / "native", ignore_errors=True)
            native.append(timed(lambda: native_save(folder / "native")))
            native_bytes = size_of(folder / "native")
            with PeakMemory() as memory:
                ours.append(timed(lambda: reports.append(save(folder / "ours"))))
            peaks.append(memory.above)
            our_bytes = size_of(folder / "ours")
            kept = folder / "kept"
            shutil.rmtree(kept, ignore_errors=True)
            (folder / "ours").rename(kept)
        note(result, f"save_speed_vs_native/{workload.name}", native, ours)
        exact(result, f"bytes_vs_native/{workload.name}", our_bytes / native_bytes)
        exact(result, f"bytes_vs_logical/{workload.name}", our_bytes / logical)
        result["raw"][workload.name] = {
            "rows": workload.rows,
            "logical_mib": logical / MIB,
            "native_save_s": native,
            "snapfmt_save_s": ours,
            "native_bytes": native_bytes,
            "snapfmt_bytes": our_bytes,
            "controller_held_ms": [report.controller_held_s * 1e3 for report in reports],
            "units_held_ms": [max(report.units_held_s) * 1e3 for report in reports],
            "unit_peak_above_rows_mib": peaks,
        }
        measure_load(workload, folder, options, result)
    finally:
        tq.close()
        shutil.rmtree(folder, ignore_errors=True)


def measure_load(
    workload: Workload, folder: Path, options: argparse.Namespace, result: dict[str, Any]
) -> None:
    """Restores into fresh queues, native and ours in turn."""
    native: list[float] = []
    ours: list[float] = []
    for _ in range(1 if options.quick else 3):
        restart_queue(options.units)
        native.append(timed(lambda: tq.load_checkpoint(folder / "native")))
        restart_queue(options.units)
        ours.append(timed(lambda: load(Repository.open(folder / "kept").snapshot())))
    note(result, f"load_speed_vs_native/{workload.name}", native, ours)
    result["raw"][workload.name] |= {"native_load_s": native, "snapfmt_load_s": ours}


def note(result: dict[str, Any], name: str, theirs: list[float], ours: list[float]) -> None:
    """Record how many times faster `ours` is."""
    pairs = [a / b for a, b in zip(theirs, ours, strict=True)]
    result["ratios"][name] = statistics.median(theirs) / statistics.median(ours)
    result["spread"][name] = [min(pairs), max(pairs)]


def start_ray() -> None:
    """A cluster of this machine alone, that is quiet."""
    ray.init(
        num_cpus=8,
        include_dashboard=False,
        object_store_memory=200_000_000,
        log_to_driver=False,
        logging_level="ERROR",
    )


def start_queue(units: int) -> None:
    """A fresh queue."""
    conf = {"backend": {"SimpleStorage": {"num_data_storage_units": units}}}
    tq.init(OmegaConf.create(conf))


def restart_queue(units: int) -> None:
    """Close the queue that runs and start an empty one."""
    tq.close()
    start_queue(units)


def fill(workload: Workload) -> int:
    """Put the workload's rows; returns their logical bytes."""
    total = 0
    for keys, fields, tags in workload.batches():
        tq.kv_batch_put(keys=keys, partition_id=workload.partition, fields=fields, tags=tags)
        for value in fields.values():
            flat = value.values() if value.is_nested else value
            total += flat.numel() * flat.element_size()
    return total


def native_save(folder: Path) -> None:
    """The queue's own checkpoint, made durable as snapfmt's is."""
    tq.save_checkpoint(folder)
    for path in [*folder.rglob("*"), folder, folder.parent]:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def timed(call: Callable[[], Any]) -> float:
    """Seconds that a call takes."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def size_of(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


class PeakMemory:
    """Highest growth of a storage unit's private memory while the block runs, in MiB."""

    def __enter__(self) -> Self:
        self._processes = [
            process
            for process in psutil.process_iter(["cmdline"])
            if "SimpleStorageUnit" in " ".join(process.info["cmdline"] or [])
        ]
        self._base = [process.memory_info().rss for process in self._processes]
        self._peak = list(self._base)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._stop.wait(0.01):
            now = [process.memory_info().rss for process in self._processes]
            self._peak = [max(pair) for pair in zip(self._peak, now, strict=True)]

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        growth = [peak - base for peak, base in zip(self._peak, self._base, strict=True)]
        self.above = max(growth, default=0) / MIB


if __name__ == "__main__":
    main()
