"""Small repositories with something of everything, and all that can be read from one."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from snapfmt.format import canonical, digest, layout
from snapfmt.format.columns import MISSING
from snapfmt.format.tagged import encode
from snapfmt.limits import DEFAULT_LIMITS
from snapfmt.reading.snapshot import Part, Snapshot
from snapfmt.reading.table import TableReader
from snapfmt.repository import Repository
from snapfmt.storage.base import Store
from snapfmt.testing.equality import array_bits
from snapfmt.writing.attempt import Attempt
from snapfmt.writing.keeping import reached
from snapfmt_schemas.attempt import Receipt
from snapfmt_schemas.fingerprint import Fingerprint
from snapfmt_schemas.manifest import Manifest, TrainerAnchor

RECIPE = Fingerprint.of("recipe", {"model": "m", "steps": [1, 2]})


def save(
    repository: Repository, *, value: int = 0, rows: int = 3, base: int | None = None
) -> Manifest:
    """One snapshot with two parts: entries, records, a table with columns of every kind.

    `value` makes its bytes differ from those of another.
    """
    with repository.begin(base=base) as attempt:
        agent = attempt.part("gym/agent/a")
        agent.stage("notes.txt", f"note {value}".encode())
        agent.stage("empty", b"")
        agent.records(
            "continuations.jsonl",
            [json.dumps({"capture_key": f"r{i}", "value": value}).encode() for i in range(rows)],
            key="capture_key",
        )
        rl = attempt.part("rl/tq/train")
        with rl.table("rows/train") as table:
            table.append([f"k{i}" for i in range(rows)], columns(rows, value))
        receipts = [agent.seal(), rl.seal()]
        return attempt.publish(
            receipts,
            fingerprints=[RECIPE],
            anchor=TrainerAnchor(train_step=value, trainer_version=1, epoch=0),
            user_metadata={"value": value},
        )


def save_on(repository: Repository, base: int, *, value: int = 0) -> Manifest:
    """A snapshot that holds what its base holds, in the packs of that, and a part of its own."""
    older = repository.snapshot(base)
    with repository.begin(base=base) as attempt:
        receipts = [_again(repository.store, attempt, part) for part in older.parts()]
        own = attempt.part(f"own/{value}")
        own.stage("note", f"note {value}".encode())
        return attempt.publish([*receipts, own.seal()])


def _again(store: Store, attempt: Attempt, part: Part) -> Receipt:
    data = canonical.encode(part.index.model_copy(update={"attempt_id": attempt.id}))
    mark = digest.digest_of(data)
    key = layout.object_key(mark)
    sink = store.sink(layout.workspace_key(attempt.id), f"again-{mark[-16:]}")
    sink.write(data)
    sink.finish(key)
    store.sync([key])
    return part.receipt.model_copy(
        update={
            "attempt_id": attempt.id,
            "index_digest": mark,
            "index_size": len(data),
            "stored_bytes": len(data),
            "new_objects": 1,
        }
    )


def columns(rows: int, value: int = 0) -> dict[str, list[Any]]:
    """Columns of every kind that needs no torch."""
    return {
        "ids": [np.arange(i + 1, dtype=np.int64) + value for i in range(rows)],
        "reward": [np.array(i / 3, np.float32) for i in range(rows)],
        "image": [np.full((2, i + 1), value, np.uint8) for i in range(rows)],
        "text": [f"text {value} {i}" for i in range(rows)],
        "blob": [bytes([i]) * i for i in range(rows)],
        "state": [{"turn": i, "seen": (value, None)} for i in range(rows)],
        "rare": [MISSING if i % 2 else float(value) for i in range(rows)],
    }


def save_table(
    location: Path, keys: Sequence[str], values: Mapping[str, Sequence[Any]]
) -> TableReader:
    """A table of one append, written and opened again."""
    repository = Repository.open(location, create=True)
    with repository.begin() as attempt:
        part = attempt.part("p")
        with part.table("t") as table:
            table.append(keys, values)
        attempt.publish([part.seal()])
    return Repository.open(location).snapshot().table("t")


def everything(repository: Repository) -> dict[str, Any]:
    """All data of all snapshots, in a form that `==` compares exactly."""
    return {
        f"{number}/{name}": data
        for number in repository.numbers()
        for name, data in contents(repository.snapshot(number)).items()
    }


def contents(snapshot: Snapshot) -> dict[str, Any]:
    """All data of one snapshot, in a form that `==` compares exactly."""
    found: dict[str, Any] = {"manifest": snapshot.manifest.model_dump_json()}
    for part in snapshot.parts():
        for entry in part.entries():
            found[f"{part.name}/{entry.path}"] = part.read(entry.path)
    for name in snapshot.table_names():
        for batch in snapshot.table(name).batches():
            for row, key in enumerate(batch.keys):
                found[f"{name}[{key}]"] = {
                    column: plain(values.value(row)) for column, values in batch.columns.items()
                }
    return found


def all_contents(repository: Repository) -> dict[int, dict[str, Any]]:
    """The contents of every published snapshot, by its number."""
    return {number: contents(repository.snapshot(number)) for number in repository.numbers()}


def stored(repository: Repository) -> set[str]:
    """Keys of all objects."""
    return {key for key, _ in repository.store.walk(layout.OBJECTS)}


def needed(repository: Repository) -> set[str]:
    """Keys of the objects that a published snapshot reaches."""
    return {
        key
        for number in repository.numbers()
        for key in reached(repository.store, repository.snapshot(number).manifest, DEFAULT_LIMITS)
    }


def plain(value: Any) -> Any:
    """A cell's value in a form that `==` compares exactly."""
    if isinstance(value, np.ndarray):
        return array_bits(value)
    return "MISSING" if value is MISSING else encode(value)
