"""push, pull and cp: what they say, and how they end."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from snapfmt import Repository
from snapfmt.cli.command import UsageError
from snapfmt.cli.copying import Options, run_pull, run_push
from snapfmt.cli.output import Console
from snapfmt.testing.samples import save

Snapfmt = Callable[..., Any]


@pytest.fixture
def copy(tmp_path: Path) -> str:
    """Where nothing is yet."""
    return str(tmp_path / "copy")


def test_cp_copies_the_newest(snapfmt: Snapfmt, repo: str, copy: str) -> None:
    ran = snapfmt("cp", repo, copy)
    assert (ran.code, ran.err) == (0, "")
    assert f"  target  {copy}" in ran.out.splitlines()
    assert re.search(r"^ +2  copied +4 +0 +[\d.]+ KiB +0 B +\d+\.\d\d$", ran.out, re.MULTILINE)
    assert Repository.open(copy).numbers() == [2]
    assert snapfmt("verify", copy).code == 0
    again = snapfmt("cp", repo, copy)
    assert again.code == 0
    assert re.search(r"^ +2  was there +0 +0 +0 B ", again.out, re.MULTILINE)


def test_cp_all(snapfmt: Snapfmt, repo: str, copy: str) -> None:
    found = snapfmt("cp", repo, copy, "--all", "--json").json
    assert found["ok"] is True
    assert found["source"]["location"] == repo
    assert found["target"] == {"location": copy, "id": found["source"]["id"]}
    assert [item["number"] for item in found["snapshots"]] == [1, 2]
    assert all(item["published"] for item in found["snapshots"])
    (first, _) = found["snapshots"]
    assert first.keys() == {
        "number",
        "write_id",
        "published",
        "objects_sent",
        "objects_skipped",
        "bytes_sent",
        "bytes_skipped",
        "seconds",
    }
    assert first["write_id"] == Repository.open(repo).snapshot(1).manifest.write_id
    assert Repository.open(copy).numbers() == [1, 2]


@pytest.mark.parametrize("name", ["1", "snapshot_000001"])
def test_one_by_its_name(snapfmt: Snapfmt, repo: str, copy: str, name: str) -> None:
    found = snapfmt("cp", repo, copy, "--snapshot", name, "--workers", "1", "--json").json
    assert [item["number"] for item in found["snapshots"]] == [1]


def test_deep_mends(snapfmt: Snapfmt, repo: str, copy: str, damage: Callable[..., str]) -> None:
    snapfmt("cp", repo, copy)
    good, bad = copy, damage("table")
    assert snapfmt("verify", bad).code == 3
    assert snapfmt("cp", good, bad).code == 0
    assert snapfmt("verify", bad).code == 3
    (report,) = snapfmt("cp", good, bad, "--deep", "--json").json["snapshots"]
    assert (report["published"], report["objects_sent"]) == (False, 1)
    assert snapfmt("verify", bad).code == 0


def test_exit_codes(
    snapfmt: Snapfmt, repo: str, copy: str, empty: str, tmp_path: Path, damage: Callable[..., str]
) -> None:
    assert snapfmt("cp", repo, copy, "--snapshot", "9").code == 4
    assert snapfmt("cp", empty, copy).code == 4
    assert snapfmt("cp", empty, copy, "--all").code == 4
    assert snapfmt("cp", str(tmp_path / "nowhere"), copy).code == 4
    # None of them made anything.
    assert not Path(copy).exists()
    refused = snapfmt("cp", repo, empty, "--json")
    assert refused.code == 4
    assert json.loads(refused.out or refused.err)["error"]["code"] == "Refused"
    snapfmt("cp", repo, copy, "--snapshot", "1")
    other = Repository.open(copy)
    save(other)
    conflict = snapfmt("cp", repo, copy)
    assert conflict.code == 1
    assert "another snapshot of this number" in conflict.err
    assert snapfmt("cp", damage("table"), str(tmp_path / "third")).code == 3
    assert Repository.open(tmp_path / "third").numbers() == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["cp", "a"],
        ["cp", "a", "b", "--all", "--snapshot", "1"],
        ["cp", "a", "b", "--snapshot", "x"],
        ["cp", "a", "b", "--workers", "0"],
        ["cp", "a", "b", "--workers", "-1"],
        ["push", "a", "b"],
        ["push", "s3://x/a", "s3://x/b"],
        ["pull", "a", "b"],
        ["pull", "s3://x/a", "s3://x/b"],
    ],
)
def test_wrong_usage(snapfmt: Snapfmt, arguments: list[str]) -> None:
    ran = snapfmt(*arguments)
    assert ran.code == 2
    assert ran.out == ""


def test_the_hint_of_wrong_usage() -> None:
    console = Console(as_json=False)
    options = Options("a", "b", None, every=False, deep=False, workers=1)
    for run in (run_push, run_pull):
        with pytest.raises(UsageError, match="see cp"):
            run(options, console)
