"""What this library cannot read is unknown to the audit: no damage, and nothing to delete."""

import hashlib
import json
import threading
from pathlib import Path

import numpy as np

from snapfmt import Repository
from snapfmt.cli import main
from snapfmt.reading import verify as audit


def save(repository: Repository, value: int, *, part: str = "p") -> int:
    attempt = repository.begin()
    with attempt.part(part) as writer:
        with writer.table("t") as table:
            table.append(["a"], {"x": [np.arange(value)]})
        attempt.publish([writer.seal()])
    return attempt.number


def need_feature(path: Path) -> None:
    value = json.loads(path.read_bytes())
    value["features"]["read"] = ["from-the-future"]
    value.pop("checksum")
    text = json.dumps(value, sort_keys=True, separators=(",", ":")) + "\n"
    value["checksum"] = "sha256:" + hashlib.sha256(text.encode()).hexdigest()
    path.write_text(json.dumps(value, sort_keys=True, separators=(",", ":")) + "\n")


def test_objects_of_a_snapshot_from_the_future_are_no_leftovers(tmp_path, capsys):
    repository = Repository.open(tmp_path, create=True)
    save(repository, 3)
    save(repository, 4)
    need_feature(tmp_path / "snapshots" / "snapshot_000002" / "manifest.json")
    report = repository.verify()
    assert not report.ok
    assert not report.damage
    assert {item.rule for item in report.findings} == {"unsupported", "unreached"}
    assert main(["verify", str(tmp_path)]) == 4
    capsys.readouterr()


def test_a_snapshot_that_is_published_meanwhile_leaves_no_leftovers(tmp_path, monkeypatch):
    repository = Repository.open(tmp_path, create=True)
    save(repository, 3)
    original = audit._Audit.objects

    def publish_then_go_on(self):
        thread = threading.Thread(target=save, args=(Repository.open(tmp_path), 5))
        thread.start()
        thread.join()
        original(self)

    monkeypatch.setattr(audit._Audit, "objects", publish_then_go_on)
    report = repository.verify()
    assert report.findings == []
    assert report.snapshots == [1]


def test_a_key_in_two_parts_is_found(tmp_path):
    repository = Repository.open(tmp_path, create=True)
    attempt = repository.begin()
    receipts = []
    for part in ("one", "two"):
        writer = attempt.part(part)
        with writer.table("t") as table:
            table.append(["a"], {"x": [np.arange(2)]})
        receipts.append(writer.seal())
    attempt.publish(receipts)
    report = repository.verify()
    assert [item.rule for item in report.damage] == ["format"]
    assert "a key repeats" in report.damage[0].message
