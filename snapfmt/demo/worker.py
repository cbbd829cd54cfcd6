"""The demo's two runs, each in a process of its own: `save`, which gets killed, and `restore`.

Talks to its parent in JSON lines on standard output: `{"event": ..., ...}`.
"""

import json
import os
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from snapfmt.adapters.transfer_queue import LoadReport, SaveReport, load, save
from snapfmt.adapters.transfer_queue.cluster import Cluster
from snapfmt.demo import content
from snapfmt.demo.census import census, mark
from snapfmt.repository import Repository
from snapfmt_schemas.continuation import Continuation
from snapfmt_schemas.fingerprint import Fingerprint
from snapfmt_schemas.manifest import TrainerAnchor
from snapfmt_schemas.rows import CANONICAL, TOKEN_CAPTURE, check_capture_row

TRAIN, STAGING, HELD_OUT, LIVE = "train@step_7", "rollout_staging", "validation", "live_workers"
GYM_PART, INDEX = "gym/agent/demo", "continuations.jsonl"
TRAINER, REFERENCE = "train", "reference_logprobs"
BATCH = 8
_LIVE_ROWS, _LIVE_SIZE = 32, 4096


def tell(event: str, **details: Any) -> None:
    """One line to the parent."""
    sys.stdout.write(json.dumps({"event": event, **details}) + "\n")
    sys.stdout.flush()


@contextmanager
def step(name: str) -> Iterator[dict[str, Any]]:
    """Times one step and reports it with what the caller adds."""
    details: dict[str, Any] = {}
    started = time.monotonic()
    yield details
    tell("step", name=name, seconds=time.monotonic() - started, **details)


def start_queue(units: int, scratch: str) -> Any:
    """A local Ray with a TransferQueue in it; returns the queue's client."""
    import ray
    import transfer_queue as tq
    from omegaconf import OmegaConf
    from transfer_queue.sampler import RankAwareSampler

    with step("start Ray"):
        ray.init(
            # One for the controller; more would only start idle workers.
            num_cpus=units + 1,
            include_dashboard=False,
            object_store_memory=100_000_000,
            log_to_driver=False,
            logging_level="ERROR",
            _temp_dir=scratch,
        )
    with step(f"start TransferQueue with {units} storage units"):
        config = {
            "controller": {"sampler": RankAwareSampler()},
            "backend": {"SimpleStorage": {"num_data_storage_units": units}},
        }
        tq.init(OmegaConf.create(config, flags={"allow_objects": True}))
    return tq.get_client()


def fetch(client: Any, task: str, rank: int, batch: int) -> dict[str, Any]:
    """The next batch of a consumer: row indexes, and every value as a digest."""
    meta = client.get_meta(
        data_fields=list(content.PUBLISHED),
        batch_size=BATCH,
        partition_id=TRAIN,
        task_name=task,
        sampling_config={
            "dp_rank": rank,
            "batch_index": batch,
            "task_name": task,
            "partition_id": TRAIN,
        },
    )
    data = client.get_data(meta)
    values = {name: [mark(row) for row in data[name].unbind()] for name in content.PUBLISHED}
    return {"indexes": list(meta.global_indexes), "values": values}


def fill(client: Any, rows: int, seed: int) -> list[content.Rollout]:
    """Brings the queue into the middle of a train step; returns the unfinished rollouts."""
    import torch
    import transfer_queue as tq
    from tensordict import NonTensorStack, TensorDict

    corpus = content.Corpus.load()
    rollouts = list(corpus.rollouts(rows + 64, seed))
    finished, running = rollouts[:rows], rollouts[rows:]
    for start in range(0, rows, 64):
        some = finished[start : start + 64]
        fields = TensorDict(content.canonical_fields(some, seed + start), batch_size=len(some))
        tags = [
            {"group": rollout.key.split("_")[0], "weight_version": 6 + (start + i) % 2}
            for i, rollout in enumerate(some)
        ]
        tq.kv_batch_put(
            keys=[rollout.key for rollout in some], partition_id=TRAIN, fields=fields, tags=tags
        )
    # Rows that were used up are cleared; the next rows get their indexes.
    tq.kv_clear([rollout.key for rollout in finished[8:24]], TRAIN)
    again = content.canonical_fields(finished[8:16], seed + 1)
    tq.kv_batch_put(
        keys=[f"{rollout.key}-a1" for rollout in finished[8:16]],
        partition_id=TRAIN,
        fields=TensorDict(again, batch_size=8),
        tags=[{"attempt": 1}] * 8,
    )
    half = [rollout for rollout in finished[24:] if rollout.key.endswith(("g0", "g1"))]
    for start in range(0, len(half), 64):
        some = half[start : start + 64]
        tq.kv_batch_put(
            keys=[rollout.key for rollout in some],
            partition_id=TRAIN,
            fields=TensorDict(content.training_fields(some, seed + start), batch_size=len(some)),
        )
    tq.kv_batch_put(
        keys=[f"pending-{i}" for i in range(8)],
        partition_id=TRAIN,
        fields=None,
        tags=[{"status": "pending", "deadline_s": 12.5 * i} for i in range(8)],
    )
    captured = content.capture_rows(running, seed)
    tq.kv_batch_put(
        keys=[row["key"] for row in captured],
        partition_id=STAGING,
        fields=TensorDict(content.capture_fields(captured), batch_size=len(captured)),
        tags=[row["tag"] for row in captured],
    )
    client.put(
        TensorDict(
            {
                "prompt": NonTensorStack(
                    *[f"question {i}: \N{GREEK SMALL LETTER PI}?" for i in range(12)]
                ),
                "meta": NonTensorStack(*[{"level": i, "source": None} for i in range(12)]),
                "image": torch.arange(12 * 27, dtype=torch.uint8).reshape(12, 3, 3, 3),
            },
            batch_size=12,
        ),
        partition_id=HELD_OUT,
    )
    overwrite(0, range(_LIVE_ROWS))
    # Two ranks of the trainer and one other consumer have started on the rows.
    for rank, batch in ((0, 0), (1, 0), (0, 1)):
        fetch(client, TRAINER, rank, batch)
    fetch(client, REFERENCE, 0, 0)
    return running


def overwrite(stamp: int, rows: Any) -> None:
    """Puts rows whose every element is one number, so that a torn row shows."""
    import torch
    import transfer_queue as tq
    from tensordict import TensorDict

    count = len(rows)
    fields = {
        "payload": torch.full((count, _LIVE_SIZE), stamp),
        "stamp": torch.full((count,), stamp),
    }
    tq.kv_batch_put(
        keys=[f"live-{row}" for row in rows],
        partition_id=LIVE,
        fields=TensorDict(fields, batch_size=count),
    )


class Writers(threading.Thread):
    """Overwrites rows of one partition for as long as it lives, and times each put."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.puts: list[tuple[float, float]] = []

    def run(self) -> None:
        """Puts without a pause."""
        stamp = 0
        while True:
            stamp += 1
            started = time.monotonic()
            overwrite(stamp, range(stamp % 4, _LIVE_ROWS, 4))
            self.puts.append((started, time.monotonic()))

    def longest(self, start: float, stop: float) -> tuple[int, float]:
        """Puts that ran at some time between the two, and how long the longest took."""
        within = [b - a for a, b in list(self.puts) if b >= start and a <= stop]
        return len(within), max(within, default=0.0)


def comparable(found: dict[str, Any]) -> dict[str, Any]:
    """A census without the values of the partition that is overwritten all the time."""
    live = {str(index) for index in found["state"]["partitions"][LIVE]["active"]}
    cells = {
        field: {index: value for index, value in values.items() if index not in live}
        for field, values in found["cells"].items()
    }
    return {"state": found["state"], "cells": {k: v for k, v in cells.items() if v}}


def run_save(config: dict[str, Any]) -> None:
    """Fills a queue, saves it while others write, and waits to be killed."""
    client = start_queue(config["units"], config["scratch"])
    with step("fill the queue with rollouts over Python's own sources") as details:
        running = fill(client, config["rows"], config["seed"])
        details["unfinished"] = len(running)
    with step("take digests of every row for the comparison"):
        expected = {"census": comparable(census(Cluster.connect()))}
    writers = Writers()
    writers.start()
    while len(writers.puts) < 20:
        time.sleep(0.01)
    calm_start = time.monotonic() - 1.0
    repository = Repository.open(config["repository"], create=True)
    calm = writers.longest(calm_start, time.monotonic())
    with step("save: parts of the queue") as details, repository.begin() as attempt:
        with attempt.part(GYM_PART) as part:
            part.records(INDEX, content.continuations(running), key="capture_key")
            gym = part.seal()
        started = time.monotonic()
        report = save(
            attempt=attempt,
            schemas={TRAIN: CANONICAL.schema_id, STAGING: TOKEN_CAPTURE.schema_id},
            user_metadata={"train_step": 7, "sampler": "RankAwareSampler"},
        )
        during = writers.longest(started, time.monotonic())
        manifest = attempt.publish(
            [*report.receipts, gym],
            fingerprints=[Fingerprint.of("recipe", {"model": "demo", "group": content.GROUP})],
            anchor=TrainerAnchor(train_step=7, trainer_version=7, epoch=0),
            user_metadata={"demo": True},
        )
        details.update(_save_details(report), number=manifest.number)
        details.update(puts_during=during[0], longest_put_s=during[1], calm_put_s=calm[1])
        details["continuations"] = len(running)
    # What the run would have trained on next is what the restored run has to fetch.
    expected["next"] = {
        "trainer": fetch(client, TRAINER, 0, 2),
        "cached": fetch(client, TRAINER, 1, 0),
        "reference": fetch(client, REFERENCE, 0, 1),
    }
    Path(config["expected"]).write_text(json.dumps(expected), encoding="utf-8")
    tell("ready", number=manifest.number)
    while True:
        time.sleep(1.0)


def _save_details(report: SaveReport) -> dict[str, Any]:
    return {
        "rows": report.rows,
        "cells": report.cells,
        "logical_bytes": report.logical_bytes,
        "stored_bytes": report.stored_bytes,
        "controller_held_s": report.controller_held_s,
        "units_held_s": max(report.units_held_s),
        "longest_wait_s": report.longest_wait_s,
        "cut_s": report.cut_s,
        "write_s": report.write_s,
    }


def run_restore(config: dict[str, Any]) -> None:
    """Verifies the snapshot, restores it into another queue and compares everything."""
    repository = Repository.open(config["repository"])
    snapshot = repository.snapshot(config["number"])
    with step("verify every byte of the snapshot") as details:
        found = repository.verify(snapshot.number, deep=True)
        details["bytes"] = found.bytes
        if not found.ok:
            tell("failed", what=f"verify: {found.damage}")
            return
    client = start_queue(config["units"], config["scratch"])
    with step("restore") as details:
        report = load(snapshot)
        details.update(_load_details(report))
    with step("compare with the digests of the killed run") as details:
        expected = json.loads(Path(config["expected"]).read_text(encoding="utf-8"))
        actual = {"census": comparable(census(Cluster.connect()))}
        problems = live_problems() + capture_problems(snapshot)
        actual["next"] = {
            "trainer": fetch(client, TRAINER, 0, 2),
            "cached": fetch(client, TRAINER, 1, 0),
            "reference": fetch(client, REFERENCE, 0, 1),
        }
        # Through JSON, as the expected side went.
        problems += differences(expected, json.loads(json.dumps(actual)), "")
        cells = sum(map(len, actual["census"]["cells"].values()))
        details.update(cells=cells, problems=problems[:20])
    tell("done", problems=problems[:20])


def _load_details(report: LoadReport) -> dict[str, Any]:
    return {
        "rows": report.rows,
        "cells": report.cells,
        "saved_units": report.saved_units,
        "units": report.units,
        "partitions": report.partitions,
    }


def live_problems() -> list[str]:
    """Rows that were overwritten during the save and did not come back whole."""
    import transfer_queue as tq

    keys = list(tq.kv_list(LIVE)[LIVE])
    data = tq.kv_batch_get(keys, LIVE)
    rows = zip(keys, data["payload"].unbind(), data["stamp"].unbind(), strict=True)
    return [f"{key} is torn" for key, row, stamp in rows if not bool((row == stamp).all())]


def capture_problems(snapshot: Any) -> list[str]:
    """Token-capture rows that break upstream's rules, and continuations without their row."""
    table = snapshot.table(f"rows/{STAGING}")
    names = [name for name in table.column_names if not name.startswith("__")]
    keys = set(table.keys())
    problems = [
        f"{key}: {problem}"
        for key in sorted(keys)[:50]
        for problem in check_capture_row(table.row(key, names))
    ]
    roots = snapshot.part(GYM_PART).records(INDEX, Continuation)
    return problems + [
        f"continuation {root.capture_key} has no captured call"
        for root in roots
        if f"{root.capture_key}/{root.last_committed_model_call_id}" not in keys
    ]


def differences(expected: Any, actual: Any, path: str) -> list[str]:
    """Where two JSON values differ."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        return [
            line
            for key in sorted(expected.keys() | actual.keys())
            for line in differences(expected.get(key), actual.get(key), f"{path}/{key}")
        ]
    return [] if expected == actual else [f"{path}: {str(expected)[:80]} != {str(actual)[:80]}"]


def main(arguments: list[str]) -> None:
    """`worker save|restore <config as JSON>`."""
    # Ray and TransferQueue read these when they are imported.
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", TQ_LOGGING_LEVEL="ERROR")
    warnings.simplefilter("ignore")
    work = {"save": run_save, "restore": run_restore}[arguments[0]]
    try:
        work(json.loads(arguments[1]))
    except Exception as error:
        tell("failed", what=f"{type(error).__name__}: {error}")
        raise


if __name__ == "__main__":
    main(sys.argv[1:])
