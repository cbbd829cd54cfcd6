"""The audit: what it counts, what it tells apart, and what only it can find."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from snapfmt import Repository
from snapfmt.errors import FormatError
from snapfmt.format import jsonl, layout
from snapfmt.reading.verify import verify
from snapfmt.testing.corruption import flip
from snapfmt.testing.forgery import forge, seal
from snapfmt.testing.samples import save, save_on
from snapfmt.writing import table as table_module


def rules(repository: Repository, **kwargs: Any) -> dict[str, str]:
    return {item.path: item.rule for item in repository.verify(**kwargs).findings}


def test_a_clean_repository(repository: Repository) -> None:
    assert repository.verify().ok
    save(repository, value=1)
    seen: list[tuple[int, str]] = []
    report = repository.verify(progress=lambda size, what: seen.append((size, what)))
    assert report.findings == []
    assert report.bytes == sum(size for size, _ in seen)
    stored = sum(path.stat().st_size for path in Path(repository.location).rglob("objects/*/*"))
    assert report.bytes >= stored, "every stored byte was hashed"
    assert json.dumps(report.as_json())


def test_leftovers_are_no_damage(repository: Repository) -> None:
    save(repository, value=1)
    attempt = repository.begin()
    part = attempt.part("p")
    part.stage("x", b"data")
    part.seal()
    root = Path(repository.location)
    (root / "snapshots/snapshot_000009").mkdir()
    report = repository.verify()
    assert report.ok
    assert {item.severity for item in report.findings} == {"leftover"}
    attempt.abandon()


def test_an_object_that_nothing_reaches_is_a_leftover_if_it_is_itself(
    repository: Repository,
) -> None:
    attempt = repository.begin()
    part = attempt.part("p")
    part.stage("x", b"data")
    part.seal()
    attempt.publish([])
    root = Path(repository.location)
    objects = sorted(str(path.relative_to(root)) for path in root.rglob("objects/*/*"))
    assert rules(repository) == dict.fromkeys(objects, "leftover")
    flip(root / objects[0], 30)
    assert rules(repository)[objects[0]] == "misplaced"
    assert not repository.verify().ok


def test_a_manifest_that_is_not_canonical_is_found(repository: Repository) -> None:
    save(repository, value=1)
    path = Path(repository.location) / layout.manifest_key(1)
    document = json.loads(path.read_bytes())
    path.write_text(json.dumps(document, indent=1))
    assert repository.snapshot().number == 1
    assert rules(repository) == {layout.manifest_key(1): "format"}


@pytest.mark.parametrize("field", ["entries", "records", "tables"])
def test_a_receipt_that_says_more_than_its_part_holds_is_found(
    repository: Repository, field: str
) -> None:
    save(repository, value=1)
    path = Path(repository.location) / layout.manifest_key(1)
    document = json.loads(path.read_bytes())
    for receipt in document["parts"]:
        if field == "tables":
            for table in receipt["tables"]:
                table["rows"] += 1
        else:
            receipt[field] += 1
    seal(path, document)
    for deep in (True, False):
        damage = repository.verify(deep=deep).damage
        assert damage
        assert all("receipt" in item.message for item in damage)


def test_parts_that_were_exchanged_are_found(repository: Repository) -> None:
    """Each index is intact and of this very attempt, and belongs to the other part."""
    save(repository, value=1)
    path = Path(repository.location) / layout.manifest_key(1)
    document = json.loads(path.read_bytes())
    first, second = document["parts"]
    for field in set(first) - {"part", "attempt_id"}:
        first[field], second[field] = second[field], first[field]
    seal(path, document)
    for name in ("gym/agent/a", "rl/tq/train"):
        with pytest.raises(FormatError, match="part index is that of"):
            repository.snapshot().part(name).entries()
    assert len(repository.verify(deep=False).damage) == 2


def test_two_claims_about_the_same_bytes_are_both_checked(repository: Repository) -> None:
    """The second one must not hide behind the first."""
    save(repository, value=1)

    def edit(index: dict[str, Any], packs: dict[str, bytearray]) -> None:
        entry = dict(index["entries"][0])
        index["entries"].append(entry | {"path": "again.jsonl", "media_type": "x/y"})

    forge(Path(repository.location), 1, "gym/agent/a", edit)
    assert {item.rule for item in repository.verify().damage} == {"format"}, "the receipt's count"

    def lie(index: dict[str, Any], packs: dict[str, bytearray]) -> None:
        index["entries"][-1]["media_type"] = "application/vnd.snapfmt.jsonl+zstd"

    forge(Path(repository.location), 1, "gym/agent/a", lie)
    assert any("again.jsonl" in item.message for item in repository.verify().damage)


def test_a_key_that_repeats_is_found(repository: Repository) -> None:
    save(repository, value=1)

    def edit(index: dict[str, Any], packs: dict[str, bytearray]) -> None:
        (table,) = index["tables"]
        table["segments"].append(table["segments"][0])
        table["rows"] += table["segments"][0]["live_rows"]

    forge(Path(repository.location), 1, "rl/tq/train", edit)
    assert any("a key repeats" in item.message for item in repository.verify().damage)


def test_arrow_metadata_that_contradicts_the_index_is_found(repository: Repository) -> None:
    """Readers that know only Arrow must see the same rows."""
    save(repository, value=1)
    root = Path(repository.location)
    segment = repository.snapshot().table("rows/train").segments()[0]
    place = segment.index.place(0)

    def edit(index: dict[str, Any], packs: dict[str, bytearray]) -> None:
        (table,) = index["tables"]
        for item in table["segments"]:
            if item["batches_digest"] == segment.document.batches_digest:
                start = item["data"]["offset"] + place.offset
                pack = packs[item["data"]["pack"]]
                pack[start + place.header_size - 12] ^= 1

    forge(root, 1, "rl/tq/train", edit)
    assert repository.snapshot().table("rows/train").num_rows == 3
    assert any("batch header" in item.message for item in repository.verify().damage)
    # A writer's mistake is in what was hashed when it was written.
    hashed = repository.verify(decode=False)
    assert (hashed.deep, hashed.decoded, hashed.damage) == (True, False, [])
    assert hashed.bytes == sum(size for _, size in repository.store.walk(layout.OBJECTS))


@pytest.mark.parametrize("number", [0, 1, 5, 12])
def test_damage_is_found_in_each_batch_of_those_that_are_read_together(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(table_module, "BATCH_ROWS", 3)
    with repository.begin() as attempt:
        part = attempt.part("p", workers=1)
        with part.table("rows") as table:
            table.append([f"k{i}" for i in range(39)], {"x": [np.arange(i) for i in range(39)]})
        attempt.publish([part.seal()])
    assert repository.verify().findings == []
    (segment,) = repository.snapshot().table("rows").segments()
    place, data = segment.index.place(number), segment.document.data
    path = Path(repository.location) / layout.object_key(data.pack)
    flip(path, data.offset + place.chunks[1].offset + 3)
    found = [item.message for item in repository.verify().damage]
    assert any(f"batch {number} column x" in message for message in found), found


def test_one_snapshot_alone(repository: Repository) -> None:
    save(repository, value=1)
    save(repository, value=2)
    assert repository.verify(1).snapshots == [1]
    assert repository.verify().snapshots == [1, 2]
    report = repository.verify(7)
    assert not report.ok
    assert {item.rule for item in report.findings} == {"missing"}
    snapshots = [repository.snapshot(1), 2]
    assert verify(repository.store, snapshots).snapshots == [1, 2]


@pytest.mark.req("V-10")
def test_what_snapshots_share_harms_each_of_them(repository: Repository) -> None:
    """Also where the object is intact, and what lies in it breaks the format."""
    with repository.begin() as attempt:
        part = attempt.part("p")
        part.stage("lines", b"no frames", media_type=jsonl.MEDIA_TYPE)
        attempt.publish([part.seal()])
    save_on(repository, 1)
    found = {item.snapshots for item in repository.verify().damage}
    assert found == {(1,), (2,)}
