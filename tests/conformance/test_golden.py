"""The golden repository reads to what it must, in both readers, and is made again as it is."""

import hashlib
import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import zstandard

from snapfmt import MISSING, Repository
from snapfmt.format.dtypes import LOGICAL, widenings

NUMBERS = (1, 2)
LARGEST = 200 * 1024


def sums(folder: Path) -> dict[str, str]:
    lines = (folder / "SHA256SUMS").read_text().splitlines()
    return {name: digest for digest, name in (line.split("  ", 1) for line in lines)}


def test_every_vector_is_pinned(golden: Path) -> None:
    folder = golden.parent
    pinned = sums(folder)
    found = {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "SHA256SUMS"
    }
    assert found == pinned
    assert "documents.json" in pinned
    assert any("objects/" in name for name in pinned)


def test_the_golden_repository_is_small(golden: Path) -> None:
    files = [path for path in (golden / "repository").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < LARGEST


@pytest.mark.req("G-5", "T-1", "T-2", "T-6", "T-17", "R-4")
@pytest.mark.parametrize("number", NUMBERS)
def test_snapfmt_reads_what_is_expected(
    golden: Path, dump: Callable[[Path, int], Any], number: int
) -> None:
    expected = json.loads((golden / "expected" / f"snapshot_{number:06d}.json").read_text("utf-8"))
    assert dump(golden / "repository", number) == expected


@pytest.mark.parametrize("number", NUMBERS)
def test_the_second_reader_reads_what_is_expected(
    golden: Path, run_minireader: Callable[..., Any], number: int
) -> None:
    done = run_minireader("dump", str(golden / "repository"), str(number))
    assert done.returncode == 0, done.stderr
    expected = json.loads((golden / "expected" / f"snapshot_{number:06d}.json").read_text("utf-8"))
    assert json.loads(done.stdout) == expected


def test_both_readers_call_it_whole(golden: Path, run_minireader: Callable[..., Any]) -> None:
    repository = Repository.open(golden / "repository")
    assert repository.numbers() == list(NUMBERS)
    assert repository.verify().findings == []
    assert run_minireader("verify", str(golden / "repository")).returncode == 0


def test_values_are_those_that_were_saved(golden: Path) -> None:
    """Beyond digests: that two readers agree does not say that they are right."""
    snapshot = Repository.open(golden / "repository").snapshot(1)
    mixed = snapshot.table("types/mixed")
    keys = mixed.keys()
    cells = {key: mixed.row(key).get("cell", MISSING) for key in keys}
    wanted: list[Any] = ["text", "", "é😀", b"\x00\xff", b"", None, True, 1, 2**70, -1.5]
    assert [cells[f"{n:02d}"] for n in range(len(wanted))] == wanted
    assert math.isnan(cells["10"])
    assert [cells[f"{n:02d}"] for n in range(11, 22)] == [
        float("-inf"), [1, [2]], (1, ("a",)), {3, 1}, frozenset({"x"}), {"a": {"b": 1}},
        {1: "x", None: 2, (1, 2): 3}, {"$tuple": 1}, b"bytes", bytearray(b"x"), "\ud800",
    ]  # fmt: skip
    assert cells["22"] == "\ud83d\ude00"
    assert (type(cells["23"]), type(cells["24"])) == (np.float32, np.int64)
    assert cells["26"] is MISSING
    (exact,) = snapshot.table("types/exact").batches()
    bits = exact.columns["x"].value(0).view(np.uint32)
    assert bits.tolist() == [0x80000000, 0x7FC00001, 0xFFC00001, 0x00000001, 0x7F800000]
    narrow = snapshot.table("types/narrow")
    assert narrow.row("step 2 row 3")["int64"].tolist() == [0, 2**63 - 1, 3]
    assert narrow.row("step 3 row 3")["uint64"].tolist() == [0, 5, 3]
    assert narrow.row("step 0 row 2")["negative"] == -2
    missing = snapshot.table("types/missing")
    assert sorted(missing.row("row 0")) == ["flat", "long"]
    assert missing.row("row 5")["vector"].tolist() == [0, 1, 2, 3, 4]
    assert missing.row("row 7")["matrix"].shape == (7, 2)


def test_dead_rows_are_not_there(golden: Path) -> None:
    table = Repository.open(golden / "repository").snapshot(1).table("types/live")
    assert table.keys() == [f"row {n}" for n in range(11) if n % 3 != 1]
    assert [int(batch.columns["n"].value(0)) for batch in table.batches()] == [0, 5, 8]
    assert "row 1" not in table


def test_the_golden_repository_covers_the_format(golden: Path) -> None:
    snapshot = Repository.open(golden / "repository").snapshot(1)
    specs = [
        (column.kind, column.dtype, column.ndim, column.physical)
        for part in snapshot.parts()
        for table in part.index.tables
        for segment in table.segments
        for column in segment.columns
    ]
    assert {kind for kind, _, _, _ in specs} == {"tensor", "ndarray", "text", "bytes", "value"}
    assert {dtype for _, dtype, _, _ in specs} - {""} == set(LOGICAL)
    assert {ndim for _, _, ndim, _ in specs} >= {0, 1, 2, 3}
    held = {(dtype, physical) for _, dtype, _, physical in specs if dtype}
    assert held == {(dtype, physical) for dtype in LOGICAL for physical in widenings(dtype)}
    parts = [part.name for part in snapshot.parts() if "rows/train" in part.table_names()]
    assert parts == ["rl/tq/unit-0000", "rl/tq/unit-0001"]
    lines = snapshot.part("gym/agent/swe-0")
    places = lines.line_places(lines.entry("turns.jsonl"))
    assert len({place.frame_offset for place in places}) > 2


def test_the_generator_makes_the_same_again(spec: Path, golden: Path, tmp_path: Path) -> None:
    """Byte for byte; with another zstd or Arrow, whose bytes may differ, the same dumps."""
    script = str(spec / "vectors" / "generate.py")
    done = subprocess.run(
        [sys.executable, script, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    made_with = json.loads((golden / "expected" / "made-with.json").read_text())
    here = {
        "pyarrow": pa.__version__,
        "zstandard": zstandard.__version__,
        "zstd": ".".join(map(str, zstandard.ZSTD_VERSION)),
    }
    if here == made_with:
        assert sums(tmp_path) == sums(golden.parent)
    again, before = (folder / "expected" for folder in (tmp_path / golden.name, golden))
    for number in NUMBERS:
        name = f"snapshot_{number:06d}.json"
        left, right = (json.loads((folder / name).read_text("utf-8")) for folder in (again, before))
        assert left["tables"] == right["tables"]
        lines = [
            (entry["path"], entry.get("lines"))
            for item in (left, right)
            for part in item["parts"]
            for entry in part["entries"]
        ]
        assert lines[: len(lines) // 2] == lines[len(lines) // 2 :]
    documents = "documents.json"
    assert (tmp_path / documents).read_bytes() == (golden.parent / documents).read_bytes()
