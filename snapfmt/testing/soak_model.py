"""What each save of a soak is given: a function of its number alone, so that nothing need be kept.

A row was last changed by the version that its key has at a number. A save on a base carries the
rows whose version is that of the base, and appends the others; whatever bases it went through, a
snapshot must hold the rows of its number.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from snapfmt.format.columns import MISSING
from snapfmt.reading.snapshot import Snapshot
from snapfmt.repository import Repository
from snapfmt.testing.samples import plain
from snapfmt.writing.attempt import Attempt
from snapfmt.writing.part import PartWriter
from snapfmt_schemas.attempt import Receipt

TABLES: Final = {"rows/train": 24, "rows/staging": 9}
"""Tables and how many keys they ever have."""
AGENT: Final = "gym/agent/a"
QUEUE: Final = "rl/tq/train"
_STEADY: Final = 6
"""Saves after which the steady entries change."""


def versions(table: str, number: int) -> dict[str, int]:
    """Keys of a table at a number, and when each was changed last."""
    return {
        f"k{key}": max(0, number - (number + key) % (2 + key % 7))
        for key in range(TABLES[table])
        if (number // 4 + key) % 5
    }


def row(table: str, key: str, version: int) -> dict[str, Any]:
    """What a row holds since that version: every kind of column, all bits of the floats."""
    place = int(key[1:])
    noise = hashlib.shake_128(f"{table}/{key}/{version}".encode()).digest(640)
    length = 1 + (version + place) % 12
    return {
        "ids": np.frombuffer(noise, np.int64, length),
        "reward": np.frombuffer(noise, np.float32, 1, 100).reshape(()),
        "image": np.frombuffer(noise, np.uint8, 2 * (1 + place % 4), 200).reshape(2, -1),
        "text": noise[: length * 3].hex(),
        "blob": noise[300 : 300 + length * 20],
        "state": {"version": version, "seen": (place, None)},
        "rare": float(version) if place % 3 else MISSING,
    }


def _note(number: int) -> bytes:
    return hashlib.shake_128(f"note {number}".encode()).digest(200 + number % 50)


def _lines(number: int) -> list[bytes]:
    return [
        json.dumps({"capture_key": f"r{turn}", "number": number}).encode()
        for turn in range(1 + number % 5)
    ]


def save(repository: Repository, attempt: Attempt, *, workers: int = 1) -> list[Receipt]:
    """Write all parts of an attempt; the last one from its ticket alone."""
    number, base = attempt.number, attempt.base
    agent = attempt.part(AGENT, workers=workers)
    steady = number // _STEADY
    if base is not None and base // _STEADY == steady:
        agent.carry("steady")
        agent.carry("steady.jsonl")
    else:
        agent.stage("steady", _note(-steady))
        agent.records("steady.jsonl", _lines(steady), key="capture_key")
    agent.stage("note", _note(number))
    agent.stage("who", attempt.id.encode())
    agent.records("continuations.jsonl", _lines(number), key="capture_key")
    receipts = [agent.seal()]
    queue = attempt.part(QUEUE, workers=workers)
    _tables(queue, number, base)
    receipts.append(queue.seal())
    ticket = attempt.ticket("rl/controller")
    with PartWriter(repository.store, ticket, workers=workers) as controller:
        controller.json("state.json", {"number": number})
        receipts.append(controller.seal())
    return receipts


def _tables(part: PartWriter, number: int, base: int | None) -> None:
    for name in TABLES:
        now = versions(name, number)
        before = {} if base is None else versions(name, base)
        changed = [key for key, version in now.items() if before.get(key) != version]
        with part.table(name) as table:
            if base is not None:
                table.carry_all({*changed, *(before.keys() - now.keys())})
            rows = [row(name, key, now[key]) for key in changed]
            if rows:
                columns = {column: [item[column] for item in rows] for column in rows[0]}
                table.append(changed, columns)


def check(snapshot: Snapshot) -> int:
    """Read every byte of a snapshot and compare it with what its save was given; returns bytes.

    Raises:
        AssertionError: If anything differs.
        SnapfmtError: If it cannot be read.
    """
    number, manifest = snapshot.number, snapshot.manifest
    wanted: dict[str, bytes] = {
        "note": _note(number),
        "steady": _note(-(number // _STEADY)),
        "who": manifest.attempt_id.encode(),
    }
    agent = snapshot.part(AGENT)
    for path, data in wanted.items():
        assert agent.read(path) == data, f"{path} of snapshot {number}"
    found = sum(map(len, wanted.values()))
    for path, turn in (("continuations.jsonl", number), ("steady.jsonl", number // _STEADY)):
        lines = [bytes(line).rstrip() for line in agent.lines(path)]
        assert lines == _lines(turn), f"{path} of snapshot {number}"
        found += sum(map(len, lines))
    state = json.loads(snapshot.part("rl/controller").read("state.json"))
    assert state == {"number": number}, f"state of snapshot {number}"
    return found + sum(_check_table(snapshot, name) for name in TABLES)


def _check_table(snapshot: Snapshot, name: str) -> int:
    wanted, seen, size = versions(name, snapshot.number), set(), 0
    for batch in snapshot.table(name).batches():
        for place, key in enumerate(batch.keys):
            where = f"{name}[{key}] of snapshot {snapshot.number}"
            assert key in wanted, f"{where} was not given"
            assert key not in seen, f"{where} comes twice"
            seen.add(key)
            given = row(name, key, wanted[key])
            for column, values in batch.columns.items():
                value = values.value(place)
                assert plain(value) == plain(given[column]), f"{column} of {where}"
                size += _size(value)
            absent = given.keys() - batch.columns.keys()
            assert all(given[column] is MISSING for column in absent), f"{absent} of {where}"
    assert seen == wanted.keys(), f"{name} of snapshot {snapshot.number} lost rows"
    return size


def _size(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return int(value.nbytes)
    if isinstance(value, (bytes, str)):
        return len(value)
    return 8 * len(value) if isinstance(value, Mapping) else 8
