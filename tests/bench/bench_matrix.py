"""Saves and loads of a live TransferQueue over shapes of rows, storage units and producers.

    python tests/bench/bench_matrix.py [--mib 128] [--rounds 5] [--only shapes|units|producers]

The cases of upstream's own matrix, each scaled to `--mib` of rows, since time and ratios do not
depend on more: short, long and ragged rows, as published and ready for training; experts of each
token; images; 1, 2, 4 and 8 storage units; nobody, a thread or a process that puts meanwhile. Each
save is paired with the queue's own checkpoint of the same rows, both with fsync; `x/native` is how
many times as fast. Prints a table, and one JSON object as the last line.
"""

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("TQ_LOGGING_LEVEL", "ERROR")
warnings.filterwarnings("ignore")

import ray
import transfer_queue as tq

sys.path.insert(0, str(Path(__file__).parent))
from bench_transfer_queue import (
    MIB,
    fill,
    native_save,
    note,
    restart_queue,
    size_of,
    start_queue,
    start_ray,
    timed,
)
from producers import NoProducer, ProcessProducer, ThreadProducer, percentile
from results import exact, show
from workloads import LAYERS, SIDE, TOPK, Workload

from snapfmt import Repository
from snapfmt.adapters.transfer_queue import load, save
from snapfmt.adapters.transfer_queue.saving import prepare_cut

SHAPES = {
    "1024 tokens": ("train", 1024),
    "4096 tokens": ("train", 4096),
    "4096 tokens, as published": ("generation", 4096),
    "16384 tokens": ("train", 16_384),
    "128 to 8064 tokens": ("ragged", 8064),
    "128 to 8064 tokens, as published": ("generation-ragged", 8064),
    "routed experts": ("experts", 512),
    "images": ("images", 256),
}
ROW_BYTES = {
    "train": lambda tokens: 28 * tokens,
    "generation": lambda tokens: 16 * tokens,
    "ragged": lambda tokens: 28 * (tokens + 128) // 2,
    "generation-ragged": lambda tokens: 16 * (tokens + 128) // 2,
    "experts": lambda tokens: tokens * (8 + 2 * LAYERS * TOPK),
    "images": lambda tokens: 8 * tokens + 5 * 3 * SIDE * SIDE,
}
UNITS = (1, 2, 4, 8)
PRODUCERS = {"nobody": NoProducer, "a thread": ThreadProducer, "a process": ProcessProducer}


def main() -> None:
    """Run the cases, print a table, and one JSON object as the last line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=128, help="logical bytes of each case's rows")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=("shapes", "units", "producers"), default=None)
    options = parser.parse_args()
    result: dict[str, Any] = {"rounds": options.rounds, "mib": options.mib}
    result |= {"ratios": {}, "spread": {}, "raw": {}}
    start_ray()
    start_queue(2)
    try:
        if options.only in (None, "shapes"):
            for name, (kind, tokens) in SHAPES.items():
                case(name, workload(kind, tokens, options.mib), "nobody", options, result)
        rows = workload("train", 4096, options.mib)
        if options.only in (None, "producers"):
            for who in PRODUCERS:
                case(f"{who} puts", rows, who, options, result)
        if options.only in (None, "units"):
            for units in UNITS:
                restart_queue(units)
                case(f"{units} units", rows, "nobody", options, result)
    finally:
        tq.close()
        ray.shutdown()
    show(result)


def workload(kind: str, tokens: int, mib: int) -> Workload:
    """As many rows as fill `mib`."""
    rows = max(1, mib * MIB // ROW_BYTES[kind](tokens))
    return Workload(kind, kind, rows, tokens, "text")


def case(
    name: str, rows: Workload, who: str, options: argparse.Namespace, result: dict[str, Any]
) -> None:
    """Pairs of saves, and pairs of loads, of one queue."""
    print(f"{name} ...", file=sys.stderr, flush=True)
    # What an actor does once, such as imports, is not part of a save.
    prepare_cut()
    logical = fill(rows)
    producer = PRODUCERS[who]()
    native: list[float] = []
    ours: list[float] = []
    puts: dict[str, list[float]] = {"native": [], "snapfmt": []}
    with tempfile.TemporaryDirectory(prefix="snapfmt-bench-") as root:
        folder = Path(root)
        for _ in range(options.rounds):
            shutil.rmtree(folder / "native", ignore_errors=True)
            shutil.rmtree(folder / "ours", ignore_errors=True)
            with producer.running():
                native.append(timed(lambda: native_save(folder / "native")))
            note_puts(puts["native"], producer)
            with producer.running():
                ours.append(timed(lambda: save(folder / "ours", full=True)))
            note_puts(puts["snapfmt"], producer)
        stored, theirs = size_of(folder / "ours"), size_of(folder / "native")
        loads: dict[str, list[float]] = {"native": [], "snapfmt": []}
        for _ in range(options.rounds):
            empty_queue()
            loads["native"].append(timed(lambda: tq.load_checkpoint(folder / "native")))
            empty_queue()
            loads["snapfmt"].append(
                timed(lambda: load(Repository.open(folder / "ours").snapshot()))
            )
        empty_queue()
    note(result, f"{name}: save/native", native, ours)
    note(result, f"{name}: load/native", loads["native"], loads["snapfmt"])
    exact(result, f"{name}: stored / logical bytes", stored / logical)
    exact(result, f"{name}: stored / native bytes", stored / theirs)
    gib = logical / MIB / 1024
    rates = [gib / seconds for seconds in ours]
    result["raw"][name] = {
        "rows": rows.rows,
        "native_save_s": native,
        "snapfmt_save_s": ours,
        "snapfmt_save_gib_per_s": statistics.median(rates),
        "native_load_s": loads["native"],
        "snapfmt_load_s": loads["snapfmt"],
        "p95_put_ms": puts,
    }
    if puts["snapfmt"]:
        note(result, f"{name}: p95 of a put, native/snapfmt", puts["native"], puts["snapfmt"])


def empty_queue() -> None:
    """Clears every partition; starting the queue anew would take longer than the case."""
    for partition in tq.kv_list():
        tq.get_client().clear_partition(partition)


def note_puts(found: list[float], producer: Any) -> None:
    """95 of 100 puts of the last block took less than this."""
    if producer.latencies_ms:
        found.append(percentile(producer.latencies_ms, 0.95))


if __name__ == "__main__":
    main()
