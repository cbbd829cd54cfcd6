"""Tables while they are written: batches, segments, widening, interleaving, refusals."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from snapfmt import MISSING, PartWriter, Repository
from snapfmt.errors import AttemptClosed, InputError, StorageFull, UnsupportedValue
from snapfmt.format import pack as pack_format
from snapfmt.limits import Limits
from snapfmt.reading.table import TableReader
from snapfmt.storage.local import LocalSink
from snapfmt.testing.equality import same
from snapfmt.writing import table as table_module
from snapfmt.writing.pack import PackWriter
from snapfmt.writing.table import TableWriter

Row = dict[str, Any]


class Session:
    """One part of one attempt; what was appended is compared with what is read."""

    def __init__(self, repository: Repository) -> None:
        self.repository = repository
        self.attempt = repository.begin()
        self.part: PartWriter = self.attempt.part("p")
        self.rows: dict[str, dict[str, Row]] = {}

    def append(
        self, table: TableWriter, keys: Sequence[str], columns: dict[str, Sequence[Any]]
    ) -> None:
        table.append(keys, columns)
        known = self.rows.setdefault(table.name, {})
        for number, key in enumerate(keys):
            known[key] = {
                name: values[number]
                for name, values in columns.items()
                if values[number] is not MISSING
            }

    def publish(self) -> dict[str, TableReader]:
        self.attempt.publish([self.part.seal()])
        snapshot = self.repository.snapshot()
        return {name: snapshot.table(name) for name in snapshot.table_names()}

    def check(self) -> dict[str, TableReader]:
        """Publish, and compare every cell; the repository verifies."""
        readers = self.publish()
        for name, rows in self.rows.items():
            reader = readers[name]
            assert sorted(reader.keys()) == sorted(rows)
            seen = {}
            for batch in reader.batches():
                for number, key in enumerate(batch.keys):
                    cells = {column: c.value(number) for column, c in batch.columns.items()}
                    seen[key] = {k: v for k, v in cells.items() if v is not MISSING}
            for key, row in rows.items():
                have = seen[key]
                assert have.keys() == row.keys(), key
                assert all(same(have[column], row[column]) for column in row), key
        assert self.repository.verify().findings == []
        return readers


@pytest.fixture
def session(repository: Repository) -> Iterator[Session]:
    made = Session(repository)
    yield made
    made.part.abandon()
    made.attempt.abandon()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of a few rows, segments of a few batches, packs of a few segments."""
    monkeypatch.setattr(table_module, "BATCH_BYTES", 400)
    monkeypatch.setattr(table_module, "SEGMENT_BYTES", 3000)
    monkeypatch.setattr(table_module, "WAITING_BYTES", 1500)
    monkeypatch.setattr(pack_format, "TARGET_SIZE", 10_000)


def test_a_table_without_rows(session: Session) -> None:
    with session.part.table("never"):
        pass
    with session.part.table("empty") as table:
        table.append([], {})
        table.append([], {"x": []})
    readers = session.check()
    for name in ("never", "empty"):
        reader = readers[name]
        assert reader.num_rows == 0
        assert reader.keys() == []
        assert list(reader.batches()) == []
        assert reader.to_arrow().num_rows == 0
        assert "k" not in reader


def test_integers_that_grow_in_mid_table_keep_their_values(session: Session, small: None) -> None:
    table = session.part.table("t")
    count = itertools.count()
    for low, high in [(0, 200), (0, 300), (-5, 5), (2**31, 2**31 + 9), (-(2**63), 0), (0, 9)]:
        rows = [np.linspace(low, high, 20).astype(np.int64) for _ in range(6)]
        rows.append(np.array([low, high], np.int64))
        session.append(table, [f"r{next(count)}" for _ in rows], {"x": rows})
    reader = session.check()["t"]
    stored = [item.document.columns[0].physical for item in reader.segments()]
    assert stored[0] == "uint8"
    assert "int32" in stored
    assert stored[-1] == "int64", "a wider type stays, so that the table settles"
    assert len(stored) < 9
    assert reader.dtypes() == {"x": ["ndarray int64 1d"]}


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint64])
def test_integers_at_the_edges_of_every_physical_type(session: Session, dtype: Any) -> None:
    info = np.iinfo(dtype)
    edges = [0, 1, 255, 256, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1]
    edges += [-1, -128, -(2**31), -(2**31) - 1, info.min, info.max]
    table = session.part.table("t")
    for number, edge in enumerate(edge for edge in edges if info.min <= edge <= info.max):
        session.append(table, [f"a{number}"], {"x": [np.array([edge], dtype)]})
        session.append(table, [f"b{number}"], {"x": [np.array(edge, dtype)]})
    session.check()


def test_widening_inside_one_append_of_many_batches(session: Session, small: None) -> None:
    rows = [np.array([1] * 30 if i < 40 else [2**40] * 30, np.int64) for i in range(80)]
    wide = [np.array([7 if i < 60 else 300] * 10, np.int32) for i in range(80)]
    table = session.part.table("t")
    session.append(table, [f"k{i}" for i in range(80)], {"x": rows, "y": wide})
    readers = session.check()
    assert readers["t"].keys() == [f"k{i}" for i in range(80)], "the order is that of the append"


def test_many_tiny_appends(session: Session) -> None:
    table = session.part.table("t")
    for i in range(2000):
        columns: dict[str, Sequence[Any]] = {"x": [np.array(i)], "s": ["a" * (i % 5)]}
        session.append(table, [f"k{i}"], columns)
    reader = session.check()["t"]
    assert reader.keys() == [f"k{i}" for i in range(2000)]
    assert len(reader.segments()) == 1


def test_a_column_that_only_some_rows_have(session: Session, small: None) -> None:
    table = session.part.table("t")
    for i in range(60):
        columns: dict[str, Sequence[Any]] = {"always": [np.arange(i)]}
        if i % 7 == 0:
            columns["late"] = [float(i)]
        if i > 30:
            columns["after"] = ["text" if i % 2 else MISSING]
        session.append(table, [f"k{i}"], columns)
    reader = session.check()["t"]
    assert sorted(reader.column_names) == ["after", "always", "late"]


def test_types_that_change_from_row_to_row(session: Session, small: None) -> None:
    kinds = [1, "a", b"b", np.arange(3), np.ones((2, 2), np.float32), np.array(4), None, MISSING]
    cells = [kinds[(i * 5) % len(kinds)] for i in range(100)]
    other = [kinds[(i * 3) % len(kinds)] for i in range(100)]
    table = session.part.table("t")
    for start in range(0, 100, 10):
        session.append(
            table,
            [f"k{i}" for i in range(start, start + 10)],
            {"x": cells[start : start + 10], "y": other[start : start + 10]},
        )
    session.check()


def test_two_tables_and_entries_at_the_same_time(session: Session, small: None) -> None:
    first, second = session.part.table("first"), session.part.table("second")
    staged = {}
    for i in range(60):
        target = first if i % 2 else second
        columns: dict[str, Sequence[Any]] = {"x": [np.full(50, i * (1 if i < 40 else 10**6))] * 3}
        session.append(target, [f"{i}.{j}" for j in range(3)], columns)
        if i % 5 == 0:
            staged[f"note{i}"] = bytes([i]) * (i * 40)
            session.part.stage(f"note{i}", staged[f"note{i}"])
        if i % 11 == 0:
            lines = [b'{"n": %d}' % n for n in range(i)]
            session.part.records(f"lines{i}", lines)
    session.check()
    part = session.repository.snapshot().part("p")
    for path, data in staged.items():
        assert part.read(path) == data
    assert len(list(part.lines("lines55"))) == 55
    assert part.receipt.new_objects > 2, "several packs were written"


def test_bytes_that_come_while_an_entry_is_written_are_refused(session: Session) -> None:
    table = session.part.table("t")

    def pieces() -> Iterator[bytes]:
        yield b"first"
        session.part.stage("inner", b"inner")
        yield b"second"

    with pytest.raises(InputError, match="another one was being written"):
        session.part.stage("outer", pieces())
    with pytest.raises(InputError, match="another one was being written"):
        table.append(["a"], {"x": [np.zeros(10)]})
    with pytest.raises(InputError, match="another one was being written"):
        session.part.seal()


def test_an_error_in_the_callers_iterable_leaves_the_part_usable(session: Session) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"first"
        raise ZeroDivisionError

    table = session.part.table("t")
    session.append(table, ["a"], {"x": [np.arange(9)]})
    with pytest.raises(ZeroDivisionError):
        session.part.stage("note", pieces())
    session.append(table, ["b"], {"x": [np.arange(9)]})
    session.part.stage("note", b"again")
    session.check()
    assert session.repository.snapshot().part("p").read("note") == b"again"


def test_keys_never_repeat(session: Session) -> None:
    table = session.part.table("t")
    session.append(table, ["a", "b"], {"x": [1, 2]})
    with pytest.raises(InputError, match="'a'"):
        table.append(["c", "a"], {"x": [3, 4]})
    with pytest.raises(InputError, match="'d'"):
        table.append(["d", "d"], {"x": [3, 4]})
    session.append(table, ["c", "d"], {"x": [5, 6]})
    session.check()


@pytest.mark.parametrize(
    ("keys", "columns", "says"),
    [
        (["a"], {"x": [1, 2]}, "2 values for 1 keys"),
        (["a"], {"x": []}, "0 values for 1 keys"),
        ([1], {"x": [1]}, "keys that are text"),
        ([["a"]], {"x": [1]}, "keys that are text"),
        ([""], {"x": [1]}, "keys that are text"),
        (["\ud800"], {"x": [1]}, "keys that are text"),
        (["a"], {"__key__": [1]}, "reserved"),
        (["a"], {"x#shape": [1]}, "reserved"),
        (["a"], {"": [1]}, "column name"),
        (["a"], {5: [1]}, "column name"),
        (["a"], {"x" * 1025: [1]}, "column name"),
        (["a"], {"\udcff": [1]}, "column name"),
        (["a"], {"x": iter([1])}, "sequence"),
    ],
)
def test_rows_that_do_not_fit_are_refused_and_nothing_is_added(
    session: Session, keys: Any, columns: Any, says: str
) -> None:
    table = session.part.table("t")
    with pytest.raises(InputError, match=says):
        table.append(keys, columns)
    session.append(table, ["a"], {"x": [1]})
    session.check()


@pytest.mark.parametrize("name", ["../x", "/x", "x/../y", "", "x//y", ".", "x/.", "a\0", "x" * 256])
def test_a_table_needs_a_relative_name(session: Session, name: str) -> None:
    with pytest.raises(InputError):
        session.part.table(name)


def test_a_table_name_is_taken_without_regard_to_case(session: Session) -> None:
    session.part.table("Rows")
    with pytest.raises(InputError, match="already"):
        session.part.table("rows")


def test_a_closed_table_takes_no_rows(session: Session) -> None:
    with session.part.table("t") as table:
        pass
    with pytest.raises(AttemptClosed):
        table.append(["a"], {})


def test_a_row_larger_than_a_batch_a_segment_and_a_pack(session: Session, small: None) -> None:
    table = session.part.table("t")
    rng = np.random.default_rng(0)
    for i, size in enumerate([10, 5000, 3, 60_000, 8, 5000]):
        session.append(table, [f"k{i}"], {"x": [rng.integers(0, 255, size, np.uint8)]})
    reader = session.check()["t"]
    assert session.repository.snapshot().part("p").receipt.new_objects > 2
    assert len(reader.segments()) > 2


def test_a_row_larger_than_a_whole_real_batch(session: Session) -> None:
    rng = np.random.default_rng(0)
    table = session.part.table("t")
    rows = [rng.standard_normal(300_000), np.zeros(3), rng.standard_normal(200_000)]
    session.append(table, ["a", "b", "c"], {"x": rows, "y": ["z" * 2_000_000, "", "q"]})
    session.check()


def test_a_row_that_no_reader_takes_is_refused_by_name(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_module, "DEFAULT_LIMITS", Limits(chunk_size=3 << 20))
    table = session.part.table("t")
    table.append(["fits"], {"x": [np.zeros(900_000, np.uint8)]})
    with pytest.raises(UnsupportedValue, match="row 'large' of"):
        table.append(["a", "large"], {"x": [np.zeros(9), np.zeros(200_000)]})
    with pytest.raises(UnsupportedValue):
        session.part.seal()


def test_rows_lost_to_an_error_cannot_be_sealed(
    session: Session, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = session.part.table("t")
    session.append(table, ["a"], {"x": [np.arange(100)]})

    def fail(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(table_module.segment, "encode_batch", fail)
        with pytest.raises(MemoryError):
            table.append(["b"], {"x": [np.arange(100)]})
    with pytest.raises((AttemptClosed, MemoryError)):
        session.part.seal()
    with pytest.raises(AttemptClosed):
        session.part.seal()


def test_rows_lost_when_a_table_is_closed_cannot_be_sealed(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = session.part.table("t")
    table.append(["a"], {"x": [np.arange(100)]})

    def fail(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(table_module.segment, "encode_batch", fail)
        with pytest.raises(MemoryError):
            table.close()
    with pytest.raises((AttemptClosed, MemoryError)):
        session.part.seal()


def test_an_error_of_the_writing_thread_reaches_the_caller(
    session: Session, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = session.part.table("t")
    full = StorageFull("no space left")

    def fail(self: PackWriter, *_: object) -> None:
        raise full

    monkeypatch.setattr(PackWriter, "_handle", fail)
    with pytest.raises(StorageFull):
        table.append([f"k{i}" for i in range(1000)], {"x": [np.arange(1000)] * 1000})
    with pytest.raises(StorageFull):
        session.part.seal()


def test_a_sink_that_cannot_be_discarded_does_not_stop_the_writer(
    session: Session, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(5, "input/output error")

    monkeypatch.setattr(LocalSink, "discard", fail)
    monkeypatch.setattr(LocalSink, "write", lambda *_: 1 / 0)
    with pytest.raises(AttemptClosed, match="cut off"):
        session.part.stage("x", (bytes(1 << 20) for _ in range(300)))
    with pytest.raises(AttemptClosed, match="cut off"):
        session.part.seal()
    monkeypatch.undo()


def test_large_rows_of_one_call_are_encoded_one_after_the_other(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was encoded waits in memory until it is written; small ones take little of it."""
    monkeypatch.setattr(table_module, "LARGE_BATCH", 3 * 2**20)
    submit, waiting = TableWriter._submit, list[int]()

    def counted(writer: TableWriter, batch: Any) -> None:
        submit(writer, batch)
        waiting.append(len(writer._flight))

    monkeypatch.setattr(TableWriter, "_submit", counted)
    session = Session(repository)
    for name, size in (("large", 2**19), ("small", 2**17)):
        waiting.clear()
        with session.part.table(name) as table:
            values = [np.random.default_rng(row).random(size) for row in range(8)]
            session.append(table, [f"row {row}" for row in range(8)], {"value": values})
        assert (max(waiting) == 1) == (name == "large")
    session.check()
