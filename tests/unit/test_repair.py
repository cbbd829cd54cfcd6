"""A damaged repository becomes a new one with all that is whole, and every loss is told."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from snapfmt import Repository
from snapfmt.errors import (
    CommitConflict,
    FormatError,
    InputError,
    RefusedError,
    StorageError,
    StorageUnavailable,
    StoreNotFound,
    UnsupportedFeature,
)
from snapfmt.format import layout
from snapfmt.repair import Loss, RepairReport, repair
from snapfmt.repair.places import check_apart
from snapfmt.storage.local import LocalStore
from snapfmt.storage.memory import MemoryClient
from snapfmt.storage.objects import ObjectStore
from snapfmt.testing.corruption import Tree, flip, swap, truncate
from snapfmt.testing.forgery import seal
from snapfmt.testing.samples import RECIPE, all_contents, contents, save, save_on
from snapfmt.testing.stores import FaultyStore, WrappedStore, watching
from snapfmt.transfer import copy_snapshot, open_target
from snapfmt.writing import lease
from snapfmt.writing import table as table_module
from snapfmt.writing.attempt import Attempt
from snapfmt_schemas.part import Location, Segment

Saved = dict[int, dict[str, Any]]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Saved]:
    """Made once: three snapshots; the third holds what the first does. And what can be read."""
    repository = Repository.create(tmp_path_factory.mktemp("template") / "run")
    save(repository, value=1)
    save(repository, value=2)
    save_on(repository, 1, value=3)
    return Path(repository.location), all_contents(repository)


@pytest.fixture
def source(template: tuple[Path, Saved], tmp_path: Path) -> Repository:
    """A copy that a test may damage."""
    shutil.copytree(template[0], tmp_path / "run")
    return Repository.open(tmp_path / "run")


@pytest.fixture
def saved(template: tuple[Path, Saved]) -> Saved:
    return template[1]


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return tmp_path / "new"


def at(repository: Repository, key: str) -> Path:
    return Path(repository.location) / key


def packs(repository: Repository, number: int, part: str) -> list[Path]:
    index = repository.snapshot(number).part(part).index
    places = [entry.location for entry in index.entries]
    places += [item.data for table in index.tables for item in table.segments]
    return [at(repository, key) for key in sorted({layout.object_key(p.pack) for p in places})]


def spoil(repository: Repository, place: Location, offset: int = 0) -> None:
    flip(at(repository, layout.object_key(place.pack)), place.offset + offset)


def segment(repository: Repository, number: int = 1) -> Segment:
    (table,) = repository.snapshot(number).part("rl/tq/train").index.tables
    return table.segments[0]


def pieces_of(place: Path) -> Repository:
    repository = Repository.open(place, salvage=True)
    assert repository.verify().findings == []
    return repository


def same(new: Path, saved: Saved, numbers: list[int]) -> None:
    repository = Repository.open(new)
    assert repository.numbers() == numbers
    assert [item.severity for item in repository.verify().findings] in ([], ["leftover"])
    assert all_contents(repository) == {number: saved[number] for number in numbers}


def losses(report: RepairReport, number: int) -> list[tuple[str, str, int, tuple[str, ...]]]:
    (found,) = (item for item in report.snapshots if item.number == number)
    return [(item.kind, item.name, item.count, item.keys) for item in found.losses]


@pytest.mark.req("M-1", "M-3")
def test_all_that_is_whole_is_copied_byte_for_byte(
    source: Repository, saved: Saved, new: Path
) -> None:
    before = Tree.take(Path(source.location))
    report = repair(source.location, new)
    assert report.ok
    assert (report.whole, report.closed, report.unreached_objects) == ([1, 2, 3], None, 0)
    assert all(item.written and not item.moved for item in report.snapshots)
    same(new, saved, [1, 2, 3])
    assert Tree.take(Path(source.location)).files == before.files
    after = Tree.take(new).files
    assert after.keys() == before.files.keys()
    differs = {name for name in after if after[name] != before.files[name]}
    assert differs == {layout.REPOSITORY_KEY}
    target = Repository.open(new)
    assert target.id == source.id
    assert target.document.extensions["repair"]["of"] == source.id
    assert json.dumps(report.as_json())


@pytest.mark.req("M-3")
def test_a_second_run_goes_on(source: Repository, saved: Saved, new: Path) -> None:
    repair(source.location, new)
    manifest = new / layout.manifest_key(3)
    manifest.unlink()
    manifest.parent.rmdir()
    report = repair(source.location, new)
    assert [item.written for item in report.snapshots] == [False, False, True]
    same(new, saved, [1, 2, 3])


@pytest.mark.req("M-2", "M-4")
def test_damage_of_one_snapshot_leaves_the_others_whole(
    source: Repository, saved: Saved, new: Path
) -> None:
    flip(packs(source, 3, "own/3")[0], 66)
    report = repair(source.location, new)
    assert not report.ok
    assert (report.whole, report.numbers("pieces"), report.closed) == ([1, 2], [3], 4)
    assert losses(report, 3) == [("entry", "note", 1, ())]
    same(new, saved, [1, 2])
    # The number of what was lost is nobody else's.
    assert save(Repository.open(new)).number == 5


def test_damage_of_a_shared_object_harms_all_that_reach_it(
    source: Repository, saved: Saved, new: Path
) -> None:
    spoil(source, segment(source).data, 600)
    report = repair(source.location, new)
    assert (report.whole, report.numbers("pieces")) == ([2], [1, 3])
    same(new, saved, [2])


@pytest.mark.req("M-2")
def test_what_two_copies_have_together_is_whole(
    source: Repository, saved: Saved, new: Path, tmp_path: Path
) -> None:
    """Each tier lost another object, one of them of the same snapshot."""
    tier = open_target(tmp_path / "tier", source)
    for number in (1, 2, 3):
        copy_snapshot(source, tier, number)
    packs(source, 1, "rl/tq/train")[0].unlink()
    spoil(source, segment(source, 2).data, 600)
    truncate(packs(tier, 1, "gym/agent/a")[0], 90)
    truncate(at(tier, layout.manifest_key(3)), 100)
    alone = repair(source.location, tmp_path / "alone")
    assert alone.whole == []
    before = [Tree.take(Path(item.location)).files for item in (source, tier)]
    report = repair(source.location, new, also=[tier.location])
    assert report.ok
    assert report.others == []
    assert [item.moved for item in report.snapshots] == [1, 1, 1]
    same(new, saved, [1, 2, 3])
    assert [Tree.take(Path(item.location)).files for item in (source, tier)] == before


@pytest.mark.req("M-2")
def test_an_object_under_a_wrong_name_is_found(source: Repository, saved: Saved, new: Path) -> None:
    first, second = packs(source, 1, "rl/tq/train")[0], packs(source, 2, "rl/tq/train")[0]
    swap(first, second)
    packs(source, 2, "gym/agent/a")[0].rename(Path(source.location) / "found-by-fsck")
    report = repair(source.location, new)
    assert report.ok
    assert [item.moved for item in report.snapshots] == [1, 2, 1]
    same(new, saved, [1, 2, 3])


@pytest.mark.req("M-2")
def test_a_manifest_of_another_copy(
    source: Repository, saved: Saved, new: Path, tmp_path: Path
) -> None:
    tier = open_target(tmp_path / "tier", source)
    for number in (1, 2):
        copy_snapshot(source, tier, number)
    flip(at(source, layout.manifest_key(1)), 40)
    at(source, layout.manifest_key(2)).unlink()
    report = repair(source.location, new, also=[tier.location])
    assert report.ok
    same(new, saved, [1, 2, 3])


def test_another_snapshot_of_the_same_number_is_not_used(
    source: Repository, saved: Saved, new: Path, tmp_path: Path
) -> None:
    tier = Repository.open(tmp_path / "tier", create=True, repository_id=source.id)
    save(tier, value=9)
    report = repair(source.location, new, also=[tier.location])
    assert report.whole == [1, 2, 3]
    assert [text.partition(":")[0] for text in report.others] == ["snapshot 1"]
    same(new, saved, [1, 2, 3])


@pytest.mark.req("M-8")
def test_a_damaged_manifest_loses_the_snapshot(source: Repository, saved: Saved, new: Path) -> None:
    flip(at(source, layout.manifest_key(2)), 40)
    report = repair(source.location, new)
    assert (report.whole, report.numbers("lost")) == ([1, 3], [2])
    assert losses(report, 2) == [("snapshot", "snapshot_000002", 1, ())]
    assert report.unreached_objects == 4
    assert report.closed is None, "a later number is taken"
    same(new, saved, [1, 3])


@pytest.mark.req("M-8")
def test_a_manifest_that_is_gone_leaves_traces(source: Repository, saved: Saved, new: Path) -> None:
    at(source, layout.manifest_key(3)).unlink()
    report = repair(source.location, new)
    assert (report.whole, report.unpublished, report.closed) == ([1, 2], [3], 4)
    assert report.unreached_objects == 4
    same(new, saved, [1, 2])


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: flip(path, 9)])
def test_the_repository_document_is_made_anew(
    source: Repository, saved: Saved, new: Path, damage: Callable[[Path], None]
) -> None:
    damage(at(source, layout.REPOSITORY_KEY))
    report = repair(source.location, new)
    assert report.document
    assert report.whole == [1, 2, 3]
    same(new, saved, [1, 2, 3])
    assert Repository.open(new).id == source.id


@pytest.mark.req("M-4")
def test_what_was_retired_is_not_brought_back(
    source: Repository, saved: Saved, new: Path, tmp_path: Path
) -> None:
    tier = open_target(tmp_path / "tier", source)
    copy_snapshot(source, tier, 3)
    source.retire(3)
    report = repair(source.location, new, also=[tier.location])
    assert (report.whole, report.retired, report.closed) == ([1, 2], [3], 4)
    assert report.ok
    same(new, saved, [1, 2])


def test_what_is_retired_meanwhile_is_no_damage(
    source: Repository, saved: Saved, new: Path
) -> None:
    pack = packs(source, 3, "own/3")[0].name
    store: Any = watching(source, "get_range", pack, lambda: source.retire(3)).store
    report = repair(store, new)
    assert (report.whole, report.retired, report.ok) == ([1, 2], [3], True)
    same(new, saved, [1, 2])


@pytest.mark.req("M-5", "M-6")
def test_pieces_of_what_is_not_whole(
    source: Repository, saved: Saved, new: Path, tmp_path: Path
) -> None:
    place = tmp_path / "pieces"
    flip(packs(source, 1, "gym/agent/a")[0], 66)
    report = repair(source.location, new, pieces=place)
    assert (report.whole, report.pieces) == ([2], str(place))
    assert losses(report, 1) == losses(report, 3) == [("entry", "notes.txt", 1, ())]
    assert [item.salvaged for item in report.snapshots] == [True, False, True]
    found = pieces_of(place)
    assert found.id != source.id
    assert found.numbers() == [1, 3]
    for number in (1, 3):
        lacking = {"manifest", "gym/agent/a/notes.txt"}
        data = contents(found.snapshot(number))
        data.pop("manifest")
        assert data == {key: v for key, v in saved[number].items() if key not in lacking}
    manifest = found.snapshot(1).manifest
    assert manifest.features.read == ("salvage",)
    assert manifest.fingerprints == ()
    told = manifest.extensions["salvage"]
    assert told["write_id"] == source.snapshot(1).manifest.write_id
    assert told["fingerprints"] == {"recipe": RECIPE.digest}
    assert [item["name"] for item in told["losses"]] == ["notes.txt"]
    again = repair(source.location, new, pieces=place)
    assert [(item.salvaged, item.written) for item in again.snapshots] == [
        (True, False), (False, False), (True, False),
    ]  # fmt: skip


@pytest.mark.req("M-7")
def test_nothing_takes_pieces_for_a_whole(source: Repository, new: Path, tmp_path: Path) -> None:
    place = tmp_path / "pieces"
    flip(packs(source, 1, "gym/agent/a")[0], 66)
    repair(source.location, new, pieces=place)
    with pytest.raises(RefusedError, match="pieces of damaged snapshots"):
        Repository.open(place)
    found = Repository.open(place, salvage=True)
    refused: list[Callable[[], object]] = [
        found.latest,
        found.begin,
        found.collect,
        lambda: found.retire(1),
        lambda: found.keep_latest(1),
        lambda: found.pin("x", 1),
        lambda: found.latest(fingerprints=[RECIPE]),
        lambda: open_target(tmp_path / "copy", found),
        lambda: copy_snapshot(found, Repository.open(new), 1),
        lambda: repair(place, tmp_path / "again"),
        lambda: repair(source.location, tmp_path / "again", also=[place]),
    ]
    for call in refused:
        with pytest.raises(RefusedError):
            call()
    assert not (tmp_path / "copy").exists()
    assert not (tmp_path / "again").exists()
    assert pieces_of(place).numbers() == [1, 3]


def small_batches(patch: pytest.MonkeyPatch, rows: int) -> None:
    patch.setattr(table_module, "BATCH_ROWS", rows)


def in_batches(root: Path, patch: pytest.MonkeyPatch) -> Repository:
    """One snapshot of a table with twelve rows in batches of three, and one on it."""
    small_batches(patch, 3)
    repository = Repository.create(root)
    for base in (None, 1):
        with repository.begin(base=base) as attempt:
            part = attempt.part("rl/tq/train", workers=1)
            with part.table("rows") as table:
                if base:
                    table.carry_all(["k4"])
                else:
                    keys = [f"k{i}" for i in range(12)]
                    table.append(keys, {"x": [np.arange(i + 1) for i in range(12)]})
            attempt.publish([part.seal()])
    return repository


@pytest.mark.req("M-6", "M-8")
@pytest.mark.parametrize(
    ("what", "lost"),
    [
        ("batch", ["k3", "k5"]),
        ("head", []),
        ("keys", []),
        ("batches", [f"k{i}" for i in range(12) if i != 4]),
        ("live", None),
        ("keys and batch", None),
    ],
)
def test_rows_batch_by_batch(
    tmp_path: Path, new: Path, monkeypatch: pytest.MonkeyPatch, what: str, lost: list[str] | None
) -> None:
    source = in_batches(tmp_path / "run", monkeypatch)
    saved = all_contents(source)
    item = segment(source, 2)
    assert item.live is not None
    (reader,) = source.snapshot(2).part("rl/tq/train").segments("rows")
    place = reader.index.place(1)
    spoiled: dict[str, list[tuple[Location, int]]] = {
        "batch": [(item.data, place.chunks[1].offset + 3)],
        "head": [(item.data, 9)],
        "keys": [(item.keys, 9)],
        "batches": [(item.batches, 9)],
        "live": [(item.live, 0)],
        "keys and batch": [(item.keys, 9), (item.data, place.chunks[0].offset + 3)],
    }
    for at_, offset in spoiled[what]:
        spoil(source, at_, offset)
    report = repair(source.location, new, pieces=tmp_path / "pieces")
    truth = {f"k{i}" for i in range(12) if i != 4}
    (result,) = (one for one in report.snapshots if one.number == 2)
    told = [loss for loss in result.losses if loss.kind == "rows"]
    found: dict[str, Any] = {}
    if result.salvaged:
        found = contents(pieces_of(tmp_path / "pieces").snapshot(2))
        found.pop("manifest")
    assert found == {key: saved[2][key] for key in found}
    kept = {key.removeprefix("rows[").removesuffix("]") for key in found}
    assert sum(loss.count for loss in told) == len(truth) - len(kept)
    assert {loss.name for loss in told} <= {"rows"}
    assert result.kept.rows == len(kept)
    if lost is not None:
        assert sorted(key for loss in told for key in loss.keys) == sorted(lost)
        assert kept == truth - set(lost)
    elif what == "live":
        # Which rows are dead is not known, so none is given out.
        assert (kept, result.outcome) == (set(), "lost")
        assert report.whole == [1]
    else:
        assert kept == truth - {"k3", "k5"}
        assert all(loss.keys == () for loss in told)


@pytest.mark.req("M-6", "M-8")
def test_records_frame_by_frame(tmp_path: Path, new: Path) -> None:
    source = Repository.create(tmp_path / "run")
    lines = [json.dumps({"id": f"r{i}", "text": f"{i}" * 60_000}).encode() for i in range(12)]
    with source.begin() as attempt:
        part = attempt.part("p", workers=1)
        part.records("lines", lines, key="id")
        part.records("others", lines[:2], key="id")
        attempt.publish([part.seal()])
    entry = source.snapshot(1).part("p").entry("lines")
    places = source.snapshot(1).part("p").line_places(entry)
    bad = {place.key for place in places if place.frame_offset == places[6].frame_offset}
    assert 0 < len(bad) < 12
    spoil(source, entry.location, places[6].frame_offset + 20)
    spoil(source, source.snapshot(1).part("p").entry("others.index").location, 30)
    report = repair(source.location, new, pieces=tmp_path / "pieces")
    assert report.target == "", "nothing is whole"
    assert not new.exists()
    lost = tuple(place.key for place in places if place.key in bad)
    assert losses(report, 1) == [
        ("records", "lines", len(bad), lost),
        ("records", "others", 2, ()),
    ]
    part_ = pieces_of(tmp_path / "pieces").snapshot(1).part("p")
    kept = [line for i, line in enumerate(lines) if f"r{i}" not in bad]
    assert list(part_.lines("lines")) == kept
    keys = [place.key for place in part_.line_places(part_.entry("lines"))]
    assert keys == [f"r{i}" for i in range(12) if f"r{i}" not in bad]


@pytest.mark.req("M-8")
def test_a_part_whose_index_is_lost(source: Repository, new: Path, tmp_path: Path) -> None:
    digest = source.snapshot(2).part("rl/tq/train").receipt.index_digest
    at(source, layout.object_key(digest)).unlink()
    report = repair(source.location, new, pieces=tmp_path / "pieces")
    assert losses(report, 2) == [
        ("part", "rl/tq/train", 1, ()),
        ("rows", "rows/train", 3, ()),
    ]
    assert pieces_of(tmp_path / "pieces").snapshot(2).part_names() == ["gym/agent/a"]
    assert report.unreached_objects == 1


class BadSector(WrappedStore):
    """One block of one file cannot be read."""

    key = ""
    offset = 0

    def get_range(self, key: str, offset: int, size: int) -> bytes:
        if key == self.key and offset <= self.offset < offset + size:
            raise StorageError("storage failed: Input/output error", what=key)
        return self.inner.get_range(key, offset, size)


def test_a_sector_that_cannot_be_read(
    new: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = in_batches(tmp_path / "run", monkeypatch)
    item = segment(source).data
    store: Any = BadSector(LocalStore(Path(source.location)))
    store.key, store.offset = layout.object_key(item.pack), item.offset + item.size - 40
    report = repair(store, new, pieces=tmp_path / "pieces")
    lost = ("rows", "rows", 3, ("k9", "k10", "k11"))
    assert [losses(report, number) for number in (1, 2)] == [[lost], [lost]]
    found = pieces_of(tmp_path / "pieces").snapshot(1).table("rows")
    assert found.keys() == [f"k{i}" for i in range(9)]


def test_an_outage_is_no_damage(source: Repository, new: Path, tmp_path: Path) -> None:
    """Neither one that is over at the next request."""

    class Away(WrappedStore):
        asked = 0

        def get_range(self, key: str, offset: int, size: int) -> bytes:
            type(self).asked += 1
            if type(self).asked == 1:
                raise StorageUnavailable("no answer", what=key)
            return self.inner.get_range(key, offset, size)

    away: Any = Away(LocalStore(Path(source.location)))
    with pytest.raises(StorageUnavailable):
        repair(away, new, pieces=tmp_path / "pieces")
    shutil.copytree(source.location, tmp_path / "copy")
    packs(source, 2, "gym/agent/a")[0].unlink()
    away = Away(LocalStore(tmp_path / "copy"))
    Away.asked = 0
    with pytest.raises(StorageUnavailable):
        repair(source.location, new, also=[away], pieces=tmp_path / "pieces")
    assert not new.exists()
    assert not (tmp_path / "pieces").exists()


def test_a_snapshot_of_a_newer_version(source: Repository, saved: Saved, new: Path) -> None:
    path = at(source, layout.manifest_key(2))
    document = json.loads(path.read_bytes())
    document["features"]["read"] = ["from-the-future"]
    seal(path, document)
    report = repair(source.location, new)
    assert (report.whole, report.numbers("unknown"), report.ok) == ([1, 3], [2], False)
    assert "from-the-future" in report.snapshots[1].findings[0]
    same(new, saved, [1, 3])


@pytest.mark.req("M-1")
def test_places_that_are_not_empty_are_refused(
    source: Repository, new: Path, tmp_path: Path
) -> None:
    other = Repository.create(tmp_path / "other")
    tier = open_target(tmp_path / "tier", source)
    full = tmp_path / "full"
    full.mkdir()
    (full / "notes").write_text("mine")
    before = Tree.take(tmp_path).files
    for place in (other.location, tier.location, full):
        with pytest.raises(RefusedError, match="empty place"):
            repair(source.location, place)
        with pytest.raises(RefusedError, match="empty place"):
            repair(source.location, new, pieces=place)
    with pytest.raises(RefusedError, match="another repository"):
        repair(source.location, new, also=[other.location])
    with pytest.raises(StoreNotFound):
        repair(tmp_path / "nowhere", new)
    with pytest.raises(StoreNotFound):
        repair(full, new)
    assert Tree.take(tmp_path).files == before


@pytest.mark.req("M-1")
def test_places_are_apart(source: Repository, new: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(source.location)
    root = Path(source.location)
    for place in (root, root / "new", root.parent, link, link / "x", f"file://{root}"):
        with pytest.raises(InputError, match="apart"):
            repair(root, place)
        with pytest.raises(InputError, match="apart"):
            repair(root, new, pieces=place)
    with pytest.raises(InputError, match="apart"):
        repair(root, new, pieces=new)
    with pytest.raises(InputError, match="apart"):
        repair(root, new, also=[new])
    with pytest.raises(InputError, match="apart"):
        repair("s3://bucket/run", "s3://bucket/run/new?anon=true")
    check_apart([root, "s3://bucket/run"], [f"{root}-new", "s3://bucket/run2", "s3://other/run"])
    here, there = (f"s3://b/run?endpoint_url=http://{host}" for host in ("here", "there"))
    check_apart([here], [there])
    with pytest.raises(InputError, match="apart"):
        check_apart([here], ["s3a://b/run"])


def test_a_target_that_was_saved_into_is_refused(source: Repository, new: Path) -> None:
    repair(source.location, new)
    save(Repository.open(new), value=4)
    with pytest.raises(RefusedError, match="does not make"):
        repair(source.location, new)


def test_nobody_knows_whose_it_was(source: Repository, new: Path) -> None:
    at(source, layout.REPOSITORY_KEY).unlink()
    for number in (1, 2, 3):
        flip(at(source, layout.manifest_key(number)), 40)
    with pytest.raises(FormatError, match="whose it was"):
        repair(source.location, new)


def test_a_repository_that_needs_more_is_refused(source: Repository, new: Path) -> None:
    path = at(source, layout.REPOSITORY_KEY)
    document = json.loads(path.read_bytes())
    document["features"]["read"] = ["from-the-future"]
    seal(path, document)
    with pytest.raises(UnsupportedFeature):
        repair(source.location, new)


def test_pieces_of_another_snapshot_of_that_number_stay(
    source: Repository, new: Path, tmp_path: Path
) -> None:
    place = tmp_path / "pieces"
    flip(packs(source, 2, "gym/agent/a")[0], 66)
    repair(source.location, new, pieces=place)
    other = Repository.open(tmp_path / "other", create=True, repository_id=source.id)
    for value in (7, 8):
        save(other, value=value)
    flip(packs(other, 2, "gym/agent/a")[0], 66)
    with pytest.raises(CommitConflict):
        repair(other.location, tmp_path / "new2", pieces=place)


def test_from_a_bucket_and_into_one(source: Repository, saved: Saved) -> None:
    damaged, fresh, rest = (MemoryClient(name) for name in ("damaged", "fresh", "rest"))
    bucket = open_target(ObjectStore(damaged), source)
    for number in (1, 2, 3):
        copy_snapshot(source, bucket, number)
    key = layout.object_key(segment(source, 2).data.pack)
    damaged.delete(key)
    key = layout.object_key(source.snapshot(3).part("own/3").index.entries[0].location.pack)
    damaged.delete(key)
    before = damaged.content()
    report = repair(ObjectStore(damaged), ObjectStore(fresh), pieces=ObjectStore(rest))
    assert (report.whole, report.numbers("pieces"), report.closed) == ([1], [2, 3], 4)
    assert report.numbers("lost") == []
    assert damaged.content() == before
    target = Repository.open(ObjectStore(fresh))
    assert all_contents(target) == {1: saved[1]}
    assert not target.verify().damage
    assert save(target).number == 5
    found = Repository.open(ObjectStore(rest), salvage=True)
    assert found.verify().findings == []
    assert found.snapshot(2).part_names() == ["gym/agent/a"]
    loss = report.snapshots[1].losses[0]
    assert loss == Loss("rows", "rl/tq/train", "rows/train", 3, loss.reason)


def test_pieces_killed_in_a_bucket(
    source: Repository, new: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No name is closed by the next try, which needs the same one."""
    client = MemoryClient()
    flip(packs(source, 2, "gym/agent/a")[0], 66)
    killed: Any = FaultyStore(ObjectStore(client), errors={"publish": StorageError("killed")})
    with monkeypatch.context() as patch:
        # What a process leaves that dies here.
        patch.setattr(Attempt, "abandon", lambda _: None)
        with pytest.raises(StorageError, match="killed"):
            repair(source.location, new, pieces=killed)
    monkeypatch.setattr(lease, "is_dead", lambda _: True)
    report = repair(source.location, new, pieces=ObjectStore(client))
    assert report.snapshots[1].written
    found = Repository.open(ObjectStore(client), salvage=True)
    assert found.numbers() == [2]
    assert found.verify().findings == []


def test_the_longest_of_damaged_copies_is_used(
    source: Repository, new: Path, tmp_path: Path
) -> None:
    tier = open_target(tmp_path / "tier", source)
    copy_snapshot(source, tier, 2)
    (pack,) = packs(source, 2, "gym/agent/a")
    truncate(pack, 66)
    flip(at(tier, str(pack.relative_to(source.location))), 66)
    report = repair(source.location, new, also=[tier.location])
    assert losses(report, 2) == [("entry", "notes.txt", 1, ())]


def test_a_manifest_of_another_repository(source: Repository, new: Path, tmp_path: Path) -> None:
    other = Repository.create(tmp_path / "other")
    save(other, value=1)
    path = at(source, layout.manifest_key(1))
    path.write_bytes(at(other, layout.manifest_key(1)).read_bytes())
    report = repair(source.location, new)
    assert (report.whole, report.numbers("lost")) == ([2, 3], [1])
    assert "another repository" in report.snapshots[0].losses[0].reason


def test_keys_that_repeat_are_given_out_once(tmp_path: Path, new: Path) -> None:
    """Two parts wrote one key, which no save may do: nobody can say which row counts."""
    source = Repository.create(tmp_path / "run")
    with source.begin() as attempt:
        receipts = []
        for name in ("a", "b"):
            part = attempt.part(name)
            with part.table("t") as table:
                table.append(["k", name], {"x": [1, 2]})
            receipts.append(part.seal())
        attempt.publish(receipts)
    report = repair(source.location, new, pieces=tmp_path / "pieces")
    assert losses(report, 1) == [("rows", "t", 2, ("k", "b"))]
    assert pieces_of(tmp_path / "pieces").snapshot(1).table("t").keys() == ["k", "a"]
