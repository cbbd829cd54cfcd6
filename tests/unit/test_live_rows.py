"""Segments of which only some rows live: a bitmap chooses them, and must fit."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from snapfmt import Repository
from snapfmt.errors import CorruptError, NoMatch
from snapfmt.reading.table import TableReader
from snapfmt.testing.forgery import forge
from snapfmt.writing import table as table_module

ROWS = 40
Forged = Callable[..., TableReader]


@pytest.fixture
def forged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Forged:
    """A table of several batches, with a bitmap of its live rows added afterwards."""
    monkeypatch.setattr(table_module, "BATCH_BYTES", 300)
    origin = Repository.create(tmp_path / "origin")
    attempt = origin.begin()
    part = attempt.part("p")
    with part.table("t") as table:
        keys = [f"k{i}" for i in range(ROWS)]
        table.append(keys, {"x": [np.arange(i) for i in range(ROWS)], "n": list(range(ROWS))})
    attempt.publish([part.seal()])
    assert len(origin.snapshot().table("t").segments()[0].index) > 3

    def run(live: Sequence[int], *, rows: int | None = None, bitmap: bytes | None = None) -> Any:
        root = tmp_path / "forged"
        shutil.copytree(origin.location, root)
        bits = np.zeros(ROWS, np.bool_)
        bits[list(live)] = True
        data = np.packbits(bits, bitorder="little").tobytes() if bitmap is None else bitmap

        def edit(index: dict[str, Any], packs: dict[str, bytearray]) -> None:
            (table,) = index["tables"]
            (segment,) = table["segments"]
            pack = segment["data"]["pack"]
            segment["live"] = {"pack": pack, "offset": len(packs[pack]), "size": len(data)}
            packs[pack] += data
            segment["live_rows"] = table["rows"] = len(live) if rows is None else rows

        forge(root, 1, "p", edit)
        return Repository.open(root).snapshot().table("t")

    return run


@pytest.mark.parametrize(
    "live",
    [[], [0], [ROWS - 1], list(range(ROWS)), list(range(0, ROWS, 3)), [5, 6, 7, 20], [7, 8, 9, 39]],
    ids=str,
)
def test_only_live_rows_are_there(forged: Forged, live: list[int]) -> None:
    reader = forged(live)
    assert reader.num_rows == len(live)
    assert reader.keys() == [f"k{row}" for row in live]
    for start in range(len(live) + 1):
        for stop in {start, start + 1, len(live)}:
            got = [
                (key, batch.columns["n"].value(row), batch.columns["x"].value(row).tolist())
                for batch in reader.batches(start=start, stop=stop)
                for row, key in enumerate(batch.keys)
            ]
            want = [(f"k{row}", row, list(range(row))) for row in live[start:stop]]
            assert got == want, (start, stop)
    for row in range(ROWS):
        if row in live:
            assert reader.row(f"k{row}")["n"] == row
        else:
            assert f"k{row}" not in reader
            with pytest.raises(NoMatch):
                reader.row(f"k{row}")
    assert reader.to_arrow(["x"]).num_rows == len(live)


@pytest.mark.parametrize(
    ("rows", "bitmap"),
    [(3, None), (1, None), (2, b""), (2, b"\3\0\0\0"), (2, b"\3\0\0\0\0\0"), (2, b"\7\0\0\0\0")],
)
def test_a_bitmap_that_does_not_fit_is_refused(
    forged: Forged, rows: int, bitmap: bytes | None
) -> None:
    reader = forged([0, 1], rows=rows, bitmap=bitmap)
    with pytest.raises(CorruptError):
        reader.keys()
    with pytest.raises(CorruptError):
        list(reader.batches())


def test_a_bitmap_is_checked_by_the_audit(forged: Forged, tmp_path: Path) -> None:
    forged([0, 1], bitmap=b"\7\0\0\0\0")
    damage = Repository.open(tmp_path / "forged").verify().damage
    assert any("live" in item.message for item in damage)
