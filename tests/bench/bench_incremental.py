"""Saves on a base against the first save of the same rows: time and bytes, as ratios.

    python tests/bench/bench_incremental.py [--rows 4000] [--tokens 2400] [--rounds 3] [--quick]

Core API, without Ray. Rows are those of a trainer: token ids of real text, masks, log
probabilities. `fifo` drops the oldest rows and adds as many; `scattered` changes rows anywhere.
`unit` is the writer of a TransferQueue's storage unit, which finds out itself what changed.
"""

import argparse
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from workloads import IdSource

from snapfmt import Repository

BATCH = 256
SHARES = (0.1, 0.01, 0.0)
Costs = tuple[float, int, float]
"""Of a save: seconds, bytes, seconds of processor time."""


def rows(source: IdSource, numbers: Any, tokens: int) -> dict[str, list[Any]]:
    """Train-ready rows."""
    random = np.random.default_rng(int(numbers[0]) if len(numbers) else 0)
    sizes = [tokens // 2 + int(number) * 7919 % tokens for number in numbers]
    floats = [random.standard_normal(size).astype(np.float32) for size in sizes]
    starts = [int(number) * 2641 for number in numbers]
    return {
        "ids": [torch.from_numpy(source.take(at, n)) for at, n in zip(starts, sizes, strict=True)],
        "mask": [torch.ones(size, dtype=torch.int64) for size in sizes],
        "logprobs": [torch.from_numpy(value) for value in floats],
        "prev_logprobs": [torch.from_numpy(value + np.float32(0.01)) for value in floats],
        "advantages": [
            torch.full((size,), float(at)) for size, at in zip(sizes, starts, strict=True)
        ],
    }


def save(
    repository: Repository, base: int | None, keys: list[str], values: Any, gone: Any
) -> Costs:
    """One save; `gone` is a mask over the base's rows, segment after segment."""
    started, busy = time.perf_counter(), time.process_time()
    with repository.begin(base=base) as attempt:
        part = attempt.part("p")
        with part.table("t") as table:
            position = 0
            for number, segment in enumerate(table.base_segments()):
                table.carry(number, ~gone[position : position + segment.rows])
                position += segment.rows
            for start in range(0, len(keys), BATCH):
                some = slice(start, start + BATCH)
                table.append(keys[some], {name: item[some] for name, item in values.items()})
        receipt = part.seal()
        attempt.publish([receipt])
    seconds = time.perf_counter() - started
    return seconds, receipt.stored_bytes, time.process_time() - busy


def one_round(root: Path, source: IdSource, count: int, tokens: int) -> dict[str, float]:
    """Ratios of one round: a first save, and others on it."""
    everything = rows(source, np.arange(count), tokens)
    keys = [f"row {number}" for number in range(count)]
    repository = Repository.create(root / "core")
    first = save(repository, None, keys, everything, None)
    found = {"first save s": first[0], "first save MB": first[1] / 1e6}
    for share in SHARES:
        changed = int(count * share)
        new = rows(source, np.arange(count, count + changed), tokens)
        names = [f"row {count + number}" for number in range(changed)]
        for order in ("fifo", "scattered"):
            gone = np.zeros(count, np.bool_)
            if order == "fifo":
                gone[:changed] = True
            else:
                gone[np.random.default_rng(1).choice(count, changed, replace=False)] = True
            found |= shares(f"{order} {share:.0%}", save(repository, 1, names, new, gone), first)
    shutil.rmtree(root / "core")
    return found


def shares(name: str, second: Costs, first: Costs) -> dict[str, float]:
    """Time, processor time and bytes of a save as shares of the first one's."""
    return {
        f"{name} {what}": later / before
        for what, later, before in zip(("time", "bytes", "cpu"), second, first, strict=True)
    }


def unit_round(root: Path, source: IdSource, count: int, tokens: int) -> dict[str, float]:
    """The same with a storage unit's writer."""
    from transfer_queue.storage.simple_storage import StorageUnitData

    from snapfmt.adapters.transfer_queue import unit, unit_rows
    from snapfmt.adapters.transfer_queue.jobs import drop, holding_of
    from snapfmt.adapters.transfer_queue.state import UnitPlan
    from snapfmt.format import canonical
    from snapfmt_schemas.attempt import Receipt

    class Unit:
        storage_data: Any = StorageUnitData()

    actor, repository = Unit(), Repository.create(root / "unit")
    actor.storage_data = StorageUnitData()

    def put(numbers: list[int]) -> None:
        for start in range(0, len(numbers), BATCH):
            some = numbers[start : start + BATCH]
            actor.storage_data.put_data(rows(source, np.array(some), tokens), some)

    def one(base: int | None) -> Costs:
        started, busy = time.perf_counter(), time.process_time()
        unit.take_cut(actor, str(base), 5.0, 600.0)
        indexes = np.array(sorted(actor.storage_data._active_keys), np.int64)
        fields = tuple(actor.storage_data.field_data)
        produced = np.ones((len(indexes), len(fields)), np.bool_)
        names = tuple(f"row {index}" for index in indexes.tolist())
        plan = UnitPlan("t", "t", "", fields, indexes, names, produced)
        with repository.begin(base=base) as attempt:
            ticket = canonical.encode(attempt.ticket("unit")).decode()
            cut = holding_of(actor, str(base)).content
            written = unit_rows.write_rows(cut, ticket, [plan], lambda: None, full=False)
            receipt = Receipt.model_validate_json(written.receipt)
            attempt.publish([receipt])
        seconds = time.perf_counter() - started
        drop(actor, str(base))
        return seconds, receipt.stored_bytes, time.process_time() - busy

    put(list(range(count)))
    first = one(None)
    found: dict[str, float] = {}
    top = count
    for share in SHARES:
        changed = int(count * share)
        alive = sorted(actor.storage_data._active_keys)
        actor.storage_data.clear(alive[:changed])
        put(list(range(top, top + changed)))
        top += changed
        found |= shares(f"unit {share:.0%}", one(repository.numbers()[-1]), first)
    shutil.rmtree(root / "unit")
    return found


def main() -> None:
    """Runs the rounds and prints medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--tokens", type=int, default=2400)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", default=None)
    parser.add_argument("--quick", action="store_true", help="1,500 rows, three rounds")
    options = parser.parse_args()
    if options.quick:
        options.rows, options.rounds = 1500, 3
    source = IdSource("text")
    rounds: list[dict[str, float]] = []
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            found = one_round(Path(folder), source, options.rows, options.tokens)
            found |= unit_round(Path(folder), source, options.rows, options.tokens)
        rounds.append(found)
    ratios: dict[str, float] = {}
    spread: dict[str, tuple[float, float]] = {}
    for name in rounds[0]:
        values = [item[name] for item in rounds]
        ratios[name], spread[name] = statistics.median(values), (min(values), max(values))
        print(f"{name:24} {ratios[name]:8.4f}   ({min(values):.4f} to {max(values):.4f})")
    print(json.dumps({"ratios": ratios, "spread": spread, "rounds": options.rounds}))


if __name__ == "__main__":
    main()
