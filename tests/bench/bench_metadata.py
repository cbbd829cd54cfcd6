"""What does not depend on bytes: opening, continuations, cost per row.

    python tests/bench/bench_metadata.py [--rows 1000000] [--records 100000] [--rounds 5] [--quick]

Core API, one process, no Ray. Prints a table, and one JSON object with `ratios` and `spread`
(lowest and highest of the rounds) as the last line.
"""

import argparse
import contextlib
import importlib
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from snapfmt import Repository
from snapfmt.reading.snapshot import Part
from snapfmt.testing.stores import CountingStore
from snapfmt_schemas.continuation import Continuation
from snapfmt_schemas.identity import capture_key

BATCH = 1000
DUMPS: dict[str, Callable[[Any], bytes]] = {"json": lambda value: json.dumps(value).encode()}
with contextlib.suppress(ImportError):
    # Not needed by anything here: compared with where it is installed.
    DUMPS["orjson"] = importlib.import_module("orjson").dumps
PART, TABLE, LINES = "rl/tq/unit-0000", "rows/t", "continuations.jsonl"


def main() -> None:
    """Runs everything and prints it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="a tenth of both, three rounds")
    options = parser.parse_args()
    if options.quick:
        options.rows, options.records, options.rounds = 100_000, 10_000, 3
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        rows_of_all_sizes(root, options.rows, options.rounds, found)
        continuations(root, options.records, options.rounds, found)
    ratios = {name: statistics.median(values) for name, values in found.items()}
    spread = {name: (min(values), max(values)) for name, values in found.items()}
    for name, value in ratios.items():
        print(f"{name:60} {value:10.4f}   ({spread[name][0]:.4f} to {spread[name][1]:.4f})")
    print(json.dumps({"ratios": ratios, "spread": spread, "rounds": options.rounds}))


def timed(work: Callable[[], object]) -> float:
    """Seconds."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def small(start: int, count: int) -> tuple[list[str], dict[str, Any]]:
    """Rows of eight columns of one number or a few."""
    keys = [f"p{number // 8}_g{number % 8}" for number in range(start, start + count)]
    columns: dict[str, Any] = {f"n{i}": torch.arange(start, start + count) + i for i in range(6)}
    columns["ids"] = torch.arange(4 * count).reshape(count, 4)
    columns["reward"] = torch.rand(count)
    return keys, columns


def save_rows(repository: Repository, count: int) -> None:
    """One snapshot of small rows."""
    with repository.begin() as attempt:
        with attempt.part(PART) as part:
            with part.table(TABLE) as table:
                for start in range(0, count, BATCH):
                    table.append(*small(start, min(BATCH, count - start)))
            receipt = part.seal()
        attempt.publish([receipt])


def rows_of_all_sizes(root: Path, most: int, rounds: int, found: dict[str, list[float]]) -> None:
    """Cost per row from a thousand rows to the most, and opening the largest."""
    sizes = [size for size in (1000, 10_000, 100_000, 1_000_000) if size <= most]
    for number in range(rounds):
        costs, loads = {}, {}
        for size in sizes:
            folder = root / f"{size}-{number}"
            repository = Repository.create(folder)
            costs[size] = timed(partial(save_rows, repository, size)) / size
            reader = Repository.open(folder)
            loads[size] = timed(partial(_load, reader)) / size
            reader = Repository.open(folder)
            opened = timed(partial(_open, reader))
            if size == sizes[-1]:
                found.setdefault(f"open a snapshot of {size} rows, ms", []).append(opened * 1e3)
                counting = CountingStore(reader.store)
                _open(Repository.open(counting))
                found.setdefault("reads of that open", []).append(len(counting.reads))
        for size in sizes[1:]:
            for name, each in (("save", costs), ("load", loads)):
                name = f"{name}: cost of a row of {size} / of {sizes[0]}"
                found.setdefault(name, []).append(each[size] / each[sizes[0]])


def _open(repository: Repository) -> int:
    return repository.snapshot().table(TABLE).num_rows


def _load(repository: Repository) -> int:
    return sum(len(batch.keys) for batch in repository.snapshot().table(TABLE).batches())


def lines(count: int) -> Iterator[Continuation]:
    """Continuations as an agent has them."""
    for number in range(count):
        rollout = f"group-{number // 8:06d}_g{number % 8}"
        yield Continuation(
            rollout_id=rollout,
            attempt_index=0,
            capture_key=capture_key(rollout, 0),
            last_committed_model_call_id=f"call-{number:08d}",
            resource_state_revisions={"tools": number % 7},
        )


def continuations(root: Path, count: int, rounds: int, found: dict[str, list[float]]) -> None:
    """Written and read back with validation, against plain dictionaries dumped to a file."""
    records = list(lines(count))
    plain = [record.model_dump(mode="json") for record in records]
    for number in range(rounds):
        repository = Repository.create(root / f"lines-{number}")
        ours = timed(partial(_save_lines, repository, records))
        reader = repository.snapshot().part(PART)
        back = timed(partial(_validated, reader))
        for module, dumps in DUMPS.items():
            theirs = timed(partial(_dump, dumps, plain, root / "plain.jsonl"))
            for name, time_s in (("write", ours), ("write and validate", ours + back)):
                name = f"{count} continuations: {name} / {module} dump and write"
                found.setdefault(name, []).append(time_s / theirs)


def _save_lines(repository: Repository, records: list[Continuation]) -> None:
    with repository.begin() as attempt:
        with attempt.part(PART) as part:
            part.records(LINES, records, key="capture_key", redact=False)
            receipt = part.seal()
        attempt.publish([receipt])


def _validated(part: Part) -> list[Continuation]:
    return list(part.records(LINES, Continuation))


def _dump(dumps: Callable[[Any], bytes], values: list[dict[str, Any]], path: Path) -> None:
    with path.open("wb") as file:
        for value in values:
            file.write(dumps(value) + b"\n")
        file.flush()
        os.fsync(file.fileno())


if __name__ == "__main__":
    main()
