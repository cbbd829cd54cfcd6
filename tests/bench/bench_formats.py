"""Saves and loads of the same rows: snapfmt, other formats, and the bare operating system.

    python tests/bench/bench_formats.py [--mib 512] [--tokens 4096] [--rounds 5] [--quick]

Core API, one process, no Ray; everybody ends with fsync. `a/b` is how many times as long a takes
as b in the same round, so more than 1 means that b is faster. Prints a table, and one JSON object
with `ratios` and `spread` (lowest and highest of the rounds) as the last line.
"""

import argparse
import hashlib
import json
import os
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import bare
import peers
from peers import Batches
from workloads import Workload

from snapfmt import Repository

MIB = 2**20
SNAPFMT = "snapfmt"
BARE = "bare loop of the same steps"


def main() -> None:
    """Runs the rounds of each kind of ids and prints medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=512, help="logical size of the rows")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="64 MiB, three rounds")
    parser.add_argument("--ids", choices=("text", "uniform", "both"), default="both")
    parser.add_argument("--folder", default=None, help="where to write")
    parser.add_argument("--without", nargs="*", default=[], help="peers to leave out")
    options = parser.parse_args()
    if options.quick:
        options.mib, options.rounds = 64, 3
    found = Found()
    raw: dict[str, Any] = {"rounds": options.rounds, "mib": options.mib, "tokens": options.tokens}
    for ids in ("text", "uniform") if options.ids == "both" else (options.ids,):
        rows = max(1, options.mib * MIB // (options.tokens * 28))
        workload = Workload("rows", "train", rows, options.tokens, ids)
        batches = [dict(fields.items()) for _, fields, _ in workload.batches()]
        keys = [key for names, _, _ in workload.batches() for key in names]
        bench = Bench(batches, keys, options)
        for _ in range(options.rounds):
            bench.round()
        bench.report(ids, found)
        raw[ids] = bench.times
    found.show()
    print(json.dumps({"ratios": found.ratios, "spread": found.spread, "raw": raw}))


class Found:
    """Ratios and their spread."""

    def __init__(self) -> None:
        self.ratios: dict[str, float] = {}
        self.spread: dict[str, tuple[float, float]] = {}

    def add(self, name: str, values: list[float]) -> None:
        """One ratio of each round."""
        self.ratios[name] = statistics.median(values)
        self.spread[name] = (min(values), max(values))

    def pairs(self, name: str, above: list[float], below: list[float]) -> None:
        """Times of one thing in times of another, round by round."""
        self.add(name, [a / b for a, b in zip(above, below, strict=True)])

    def show(self) -> None:
        """A line for each."""
        for name, value in self.ratios.items():
            low, high = self.spread[name]
            print(f"{name:64} {value:9.3f}   ({low:.3f} to {high:.3f})")


class Bench:
    """Rounds over the same rows."""

    def __init__(self, batches: Batches, keys: list[str], options: argparse.Namespace) -> None:
        self.batches, self.keys = batches, keys
        self.logical = peers.logical_bytes(batches)
        self.times: dict[str, list[float]] = {}
        self.bytes: dict[str, int] = {}
        self._folder = options.folder
        self._names = [name for name in peers.PEERS if name not in options.without]

    def round(self) -> None:
        """Every writer once, then every reader, in turn."""
        with tempfile.TemporaryDirectory(dir=self._folder) as name:
            root = Path(name)
            writers: dict[str, Callable[[Path], object]] = {
                SNAPFMT: self._save,
                **{n: _given(peers.CONTROLS[n], self.batches) for n in peers.CONTROLS},
                BARE: _given(bare.save, self.batches),
                **{n: _given(peers.PEERS[n][0], self.batches) for n in self._names},
            }
            for writer, write in writers.items():
                folder = root / writer.replace(" ", "-")
                folder.mkdir()
                self._time(f"save {writer}", partial(_durably, write, folder))
                self.bytes[writer] = peers.size_of(folder)
                if writer == SNAPFMT:
                    self._look(folder)
                elif writer in peers.CONTROLS:
                    self._cold("read logical bytes", folder, peers.read_raw)
                elif writer != BARE and (load := peers.PEERS[writer][1]) is not None:
                    self._cold(f"load {writer}", folder, load)
                shutil.rmtree(folder)
            self._time("memcpy", lambda: peers.scratch_copy(self.batches))

    def _look(self, folder: Path) -> None:
        repository = Repository.open(folder)
        self._cold("read stored bytes", folder, peers.read_raw)
        self._cold(f"load {SNAPFMT}", folder, lambda _: _load(repository))
        stored = bare.Stored.of(repository, folder, "rows/train")
        self._cold(f"load {BARE}", folder, lambda _: stored.load())
        self._time(f"load warm {SNAPFMT}", lambda: _load(repository))
        self._cold("verify", folder, lambda _: repository.verify(deep=True))
        self._cold("hashes", folder, lambda _: repository.verify(deep=True, decode=False))
        self._time("sha256 of stored bytes", lambda: _hash(folder))

    def _cold(self, name: str, folder: Path, work: Callable[[Path], object]) -> None:
        peers.forget(folder)
        self._time(name, lambda: work(folder))

    def _time(self, name: str, work: Callable[[], object]) -> None:
        started = time.perf_counter()
        work()
        self.times.setdefault(name, []).append(time.perf_counter() - started)

    def _save(self, folder: Path) -> None:
        with Repository.open(folder, create=True).begin() as attempt:
            with attempt.part("rl/tq/unit-0000") as part:
                with part.table("rows/train") as table:
                    start = 0
                    for batch in self.batches:
                        count = len(next(iter(batch.values())))
                        table.append(self.keys[start : start + count], batch)
                        start += count
                receipt = part.seal()
            attempt.publish([receipt])

    def report(self, ids: str, found: Found) -> None:
        """Adds the ratios."""
        times = self.times
        ours = times[f"save {SNAPFMT}"]
        for name in (*peers.CONTROLS, BARE, *self._names):
            found.pairs(f"{ids}: save {name} / {SNAPFMT}", times[f"save {name}"], ours)
        for name in (BARE, *self._names):
            if f"load {name}" in times:
                label = f"{ids}: cold load {name} / {SNAPFMT} (verified)"
                found.pairs(label, times[f"load {name}"], times[f"load {SNAPFMT}"])
        stored, load = times["read stored bytes"], times[f"load {SNAPFMT}"]
        found.pairs(f"{ids}: cold read of the stored bytes / load", stored, load)
        # Two controls wrote the logical bytes: as many reads of each round.
        logical = times["read logical bytes"][:: len(peers.CONTROLS)]
        found.pairs(f"{ids}: cold read of the logical bytes / load", logical, load)
        both = [max(a, b) for a, b in zip(stored, times["sha256 of stored bytes"], strict=True)]
        for name, label in (("hashes", "verify of hashes"), ("verify", "deep verify")):
            found.pairs(f"{ids}: slower of cold read and sha256 / {label}", both, times[name])
        found.pairs(f"{ids}: memcpy of the logical bytes / save", times["memcpy"], ours)
        mine = self.bytes[SNAPFMT]
        found.add(f"{ids}: stored / logical bytes", [mine / self.logical])
        for name in (BARE, *self._names):
            found.add(f"{ids}: stored / bytes of {name}", [mine / self.bytes[name]])
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        self.times["peak memory of the process in MiB"] = [peak / MIB]


def _given(write: peers.Writer, batches: Batches) -> Callable[[Path], None]:
    return lambda folder: write(batches, folder)


def _durably(write: Callable[[Path], object], folder: Path) -> None:
    write(folder)
    peers.durable(folder)


def _load(repository: Repository) -> int:
    return len(repository.snapshot().table("rows/train").to_torch()[0])


def _hash(folder: Path) -> None:
    for path in folder.rglob("objects/*/*"):
        hashlib.sha256(path.read_bytes()).digest()


if __name__ == "__main__":
    os.environ.setdefault("TQ_LOGGING_LEVEL", "ERROR")
    main()
