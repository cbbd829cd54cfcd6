"""A save that goes on with rows and entries of its base writes only what is new."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from snapfmt import MISSING, Repository
from snapfmt.errors import (
    AttemptClosed,
    InputError,
    LeaseExpired,
    NoMatch,
    NotFoundError,
    NotPublished,
    RefusedError,
)
from snapfmt.format import layout
from snapfmt.reading.snapshot import Snapshot
from snapfmt.storage.memory import MemoryClient
from snapfmt.storage.objects import ObjectStore
from snapfmt.testing.samples import contents
from snapfmt.testing.stores import WrappedStore
from snapfmt.transfer import copy_snapshot, open_target
from snapfmt.writing import carry
from snapfmt.writing import table as table_module
from snapfmt.writing.table import TableWriter
from snapfmt_schemas.manifest import Manifest

ROWS = 200


def row(number: int, version: int = 0) -> dict[str, Any]:
    random = np.random.default_rng(number * 1000 + version)
    return {
        "ids": random.integers(0, 1 << 40, 50),
        "text": f"row {number} {version}",
        "rare": number if number % 3 else MISSING,
    }


def append(table: TableWriter, numbers: Iterable[int], version: int = 0) -> None:
    rows = {f"k{number}": row(number, version) for number in numbers}
    names = ["ids", "text", "rare"]
    table.append(list(rows), {name: [item[name] for item in rows.values()] for name in names})


def save(
    repository: Repository, fill: Callable[[TableWriter], object], base: int | None = None
) -> Manifest:
    with repository.begin(base=base) as attempt:
        part = attempt.part("p")
        with part.table("t") as table:
            fill(table)
        return attempt.publish([part.seal()])


@pytest.fixture
def based(repository: Repository) -> Repository:
    """One snapshot of several batches."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_module, "BATCH_BYTES", 4000)
        save(repository, lambda table: append(table, range(ROWS)))
    assert len(repository.snapshot().table("t").segments()[0].index) > 10
    return repository


def rows(snapshot: Snapshot) -> dict[str, Any]:
    table = snapshot.table("t")
    keys = table.keys()
    return {key: table.row(key) for key in keys}


def check(repository: Repository, expected: dict[str, tuple[int, int]]) -> None:
    """The newest snapshot holds these rows, every one of them, and is whole."""
    snapshot = Repository.open(repository.location).snapshot()
    found = rows(snapshot)
    assert sorted(found) == sorted(expected)
    for key, (number, version) in expected.items():
        want = {name: value for name, value in row(number, version).items() if value is not MISSING}
        assert found[key].keys() == want.keys()
        assert all(np.array_equal(found[key][name], want[name]) for name in want), key
    report = repository.verify()
    assert not report.damage, report.findings


def first(numbers: Iterable[int]) -> dict[str, tuple[int, int]]:
    return {f"k{number}": (number, 0) for number in numbers}


def test_rows_that_stay_are_not_written_again(based: Repository) -> None:
    whole = based.snapshot().manifest.parts[0]

    def fill(table: TableWriter) -> None:
        assert [item.rows for item in table.base_segments()] == [ROWS]
        table.carry(0)
        append(table, range(ROWS, ROWS + 2))

    manifest = save(based, fill, base=1)
    check(based, first(range(ROWS + 2)))
    assert manifest.base is not None
    assert manifest.base.number == 1
    assert manifest.parts[0].tables[0].rows == ROWS + 2
    assert manifest.parts[0].stored_bytes < whole.stored_bytes / 10
    old, new = based.snapshot().table("t").segments()
    assert old.document == based.snapshot(1).table("t").segments()[0].document
    assert new.rows == 2


@pytest.mark.parametrize(
    "keep",
    [
        lambda: np.arange(ROWS) % 3 > 0,
        lambda: [number for number in range(ROWS) if number % 3],
        lambda: np.array([number for number in range(ROWS) if number % 3], np.uint16)[::-1],
    ],
)
def test_rows_may_be_chosen_by_mask_or_position(based: Repository, keep: Callable[[], Any]) -> None:
    save(based, lambda table: table.carry(0, keep()), base=1)
    check(based, first(number for number in range(ROWS) if number % 3))
    (segment,) = based.snapshot().table("t").segments()
    assert segment.document.rows == ROWS
    assert segment.document.data == based.snapshot(1).table("t").segments()[0].document.data


def test_a_selection_of_a_selection_counts_live_rows(based: Repository) -> None:
    save(based, lambda table: table.carry(0, np.arange(ROWS) >= 20), base=1)
    save(based, lambda table: table.carry(0), base=2)
    check(based, first(range(20, ROWS)))
    save(based, lambda table: table.carry(0, np.arange(ROWS - 20) >= 30), base=3)
    check(based, first(range(50, ROWS)))


def test_a_row_that_changed_takes_the_place_of_the_old_one(based: Repository) -> None:
    def fill(table: TableWriter) -> None:
        table.carry_all(without=["k7", "k100", "unknown"])
        append(table, [7], version=1)

    save(based, fill, base=1)
    check(based, {**first(n for n in range(ROWS) if n != 100), "k7": (7, 1)})


def test_a_segment_of_which_few_rows_stay_is_rewritten(based: Repository) -> None:
    keep = np.arange(ROWS) < ROWS // 2 - 1
    save(based, lambda table: table.carry(0, keep), base=1)
    check(based, first(range(ROWS // 2 - 1)))
    (segment,) = based.snapshot().table("t").segments()
    assert segment.document.rows == ROWS // 2 - 1
    assert segment.document.live is None
    based.retire(1)
    check(based, first(range(ROWS // 2 - 1)))


def test_a_segment_that_died_in_steps_is_rewritten_with_the_right_rows(
    based: Repository,
) -> None:
    save(based, lambda table: table.carry(0, np.arange(ROWS) % 4 > 0), base=1)
    left = [number for number in range(ROWS) if number % 4]
    keep = np.arange(len(left)) % 3 > 1
    save(based, lambda table: table.carry(0, keep), base=2)
    check(based, first(number for number, stays in zip(left, keep, strict=True) if stays))
    assert based.snapshot().table("t").segments()[0].document.live is None


def test_half_of_the_rows_are_enough_to_stay(based: Repository) -> None:
    save(based, lambda table: table.carry(0, np.arange(ROWS) < ROWS // 2), base=1)
    check(based, first(range(ROWS // 2)))
    assert based.snapshot().table("t").segments()[0].document.rows == ROWS


def test_a_segment_without_rows_is_left_out(based: Repository) -> None:
    def fill(table: TableWriter) -> None:
        table.carry(0, [])
        append(table, [1], version=5)

    save(based, fill, base=1)
    check(based, {"k1": (1, 5)})
    assert len(based.snapshot().table("t").segments()) == 1


def test_an_empty_table_may_be_all_that_stays(based: Repository) -> None:
    save(based, lambda table: table.carry(0, []), base=1)
    assert based.snapshot().table("t").num_rows == 0
    assert not based.verify().damage


@pytest.mark.parametrize("appended_first", [True, False])
def test_a_key_that_a_carried_row_has_is_refused(based: Repository, appended_first: bool) -> None:
    def fill(table: TableWriter) -> None:
        if appended_first:
            append(table, [7], version=1)
        table.carry(0, np.arange(ROWS) != 8)
        if not appended_first:
            append(table, [7], version=1)

    with pytest.raises(InputError, match="k7"):
        save(based, fill, base=1)
    assert based.numbers() == [1]
    assert based.verify().ok


def test_the_key_of_a_dead_row_is_free(based: Repository) -> None:
    save(based, lambda table: table.carry(0, np.arange(ROWS) != 8), base=1)

    def fill(table: TableWriter) -> None:
        table.carry(0)
        append(table, [8], version=2)

    save(based, fill, base=2)
    check(based, {**first(range(ROWS)), "k8": (8, 2)})


def test_nothing_of_the_base_is_read_where_nothing_is_appended(based: Repository) -> None:
    read: list[str] = []

    class Reading(WrappedStore):
        def get_range(self, key: str, offset: int, size: int) -> bytes:
            # The header of a pack says whose it is.
            read.extend([key] if offset else [])
            return self.inner.get_range(key, offset, size)

    store: Any = Reading(based.store)
    watched = Repository(store, based.document, limits=based.limits)
    packs = {layout.object_key(based.snapshot().table("t").segments()[0].document.data.pack)}
    save(watched, lambda table: table.carry(0, np.arange(ROWS) > 5), base=1)
    assert packs.isdisjoint(read)

    def fill(table: TableWriter) -> None:
        table.carry(0)
        append(table, [1000])

    save(watched, fill, base=1)
    assert not packs.isdisjoint(read), "the keys are read"


@pytest.mark.parametrize(
    "selection",
    [
        [True],
        [ROWS],
        [-1],
        [3, 3],
        [0.5],
        [[0]],
        np.ones(ROWS + 1, np.bool_),
        np.zeros((ROWS, 1), np.bool_),
        "k7",
    ],
    ids=repr,
)
def test_a_selection_that_does_not_fit_is_refused(based: Repository, selection: Any) -> None:
    with based.begin(base=1) as attempt, attempt.part("p") as part:
        table = part.table("t")
        with pytest.raises(InputError):
            table.carry(0, selection)
        table.carry(0)


def test_a_segment_is_carried_once(based: Repository) -> None:
    with based.begin(base=1) as attempt, attempt.part("p") as part:
        table = part.table("t")
        table.carry(0, [1])
        with pytest.raises(InputError, match="already"):
            table.carry(0, [2])
        for number in (1, -1, True, "0"):
            with pytest.raises(InputError, match="segments"):
                table.carry(number)  # type: ignore[arg-type]
        table.close()
        with pytest.raises(AttemptClosed):
            table.carry_all()


def test_without_a_base_there_is_nothing_to_carry(based: Repository) -> None:
    with based.begin() as attempt, attempt.part("p") as part:
        assert part.base is None
        table = part.table("t")
        assert table.base_segments() == []
        with pytest.raises(InputError):
            table.carry(0)
        with pytest.raises(NoMatch):
            part.carry("notes.txt")
    with based.begin(base=1) as attempt, attempt.part("other") as part:
        assert part.base is not None
        assert part.table("t").base_segments() == []
        with pytest.raises(NoMatch):
            part.carry("notes.txt")


def test_entries_and_records_are_carried(repository: Repository) -> None:
    lines = [json.dumps({"id": f"r{i}", "n": i}).encode() for i in range(500)]
    with repository.begin() as attempt:
        part = attempt.part("p")
        part.stage("note", b"note" * 1000)
        part.stage("other", b"other")
        part.records("lines", lines, key="id")
        attempt.publish([part.seal()])
    with repository.begin(base=1) as attempt:
        part = attempt.part("p")
        part.carry("note")
        part.carry("lines")
        part.stage("other", b"changed")
        for path in ("note", "LINES", "lines.index"):
            with pytest.raises(InputError):
                part.stage(path, b"")
        with pytest.raises(InputError):
            part.carry("other")
        receipt = part.seal()
        manifest = attempt.publish([receipt])
    assert (receipt.entries, receipt.records) == (4, 500)
    assert receipt.stored_bytes < 4000
    repository.retire(1)
    again = repository.snapshot(manifest.number).part("p")
    assert again.read("note") == b"note" * 1000
    assert again.read("other") == b"changed"
    assert list(again.lines("lines")) == lines
    assert not repository.verify().damage


def test_it_stays_whole_when_its_base_is_retired(based: Repository) -> None:
    def fill(table: TableWriter) -> None:
        table.carry_all(["k3"])
        append(table, [3], version=1)

    save(based, fill, base=1)
    before = contents(based.snapshot())
    based.retire(1)
    assert based.numbers() == [2]
    assert contents(based.snapshot()) == before
    report = based.verify()
    assert report.ok, report.findings
    save(based, lambda table: table.carry_all(), base=2)
    assert based.keep_latest(1) == [2]
    assert {**before, "manifest": ""} == {**contents(based.snapshot()), "manifest": ""}


def test_what_is_behind_the_reach_of_a_retired_base_is_no_leftover(repository: Repository) -> None:
    # An operator may delete what verify lists as a leftover.
    with repository.begin() as attempt:
        part = attempt.part("p")
        part.stage("first", b"first")
        part.stage("second", b"second" * 100)
        attempt.publish([part.seal()])
    with repository.begin(base=1) as attempt:
        part = attempt.part("p")
        part.carry("first")
        attempt.publish([part.seal()])
    assert repository.verify(2).findings == []
    repository.retire(1)
    assert repository.verify().findings == []


def test_a_copy_holds_what_the_base_wrote(based: Repository, tmp_path: Any) -> None:
    def fill(table: TableWriter) -> None:
        table.carry_all(["k3"])
        append(table, [3], version=1)

    save(based, fill, base=1)
    target = open_target(tmp_path / "copy", based)
    copy_snapshot(based, target, 2)
    assert target.numbers() == [2]
    assert contents(target.snapshot(2)) == contents(based.snapshot(2))
    assert not target.verify().damage


def test_another_process_carries_by_the_lease(based: Repository) -> None:
    with based.begin(base=1) as attempt:
        part = Repository.join(attempt.ticket("p").model_dump_json())
        with part.table("t") as table:
            table.carry_all(["k0"])
        attempt.publish([part.seal()])
    check(based, first(range(1, ROWS)))


def test_a_base_is_held_while_the_save_runs(based: Repository) -> None:
    save(based, lambda table: append(table, [1]))
    with based.begin(base=1) as attempt, attempt.part("p") as part:
        with part.table("t") as table:
            table.carry_all()
        with pytest.raises(RefusedError):
            based.retire(1)
        attempt.publish([part.seal()])
    check(based, first(range(ROWS)))


def take_out(repository: Repository, number: int, attempt_id: str) -> None:
    """Retire the base of a running save to its end, as if its lease had not been seen."""
    lease = Path(repository.location) / layout.lease_key(attempt_id)
    held, workspace = lease.read_bytes(), lease.with_suffix("")
    aside = lease.parents[1] / "aside"
    lease.unlink()
    workspace.rename(aside)
    repository.retire(number)
    aside.rename(workspace)
    lease.write_bytes(held)


def test_a_base_that_is_gone_ends_the_save(based: Repository) -> None:
    save(based, lambda table: append(table, [1]))
    with based.begin(base=1) as attempt:
        own, other = attempt.part("p"), Repository.join(attempt.ticket("q"))
        take_out(based, 1, attempt.id)
        with pytest.raises(NotFoundError):
            own.table("t").carry_all()
        with pytest.raises(NotPublished):
            _ = other.base
        other.abandon()
    with pytest.raises(NotPublished):
        based.begin(base=1)
    assert based.numbers() == [2]
    assert based.verify().ok


def test_a_base_that_goes_before_the_publication_ends_the_save(based: Repository) -> None:
    save(based, lambda table: append(table, [1]))
    with based.begin(base=1) as attempt:
        part = attempt.part("p")
        with part.table("t") as table:
            table.carry_all()
        receipt = part.seal()
        take_out(based, 1, attempt.id)
        with pytest.raises(NotFoundError):
            attempt.publish([receipt])
    assert based.numbers() == [2]
    assert based.verify().ok


def test_a_base_that_was_only_taken_out_still_carries(based: Repository) -> None:
    # The retirement that saw no lease keeps its objects for the lease that came (K-7).
    save(based, lambda table: append(table, [1]))
    with based.begin(base=1) as attempt:
        based.store.unpublish("snapshots/snapshot_000001", layout.MANIFEST, layout.RETIRING)
        part = attempt.part("p")
        with part.table("t") as table:
            table.carry_all()
        attempt.publish([part.seal()])
    based.keep_latest(1)
    check(based, first(range(ROWS)))


def test_an_attempt_without_a_lease_has_no_base(based: Repository) -> None:
    with based.begin(base=1) as attempt:
        part = Repository.join(attempt.ticket("p"))
        based.store.delete(layout.lease_key(attempt.id))
        with pytest.raises(LeaseExpired):
            _ = part.base
        part.abandon()


def test_a_part_that_reaches_what_the_base_does_not_is_refused(based: Repository) -> None:
    save(based, lambda table: append(table, [5000]))
    with based.begin(base=2) as attempt:
        part = attempt.part("p")
        with part.table("t") as table:
            # A writer that does not obey the rule.
            foreign = based.snapshot(1).table("t").segments()
            table._carrier = carry.Carrier("t", foreign)
            table.carry_all()
        with pytest.raises(InputError, match="neither"):
            attempt.publish([part.seal()])
    assert based.numbers() == [1, 2]


def test_widths_of_carried_columns_are_kept(repository: Repository) -> None:
    save(repository, lambda table: table.append(["a"], {"n": [np.array([1 << 40])]}))

    def fill(table: TableWriter) -> None:
        table.carry_all()
        table.append(["b"], {"n": [np.array([1])]})

    save(repository, fill, base=1)
    physicals = [
        item.document.columns[0].physical for item in repository.snapshot().table("t").segments()
    ]
    assert physicals == ["int64", "int64"]


class Requests(MemoryClient):
    """A bucket that counts what is read of its objects."""

    ranges = 0

    def get(self, key: str, offset: int, size: int) -> bytes:
        self.ranges += 1
        return super().get(key, offset, size)


def test_a_bucket_reads_keys_and_rewritten_rows_in_few_requests() -> None:
    client, counts = Requests(), list[int]()
    repository = Repository.open(ObjectStore(client), create=True)
    save(repository, lambda table: append(table, range(ROWS)))
    for number in range(1, 2 * carry.TIER_FACTOR):

        def fill(table: TableWriter, number: int = number) -> None:
            client.ranges = 0
            table.carry_all([f"k{number}"])
            append(table, [number], version=1)
            table.close()
            counts.append(client.ranges)

        save(repository, fill, base=number)
        if number > 1:
            repository.retire(number - 1)
    # Lease, manifest, part index, and the keys of each segment, which lie in packs of their own;
    # of a segment that is rewritten also its batch index and its rows.
    assert max(counts) <= 4 + 3 * (carry.TIER_FACTOR + 1), counts
    assert np.median(counts) <= 4 + carry.TIER_FACTOR, counts
    wanted = dict.fromkeys(range(1, 2 * carry.TIER_FACTOR), 1)
    found = rows(repository.snapshot())
    assert len(found) == ROWS
    for number in range(ROWS):
        assert found[f"k{number}"]["text"] == f"row {number} {wanted.get(number, 0)}"
    assert not repository.verify().damage
