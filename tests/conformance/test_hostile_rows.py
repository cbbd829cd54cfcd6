"""Rows by a hostile author: every digest is in order and the content is not."""

import hashlib
import json
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from snapfmt import Repository
from snapfmt.errors import SnapfmtError
from snapfmt.format.columns import Column
from snapfmt.writing import rows
from snapfmt.writing.rows import RowConverter


def both(folder: Path, minireader: ModuleType) -> tuple[bool, bool]:
    """Whether each reader calls it whole; an error that is not one of ours fails the test."""
    try:
        ours = Repository.open(folder).verify().ok
    except SnapfmtError:
        ours = False
    try:
        second = minireader.Repository(str(folder)).verify() == []
    except minireader.Damage:
        second = False
    return ours, second


def canonical(value: Any) -> bytes:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode() + b"\n"


def put_object(folder: Path, data: bytes) -> str:
    name = hashlib.sha256(data).hexdigest()
    place = folder / "objects" / name[:2]
    place.mkdir(exist_ok=True)
    (place / name).write_bytes(data)
    return name


def get_object(folder: Path, digest: str) -> bytes:
    name = digest.removeprefix("sha256:")
    return (folder / "objects" / name[:2] / name).read_bytes()


@pytest.mark.req("V-6", "T-7", "T-11", "T-13", "T-14")
def test_a_bit_of_the_rows_in_a_pack_that_was_named_anew(
    golden: Path, tmp_path: Path, minireader: ModuleType
) -> None:
    """Only the digests of heads, batch headers and chunks can tell."""
    choose, verdicts = random.Random(3), {}
    for trial in range(30):
        folder = tmp_path / "copy"
        shutil.copytree(golden / "repository", folder)
        path = folder / "snapshots/snapshot_000001/manifest.json"
        manifest = json.loads(path.read_bytes())
        (receipt,) = (item for item in manifest["parts"] if item["part"] == "types")
        index = json.loads(get_object(folder, receipt["index_digest"]))
        segments = [item for table in index["tables"] for item in table["segments"]]
        data = choose.choice(segments)["data"]
        pack = bytearray(get_object(folder, data["pack"]))
        place = data["offset"] + choose.randrange(data["size"])
        pack[place] ^= 1 << choose.randrange(8)
        text = canonical(index).decode()
        text = text.replace(data["pack"], "sha256:" + put_object(folder, bytes(pack)))
        name = put_object(folder, text.encode())
        receipt.update(index_digest=f"sha256:{name}", index_size=len(text.encode()))
        del manifest["checksum"]
        digest = hashlib.sha256(canonical(manifest)).hexdigest()
        path.write_bytes(canonical({**manifest, "checksum": f"sha256:{digest}"}))
        verdicts[trial, place] = both(folder, minireader)
        shutil.rmtree(folder)
    assert set(verdicts.values()) == {(False, False)}


def other_shape(column: Column) -> Column:
    assert column.shapes is not None
    return replace(column, shapes=np.add(column.shapes, [0, 1]))


def negative_shape(column: Column) -> Column:
    assert column.shapes is not None
    return replace(column, shapes=-column.shapes)


def shape_that_wraps_around(column: Column) -> Column:
    assert column.shapes is not None
    shapes = column.shapes.copy()
    shapes[0] = [2**32, 2**32]
    offsets = column.offsets - column.offsets[1]
    offsets[0] = 0
    return replace(column, shapes=shapes, offsets=offsets, values=column.values[: offsets[-1]])


def falling_offsets(column: Column) -> Column:
    offsets = column.offsets.copy()
    offsets[1], offsets[2] = offsets[2], offsets[1]
    return replace(column, offsets=offsets)


def late_offsets(column: Column) -> Column:
    offsets = column.offsets.copy()
    offsets[0] = 1
    return replace(column, offsets=offsets)


def lost_values(column: Column) -> Column:
    return replace(column, values=column.values[:-1])


def more_values(column: Column) -> Column:
    return replace(column, values=np.concatenate([column.values, column.values]))


def untouched(column: Column) -> Column:
    return column


def save(folder: Path) -> None:
    repository = Repository.open(folder, create=True)
    attempt = repository.begin()
    part = attempt.part("p")
    with part.table("t") as table:
        values = [np.arange(2 * n, dtype=np.float32).reshape(n, 2) for n in (3, 4, 5)]
        table.append(["a", "b", "c"], {"x": values})
    attempt.publish([part.seal()])


LIES = [
    other_shape,
    negative_shape,
    shape_that_wraps_around,
    falling_offsets,
    late_offsets,
    lost_values,
    more_values,
]


@pytest.mark.req("G-5", "G-7", "T-10", "V-6")
@pytest.mark.parametrize("lie", [*LIES, untouched])
def test_cells_that_do_not_fit_their_rows(
    tmp_path: Path,
    minireader: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    lie: Callable[[Column], Column],
) -> None:
    honest = rows.from_values

    def dishonest(signature: Any, values: Any) -> Column:
        column = honest(signature, values)
        return lie(column) if signature.ndim == 2 else column

    monkeypatch.setattr(rows, "from_values", dishonest)
    save(tmp_path / "r")
    good = lie is untouched
    assert both(tmp_path / "r", minireader) == (good, good)
    if not good:
        table = Repository.open(tmp_path / "r").snapshot().table("t")
        with pytest.raises(SnapfmtError):
            table.row("b")


@pytest.mark.req("T-1")
def test_a_key_that_comes_twice(
    tmp_path: Path, minireader: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RowConverter, "check", lambda *_: None)
    repository = Repository.open(tmp_path / "r", create=True)
    attempt = repository.begin()
    part = attempt.part("p")
    with part.table("t") as table:
        table.append(["a", "a"], {"x": [1, 2]})
    attempt.publish([part.seal()])
    assert both(tmp_path / "r", minireader) == (False, False)
    with pytest.raises(SnapfmtError):
        repository.snapshot().table("t").row("a")
