"""What a save, a restore and a copy cost in a bucket where each request takes its time.

Requests, and how many of them follow one another: seconds over the time that one request takes.
The bucket is in memory and answers late, so the figures are those of the requests alone.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from results import show

from snapfmt import Repository
from snapfmt.storage.memory import MemoryClient
from snapfmt.storage.objects import ObjectStore
from snapfmt.testing.client_faults import FaultyClient
from snapfmt.transfer import copy_snapshot, open_target
from snapfmt.writing.attempt import Attempt

ROWS = 8


class Meter:
    """A bucket that takes so many seconds for each request, and what was measured in it."""

    def __init__(self, seconds: float) -> None:
        self.client = FaultyClient(MemoryClient(), before=lambda *_: time.sleep(seconds))
        self.store = ObjectStore(self.client)
        self.found: dict[str, tuple[int, float]] = {}
        """Name -> requests, and how many followed one another."""
        self._seconds = seconds

    def measure(self, name: str, work: Callable[[], object]) -> None:
        """Do it and count."""
        before, started = len(self.client.requests), time.perf_counter()
        work()
        taken = time.perf_counter() - started
        self.found[name] = (len(self.client.requests) - before, taken / self._seconds)


def save(meter: Meter, repository: Repository, parts: int, base: int | None) -> None:
    """A save of so many parts, which one process writes one after another."""
    kind = f"{parts} parts" + ("" if base is None else " on a base")
    attempts: list[Attempt] = []
    meter.measure(f"begin, {kind}", lambda: attempts.append(repository.begin(base=base)))
    receipts = []

    def write() -> None:
        number = len(receipts)
        part = attempts[0].part(f"gym/agent/a{number}")
        with part.table(f"t{number}") as table:
            if base is not None:
                table.carry_all()
            keys = [f"{base}-{row}" for row in range(ROWS)]
            table.append(keys, {"n": [np.arange(100)] * ROWS})
        receipts.append(part.seal())

    meter.measure(f"one part, {kind}", write)
    while len(receipts) < parts:
        write()
    meter.measure(f"publish, {kind}", lambda: attempts[0].publish(receipts))


def measured(seconds: float, parts: int) -> dict[str, tuple[int, float]]:
    """One round."""
    near, far = Meter(seconds), Meter(seconds)
    writer = Repository.open(near.store, create=True)
    # Probes, once for each process.
    writer.begin().abandon()
    save(near, writer, 1, None)
    save(near, writer, parts, None)
    save(near, writer, parts, 2)
    near.measure(f"open and latest, {parts} parts", lambda: Repository.open(near.store).latest())
    near.measure(f"one row of {parts} parts", lambda: writer.snapshot().table("t3").row("2-0"))
    near.measure(f"shallow verify, {parts} parts", lambda: writer.verify(3, deep=False))
    with tempfile.TemporaryDirectory() as folder:
        local = open_target(folder, writer)
        near.measure(f"pull, {parts} parts", lambda: copy_snapshot(writer, local, 3))
        pushed = open_target(far.store, local)
        far.measure(f"push, {parts} parts", lambda: copy_snapshot(local, pushed, 3))
    near.measure(f"retire, {parts} parts", lambda: writer.retire(2))
    return near.found | far.found


def main() -> None:
    """Measure, print a table, and one JSON object as the last line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round")
    parser.add_argument("--rounds", type=int, default=0, help="default 5")
    parser.add_argument("--parts", type=int, default=12)
    parser.add_argument("--request-ms", type=float, default=30.0)
    options = parser.parse_args()
    rounds = options.rounds or (1 if options.quick else 5)
    found = [measured(options.request_ms / 1e3, options.parts) for _ in range(rounds)]
    result: dict[str, Any] = {"rounds": rounds, "request_ms": options.request_ms}
    result |= {"ratios": {}, "spread": {}, "requests": {}}
    for name, (requests, _) in found[0].items():
        rows = sorted(item[name][1] for item in found)
        result["requests"][name] = requests
        result["ratios"][f"{name}: requests in a row"] = rows[len(rows) // 2]
        result["spread"][f"{name}: requests in a row"] = [rows[0], rows[-1]]
    show(result)


if __name__ == "__main__":
    main()
