"""`snapfmt repair`: what it says, and how it ends."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from snapfmt import Repository
from snapfmt.format import layout
from snapfmt.testing.corruption import flip

Snapfmt = Callable[..., Any]
BLOCK = re.MULTILINE | re.DOTALL


@pytest.fixture
def spoiled(repo: str) -> str:
    """The text `notes.txt` of snapshot 2 lost a bit."""
    entry = Repository.open(repo).snapshot(2).part("gym/agent/swe-0").entry("notes.txt")
    flip(Path(repo) / layout.object_key(entry.location.pack), entry.location.offset)
    return repo


def test_all_is_whole(snapfmt: Snapfmt, repo: str, tmp_path: Path) -> None:
    ran = snapfmt("repair", repo, str(tmp_path / "new"))
    assert (ran.code, ran.err) == (0, "")
    assert "  whole      1 2" in ran.out.splitlines()
    assert "Lost" not in ran.out
    assert snapfmt("verify", str(tmp_path / "new")).code == 0


@pytest.mark.req("M-8")
def test_what_is_lost_is_told(snapfmt: Snapfmt, spoiled: str, tmp_path: Path) -> None:
    ran = snapfmt("repair", spoiled, str(tmp_path / "new"))
    assert ran.code == 3
    assert "--pieces PLACE" in ran.err
    (line,) = (text.split() for text in ran.out.splitlines() if "notes.txt" in text)
    assert line[:6] == ["2", "gym/agent/swe-0", "entry", "notes.txt", "1", "-"]
    place = str(tmp_path / "pieces")
    found = snapfmt("repair", spoiled, str(tmp_path / "new"), "--pieces", place, "--json")
    assert found.code == 3
    assert (found.json["ok"], found.json["closed"]) == (False, 3)
    assert [item["outcome"] for item in found.json["snapshots"]] == ["whole", "pieces"]
    (loss,) = found.json["snapshots"][1]["losses"]
    assert (loss["kind"], loss["name"], loss["count"]) == ("entry", "notes.txt", 1)


@pytest.mark.req("M-7")
def test_pieces_are_looked_at_and_nothing_else(
    snapfmt: Snapfmt, spoiled: str, tmp_path: Path
) -> None:
    place = str(tmp_path / "pieces")
    snapfmt("repair", spoiled, str(tmp_path / "new"), "--pieces", place)
    looks = (
        ("ls", place),
        ("show", place, "2"),
        ("report", place, "2"),
        ("tree", place, "2"),
        ("cat", place, "2", "gym/agent/swe-0/continuations.jsonl"),
        ("rows", place, "2", "rows/train"),
        ("verify", place),
    )
    for look in looks:
        ran = snapfmt(*look)
        assert "no snapshot here is whole" in ran.err, look
        assert ran.code == (4 if look[0] == "report" else 0), look
    for command in (
        ("gc", place),
        ("retain", place, "--keep-latest", "1"),
        ("pin", place, "2", "best"),
        ("cp", place, str(tmp_path / "copy")),
        ("repair", place, str(tmp_path / "again")),
    ):
        ran = snapfmt(*command)
        assert (ran.code, "pieces of damaged snapshots" in ran.err) == (4, True), command


def test_two_copies_together(snapfmt: Snapfmt, spoiled: str, tmp_path: Path) -> None:
    other = str(tmp_path / "other")
    snapfmt("cp", spoiled, other, "--snapshot", "1")
    mended = snapfmt("repair", spoiled, str(tmp_path / "new"), "--also", other)
    assert mended.code == 3, "the other copy has no snapshot 2"
    refused = snapfmt("repair", spoiled, other)
    assert (refused.code, "empty place" in refused.err) == (4, True)
    missing = snapfmt("repair", str(tmp_path / "nowhere"), str(tmp_path / "x"))
    assert missing.code == 4
    inside = snapfmt("repair", spoiled, f"{spoiled}/new")
    assert (inside.code, "apart" in inside.err) == (1, True)


def test_the_commands_of_the_front_page(
    snapfmt: Snapfmt, spoiled: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(spoiled).parent)
    snapfmt("cp", "run7", "copy", "--snapshot", "1")
    (block,) = re.findall(
        r"^```bash title=\"a repair\"\n(.*?)^```$", (root / "README.md").read_text("utf-8"), BLOCK
    )
    lines = [line.partition("#")[0].split()[1:] for line in block.splitlines()]
    assert [line[0] for line in lines] == ["verify", "repair", "show"]
    codes = [snapfmt(*(w.replace("s3://bucket/run7", "copy") for w in line)).code for line in lines]
    assert codes == [3, 3, 0]
