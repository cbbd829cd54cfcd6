"""What does not depend on bytes: opening, one row of many, continuations, cost per row.

    python tests/bench/bench_metadata.py [--rows 1000000] [--records 100000] [--rounds 5] [--quick]

Core API, one process, no Ray. Prints a table, and one JSON object with `ratios` and `spread`
(lowest and highest of the rounds) as the last line.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from snapfmt import Repository, Snapshot
from snapfmt.reading.snapshot import Part
from snapfmt.testing.stores import CountingStore
from snapfmt_schemas.continuation import Continuation
from snapfmt_schemas.identity import capture_key

BATCH = 1000
ROLLOUTS = 32_768
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
        one_rollout(root, options.rounds, found)
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
    sizes = [size for size in (10_000, 100_000, 1_000_000) if size <= most]
    for number in range(rounds):
        costs = {}
        for size in sizes:
            folder = root / f"{size}-{number}"
            repository = Repository.create(folder)
            costs[size] = timed(partial(save_rows, repository, size)) / size
            reader = Repository.open(folder)
            opened = timed(partial(_open, reader))
            if size == sizes[-1]:
                found.setdefault(f"open a snapshot of {size} rows, ms", []).append(opened * 1e3)
                counting = CountingStore(reader.store)
                _open(Repository.open(counting))
                found.setdefault("reads of that open", []).append(len(counting.reads))
        for size in sizes[1:]:
            name = f"save: cost of a row of {size} / of {sizes[0]}"
            found.setdefault(name, []).append(costs[size] / costs[sizes[0]])


def _open(repository: Repository) -> int:
    return repository.snapshot().table(TABLE).num_rows


def one_rollout(root: Path, rounds: int, found: dict[str, list[float]]) -> None:
    """One row of 32,768, from a repository that was just opened."""
    repository = Repository.create(root / "rollouts")
    generator = np.random.default_rng(0)
    with repository.begin() as attempt:
        with attempt.part(PART) as part:
            with part.table(TABLE) as table:
                for start in range(0, ROLLOUTS, BATCH):
                    count = min(BATCH, ROLLOUTS - start)
                    ids = [
                        torch.from_numpy(generator.integers(0, 50_000, 300)) for _ in range(count)
                    ]
                    keys = [f"r{number}" for number in range(start, start + count)]
                    table.append(keys, {"ids": ids, "mask": [torch.ones(300) for _ in ids]})
            receipt = part.seal()
        attempt.publish([receipt])
    for number in range(rounds):
        counting = CountingStore(Repository.open(root / "rollouts").store)
        snapshot = Repository.open(counting).snapshot()
        counting.reads.clear()
        key = f"r{(number + 1) * 6007 % ROLLOUTS}"
        took = timed(partial(_row, snapshot, key))
        found.setdefault("one rollout of 32,768, ms", []).append(took * 1e3)
        found.setdefault("reads of that", []).append(len(counting.reads))
        found.setdefault("bytes of that / its own", []).append(counting.bytes_read / (300 * 12))


def _row(snapshot: Snapshot, key: str) -> dict[str, Any]:
    row: dict[str, Any] = snapshot.table(TABLE).row_torch(key)
    return row


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
    """Written and read back with validation, against json to a file and back."""
    records = list(lines(count))
    plain = [record.model_dump(mode="json") for record in records]
    for number in range(rounds):
        repository = Repository.create(root / f"lines-{number}")
        ours = timed(partial(_save_lines, repository, records))
        theirs = timed(partial(_dump, plain, root / "plain.jsonl"))
        name = f"{count} continuations: write / json dump and write"
        found.setdefault(name, []).append(ours / theirs)
        reader = repository.snapshot().part(PART)
        back = timed(partial(_validated, reader))
        name = f"{count} continuations: write and validate / json dump and write"
        found.setdefault(name, []).append((ours + back) / theirs)


def _save_lines(repository: Repository, records: list[Continuation]) -> None:
    with repository.begin() as attempt:
        with attempt.part(PART) as part:
            part.records(LINES, records, key="capture_key", redact=False)
            receipt = part.seal()
        attempt.publish([receipt])


def _validated(part: Part) -> list[Continuation]:
    return list(part.records(LINES, Continuation))


def _dump(values: list[dict[str, Any]], path: Path) -> None:
    with path.open("w") as file:
        for value in values:
            file.write(json.dumps(value) + "\n")
        file.flush()
        os.fsync(file.fileno())


if __name__ == "__main__":
    main()
