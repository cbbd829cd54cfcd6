"""Tables that are read: by key, by range, by column; every byte verified, none in vain."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from snapfmt import MISSING, Repository
from snapfmt.errors import CorruptObject, FormatError, NoMatch, RefusedError
from snapfmt.limits import DEFAULT_LIMITS
from snapfmt.reading.snapshot import Snapshot
from snapfmt.reading.table import TableReader
from snapfmt.testing.corruption import flip
from snapfmt.testing.equality import same
from snapfmt.testing.samples import columns, save_table
from snapfmt.testing.stores import CountingStore
from snapfmt.writing import table as table_module

ROWS = 500
WIDTH = 2000


def column(row: int) -> np.ndarray[Any, Any]:
    return np.arange(row, row + WIDTH, dtype=np.float32)


@pytest.fixture
def location(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table of two parts, 500 rows in several segments, with two wide columns."""
    monkeypatch.setattr(table_module, "SEGMENT_BYTES", 1 << 20)
    repository = Repository.open(tmp_path / "run", create=True)
    attempt = repository.begin()
    receipts = []
    for number, name in enumerate(["a", "b"]):
        part = attempt.part(name)
        rng = np.random.default_rng(number)
        with part.table("t") as table:
            for start in range(0, ROWS // 2, 10):
                rows = [number * ROWS // 2 + start + i for i in range(10)]
                table.append(
                    [f"k{row}" for row in rows],
                    {
                        "id": [np.array(row) for row in rows],
                        "left": [column(row) for row in rows],
                        "noise": [rng.bytes(WIDTH * 4) for _ in rows],
                        "odd": [f"t{row}" if row % 2 else MISSING for row in rows],
                    },
                )
        receipts.append(part.seal())
    attempt.publish(receipts)
    return tmp_path / "run"


@pytest.fixture
def counted(location: Path) -> tuple[CountingStore, TableReader]:
    """The table through a store that counts what is read; indexes are loaded already."""
    repository = Repository.open(location)
    store = CountingStore(repository.store)
    reader = Snapshot.open(store, 1, limits=DEFAULT_LIMITS).table("t")
    assert [item.index for item in reader.segments()]
    assert len(reader.keys()) == ROWS
    store.reads.clear()
    return store, reader


def test_the_rows_of_every_part_are_one_table(location: Path) -> None:
    snapshot = Repository.open(location).snapshot()
    reader = snapshot.table("t")
    assert reader.num_rows == ROWS
    assert reader.keys() == [f"k{row}" for row in range(ROWS)]
    assert len(reader.segments()) > 2
    assert reader.column_names == ["id", "left", "noise", "odd"]
    assert snapshot.part("b").table("t").keys() == [f"k{row}" for row in range(ROWS // 2, ROWS)]
    assert "k7" in reader
    assert "x" not in reader
    assert None not in reader


def test_rows_by_key(counted: tuple[CountingStore, TableReader]) -> None:
    _, reader = counted
    for row in (0, 1, 249, 250, 251, ROWS - 1):
        found = reader.row(f"k{row}")
        assert found["id"] == row
        assert same(found["left"], column(row))
        assert found.get("odd", MISSING) == (f"t{row}" if row % 2 else MISSING)
        assert set(reader.row(f"k{row}", ["id", "odd"])) <= {"id", "odd"}
    with pytest.raises(NoMatch, match="nobody"):
        reader.row("nobody")
    with pytest.raises(NoMatch, match="nothing"):
        reader.row("k1", ["nothing"])


@pytest.mark.parametrize(
    ("start", "stop"),
    [(0, None), (0, 0), (3, 3), (0, 1), (249, 251), (17, 333), (-5, None), (490, 9999), (600, 700)],
)
def test_ranges(counted: tuple[CountingStore, TableReader], start: int, stop: int | None) -> None:
    _, reader = counted
    want = list(range(ROWS))[start:stop]
    batches = list(reader.batches(["id"], start=start, stop=stop))
    assert [key for batch in batches for key in batch.keys] == [f"k{row}" for row in want]
    ids = [int(batch.columns["id"].value(i)) for batch in batches for i in range(len(batch.keys))]
    assert ids == want
    assert reader.to_arrow(["id"], start=start, stop=stop).num_rows == len(want)


def test_every_range_of_a_small_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "BATCH_BYTES", 150)
    monkeypatch.setattr(table_module, "SEGMENT_BYTES", 700)
    repository = Repository.open(tmp_path, create=True)
    attempt = repository.begin()
    part = attempt.part("p")
    with part.table("t") as table:
        cells = [np.arange(i % 4) for i in range(20)]
        table.append([str(i) for i in range(20)], {"x": cells, "y": [str(i) for i in range(20)]})
    attempt.publish([part.seal()])
    reader = repository.snapshot().table("t")
    assert len(reader.segments()) > 1
    for start in range(21):
        for stop in range(start, 21):
            keys = [k for batch in reader.batches(start=start, stop=stop) for k in batch.keys]
            assert keys == [str(i) for i in range(start, stop)]
            values = [
                batch.columns["y"].value(i)
                for batch in reader.batches(["y"], start=start, stop=stop)
                for i in range(len(batch.keys))
            ]
            assert values == keys


def test_only_the_named_columns_are_read(counted: tuple[CountingStore, TableReader]) -> None:
    store, reader = counted
    noise = ROWS * WIDTH * 4
    for _ in reader.batches(["noise"]):
        pass
    assert noise <= store.bytes_read <= noise * 1.05
    store.reads.clear()
    for _ in reader.batches(["id"]):
        pass
    assert 0 < store.bytes_read < noise / 50
    store.reads.clear()
    # The wide columns lie between these two.
    for _ in reader.batches(["id", "odd"]):
        pass
    assert 0 < store.bytes_read < noise / 50
    store.reads.clear()
    for _ in reader.batches([]):
        pass
    assert store.bytes_read == 0


def test_only_the_batch_of_a_row_is_read(counted: tuple[CountingStore, TableReader]) -> None:
    store, reader = counted
    reader.row("k300", ["noise"])
    assert WIDTH * 4 <= store.bytes_read <= 2 * (1 << 20)
    store.reads.clear()
    list(reader.batches(["noise"], start=100, stop=101))
    assert store.bytes_read <= 2 * (1 << 20)


def test_a_reader_that_stops_early_reads_little(
    counted: tuple[CountingStore, TableReader],
) -> None:
    store, reader = counted
    next(iter(reader.batches()))
    assert store.bytes_read < reader.stored_bytes * 0.9


def test_damage_in_one_column_harms_only_its_readers(location: Path) -> None:
    reader = Repository.open(location).snapshot().table("t")
    item = reader.segments()[0]
    place = item.index.place(0).chunks[item.names.index("left") + 1]
    pack = item.document.data.pack.removeprefix("sha256:")
    path = location / "objects" / pack[:2] / pack
    flip(path, item.document.data.offset + place.offset + place.size // 2)
    assert int(reader.row("k0", ["id"])["id"]) == 0
    assert sum(len(batch.keys) for batch in reader.batches(["id", "noise", "odd"])) == ROWS
    with pytest.raises(CorruptObject) as caught:
        reader.row("k0", ["left"])
    assert "left" in str(caught.value)
    with pytest.raises(CorruptObject):
        list(reader.batches())
    assert caught.value.expected != caught.value.got


def test_an_arrow_table_has_logical_types_and_says_which(location: Path) -> None:
    reader = Repository.open(location).snapshot().table("t")
    table = reader.to_arrow(["id", "odd"], start=248, stop=252)
    assert table.column("__key__").to_pylist() == ["k248", "k249", "k250", "k251"]
    assert table.column("id").to_pylist() == [248, 249, 250, 251]
    assert str(table.schema.field("id").type) == "int64"
    assert table.column("odd").to_pylist() == [None, "t249", None, "t251"]
    assert table.schema.field("id").metadata[b"snapfmt.dtype"] == b"int64"
    table.validate(full=True)


def test_arrow_export_of_every_kind(tmp_path: Path) -> None:
    reader = save_table(tmp_path, ["a", "b", "c"], columns(3, 7))
    keys = reader.keys()
    table = reader.to_arrow()
    table.validate(full=True)
    assert table.column("__key__").to_pylist() == keys
    rows = {key: int(key == "b") + 2 * int(key == "c") for key in keys}
    by_name = table.to_pydict()
    for position, key in enumerate(keys):
        row = rows[key]
        assert by_name["ids"][position] == [7 + i for i in range(row + 1)]
        assert by_name["image"][position] == [7] * (2 * (row + 1))
        assert by_name["image#shape"][position] == [2, row + 1]
        assert by_name["text"][position] == f"text 7 {row}"
        assert by_name["blob"][position] == bytes([row]) * row
        assert by_name["rare"][position] == (None if row % 2 else "7.0")


def test_rows_of_different_types_do_not_fit_one_arrow_column(tmp_path: Path) -> None:
    reader = save_table(tmp_path, ["a", "b"], {"x": [np.arange(2), "text"]})
    with pytest.raises(RefusedError, match="different types"):
        reader.to_arrow()
    assert reader.dtypes() == {"x": ["ndarray int64 1d", "text"]} or reader.dtypes() == {
        "x": ["text", "ndarray int64 1d"]
    }


def test_a_key_in_two_parts_is_damage(tmp_path: Path) -> None:
    repository = Repository.open(tmp_path, create=True)
    attempt = repository.begin()
    receipts = []
    for name in ("a", "b"):
        part = attempt.part(name)
        with part.table("t") as table:
            table.append(["same"], {"x": [1]})
        receipts.append(part.seal())
    attempt.publish(receipts)
    with pytest.raises(FormatError, match="twice"):
        repository.snapshot().table("t").row("same")


def test_an_unknown_table_names_the_known_ones(location: Path) -> None:
    snapshot = Repository.open(location).snapshot()
    with pytest.raises(NoMatch, match=r"no such table.*\bt\b"):
        snapshot.table("u")
    with pytest.raises(NoMatch):
        snapshot.part("a").table("u")
    with pytest.raises(NoMatch, match="a, b"):
        snapshot.part("c")


def test_few_keys_are_found_without_a_map_of_all(location: Path) -> None:
    reader = Repository.open(location).snapshot().table("t")
    for key in ("k0", "k249", "k250", "k499"):
        assert reader.row(key, ["id"])["id"] == int(key[1:])
    assert "k" not in reader
    assert "k500" not in reader
    assert "\ud800" not in reader
    assert 7 not in reader
    assert "_places" not in reader.__dict__
    assert all(f"k{row}" in reader for row in range(ROWS))
    assert "_places" in reader.__dict__
    assert reader.row("k499", ["id"])["id"] == 499
    assert "k500" not in reader


def test_a_key_of_a_row_that_was_dropped_is_not_found(tmp_path: Path) -> None:
    repository = Repository.create(tmp_path)
    for number in range(2):
        attempt = repository.begin(base=number or None)
        part = attempt.part("p")
        with part.table("t") as table:
            if number:
                table.carry(0, np.array([False, True, True]))
            else:
                table.append(["a", "b", "c"], {"n": [np.int64(row) for row in range(3)]})
        attempt.publish([part.seal()])
    reader = repository.snapshot().table("t")
    assert "a" not in reader
    assert (reader.row("b")["n"], reader.row("c")["n"]) == (1, 2)


@pytest.mark.parametrize("before", [0, 100])
def test_a_key_that_comes_twice_is_refused_however_it_is_looked_for(
    tmp_path: Path, before: int
) -> None:
    repository = Repository.create(tmp_path)
    attempt = repository.begin()
    receipts = []
    for name, keys in (("a", ["x", "y"]), ("b", ["y", "z"])):
        part = attempt.part(name)
        with part.table("t") as table:
            table.append(keys, {"n": [np.int64(1), np.int64(2)]})
        receipts.append(part.seal())
    attempt.publish(receipts)
    reader = repository.snapshot().table("t")
    with pytest.raises(FormatError, match="'y' comes twice"):
        all(key not in reader for key in ["q"] * before + ["y"])


def test_an_error_lists_some_of_thousands_of_names(tmp_path: Path) -> None:
    repository = Repository.create(tmp_path)
    attempt = repository.begin()
    part = attempt.part("p")
    for number in range(1000):
        part.table(f"t{number:04d}")
    attempt.publish([part.seal()])
    with pytest.raises(NoMatch, match=r"'t'.*t0000, t0001.* and 980 more") as raised:
        repository.snapshot().table("t")
    assert len(str(raised.value)) < 400
