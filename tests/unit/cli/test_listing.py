"""ls, show, tree, attempts, version: what they say of a sound repository."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from snapfmt import FORMAT_VERSION, Attempt, Repository, __version__

Snapfmt = Callable[..., Any]


def test_ls_has_a_line_for_each_snapshot(snapfmt: Snapfmt, repo: str) -> None:
    ran = snapfmt("ls", repo)
    head, first, second = ran.out.splitlines()
    assert ran.code == 0
    assert ran.err == ""
    assert head.split() == (
        [
            "NUMBER",
            "CREATED",
            "PARTS",
            "TABLES",
            "ROWS",
            "LOGICAL",
            "STORED",
            "BASE",
            "FINGERPRINTS",
        ]
    )
    assert re.match(r" +1  \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ +2 +2 +26 ", first)
    assert re.search(r" -  topology:[0-9a-f]{12}$", first)
    assert re.search(r" 1  topology:[0-9a-f]{12}$", second)


def test_ls_json(snapfmt: Snapfmt, repo: str) -> None:
    found = snapfmt("ls", repo, "--json").json
    assert found["ok"] is True
    assert found["repository"]["location"] == repo
    assert found["attempts"] == []
    first, second = found["snapshots"]
    manifest = Repository.open(repo).snapshot(2).manifest
    assert (first["number"], first["base"], second["base"]) == (1, None, 1)
    assert second["name"] == "snapshot_000002"
    assert second["created_at_ns"] == manifest.created_at_ns
    assert second["stored_bytes"] == sum(part.stored_bytes for part in manifest.parts)
    assert second["logical_bytes"] == sum(
        table.logical_bytes for part in manifest.parts for table in part.tables
    )
    assert (second["parts"], second["tables"], second["rows"], second["records"]) == (2, 2, 26, 20)
    assert second["fingerprints"] == {"topology": manifest.fingerprints[0].digest}


def test_ls_of_nothing(snapfmt: Snapfmt, empty: str) -> None:
    ran = snapfmt("ls", empty)
    assert (ran.code, ran.out) == (0, "no snapshot was published\n")
    assert snapfmt("ls", empty, "--json").json["snapshots"] == []


def test_an_unfinished_attempt_is_seen(snapfmt: Snapfmt, repo: str) -> None:
    attempt = Repository.open(repo).begin()
    ran = snapfmt("ls", repo)
    assert ran.code == 0
    assert "Unfinished attempts" in ran.out
    assert attempt.id in ran.out
    (found,) = snapfmt("attempts", repo, "--json").json["attempts"]
    assert found["attempt_id"] == attempt.id
    assert (found["state"], found["number"], found["pid"]) == ("running", 3, os.getpid())
    assert attempt.id in snapfmt("attempts", repo).out
    attempt.abandon()
    assert snapfmt("attempts", repo).out == "no unfinished attempts\n"
    assert snapfmt("attempts", repo, "--json").json == {"ok": True, "attempts": []}


def test_an_attempt_that_ran_out_says_so(snapfmt: Snapfmt, repo: str) -> None:
    attempt = Repository.open(repo).begin(lease_seconds=0.0)
    (found,) = snapfmt("attempts", repo, "--json").json["attempts"]
    assert found["state"] == "expired"
    attempt.abandon()


def test_an_attempt_whose_outcome_nobody_knew_is_settled_later(
    snapfmt: Snapfmt, repo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two whose owners were told that the outcome is unknown, one was published."""
    monkeypatch.setattr(Attempt, "_close", lambda _: None)
    first = Repository.open(repo).begin()
    with first.part("p") as part:
        first.publish([part.seal()])
    second = Repository.open(repo).begin()
    found = snapfmt("attempts", repo, "--json").json["attempts"]
    assert [(item["attempt_id"], item["state"]) for item in found] == [
        (first.id, "published"),
        (second.id, "running"),
    ]


def test_an_attempt_of_a_dead_process_says_so(snapfmt: Snapfmt, repo: str) -> None:
    code = f"import os, snapfmt; snapfmt.Repository.open({repo!r}).begin(); os._exit(0)"
    subprocess.run([sys.executable, "-c", code], check=True)
    (found,) = snapfmt("attempts", repo, "--json").json["attempts"]
    assert found["state"] == "dead"


def test_looking_changes_nothing(snapfmt: Snapfmt, repo: str) -> None:
    def state() -> dict[str, tuple[int, int]]:
        return {
            str(path): (path.stat().st_size, path.stat().st_mtime_ns)
            for path in Path(repo).rglob("*")
        }

    Repository.open(repo).begin(lease_seconds=0.0)
    before = state()
    for command in ("ls", "show", "tree", "verify", "attempts"):
        assert snapfmt(command, repo).code == 0
    assert state() == before


def test_show_says_everything(snapfmt: Snapfmt, repo: str) -> None:
    ran = snapfmt("show", repo)
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert lines[0] == "snapshot_000002"
    assert re.search(r"^  base +snapshot 1, write id [0-9a-f]{32}$", ran.out, re.MULTILINE)
    assert re.search(r"^gym/agent/swe-0 +4 +20 +1 +24 ", ran.out, re.MULTILINE)
    assert re.search(
        r"^rows/train +24 +\d+ +[\d.]+ KiB +[\d.]+ KiB +\d+\.\d\dx$", ran.out, re.MULTILINE
    )
    assert re.search(r"^rows/train +ids +ndarray int64 1d$", ran.out, re.MULTILINE)
    assert re.search(
        r"^rows/mixed +value +(ndarray float64 1d \| text|text \| ndarray.*)$",
        ran.out,
        re.MULTILINE,
    )
    assert re.search(r"^Fingerprint topology sha256:[0-9a-f]{64}$", ran.out, re.MULTILINE)
    assert re.search(r"^  world.size +8$", ran.out, re.MULTILINE)
    assert re.search(r"^  train_step +7$", ran.out, re.MULTILINE)
    assert "Timeline of the save" in lines
    assert re.search(r"^hold +gym +\+0.0 ms +12.5 ms +trainer +rollouts=4$", ran.out, re.MULTILINE)
    assert re.search(r"^encode +- +\+0.0 ms +2.00 s +- +-$", ran.out, re.MULTILINE)
    assert re.search(r"^  run.name +night$", ran.out, re.MULTILINE)


def test_stored_text_cannot_talk_to_the_terminal(snapfmt: Snapfmt, repo: str) -> None:
    ran = snapfmt("show", repo)
    assert "\x1b" not in ran.out
    assert r"odd\x1b[31m" in ran.out


def test_show_json_holds_the_manifest(snapfmt: Snapfmt, repo: str) -> None:
    found = snapfmt("show", repo, "--json").json
    assert found["ok"] is True
    assert found["number"] == 2
    manifest = Repository.open(repo).snapshot(2).manifest
    assert found["manifest"] == json.loads(manifest.model_dump_json())
    mixed, train = found["tables"]
    assert (mixed["name"], train["name"]) == ("rows/mixed", "rows/train")
    assert train["rows"] == 24
    assert train["ratio"] == round(train["logical_bytes"] / train["stored_bytes"], 4)
    assert {"name": "ids", "types": ["ndarray int64 1d"]} in train["columns"]


@pytest.mark.parametrize(
    ("name", "number"),
    [("1", 1), ("snapshot_000001", 1), ("2", 2), ("latest", 2), ("000001", 1), ("snapshot_2", 2)],
)
def test_ways_to_name_a_snapshot(snapfmt: Snapfmt, repo: str, name: str, number: int) -> None:
    for command in ("show", "tree"):
        assert snapfmt(command, repo, name, "--json").json["number"] == number
    assert snapfmt("verify", repo, name, "--json").json["snapshots"] == [number]


def test_tree_draws_what_there_is(snapfmt: Snapfmt, repo: str) -> None:
    ran = snapfmt("tree", repo, "1")
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert lines[0] == "snapshot_000001"
    assert re.match(r"├── gym/agent/swe-0 +part, [\d.]+ KiB$", lines[1])
    assert re.match(r"│   ├── notes.txt +6 B, text/plain$", lines[2])
    assert re.match(r"│   ├── state/blob.bin +2.0 KiB, application/octet-stream$", lines[3])
    assert any(re.match(r"│   ├── continuations.jsonl +.*, 20 records, ", line) for line in lines)
    assert any(re.match(r"│   └── rows/train +.*, 24 rows, table$", line) for line in lines)
    assert any(re.match(r"│       [├└]── segment 0 +.* rows, 6 columns$", line) for line in lines)
    assert any(re.match(r"└── tq/unit-0 ", line) for line in lines)


def test_tree_json(snapfmt: Snapfmt, repo: str) -> None:
    found = snapfmt("--json", "tree", repo).json
    first, second = found["parts"]
    assert [entry["path"] for entry in first["entries"]] == [
        "notes.txt",
        "state/blob.bin",
        "continuations.jsonl",
        "continuations.jsonl.index",
    ]
    assert first["entries"][0]["size"] == 6
    (table,) = first["tables"]
    assert sum(segment["live_rows"] for segment in table["segments"]) == table["rows"] == 24
    assert second["part"] == "tq/unit-0"


def test_version(snapfmt: Snapfmt) -> None:
    ran = snapfmt("version")
    assert ran.code == 0
    assert re.search(rf"^  snapfmt +{re.escape(__version__)}$", ran.out, re.MULTILINE)
    found = snapfmt("version", "--json").json
    assert (found["version"], found["format_version"]) == (__version__, FORMAT_VERSION)
    assert found["packages"]["numpy"]
    assert snapfmt("--version").out == f"snapfmt {__version__} (format {FORMAT_VERSION})\n"


def test_text_is_the_same_on_every_run(snapfmt: Snapfmt, repo: str) -> None:
    for command in (["ls", repo], ["show", repo], ["tree", repo], ["verify", repo]):
        assert snapfmt(*command).out == snapfmt(*command).out
