"""gc, retain, pin, unpin, pins: what they say, and how they end."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from snapfmt import Repository
from snapfmt.format import layout

Snapfmt = Callable[..., Any]


def lose(repo: str) -> int:
    """Objects of a save whose lease and workspace are lost; returns their bytes."""
    repository = Repository.open(repo)
    before = dict(repository.store.walk(layout.OBJECTS))
    attempt = repository.begin()
    part = attempt.part("lost")
    part.stage("note", b"n" * 100)
    part.seal()
    repository.store.drop_workspace(layout.workspace_key(attempt.id))
    repository.store.delete(layout.lease_key(attempt.id))
    after = dict(repository.store.walk(layout.OBJECTS))
    return sum(size for key, size in after.items() if key not in before)


def files(repo: str) -> set[str]:
    return {str(path) for path in Path(repo).rglob("*")}


def test_gc_tells_what_would_go_and_then_removes_it(snapfmt: Snapfmt, repo: str) -> None:
    lost = lose(repo)
    before = files(repo)
    dry = snapfmt("gc", repo, "--dry-run")
    assert (dry.code, dry.err) == (0, "")
    assert "would go  reached by nothing" in dry.out
    assert files(repo) == before
    ran = snapfmt("gc", repo)
    assert (ran.code, ran.err) == (0, "")
    lines = [line.split("  ") for line in ran.out.splitlines()]
    assert any("removed" in line and f"{lost} B" in [c.strip() for c in line] for line in lines)
    assert "reached by a published snapshot" in ran.out
    assert len(before - files(repo)) == 2
    assert snapfmt("verify", repo).code == 0


def test_gc_json(snapfmt: Snapfmt, repo: str) -> None:
    lost = lose(repo)
    dry = snapfmt("gc", repo, "--dry-run", "--json").json
    found = snapfmt("gc", repo, "--json").json
    assert {**dry, "dry_run": False} == found
    assert found["removed"] == [{"reason": "reached by nothing", "objects": 2, "bytes": lost}]
    assert found["removed_bytes"] == lost
    assert sum(item["size"] for item in found["objects"]) == lost
    assert (found["attempts"], found["finished"], found["waiting"]) == ([], [], [])
    assert [item["reason"] for item in found["kept"]] == ["reached by a published snapshot"]
    again = snapfmt("gc", repo, "--json").json
    assert (again["removed"], again["removed_bytes"]) == ([], 0)


def test_gc_refuses_what_it_cannot_read(snapfmt: Snapfmt, repo: str) -> None:
    lose(repo)
    (Path(repo) / "snapshots/snapshot_000001/manifest.json").write_bytes(b"{}")
    before = files(repo)
    ran = snapfmt("gc", repo, "--json")
    assert (ran.code, ran.json["error"]["code"]) == (4, "Refused")
    assert files(repo) == before


def test_gc_of_an_empty_one(snapfmt: Snapfmt, empty: str) -> None:
    ran = snapfmt("gc", empty)
    assert ran.code == 0
    assert "Objects" not in ran.out


def test_retain(snapfmt: Snapfmt, repo: str) -> None:
    dry = snapfmt("retain", repo, "--keep-latest", "1", "--dry-run")
    assert dry.code == 0
    assert dry.out.split()[:4] == ["would", "be", "retired", "1"]
    assert Repository.open(repo).numbers() == [1, 2]
    found = snapfmt("retain", repo, "--keep-latest", "1", "--json").json
    assert found == {"ok": True, "dry_run": False, "retired": [1], "published": [2]}
    again = snapfmt("retain", repo, "--keep-latest", "1")
    assert again.out.split()[:2] == ["retired", "none"]


@pytest.mark.parametrize("count", ["0", "-1", "x", "1.5"])
def test_at_least_one_snapshot_stays(snapfmt: Snapfmt, repo: str, count: str) -> None:
    assert snapfmt("retain", repo, "--keep-latest", count).code == 2
    assert snapfmt("retain", repo).code == 2
    assert Repository.open(repo).numbers() == [1, 2]


def test_pins(snapfmt: Snapfmt, repo: str) -> None:
    assert snapfmt("pins", repo).out.strip() == "no pins"
    ran = snapfmt("pin", repo, "1", "best")
    assert (ran.code, ran.out) == (0, "best pins snapshot 1\n")
    assert snapfmt("pin", repo, "latest", "new", "--json").json == {
        "ok": True,
        "name": "new",
        "number": 2,
    }
    assert [line.split() for line in snapfmt("pins", repo).out.splitlines()] == [
        ["NAME", "NUMBER"],
        ["best", "1"],
        ["new", "2"],
    ]
    kept = snapfmt("retain", repo, "--keep-latest", "1", "--json").json
    assert kept["retired"] == []
    assert snapfmt("unpin", repo, "best").code == 0
    assert snapfmt("pins", repo, "--json").json["pins"] == [{"name": "new", "number": 2}]
    assert snapfmt("retain", repo, "--keep-latest", "1", "--json").json["retired"] == [1]


def test_pins_that_cannot_be(snapfmt: Snapfmt, repo: str) -> None:
    assert snapfmt("pin", repo, "7", "x").code == 4
    assert snapfmt("unpin", repo, "x").code == 4
    assert snapfmt("pin", repo, "1", "a/b").code == 1
    snapfmt("pin", repo, "1", "x")
    assert snapfmt("pin", repo, "2", "x").code == 1
    (Path(repo) / "pins/bad.json").write_bytes(b"{}")
    assert snapfmt("pins", repo).code == 4
