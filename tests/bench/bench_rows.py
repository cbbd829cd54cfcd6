"""One row out of many: reads, bytes and time, on a disk and from a bucket.

    python tests/bench/bench_rows.py [--rows 32768] [--rounds 7] [--quick] [--only short|long]

Rows are the short ones of a token capture (24 columns of about 100 tokens) and long train-ready
ones (4,096 tokens). Each round opens the repository anew, forgets its files in the page cache,
reads the manifest and the part indexes, and then one row by its key. Bytes are in parts of the
row's own, uncompressed; those of keys and batch indexes count. Prints a table, and one JSON
object with `ratios` and `spread` (lowest and highest of the rounds) as the last line.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
import uuid
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

warnings.filterwarnings("ignore")
os.environ["AWS_EC2_METADATA_DISABLED"] = "true"

import peers
from workloads import GROUP, Workload

from snapfmt import Repository
from snapfmt.testing import s3_servers
from snapfmt.testing.stores import CountingStore
from snapfmt.transfer import copy_snapshot, open_target

PART, TABLE = "rl/tq/unit-0000", "rows/t"
KINDS = {"short": ("staging", 100), "long": ("train", 4096)}


def main() -> None:
    """Runs everything and prints it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=32_768)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="4,096 rows, three rounds, no bucket")
    parser.add_argument("--only", choices=tuple(KINDS))
    parser.add_argument("--folder", default=None, help="where to write, or where it was written")
    options = parser.parse_args()
    if options.quick:
        options.rows, options.rounds = 4096, 3
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for kind in (options.only,) if options.only else KINDS:
            place = Path(options.folder or folder) / kind
            if not place.exists():
                save(place, kind, options.rows)
            on_disk = Measured(f"{kind} rows, disk", options, found)
            for number in range(options.rounds):
                peers.forget(place)
                on_disk.round(lambda place=place: Repository.open(place), number)
            if not options.quick:
                in_bucket(place, kind, options, found)
    ratios = {name: statistics.median(values) for name, values in found.items()}
    spread = {name: (min(values), max(values)) for name, values in found.items()}
    for name, value in ratios.items():
        print(f"{name:60} {value:10.3f}   ({spread[name][0]:.3f} to {spread[name][1]:.3f})")
    print(json.dumps({"ratios": ratios, "spread": spread, "rounds": options.rounds}))


def save(place: Path, kind: str, rows: int) -> None:
    """One snapshot of all rows in one table."""
    partition, tokens = KINDS[kind]
    with Repository.create(place).begin() as attempt:
        with attempt.part(PART) as part:
            with part.table(TABLE) as table:
                for keys, fields, _ in Workload(kind, partition, rows, tokens, "text").batches():
                    table.append(keys, dict(fields.items()))
            receipt = part.seal()
        attempt.publish([receipt])


class Measured:
    """One row in each round."""

    def __init__(
        self, name: str, options: argparse.Namespace, found: dict[str, list[float]]
    ) -> None:
        self._name, self._rows, self._found = name, options.rows, found

    def round(self, fresh: Callable[[], Repository], number: int) -> None:
        """From a repository that was just opened."""
        row = (number + 1) * 6007 % self._rows
        counting = CountingStore(fresh().store)
        snapshot = Repository.open(counting).snapshot()
        for part in snapshot.parts():
            assert part.index is not None
        counting.reads.clear()
        started = time.perf_counter()
        values = snapshot.table(TABLE).row(f"p{row // GROUP}_g{row % GROUP}")
        self._add("ms", (time.perf_counter() - started) * 1e3)
        own = sum(value.nbytes for value in values.values())
        self._add("reads", len(counting.reads))
        self._add("bytes / its own", counting.bytes_read / own)
        cells = counting.reads[-1][2]
        self._add("bytes of its batch / its own", cells / own)

    def _add(self, what: str, value: float) -> None:
        self._found.setdefault(f"{self._name}: {what}", []).append(value)


def in_bucket(
    place: Path, kind: str, options: argparse.Namespace, found: dict[str, list[float]]
) -> None:
    """The same snapshot, copied into a bucket."""
    with s3_servers.SERVERS["seaweedfs"]() as server:
        url = f"s3://{s3_servers.BUCKET}/{uuid.uuid4().hex}"
        stored: dict[str, Any] = {"storage_options": server.options}
        source = Repository.open(place)
        copy_snapshot(source, open_target(url, source, **stored), 1)
        measured = Measured(f"{kind} rows, bucket", options, found)
        for number in range(-1, options.rounds):
            # The first one warms the connection up.
            into = measured if number >= 0 else Measured("", options, {})
            into.round(lambda: Repository.open(url, **stored), number)


if __name__ == "__main__":
    main()
