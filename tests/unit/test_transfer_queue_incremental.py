"""A storage unit writes what changed since its last published save, and nothing that did not."""

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transfer_queue")

import torch
from transfer_queue.storage.simple_storage import StorageUnitData

from snapfmt import MISSING, Repository
from snapfmt.adapters.transfer_queue import remember, state, unit, unit_rows
from snapfmt.adapters.transfer_queue.jobs import drop, holding_of
from snapfmt.adapters.transfer_queue.state import UnitPlan
from snapfmt.errors import DeadlineExceeded, NotPublished
from snapfmt.format import canonical, layout
from snapfmt.reading.table import TableReader
from snapfmt.writing import carry
from snapfmt.writing.table import TableWriter

ROWS = 100


class Unit:
    """A storage unit's actor, without Ray."""

    def __init__(self) -> None:
        self.storage_data: Any = StorageUnitData()
        self.keys: dict[int, str | None] = {}
        self.hidden: set[tuple[int, str]] = set()
        """Cells that the controller does not count as produced."""

    def put(self, indexes: list[int], **fields: list[Any]) -> None:
        self.storage_data.put_data(fields, indexes)
        for index in indexes:
            self.keys.setdefault(index, f"key {index}" if index % 2 else None)

    def clear(self, indexes: list[int]) -> None:
        self.storage_data.clear(indexes)

    def plan(self, partition: str = "train") -> UnitPlan:
        """What the controller would say."""
        data = self.storage_data
        fields = tuple(data.field_data)
        indexes = sorted(data._active_keys)
        produced = np.array(
            [
                [i in data.field_data[name] and (i, name) not in self.hidden for name in fields]
                for i in indexes
            ],
            np.bool_,
        ).reshape(len(indexes), len(fields))
        keys = tuple(self.keys[index] for index in indexes)
        return UnitPlan(
            partition, partition, "", fields, np.array(indexes, np.int64), keys, produced
        )


class Queue:
    """A unit and its repository."""

    def __init__(self, repository: Repository) -> None:
        self.unit: Any = Unit()
        self.repository = repository
        self.cuts = 0

    def save(
        self, base: int | None = None, *, publish: bool = True, full: bool = False
    ) -> unit_rows.Written:
        """Cut, write and publish."""
        self.cuts += 1
        cut_id = f"cut{self.cuts}"
        unit.prepare(self.unit, 5.0)
        unit.take_cut(self.unit, cut_id, 5.0, 60.0)
        try:
            with self.repository.begin(base=base) as attempt:
                ticket = canonical.encode(attempt.ticket("unit")).decode()
                cut = holding_of(self.unit, cut_id).content
                plan = self.unit.plan()
                written = unit_rows.write_rows(cut, ticket, [plan], lambda: None, full=full)
                if publish:
                    receipt = unit_receipt(written)
                    attempt.publish([receipt])
        finally:
            drop(self.unit, cut_id)
        return written

    def check(self) -> None:
        """The newest snapshot holds what the unit holds, by its keys."""
        table = Repository.open(self.repository.location).snapshot().table("rows/train")
        assert stored(table) == held(self.unit)
        assert not self.repository.verify().damage


def unit_receipt(written: unit_rows.Written) -> Any:
    from snapfmt_schemas.attempt import Receipt

    return Receipt.model_validate_json(written.receipt)


def plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return ("tensor", str(value.dtype), value.tolist())
    return ("array", value.tolist()) if isinstance(value, np.ndarray) else value


def stored(table: TableReader) -> dict[int, dict[str, Any]]:
    keys, columns = table.to_torch()
    found = {}
    for row, _ in enumerate(keys):
        cells = {
            name: plain(values[row])
            for name, values in columns.items()
            if values[row] is not MISSING
        }
        kind, _, index = cells.pop("__global_index__")
        assert kind == "tensor"
        found[index] = cells
    return found


def held(unit_: Any) -> dict[int, dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    for name, values in unit_.storage_data.field_data.items():
        for index, value in values.items():
            if (index, name) not in unit_.hidden:
                found.setdefault(index, {})[name] = plain(value)
    return found


def tensors(numbers: Any, shift: int = 0) -> list[torch.Tensor]:
    return [torch.arange(number % 7 + 1) + number + shift for number in numbers]


@pytest.fixture
def queue(repository: Repository) -> Queue:
    """A queue with one published snapshot of some rows."""
    made = Queue(repository)
    made.unit.put(
        list(range(ROWS)),
        ids=tensors(range(ROWS)),
        text=[f"text {i}" for i in range(ROWS)],
        image=list(torch.zeros(ROWS, 4)),
    )
    assert made.save().carried == 0
    made.check()
    return made


def change_nothing(queue: Queue) -> int:
    return 0


def put_new(queue: Queue) -> int:
    queue.unit.put([ROWS, ROWS + 1], ids=tensors([1, 2]), text=["a", "b"])
    return 0


def put_again(queue: Queue) -> int:
    queue.unit.put([3, 4], ids=tensors([3, 4], 9))
    return 2


def put_field(queue: Queue) -> int:
    queue.unit.put([7], reward=[torch.tensor(0.5)])
    return 1


def clear(queue: Queue) -> int:
    queue.unit.clear([0, 1, 2, ROWS - 1])
    return 4


def clear_and_reuse(queue: Queue) -> int:
    queue.unit.clear([5])
    del queue.unit.keys[5]
    queue.unit.keys[5] = "another key"
    queue.unit.put([5], ids=tensors([5]), text=["new"])
    return 1


def in_place(queue: Queue) -> int:
    queue.unit.storage_data.field_data["ids"][9].add_(1)
    return 1


def in_place_through_a_view(queue: Queue) -> int:
    # Rows of one dense batch share a counter: all of them count as changed.
    queue.unit.storage_data.field_data["image"][9][1:].fill_(1)
    return ROWS


def rename(queue: Queue) -> int:
    # The controller gives the row another key, and nobody tells the unit.
    queue.unit.keys[11] = "renamed"
    return 1


def hide_a_field(queue: Queue) -> int:
    queue.unit.hidden.add((13, "text"))
    return 1


def clear_all(queue: Queue) -> int:
    queue.unit.clear(list(range(ROWS)))
    queue.unit.put([1], ids=tensors([5]))
    return ROWS


CHANGES = [
    change_nothing,
    put_new,
    put_again,
    put_field,
    clear,
    clear_and_reuse,
    in_place,
    in_place_through_a_view,
    rename,
    hide_a_field,
    clear_all,
]


@pytest.mark.parametrize("change", CHANGES)
def test_what_changed_is_written_and_nothing_else(
    queue: Queue, change: Callable[[Queue], int]
) -> None:
    changed = change(queue)
    assert queue.save(base=1).carried == ROWS - changed
    queue.check()
    # And what the second save wrote is known to the third.
    held_rows = len(held(queue.unit))
    assert queue.save(base=2).carried == held_rows
    queue.check()


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_between_a_cut_and_its_write_is_not_lost(
    queue: Queue, change: Callable[[Queue], int]
) -> None:
    unit.take_cut(queue.unit, "early", 5.0, 60.0)
    plan = queue.unit.plan()
    change(queue)
    with queue.repository.begin(base=1) as attempt:
        ticket = canonical.encode(attempt.ticket("unit")).decode()
        cut = holding_of(queue.unit, "early").content
        if change is rename or change is hide_a_field:
            plan = queue.unit.plan()
        written = unit_rows.write_rows(cut, ticket, [plan], lambda: None, full=False)
        attempt.publish([unit_receipt(written)])
    drop(queue.unit, "early")
    queue.save(base=2)
    queue.check()


@pytest.mark.parametrize("change", CHANGES)
def test_a_cut_has_what_changed_after_its_references_were_gathered(
    queue: Queue, change: Callable[[Queue], int]
) -> None:
    unit.gather(queue.unit, "late", 5.0, 60.0)
    change(queue)
    queue.unit.put([900], fresh=tensors([900], 3))
    unit.take_cut(queue.unit, "late", 5.0, 60.0)
    assert_same_references(queue.unit, "late")
    drop(queue.unit, "late")
    assert remember.tracker_of(queue.unit.storage_data)._pending == []


def test_changes_that_nobody_saw_make_a_cut_look_at_everything(queue: Queue) -> None:
    unit.gather(queue.unit, "late", 5.0, 60.0)
    put_again(queue)
    remember.tracker_of(queue.unit.storage_data).changed("load_checkpoint", (), {})
    # A cut that went by the changes alone would not have this one.
    next(iter(queue.unit.storage_data.field_data.values()))[901] = torch.zeros(1)
    unit.take_cut(queue.unit, "late", 5.0, 60.0)
    assert_same_references(queue.unit, "late")
    drop(queue.unit, "late")


def test_references_that_were_let_go_are_gathered_again(queue: Queue) -> None:
    unit.gather(queue.unit, "late", 5.0, 60.0)
    drop(queue.unit, "late")
    unit.take_cut(queue.unit, "late", 5.0, 60.0)
    assert_same_references(queue.unit, "late")
    drop(queue.unit, "late")
    unit.gather(queue.unit, "never", 5.0, 60.0)
    drop(queue.unit, "never")
    assert remember.tracker_of(queue.unit.storage_data)._pending == []


def test_no_collection_looks_at_what_was_gathered_when_the_cut_is_taken(queue: Queue) -> None:
    unit.gather(queue.unit, "late", 5.0, 60.0)
    young = [id(item) for item in gc.get_objects(generation=0) + gc.get_objects(generation=1)]
    fields = holding_of(queue.unit, "late").content.fields
    assert fields
    assert not any(id(values) in young for values in fields.values())
    drop(queue.unit, "late")


def test_rows_of_a_fields_metadata_are_known_from_what_is_produced() -> None:
    from transfer_queue.controller import DataPartitionStatus

    schema = {"ids": {"dtype": torch.int64, "shape": (3,)}}
    status = DataPartitionStatus("train")
    status.update_production_status([4, 1, 7], ["ids"], schema)
    cut = state._copy_partition(status, [1, 4, 7])()
    assert cut.metas["ids"].global_indexes is None
    # What it refuses is marked as produced and is not in the metadata.
    refused = {"ids": {"dtype": torch.int32, "shape": (3,)}}
    assert not status.update_production_status([9], ["ids"], refused)
    other = state._copy_partition(status, [1, 4, 7, 9])()
    assert sorted(other.metas["ids"].global_indexes or ()) == [1, 4, 7]
    for item in (cut, other):
        assert item.indexes_of("ids").tolist() == [1, 4, 7]
        assert item.indexes_of("ids").dtype == np.int64


def test_a_cut_that_is_not_taken_in_time_forgets_what_was_gathered(queue: Queue) -> None:
    unit.gather(queue.unit, "late", 5.0, 60.0)
    gate = unit._gate(queue.unit)
    gate.hold("another", lease_s=60.0, timeout_s=5.0)
    with pytest.raises(DeadlineExceeded):
        unit.take_cut(queue.unit, "late", 0.01, 60.0)
    gate.release("another")
    drop(queue.unit, "late")
    assert remember.tracker_of(queue.unit.storage_data)._pending == []


def assert_same_references(actor: Any, cut_id: str) -> None:
    found, live = holding_of(actor, cut_id).content.fields, actor.storage_data.field_data
    assert found.keys() == live.keys()
    for name, values in live.items():
        assert found[name].keys() == values.keys()
        assert all(found[name][index] is value for index, value in values.items())


def test_a_save_that_was_not_published_is_not_built_on(queue: Queue) -> None:
    put_again(queue)
    queue.save(base=1, publish=False)
    queue.unit.put([50], ids=tensors([50], 5))
    assert queue.save(base=1).carried == ROWS - 3
    queue.check()


def test_many_failures_do_not_lose_the_published_save(queue: Queue) -> None:
    for _ in range(6):
        queue.save(base=1, publish=False)
    assert queue.save(base=1).carried == ROWS
    queue.check()


def test_only_a_few_saves_are_remembered(queue: Queue) -> None:
    for number in range(1, 8):
        queue.save(base=number)
    assert len(unit.remembered(queue.unit)) <= 3
    tracker = remember.tracker_of(queue.unit.storage_data)
    assert tracker._pending == []


def test_cuts_that_are_dropped_leave_nothing(queue: Queue) -> None:
    unit.take_cut(queue.unit, "dropped", 5.0, 60.0)
    drop(queue.unit, "dropped")
    tracker = remember.tracker_of(queue.unit.storage_data)
    assert tracker._pending == []
    assert len(tracker._written) == 1


def test_a_base_that_this_queue_did_not_write_gives_a_full_save(queue: Queue) -> None:
    other = Queue(queue.repository)
    other.unit.put([1], ids=tensors([1], 4))
    other.save()
    assert queue.save(base=2).carried == 0
    queue.check()


def test_a_base_of_another_queue_with_the_same_rows_is_not_taken_for_ones_own(
    queue: Queue,
) -> None:
    other = Queue(queue.repository)
    other.unit.put(
        list(range(ROWS)),
        ids=tensors(range(ROWS), 1),
        text=["other"] * ROWS,
        image=list(torch.ones(ROWS, 4)),
    )
    other.save()
    assert queue.save(base=2).carried == 0
    queue.check()


def test_a_full_save_may_be_asked_for(queue: Queue) -> None:
    assert queue.save(base=1, full=True).carried == 0
    queue.check()
    assert queue.save(base=2).carried == ROWS


def test_a_base_that_is_gone_is_an_error(queue: Queue) -> None:
    queue.save(base=1)
    queue.repository.retire(1)
    with pytest.raises(NotPublished):
        queue.save(base=1)
    assert queue.repository.numbers() == [2]


def test_a_restored_unit_remembers_nothing(queue: Queue) -> None:
    with pytest.raises(OSError, match="nowhere"):
        queue.unit.storage_data.load_checkpoint("/nowhere")
    assert unit.remembered(queue.unit) == []
    assert queue.save(base=1).carried == 0
    queue.check()


def test_too_many_changes_end_in_a_full_save(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remember, "_MOST_CHANGES", 3)
    queue.unit.put([1, 2, 3, 4], ids=tensors([1, 2, 3, 4], 7))
    queue.unit.put([1], ids=tensors([1], 8))
    assert queue.save(base=1).carried == 0
    queue.check()


def test_tensors_without_a_counter_are_always_written(repository: Repository) -> None:
    queue = Queue(repository)
    with torch.inference_mode():
        blind = torch.zeros(3)
    queue.unit.put([0, 1], x=[blind, torch.zeros(3)])
    queue.save()
    with torch.inference_mode():
        blind.add_(1)
    assert queue.save(base=1).carried == 1
    queue.check()


def test_versions_count_from_the_first_write(repository: Repository) -> None:
    queue = Queue(repository)
    values = tensors(range(4))
    for value in values:
        value.add_(1)
    queue.unit.put([0, 1, 2, 3], x=values)
    queue.save()
    assert queue.save(base=1).carried == 4
    values[2].add_(1)
    assert queue.save(base=2).carried == 3
    queue.check()


def test_rows_that_are_rewritten_stay_known(queue: Queue) -> None:
    queue.unit.clear(list(range(60)))
    assert queue.save(base=1).carried == ROWS - 60
    queue.check()
    (segment,) = queue.repository.snapshot().table("rows/train").segments()
    assert segment.document.rows == ROWS - 60
    queue.unit.put([70], ids=tensors([70], 5))
    assert queue.save(base=2).carried == ROWS - 61
    queue.check()


def test_random_changes_over_many_saves(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carry, "TIER_FACTOR", 3)
    random = np.random.default_rng(5)
    queue = Queue(repository)
    queue.unit.put(list(range(50)), ids=tensors(range(50)))
    queue.save()
    base, top, carried = 1, 50, 0
    for step in range(25):
        alive = sorted(queue.unit.storage_data._active_keys)
        some = random.choice(alive, min(len(alive), 6), replace=False).tolist()
        queue.unit.clear(some[:2])
        queue.unit.put(some[2:4], ids=tensors(some[2:4], step))
        queue.unit.storage_data.field_data["ids"][some[4]].add_(1)
        queue.unit.put([some[5]], reward=[torch.tensor(float(step))])
        new = list(range(top, top + int(random.integers(0, 8))))
        queue.unit.put(new, ids=tensors(new))
        top += len(new)
        publish = bool(random.integers(0, 3))
        carried += queue.save(base=base, publish=publish).carried
        if publish:
            base = repository.numbers()[-1]
            queue.check()
            repository.keep_latest(2)
    assert carried > 500


def test_a_changed_row_under_the_hold_is_marked_for_the_next_save(queue: Queue) -> None:
    """A put that waits at the gate belongs to the next save."""
    import threading

    gate = unit._gate(queue.unit)
    gate.hold("x", lease_s=60.0, timeout_s=5.0)
    waiting = threading.Thread(target=put_again, args=(queue,))
    waiting.start()
    memory = remember.tracker_of(queue.unit.storage_data).begin()
    gate.release("x")
    waiting.join()
    assert memory.changed == {3, 4}


@pytest.mark.parametrize("what", ["keys", "values", "pack", "index"])
def test_a_damaged_base_costs_a_full_save_and_no_more(queue: Queue, what: str) -> None:
    root = Path(queue.repository.location)
    part = queue.repository.snapshot().part("unit")
    document = part.segments("rows/train")[0].document
    place = document.keys if what == "keys" else document.data
    queue.unit.clear(list(range(60)))
    queue.unit.put([500], ids=tensors([500]))
    if what == "index":
        (root / layout.object_key(part.receipt.index_digest)).unlink()
    elif what == "pack":
        (root / layout.object_key(place.pack)).unlink()
    else:
        path = root / layout.object_key(place.pack)
        path.chmod(0o600)
        data = bytearray(path.read_bytes())
        for at in range(place.offset + 64, place.offset + place.size):
            data[at] ^= 255
        path.write_bytes(data)
    assert queue.save(base=1).carried == 0
    table = Repository.open(queue.repository.location).snapshot(2).table("rows/train")
    assert stored(table) == held(queue.unit)
    assert queue.repository.verify(2).ok
    assert [number for _, number, _ in unit.remembered(queue.unit)] == [2]


def test_a_value_that_changes_after_it_was_copied_is_written_by_the_next_save(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In place, without a put, while the rest of the save is still being written."""
    copied = TableWriter.append

    def append(table: TableWriter, keys: Any, columns: Any) -> None:
        copied(table, keys, columns)
        in_place(queue)

    monkeypatch.setattr(TableWriter, "append", append)
    queue.save(full=True)
    monkeypatch.undo()
    written = queue.save(base=queue.repository.numbers()[-1])
    assert written.carried == ROWS - 1
    queue.check()
