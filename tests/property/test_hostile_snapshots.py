"""Snapshots that are signed correctly and lie: read or refused with a typed error, never else."""

import copy
import json
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from snapfmt import Repository
from snapfmt.errors import SnapfmtError
from snapfmt.testing.forgery import forge, seal
from snapfmt.testing.samples import contents, save

PARTS = ("gym/agent/a", "rl/tq/train")
ODD: list[Any] = [
    *(0, 1, -1, 7, 63, 64, 2**31, 2**32 + 1, 2**62, 2**63, 2**64, 10**30, 1.5, True, None),
    *("", "x", "sha256:" + "0" * 64, "sha256:" + "F" * 64, "../../etc/passwd", "/x", "\ud800"),
    *("int64", "uint8", "float8_e4m3fn", "tensor", "text", "large_string", "a/../b", "é" * 2000),
    *([], {}, [[]], {"pack": "x"}, [1, 2, 3]),
]


@pytest.fixture(scope="module")
def origin() -> Iterator[Path]:
    """A snapshot to forge."""
    with tempfile.TemporaryDirectory() as folder:
        save(Repository.create(Path(folder) / "run"), value=1, rows=5)
        yield Path(folder) / "run"


def look(root: Path) -> None:
    """Read all there is in every way; anything but a typed error escapes and fails the test."""
    try:
        repository = Repository.open(root)
    except SnapfmtError:
        return
    report = repository.verify()
    assert report.deep
    try:
        snapshot = repository.snapshot()
    except SnapfmtError:
        assert not report.ok
        return
    for read in (
        lambda: contents(snapshot),
        lambda: [snapshot.table(name).to_arrow() for name in snapshot.table_names()],
        lambda: [snapshot.table(name).row("k1") for name in snapshot.table_names()],
        lambda: snapshot.part("gym/agent/a").read("continuations.jsonl"),
        lambda: repository.latest(deep=True),
        lambda: repository.begin(base=1).abandon(),
    ):
        try:
            read()
        except SnapfmtError:
            continue


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value inside a JSON value."""
    found = [path] if path else []
    if isinstance(value, dict):
        for name, item in value.items():
            found += places(item, (*path, name))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            found += places(item, (*path, number))
    return found


def change(value: Any, rng: random.Random) -> None:
    """One random change somewhere inside a JSON value."""
    path = rng.choice(places(value))
    holder = value
    for step in path[:-1]:
        holder = holder[step]
    last = path[-1]
    action = rng.randrange(6)
    if action == 0:
        del holder[last]
    elif action == 1 and isinstance(holder, list):
        holder.append(copy.deepcopy(holder[last]))
    elif action == 2 and isinstance(holder, dict):
        holder[rng.choice(["unknown", "rows", "size", "index"])] = holder[last]
    elif action == 3:
        other = rng.choice(places(value))
        found = value
        for step in other:
            found = found[step]
        holder[last] = copy.deepcopy(found)
    elif action == 4 and type(holder[last]) is int:
        holder[last] += rng.choice([-64, -8, -1, 1, 8, 64])
    else:
        holder[last] = copy.deepcopy(rng.choice(ODD))


@given(seed=st.integers(0, 2**32))
@settings(max_examples=120, suppress_health_check=list(HealthCheck))
def test_a_part_index_that_lies(origin: Path, seed: int) -> None:
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "run"
        shutil.copytree(origin, root)

        def edit(index: dict[str, Any], packs: dict[str, bytearray]) -> None:
            for _ in range(rng.choice([1, 1, 2, 3])):
                change(index, rng)

        try:
            forge(root, 1, rng.choice(PARTS), edit)
        except (RecursionError, ValueError):
            return
        look(root)


@given(seed=st.integers(0, 2**32))
@settings(max_examples=80, suppress_health_check=list(HealthCheck))
def test_a_root_document_that_lies(origin: Path, seed: int) -> None:
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "run"
        shutil.copytree(origin, root)
        names = ["snapfmt.json", "snapshots/snapshot_000001/manifest.json"]
        path = root / rng.choice(names)
        document = json.loads(path.read_bytes())
        for _ in range(rng.choice([1, 1, 2])):
            change(document, rng)
        try:
            seal(path, document)
        except (RecursionError, ValueError):
            return
        look(root)


@given(seed=st.integers(0, 2**32))
@settings(max_examples=200, suppress_health_check=list(HealthCheck))
def test_indexes_inside_a_pack_that_lie(origin: Path, seed: int) -> None:
    """Batch indexes, keys and record indexes: Arrow streams from a hostile writer."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "run"
        shutil.copytree(origin, root)

        def edit(index: dict[str, Any], packs: dict[str, bytearray]) -> None:
            targets = [entry["location"] for entry in index["entries"]]
            for table in index["tables"]:
                for segment in table["segments"]:
                    targets += [segment["batches"], segment["keys"], segment["data"]]
            place = rng.choice([target for target in targets if target["size"]])
            data = packs[place["pack"]]
            for _ in range(rng.choice([1, 1, 2, 8])):
                at = place["offset"] + rng.randrange(place["size"])
                data[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
            if rng.random() < 0.1:
                place["size"] = rng.randrange(place["size"])

        forge(root, 1, rng.choice(PARTS), edit)
        look(root)


def test_a_forgery_without_a_change_is_a_good_snapshot(origin: Path, tmp_path: Path) -> None:
    root = tmp_path / "run"
    shutil.copytree(origin, root)
    before = contents(Repository.open(root).snapshot())
    for part in PARTS:
        forge(root, 1, part, lambda index, packs: None)
    repository = Repository.open(root)
    assert repository.verify().findings == []
    assert contents(repository.snapshot()) == before

    def rename(index: dict[str, Any], packs: dict[str, bytearray]) -> None:
        index["entries"][0]["path"] = "renamed.txt"

    forge(root, 1, PARTS[0], rename)
    assert repository.snapshot().part(PARTS[0]).read("renamed.txt") == b"note 1"
