"""The second reader shares nothing with snapfmt, and the two agree on whole and broken things."""

import ast
import hashlib
import json
import os
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from snapfmt import MISSING, Repository
from snapfmt.errors import SnapfmtError
from snapfmt_schemas.attempt import Receipt
from snapfmt_schemas.fingerprint import Fingerprint

MOST_LINES = 550


def test_the_second_reader_imports_nothing_of_ours(spec: Path) -> None:
    files = sorted((spec / "minireader").glob("*.py"))
    allowed = set(sys.stdlib_module_names) | {"zstandard"} | {file.stem for file in files}
    imported = set()
    for file in files:
        assert len(file.read_text().splitlines()) <= MOST_LINES
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add((node.module or "").split(".")[0])
    assert "zstandard" in imported
    assert imported <= allowed


@pytest.fixture
def fresh(tmp_path: Path) -> Path:
    """A repository as snapfmt writes it, with several parts, batches and frames."""
    random_bits = np.random.default_rng(7)
    repository = Repository.open(tmp_path / "fresh", create=True)
    attempt = repository.begin()
    receipts: list[Receipt] = []
    for number in range(2):
        part = attempt.part(f"rl/tq/unit-{number}")
        rows = 5000
        with part.table("rows/train") as table:
            lengths = random_bits.integers(0, 9, rows)
            table.append(
                [f"{number}:{row}" for row in range(rows)],
                {
                    "ids": [random_bits.integers(0, 150_000, n) for n in lengths],
                    "image": [random_bits.random((n, 2)).astype(np.float16) for n in lengths],
                    "score": [float(n) if n % 3 else MISSING for n in lengths],
                    "text": ["é" * n for n in lengths],
                },
            )
        lines = [json.dumps({"n": n, "pad": "x" * (n % 97)}).encode() for n in range(9000)]
        part.records("turns.jsonl", lines)
        part.stage("state.bin", random_bits.bytes(1000))
        receipts.append(part.seal())
    recipe = Fingerprint.of("recipe", {"lr": 3e-06})
    attempt.publish(receipts, fingerprints=[recipe], user_metadata={"é": [1.5, None]})
    return tmp_path / "fresh"


def whole_by_snapfmt(folder: Path) -> bool:
    """Verify's verdict; an error that is not one of ours fails the test."""
    try:
        return Repository.open(folder).verify().ok
    except SnapfmtError:
        return False


def whole_by_second(minireader: ModuleType, folder: Path) -> bool:
    errors = (minireader.Damage, minireader.Refused, ValueError)
    try:
        return minireader.Repository(str(folder)).verify() == []
    except errors:
        return False


def test_they_agree_on_what_was_just_written(
    fresh: Path, dump: Callable[[Path, int], Any], run_minireader: Callable[..., Any]
) -> None:
    done = run_minireader("dump", str(fresh))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == dump(fresh, 1)
    assert run_minireader("verify", str(fresh)).stdout == "whole\n"


@pytest.mark.req("L-1", "D-4", "D-5", "V-5", "V-6", "T-13", "T-16")
def test_they_agree_on_every_flipped_bit(
    golden: Path, tmp_path: Path, minireader: ModuleType
) -> None:
    source = golden / "repository"
    files = sorted(path.relative_to(source) for path in source.rglob("*") if path.is_file())
    choose = random.Random(20)
    verdicts = {}
    for name in files:
        size = (source / name).stat().st_size
        places = {0, size - 1} | {choose.randrange(size) for _ in range(2)}
        for place in sorted(places):
            folder = tmp_path / "copy"
            shutil.copytree(source, folder)
            data = bytearray((folder / name).read_bytes())
            data[place] ^= 1 << choose.randrange(8)
            (folder / name).write_bytes(data)
            verdicts[f"{name}@{place}"] = (
                whole_by_snapfmt(folder),
                whole_by_second(minireader, folder),
            )
            shutil.rmtree(folder)
    assert len(verdicts) > 50
    assert {place for place, verdict in verdicts.items() if verdict != (False, False)} == set()


def remove(folder: Path, objects: list[Path]) -> None:
    objects[0].unlink()


def truncate(folder: Path, objects: list[Path]) -> None:
    largest = max(objects, key=lambda path: path.stat().st_size)
    os.truncate(largest, largest.stat().st_size - 1)


def lengthen(folder: Path, objects: list[Path]) -> None:
    with objects[0].open("ab") as file:
        file.write(b"\0")


def swap(folder: Path, objects: list[Path]) -> None:
    left, right = objects[0].read_bytes(), objects[1].read_bytes()
    objects[0].write_bytes(right)
    objects[1].write_bytes(left)


def stranger(folder: Path, objects: list[Path]) -> None:
    (folder / "notes.txt").write_text("x")


def stranger_in_snapshot(folder: Path, objects: list[Path]) -> None:
    (folder / "snapshots" / "snapshot_000001" / "LATEST").write_text("x")


def badly_named_snapshot(folder: Path, objects: list[Path]) -> None:
    shutil.copytree(folder / "snapshots/snapshot_000001", folder / "snapshots/snapshot_01")


def renumbered_snapshot(folder: Path, objects: list[Path]) -> None:
    shutil.copytree(folder / "snapshots/snapshot_000001", folder / "snapshots/snapshot_000009")


def linked_object(folder: Path, objects: list[Path]) -> None:
    copy = folder.parent / "outside"
    shutil.move(objects[0], copy)
    objects[0].symlink_to(copy)


def linked_manifest(folder: Path, objects: list[Path]) -> None:
    manifest = folder / "snapshots/snapshot_000001/manifest.json"
    shutil.move(manifest, folder.parent / "outside")
    manifest.symlink_to(folder.parent / "outside")


def false_name(folder: Path, objects: list[Path]) -> None:
    place = folder / "objects" / "ab" / ("ab" * 32)
    place.parent.mkdir(exist_ok=True)
    place.write_bytes(b"not what the name says")


def spaced_root(folder: Path, objects: list[Path]) -> None:
    root = folder / "snapfmt.json"
    root.write_bytes(root.read_bytes().replace(b",", b", "))


def spaced_manifest(folder: Path, objects: list[Path]) -> None:
    manifest = folder / "snapshots/snapshot_000001/manifest.json"
    manifest.write_bytes(manifest.read_bytes() + b"\n")


def no_root(folder: Path, objects: list[Path]) -> None:
    (folder / "snapfmt.json").unlink()


BROKEN = [
    remove,
    truncate,
    lengthen,
    swap,
    stranger,
    stranger_in_snapshot,
    badly_named_snapshot,
    renumbered_snapshot,
    linked_object,
    linked_manifest,
    false_name,
    spaced_root,
    spaced_manifest,
    no_root,
]


@pytest.mark.req("D-1", "D-3", "G-8", "L-2", "L-5", "S-7", "V-2", "V-3")
@pytest.mark.parametrize("harm", BROKEN)
def test_both_call_it_damaged(
    golden: Path,
    tmp_path: Path,
    minireader: ModuleType,
    harm: Callable[[Path, list[Path]], None],
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(golden / "repository", folder)
    harm(folder, sorted(path for path in (folder / "objects").rglob("*") if path.is_file()))
    assert not whole_by_snapfmt(folder)
    assert not whole_by_second(minireader, folder)


def leftover_object(folder: Path) -> None:
    data = b"written by a save that never published"
    name = hashlib.sha256(data).hexdigest()
    (folder / "objects" / name[:2]).mkdir(exist_ok=True)
    (folder / "objects" / name[:2] / name).write_bytes(data)


def leftover_workspace(folder: Path) -> None:
    workspace = folder / "attempts" / ("0" * 31 + "7")
    workspace.mkdir(parents=True)
    (workspace / "1-pack.tmp").write_bytes(b"x")
    (workspace.parent / f"{workspace.name}.json").write_bytes(b"{}")


def leftover_folder(folder: Path) -> None:
    (folder / "snapshots" / "snapshot_000007").mkdir()


def tolerated(folder: Path) -> None:
    (folder / "snapshots" / ".nfs000").write_text("")
    (folder / ".DS_Store").write_text("")
    (folder / "pins").mkdir(exist_ok=True)
    (folder / "pins" / "best.json").write_text("{}")


@pytest.mark.req("L-5", "V-11", "K-2")
@pytest.mark.parametrize("leave", [leftover_object, leftover_workspace, leftover_folder, tolerated])
def test_both_take_leftovers_for_good(
    golden: Path, tmp_path: Path, minireader: ModuleType, leave: Callable[[Path], None]
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(golden / "repository", folder)
    leave(folder)
    assert whole_by_snapfmt(folder)
    assert whole_by_second(minireader, folder)


Change = Callable[[dict[str, Any]], None]


def segments(index: dict[str, Any]) -> list[dict[str, Any]]:
    return [item for table in index["tables"] for item in table["segments"]]


def first(index: dict[str, Any], name: str) -> dict[str, Any]:
    """A column of the first segment that has it."""
    columns = [c for item in segments(index) for c in item["columns"] if c["name"] == name]
    found: dict[str, Any] = columns[0]
    return found


def other_dtype(index: dict[str, Any]) -> None:
    first(index, "float32")["dtype"] = "int32"


def unsigned(index: dict[str, Any]) -> None:
    first(index, "int16").update(dtype="uint16", physical="uint16")


def bits_of_the_same_width(index: dict[str, Any]) -> None:
    first(index, "float8_e5m2")["dtype"] = "float8_e4m3fn"


def other_kind(index: dict[str, Any]) -> None:
    column = first(index, "cell")
    column["kind"] = {"text": "value", "value": "text"}[column["kind"]]


def other_physical(index: dict[str, Any]) -> None:
    first(index, "int64")["physical"] = "int16"


def other_axes(index: dict[str, Any]) -> None:
    first(index, "int64")["ndim"] += 1


def renamed_column(index: dict[str, Any]) -> None:
    first(index, "int64")["name"] = "integers"


def swapped_columns(index: dict[str, Any]) -> None:
    columns = segments(index)[0]["columns"]
    columns[0], columns[1] = columns[1], columns[0]


def swapped_keys(index: dict[str, Any]) -> None:
    left, right = (
        item for item in segments(index) if item["rows"] == 4 and len(item["columns"]) == 4
    )
    for name in ("keys", "keys_digest"):
        left[name], right[name] = right[name], left[name]


def swapped_batches(index: dict[str, Any]) -> None:
    items = segments(index)
    for name in ("batches", "batches_digest"):
        items[0][name], items[1][name] = items[1][name], items[0][name]


def a_row_fewer(index: dict[str, Any]) -> None:
    table = index["tables"][-1]
    table["rows"] -= 1
    table["segments"][0]["live_rows"] -= 1


def more_logical_bytes(index: dict[str, Any]) -> None:
    segments(index)[0]["logical_bytes"] += 1


def shorter_data(index: dict[str, Any]) -> None:
    segments(index)[0]["data"]["size"] -= 64


def longer_head(index: dict[str, Any]) -> None:
    segments(index)[0]["head_size"] += 64


def past_the_end(index: dict[str, Any]) -> None:
    segments(index)[0]["keys"]["size"] += 2**40


def a_table_twice(index: dict[str, Any]) -> None:
    table = json.loads(json.dumps(index["tables"][0]))
    index["tables"][0]["segments"] += table["segments"]
    index["tables"][0]["rows"] *= 2


LIES: list[Change] = [
    other_dtype,
    unsigned,
    bits_of_the_same_width,
    other_kind,
    other_physical,
    other_axes,
    renamed_column,
    swapped_columns,
    swapped_keys,
    swapped_batches,
    a_row_fewer,
    more_logical_bytes,
    shorter_data,
    longer_head,
    past_the_end,
    a_table_twice,
]


def canonical(value: Any) -> bytes:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode() + b"\n"


def rewrite(folder: Path, change: Change, part: str = "types") -> None:
    """A hostile author's work: a part index that lies, with every digest above it in order."""
    path = folder / "snapshots/snapshot_000001/manifest.json"
    manifest = json.loads(path.read_bytes())
    (receipt,) = (item for item in manifest["parts"] if item["part"] == part)
    name = receipt["index_digest"][7:]
    index = json.loads((folder / "objects" / name[:2] / name).read_bytes())
    change(index)
    data = canonical(index)
    name = hashlib.sha256(data).hexdigest()
    (folder / "objects" / name[:2]).mkdir(exist_ok=True)
    (folder / "objects" / name[:2] / name).write_bytes(data)
    receipt.update(index_digest=f"sha256:{name}", index_size=len(data))
    said = {table["name"]: table["rows"] for table in index["tables"]}
    for table in receipt["tables"]:
        table["rows"] = said[table["name"]]
    del manifest["checksum"]
    digest = hashlib.sha256(canonical(manifest)).hexdigest()
    path.write_bytes(canonical({**manifest, "checksum": f"sha256:{digest}"}))


@pytest.mark.req("V-4", "V-10", "T-5", "T-6", "T-8", "T-15", "T-16")
@pytest.mark.parametrize("lie", LIES)
def test_both_see_through_a_part_index_that_lies(
    golden: Path, tmp_path: Path, minireader: ModuleType, lie: Change
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(golden / "repository", folder)
    rewrite(folder, lie)
    assert not whole_by_snapfmt(folder)
    assert not whole_by_second(minireader, folder)


def test_rewriting_without_a_lie_is_no_damage(
    golden: Path, tmp_path: Path, minireader: ModuleType
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(golden / "repository", folder)
    rewrite(folder, lambda index: index["entries"].reverse())
    assert whole_by_snapfmt(folder)
    assert whole_by_second(minireader, folder)


def test_exit_codes_of_the_second_reader(
    golden: Path, tmp_path: Path, run_minireader: Callable[..., Any]
) -> None:
    repository = str(golden / "repository")
    assert run_minireader("verify", repository).returncode == 0
    assert run_minireader("dump", repository, "9").returncode == 4
    assert run_minireader("dump", str(tmp_path)).returncode == 4
    assert run_minireader("unknown", repository).returncode == 2
    shutil.copytree(repository, tmp_path / "copy")
    rewrite(tmp_path / "copy", other_dtype)
    assert run_minireader("verify", str(tmp_path / "copy")).returncode == 3
    assert run_minireader("dump", str(tmp_path / "copy"), "1").returncode == 3
    manifest = tmp_path / "copy/snapshots/snapshot_000001/manifest.json"
    manifest.write_text('{"format_version": 2}')
    assert run_minireader("dump", str(tmp_path / "copy"), "1").returncode == 4
