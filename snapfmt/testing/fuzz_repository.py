"""Fuzz targets: whole repositories by a hostile author, with every digest in order.

An input is a list of choices: what is changed, and how. So few bytes reach far behind digests.
"""

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from snapfmt.adapters import zarr_arrays, zarr_layout
from snapfmt.errors import NoMatch, RefusedError, SnapfmtError
from snapfmt.format import canonical, layout
from snapfmt.reading.snapshot import Snapshot
from snapfmt.repository import Repository
from snapfmt.testing.corruption import Tree
from snapfmt.testing.forgery import forge, seal
from snapfmt.testing.fuzzing import LIMITS, Ground, Prepared, Target, Wrong
from snapfmt.testing.hostile import Choices, Chooser, change
from snapfmt.testing.samples import contents, save
from snapfmt.writing.lease import new_lease
from snapfmt_schemas.pin import Pin

PARTS = ("gym/agent/a", "rl/tq/train")
ARRAY = "dense"
_ATTEMPT = "ab" * 16
_SEEDS = tuple(bytes((7 * at * at + 31 * n + at) % 256 for at in range(24)) for n in range(24))
_BYTES = (0, 1, 0x7F, 0x80, 0xFF)
Edit = Callable[[Path, Chooser], object]


def targets() -> Iterator[Target]:
    """Every target of this module."""
    edits: tuple[tuple[str, Edit], ...] = (
        ("snapshot-index", edit_index),
        ("snapshot-root", edit_root),
        ("snapshot-pack", edit_pack),
    )
    for name, edit in edits:
        yield Target(name=name, prepare=_of(edit, look), cost=80, longest=64)
    yield Target(name="zarr-array", prepare=_of(_edit_array, _look_at_array), cost=10, longest=64)
    yield Target(name="retention", prepare=_retention, json=True, cost=40)


def look(root: Path) -> None:
    """Read all there is in every way; errors are typed, and what the audit likes is readable."""
    repository = Repository.open(root, limits=LIMITS)
    report = repository.verify()
    try:
        snapshot = repository.snapshot()
        snapshot.parts()
    except SnapfmtError:
        if report.ok:
            raise Wrong("the audit found nothing, and the snapshot cannot be opened") from None
        return
    for read in _reads(repository, snapshot):
        try:
            read()
        except (NoMatch, RefusedError):
            continue
        except SnapfmtError as error:
            if report.ok:
                raise Wrong(f"the audit found nothing, and it cannot be read: {error}") from error


def _reads(repository: Repository, snapshot: Snapshot) -> Iterator[Callable[[], object]]:
    names = snapshot.table_names()
    yield lambda: contents(snapshot)
    yield lambda: [snapshot.table(name).to_arrow() for name in names]
    yield lambda: [snapshot.table(name).row("k1") for name in names]
    yield lambda: snapshot.part(PARTS[0]).read("continuations.jsonl")
    yield lambda: repository.latest(deep=True)
    yield lambda: repository.begin(base=1).abandon()


def _of(edit: Edit, look_at: Callable[[Path], None]) -> Callable[[Ground], Prepared]:
    def prepare(ground: Ground) -> Prepared:
        root = ground.folder / "run"
        repository = Repository.create(root)
        if edit is _edit_array:
            _save_array(repository)
        else:
            save(repository, value=1, rows=5)
        tree = Tree.take(root)

        def run(data: bytes) -> None:
            with tree.damaged():
                try:
                    edit(root, Choices(data))
                except (RecursionError, ValueError):
                    # A value that no JSON writer takes is no document.
                    return
                look_at(root)

        return Prepared(run, _SEEDS)

    return prepare


def edit_index(root: Path, choose: Chooser) -> None:
    """A part index that lies."""

    def edit(index: dict[str, Any], packs: dict[str, bytearray]) -> None:
        for _ in range(choose.choice([1, 1, 2, 3])):
            change(index, choose)

    forge(root, 1, choose.choice(PARTS), edit)


def edit_root(root: Path, choose: Chooser) -> None:
    """A root document that lies, with its checksum."""
    path = root / choose.choice(("snapfmt.json", layout.manifest_key(1)))
    document = json.loads(path.read_bytes())
    for _ in range(choose.choice([1, 1, 2])):
        change(document, choose)
    seal(path, document)


def edit_pack(root: Path, choose: Chooser) -> None:
    """Batch indexes, keys, record indexes and rows: bytes of a hostile writer."""

    def edit(index: dict[str, Any], packs: dict[str, bytearray]) -> None:
        targets = [entry["location"] for entry in index["entries"]]
        for table in index["tables"]:
            for segment in table["segments"]:
                targets += [segment["batches"], segment["keys"], segment["data"]]
        place = choose.choice([target for target in targets if target["size"]])
        data = packs[place["pack"]]
        for _ in range(choose.choice([1, 1, 2, 8])):
            at = place["offset"] + choose.randrange(place["size"])
            data[at] = choose.choice((*_BYTES, choose.randrange(256)))
        if choose.randrange(10) == 0:
            place["size"] = choose.randrange(place["size"])

    forge(root, 1, choose.choice(PARTS), edit)


def _save_array(repository: Repository) -> None:
    with repository.begin() as attempt:
        part = attempt.part("p")
        bits = np.arange(24, dtype=np.int32).reshape(4, 6)
        zarr_arrays.write_array(part, ARRAY, bits, chunk_bytes=24, shard_bytes=48)
        attempt.publish([part.seal()])


def _edit_array(root: Path, choose: Chooser) -> None:
    """Other metadata, of the same length or beyond the end of the pack."""

    def edit(index: dict[str, Any], packs: dict[str, bytearray]) -> None:
        place = index["entries"][0]["location"]
        pack = packs[place["pack"]]
        document = json.loads(pack[place["offset"] : place["offset"] + place["size"]])
        sharding = document["codecs"][0]["configuration"]
        grid = document["chunk_grid"]["configuration"]
        for _ in range(choose.choice([1, 1, 2])):
            sides = (document["shape"], sharding["chunk_shape"], grid["chunk_shape"])
            holder = choose.choice(sides)
            at = choose.randrange(max(len(holder), 1))
            holder[at : at + 1] = [choose.choice((0, 1, 2, 3, 4, 6, 12, 2**20, 2**40, 2**62))]
        if choose.randrange(4) == 0:
            change(document, choose)
        data = json.dumps(document).encode()
        place["offset"], place["size"] = len(pack), len(data)
        pack += data
        if choose.randrange(3) == 0:
            change(index, choose)

    forge(root, 1, "p", edit)


def _look_at_array(root: Path) -> None:
    part = Repository.open(root, limits=LIMITS).snapshot().part("p")
    found = zarr_arrays.read_array(part, ARRAY, limits=LIMITS)
    document = part.stored(f"{ARRAY}/zarr.json")
    described = zarr_layout.read_document(document, what=ARRAY, limits=LIMITS)
    if found.shape != described.shape:
        raise Wrong(f"an array of {found.shape}, described as {described.shape}")


def _retention(ground: Ground) -> Prepared:
    """A lease, a pin, a retirement, a journal: which one, then its bytes."""
    root = ground.folder / "run"
    repository = Repository.create(root)
    for value in (1, 2, 3):
        save(repository, value=value, rows=1)
    manifest = (root / layout.manifest_key(1)).read_bytes()
    lease = canonical.encode(new_lease(9, base=2, seconds=60, attempt_id=_ATTEMPT))
    pin = canonical.encode(Pin(name="best", number=2, created_at_ns=1))
    places = (
        (layout.lease_key(_ATTEMPT), lease),
        (layout.pin_key("best"), pin),
        (layout.snapshot_key(1, layout.RETIRING), manifest),
        (layout.snapshot_key(4, layout.RETIRED), manifest),
        (f"{layout.workspace_key(_ATTEMPT)}/journal", b"objects/ab/" + b"ab" * 32 + b"\n"),
    )
    tree = Tree.take(root)

    def run(data: bytes) -> None:
        key, _ = places[data[0] % len(places)] if data else places[0]
        path = root / key
        with tree.damaged():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data[1:])
            opened = Repository.open(root, limits=LIMITS)
            for act in (
                opened.leases,
                opened.pins,
                lambda: opened.surplus(1),
                lambda: opened.collect(dry_run=True),
                lambda: opened.retire(3),
                opened.clean_up,
            ):
                with contextlib.suppress(SnapfmtError):
                    act()
            # Nothing of what is published and was not retired is gone.
            if 2 not in opened.numbers() or not opened.verify(2, deep=False).ok:
                raise Wrong("a snapshot that nobody retired is damaged")

    return Prepared(run, [bytes([number]) + data for number, (_, data) in enumerate(places)])
