"""cat and rows: bytes and values come out as they went in."""

import base64
import importlib.util
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from snapfmt import Repository
from snapfmt.cli import cells, main
from snapfmt.writing.lines import PreparedLine

Snapfmt = Callable[..., Any]
PART = "gym/agent/swe-0"
LINES = [json.dumps({"key": f"r{n}", "text": "x" * n}).encode() for n in range(20)]
BINARY = bytes(range(256)) * 8


def raw(capture: pytest.CaptureFixture[bytes], *arguments: str) -> bytes:
    """stdout of a run as bytes."""
    capture.readouterr()
    assert main(list(arguments)) == 0
    return capture.readouterr().out


def test_cat_gives_the_bytes(repo: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert raw(capfdbinary, "cat", repo, "latest", f"{PART}/notes.txt") == b"hello\n"
    for separator in "/:":
        target = f"{PART}{separator}state/blob.bin"
        assert raw(capfdbinary, "cat", repo, "1", target) == BINARY


def test_cat_decompresses_records(repo: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    target = f"{PART}/continuations.jsonl"
    assert raw(capfdbinary, "cat", repo, "2", target) == b"".join(line + b"\n" for line in LINES)
    one = raw(capfdbinary, "cat", repo, "2", target, "--record", "r13")
    assert one == LINES[13] + b"\n"
    stored = Repository.open(repo).snapshot(2).part(PART).stored("continuations.jsonl")
    assert raw(capfdbinary, "cat", repo, "2", target, "--raw") == stored


def test_cat_json(snapfmt: Snapfmt, repo: str) -> None:
    text = snapfmt("cat", repo, "1", f"{PART}/notes.txt", "--json").json
    assert (text["encoding"], text["content"], text["part"]) == ("utf-8", "hello\n", PART)
    assert (text["media_type"], text["size"]) == ("text/plain", 6)
    blob = snapfmt("cat", repo, "1", f"{PART}/state/blob.bin", "--json").json
    assert base64.b64decode(blob["content"]) == BINARY
    records = snapfmt("cat", repo, "1", f"{PART}/continuations.jsonl", "--json").json
    assert records["records"] == [json.loads(line) for line in LINES]
    target = f"{PART}/continuations.jsonl"
    one = snapfmt("cat", repo, "1", target, "--record", "r3", "--json").json
    assert one["records"] == [json.loads(LINES[3])]


@pytest.mark.parametrize(
    "target",
    ["nowhere/x", f"{PART}/absent.txt", f"{PART}", "x:y", f"{PART}:absent.txt", f"{PART}/"],
)
def test_cat_of_nothing(snapfmt: Snapfmt, repo: str, target: str) -> None:
    ran = snapfmt("cat", repo, "1", target)
    assert (ran.code, ran.out) == (4, "")
    assert ran.err.startswith("snapfmt: NoMatch: ")


@pytest.mark.parametrize("target", [PART, f"{PART}/"])
def test_cat_of_a_part_lists_its_entries(snapfmt: Snapfmt, repo: str, target: str) -> None:
    ran = snapfmt("cat", repo, "1", target)
    assert (ran.code, ran.out) == (4, "")
    assert "this is a part; name one of its entries" in ran.err
    for path in ("notes.txt", "state/blob.bin", "continuations.jsonl"):
        assert path in ran.err
    assert "no such part" not in ran.err
    assert "it has no entries" in snapfmt("cat", repo, "1", "tq/unit-0").err


def test_cat_of_a_record_that_is_not_there(snapfmt: Snapfmt, repo: str) -> None:
    target = f"{PART}/continuations.jsonl"
    assert snapfmt("cat", repo, "1", target, "--record", "nope").code == 4
    assert snapfmt("cat", repo, "1", f"{PART}/notes.txt", "--record", "r1").code == 4
    assert snapfmt("cat", repo, "1", target, "--record", "r1", "--raw").code == 2


def test_a_path_that_two_parts_could_mean_is_asked_back(snapfmt: Snapfmt, tmp_path: Path) -> None:
    repository = Repository.open(tmp_path / "r", create=True)
    attempt = repository.begin()
    outer, inner = attempt.part("a"), attempt.part("a/b")
    outer.stage("b/c", b"outer")
    inner.stage("c", b"inner")
    attempt.publish([outer.seal(), inner.seal()])
    ran = snapfmt("cat", repository.location, "1", "a/b/c")
    assert ran.code == 2
    assert "a:b/c or a/b:c" in ran.err
    assert snapfmt("cat", repository.location, "1", "a:b/c").out == "outer"
    assert snapfmt("cat", repository.location, "1", "a/b:c").out == "inner"


def test_rows_preview(snapfmt: Snapfmt, repo: str) -> None:
    ran = snapfmt("rows", repo, "latest", "rows/train", "--keys", "k3", "k0")
    assert ran.code == 0
    blocks = re.split(r"^(?=\S)", ran.out, flags=re.MULTILINE)[1:]
    assert [block.splitlines()[0] for block in blocks] == ["k3", "k0"]
    assert re.search(
        r"^  ids +int64\[100\] +\[3, 4, 5, \.\.\., 100, 101, 102\]$", blocks[0], re.MULTILINE
    )
    assert re.search(r"^  logp +float32\[3\] +\[0\.75, 0\.75, 0\.75\]$", blocks[0], re.MULTILINE)
    assert re.search(
        r"^  image +uint8\[2,3\] +\[\[0, 0, 0\], \[0, 0, 0\]\]$", blocks[0], re.MULTILINE
    )
    assert re.search(r'^  note +text +"row 3"$', blocks[0], re.MULTILINE)
    assert re.search(r"^  raw +bytes +20 bytes (03){16}\.\.\.$", blocks[0], re.MULTILINE)
    assert re.search(r'^  extra +value +\{"t":\{"\$tuple":\[1,3\]\}\}$', blocks[0], re.MULTILINE)
    assert "extra" not in blocks[1]


def test_rows_json_lines_are_whole(snapfmt: Snapfmt, repo: str) -> None:
    ran = snapfmt("rows", repo, "2", "rows/train", "--keys", "k3", "k0", "--json")
    third, zeroth = ran.lines
    assert ran.code == 0
    assert (third["key"], zeroth["key"]) == ("k3", "k0")
    assert third["values"]["ids"] == {
        "kind": "ndarray",
        "dtype": "int64",
        "shape": [100],
        "data": list(range(3, 103)),
    }
    assert third["values"]["image"]["data"] == [[0, 0, 0], [0, 0, 0]]
    assert third["values"]["note"] == {"kind": "text", "data": "row 3"}
    assert base64.b64decode(third["values"]["raw"]["base64"]) == b"\x03" * 20
    assert third["values"]["extra"]["tagged"] == {"t": {"$tuple": [1, 3]}}
    assert "extra" not in zeroth["values"]


def keys_of(snapfmt: Snapfmt, repo: str, *arguments: str) -> list[str]:
    """Keys that a choice of rows gives."""
    ran = snapfmt("rows", repo, "2", "rows/train", "--json", "--columns", "note", *arguments)
    assert ran.code == 0
    return [line["key"] for line in ran.lines]


def test_choosing_rows(snapfmt: Snapfmt, repo: str) -> None:
    order = Repository.open(repo).snapshot(2).table("rows/train").keys()
    assert sorted(order) == sorted(f"k{n}" for n in range(24))
    assert keys_of(snapfmt, repo) == order[:10]
    assert keys_of(snapfmt, repo, "--limit", "0") == order
    assert keys_of(snapfmt, repo, "--limit", "3") == order[:3]
    assert keys_of(snapfmt, repo, "--start", "10", "--stop", "15") == order[10:15]
    assert keys_of(snapfmt, repo, "--start", "-4") == order[-4:]
    assert keys_of(snapfmt, repo, "--start", "10", "--limit", "2") == order[10:12]
    assert keys_of(snapfmt, repo, "--start", "100") == []
    some = ["k9", "k2", "k5"]
    assert keys_of(snapfmt, repo, "--keys", *some) == some
    assert keys_of(snapfmt, repo, "--keys", *some, "--limit", "2") == some[:2]


def test_what_the_limit_leaves_out_is_said(snapfmt: Snapfmt, repo: str) -> None:
    assert "10 of 24 rows" in snapfmt("rows", repo, "2", "rows/train").err
    assert snapfmt("rows", repo, "2", "rows/train", "--limit", "24").err == ""
    ran = snapfmt("rows", repo, "2", "rows/train", "--start", "24")
    assert (ran.code, ran.out, ran.err) == (0, "", "snapfmt: no rows\n")


def test_choosing_columns(snapfmt: Snapfmt, repo: str) -> None:
    arguments = ("rows", repo, "2", "rows/train", "--json", "--limit", "1", "--columns")
    (line,) = snapfmt(*arguments, "note,ids").lines
    assert list(line["values"]) == ["note", "ids"]
    (line,) = snapfmt(*arguments, "note", "--columns", "logp").lines
    assert list(line["values"]) == ["note", "logp"]
    assert snapfmt(*arguments, "absent").code == 4


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["rows/absent"], 4),
        (["rows/train", "--keys", "absent"], 4),
        (["rows/train", "--keys", "k1", "--start", "0"], 2),
        (["rows/train", "--limit", "-1"], 2),
        (["rows/train", "--limit", "many"], 2),
        (["rows/train", "--format", "arrow"], 2),
        (["rows/train", "--out", "x"], 2),
        (["rows/train", "--format", "csv", "--out", "x"], 2),
    ],
)
def test_rows_that_cannot_be(snapfmt: Snapfmt, repo: str, arguments: list[str], code: int) -> None:
    ran = snapfmt("rows", repo, "1", *arguments)
    assert ran.code == code
    assert ran.out == ""


def test_rows_of_different_types(snapfmt: Snapfmt, repo: str, tmp_path: Path) -> None:
    lines = {line["key"]: line for line in snapfmt("rows", repo, "1", "rows/mixed", "--json").lines}
    assert lines["a"]["values"]["value"]["data"] == [1.5]
    assert lines["b"]["values"]["value"]["data"] == "text"
    target = tmp_path / "mixed.arrow"
    arguments = ("rows", repo, "1", "rows/mixed", "--format", "arrow", "--out", str(target))
    ran = snapfmt(*arguments)
    assert ran.code == 4
    assert "different types" in ran.err
    assert list(tmp_path.glob("*mixed*")) == []
    assert snapfmt(*arguments, "--columns", "plain").code == 0
    assert target.exists()


def test_an_arrow_file_holds_all_rows(snapfmt: Snapfmt, repo: str, tmp_path: Path) -> None:
    target = tmp_path / "rows.arrow"
    arguments = ("rows", repo, "1", "rows/train", "--format", "arrow", "--out", str(target))
    ran = snapfmt(*arguments, "--columns", "ids,note", "--json")
    assert ran.code == 0
    assert (ran.json["rows"], ran.json["columns"]) == (24, ["__key__", "ids", "note"])
    with pa.memory_map(str(target)) as source:
        table = pa.ipc.open_file(source).read_all()
        rows = {row["__key__"]: row for row in table.to_pylist()}
    assert len(rows) == 24
    assert rows["k5"]["note"] == "row 5"
    assert rows["k5"]["ids"] == list(range(5, 105))
    assert re.search(r"^  rows  2$", snapfmt(*arguments, "--keys", "k1", "k2").out, re.MULTILINE)
    assert [path.name for path in tmp_path.glob("*.arrow*")] == ["rows.arrow"]


def test_an_arrow_file_that_cannot_be_written(snapfmt: Snapfmt, repo: str, tmp_path: Path) -> None:
    target = str(tmp_path / "absent" / "rows.arrow")
    ran = snapfmt("rows", repo, "1", "rows/train", "--format", "arrow", "--out", target)
    assert ran.code == 1
    assert ran.err == f"snapfmt: Storage: no such folder: {target!r}\n"
    long = str(tmp_path / ("n" * 300))
    ran = snapfmt("rows", repo, "1", "rows/train", "--format", "arrow", "--out", long)
    assert ran.code == 1
    assert long in ran.err
    assert ".tmp" not in ran.err
    folder = str(tmp_path / "folder")
    (tmp_path / "folder").mkdir()
    ran = snapfmt("rows", repo, "1", "rows/train", "--format", "arrow", "--out", folder, "--json")
    assert (ran.code, ran.json["error"]["code"], ran.json["error"]["what"]) == (
        1,
        "Storage",
        folder,
    )
    assert ".tmp" not in ran.err
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".tmp")] == []


def test_a_key_that_two_parts_hold_is_refused(snapfmt: Snapfmt, tmp_path: Path) -> None:
    repository = Repository.open(tmp_path / "r", create=True)
    attempt = repository.begin()
    receipts = []
    for name, keys in (("a", ["x", "y"]), ("b", ["y", "z"])):
        part = attempt.part(name)
        with part.table("t") as table:
            table.append(keys=keys, columns={"n": [np.int64(1), np.int64(2)]})
        receipts.append(part.seal())
    attempt.publish(receipts)
    ran = snapfmt("rows", repository.location, "1", "t", "--keys", "y")
    assert (ran.code, ran.out) == (3, "")
    assert ran.err.startswith("snapfmt: FormatError: key 'y' comes twice")


def test_values_that_json_lacks(snapfmt: Snapfmt, tmp_path: Path) -> None:
    repository = Repository.open(tmp_path / "r", create=True)
    attempt = repository.begin()
    part = attempt.part("p")
    odd = (b'{"v":NaN}', b'{"v":-Infinity}')
    part.records("odd.jsonl", [PreparedLine(line, "") for line in odd])
    with part.table("t") as table:
        table.append(
            keys=["x\x1b[2J\n"],
            columns={"f": [np.array([np.nan, np.inf, -np.inf])], "a,b\x07": ["bell\x07\u202e"]},
        )
    attempt.publish([part.seal()])
    where = repository.location
    ran = snapfmt("rows", where, "1", "t", "--json")
    (line,) = ran.lines
    assert line["key"] == "x\x1b[2J\n"
    assert line["values"]["f"]["data"] == ["NaN", "Infinity", "-Infinity"]
    assert line["values"]["a,b\x07"]["data"] == "bell\x07\u202e"
    text = snapfmt("rows", where, "1", "t", "--columns", "a,b\x07").out
    assert text.startswith("x\\x1b[2J\\n\n  a,b\\x07  text")
    assert not set("\x1b\x07\u202e") & set(text)
    assert snapfmt("cat", where, "1", "p/odd.jsonl", "--json").json["records"] == [
        {"v": "NaN"},
        {"v": "-Infinity"},
    ]


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_dtypes_that_numpy_lacks_are_decoded_and_marked(snapfmt: Snapfmt, tmp_path: Path) -> None:
    import torch

    repository = Repository.open(tmp_path / "r", create=True)
    attempt = repository.begin()
    part = attempt.part("p")
    values = torch.tensor([0.5, -1.75, 0.0])
    with part.table("t") as table:
        table.append(
            keys=["k"],
            columns={
                "b": [values.bfloat16()],
                "e": [values.to(torch.float8_e4m3fn)],
                "f": [values.double()],
            },
        )
    attempt.publish([part.seal()])
    (line,) = snapfmt("rows", repository.location, "1", "t", "--json").lines
    for name in "be":
        assert line["values"][name]["data"] == [0.5, -1.75, 0.0]
        assert line["values"][name]["decoded"] is True
    assert "decoded" not in line["values"]["f"]
    text = snapfmt("rows", repository.location, "1", "t").out
    assert re.search(r"^  b +bfloat16\[3\] \(decoded\) +\[0\.5, -1\.75, 0\.\]$", text, re.MULTILINE)
    assert re.search(r"^  f +float64\[3\] +\[", text, re.MULTILINE)


def test_previews_stay_on_one_line() -> None:
    assert cells.preview_array(np.float32(1) * np.ones((), np.float32)) == "1.0"
    assert cells.preview_array(np.empty((0, 3))) == "[]"
    big = cells.preview_array(np.random.default_rng(1).random((9, 9, 9)))
    assert len(big) == cells.WIDTH
    assert "\n" not in big
    text = cells.Cell("text", "", "line\nline" * 100).preview()
    assert "\n" not in text
    assert len(text) <= cells.WIDTH
