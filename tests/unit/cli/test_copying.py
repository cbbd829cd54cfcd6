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
from snapfmt.errors import StorageFull
from snapfmt.storage.local import LocalStore
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
    assert (found["failed"], found["retired"], found["not_tried"]) == ([], [], [])
    assert "error" not in found
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


def test_all_goes_on_after_damage(snapfmt: Snapfmt, copy: str, damage: Callable[..., str]) -> None:
    repo = damage("table", 1)
    save(Repository.open(repo))
    snapfmt("cp", repo, copy, "--snapshot", "2")
    ran = snapfmt("cp", repo, copy, "--all")
    assert ran.code == 3
    assert Repository.open(copy).numbers() == [2, 3]
    lines = [line.split() for line in ran.out.splitlines()]
    for expected in (["copied", "3"], ["was", "there", "2"], ["failed", "1"]):
        assert expected in lines
    assert re.search(r"^ +1  FAILED ", ran.out, re.MULTILINE)
    assert re.search(r"^ +1  CorruptObject +the source's object differs", ran.out, re.MULTILINE)
    assert ran.err.startswith("snapfmt: snapshot 1: CorruptObject: the source's object differs")
    assert f"at the source {repo}" in ran.err


def test_all_tells_each_failure_and_ends_as_the_worst(
    snapfmt: Snapfmt, copy: str, damage: Callable[..., str]
) -> None:
    repo = damage("table", 2)
    source = Repository.open(repo)
    save(source)
    snapfmt("cp", repo, copy, "--snapshot", "1")
    target = Repository.open(copy)
    # Number 3 is another's there.
    with target.begin(number=3) as attempt:
        part = attempt.part("p")
        part.stage("x", b"x")
        attempt.publish([part.seal()])
    ran = snapfmt("cp", repo, copy, "--all", "--json")
    assert ran.code == 3
    found = json.loads(ran.out)
    assert found["ok"] is False
    assert [(item["number"], item["published"]) for item in found["snapshots"]] == [(1, False)]
    assert [(item["number"], item["code"]) for item in found["failed"]] == [
        (2, "CorruptObject"),
        (3, "CommitConflict"),
    ]
    assert found["failed"][0]["hint"].endswith(f"at the source {repo}")
    assert found["failed"][1]["hint"].endswith(f"at the target {copy}")
    assert found["error"]["code"] == "CorruptObject"
    assert [line.split(": ")[1] for line in ran.err.splitlines()] == ["snapshot 2", "snapshot 3"]


def test_all_does_not_go_on_when_the_storage_is_gone(
    snapfmt: Snapfmt, repo: str, copy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def full(_: LocalStore, workspace: str, name: str) -> Any:
        tried.append(workspace)
        raise StorageFull("no space left", what=name)

    monkeypatch.setattr(LocalStore, "sink", full)
    ran = snapfmt("cp", repo, copy, "--all", "--json", "--workers", "1")
    assert ran.code == 1
    found = json.loads(ran.out)
    assert [item["number"] for item in found["failed"]] == [1]
    assert found["not_tried"] == [2]
    assert len(tried) == 1
    assert "snapfmt: not tried: 2" in ran.err
    assert re.search(r"^ +2  not tried ", snapfmt("cp", repo, copy, "--all").out, re.MULTILINE)


def test_all_passes_over_what_is_retired_meanwhile(
    snapfmt: Snapfmt, repo: str, copy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = Repository.numbers
    monkeypatch.setattr(Repository, "numbers", lambda self: [*numbers(self), 7])
    ran = snapfmt("cp", repo, copy, "--all")
    assert ran.code == 0
    assert ran.err == "snapfmt: snapshot 7 was retired at the source meanwhile\n"
    assert re.search(r"^ +7  retired ", ran.out, re.MULTILINE)


def test_one_that_is_asked_for_fails_as_before(
    snapfmt: Snapfmt, copy: str, damage: Callable[..., str]
) -> None:
    ran = snapfmt("cp", damage("table"), copy, "--snapshot", "2", "--json")
    assert ran.code == 3
    assert json.loads(ran.out).keys() == {"ok", "error"}


def test_an_error_says_which_side(snapfmt: Snapfmt, repo: str, copy: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    assert "at the source" in snapfmt("cp", str(file), copy).err
    assert "at the target" in snapfmt("cp", repo, str(file)).err


STUCK = """
import sys, threading
import snapfmt.storage.urls
from snapfmt.cli import main
from snapfmt.storage.memory import MemoryClient
from snapfmt.storage.objects import ObjectStore
from snapfmt.storage.urls import open_store
from snapfmt.testing.stores import WrappedStore
from snapfmt.transfer import parallel

# What an error has; an interrupt must not wait for it.
parallel._PATIENCE_S = 3600.0

def stick(*_):
    sys.stderr.write("stuck\\n")
    sys.stderr.flush()
    threading.Event().wait()

class Stuck(WrappedStore):
    def __getattribute__(self, name):
        return stick if name in sys.argv[2] else super().__getattribute__(name)

def open_it(location, **options):
    if str(location).startswith("s3://"):
        return Stuck(ObjectStore(MemoryClient()))
    return open_store(location, **options)

snapfmt.storage.urls.open_store = open_it
sys.exit(main(["push", sys.argv[1], "s3://bucket/run"]))
"""


@pytest.mark.parametrize("calls", ["sink delete", "prepare delete", "publish", "size"])
def test_an_interrupt_of_a_stuck_push(
    interrupt_stuck: Callable[..., None], repo: str, calls: str
) -> None:
    interrupt_stuck(STUCK, repo, calls)


@pytest.mark.parametrize("command", ["push", "pull", "cp"])
def test_help_says_where_credentials_come_from(snapfmt: Snapfmt, command: str) -> None:
    ran = snapfmt(command, "--help")
    for word in (
        "AWS_ACCESS_KEY_ID",
        "AWS_PROFILE",
        "AWS_ENDPOINT_URL",
        "?endpoint_url=",
        "3, then",
    ):
        assert word in ran.out


def test_help_says_what_a_repository_is(snapfmt: Snapfmt) -> None:
    assert "folder or URL (s3://bucket/prefix)" in snapfmt("verify", "--help").out
    said = " ".join(snapfmt("cp", "--help").out.split())
    assert said.count("folder or URL (s3://bucket/prefix)") == 2


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
