"""Any table that can be written comes back exactly, row by row and through Arrow."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from snapfmt import Repository
from snapfmt.format import layout, tagged
from snapfmt.format.columns import MISSING, Column
from snapfmt.reading.table import TableReader
from snapfmt.testing.equality import same
from snapfmt.testing.strategies import appends
from snapfmt.writing import table as table_module

torch = pytest.importorskip("torch")
Appends = list[tuple[list[str], dict[str, list[Any]]]]


def write(folder: Path, calls: Appends) -> tuple[Repository, TableReader]:
    repository = Repository.open(folder, create=True)
    with repository.begin() as attempt:
        part = attempt.part("p", workers=1)
        with part.table("t") as table:
            for keys, columns in calls:
                table.append(keys, columns)
        attempt.publish([part.seal()])
    return repository, repository.snapshot().table("t")


def expected(calls: Appends) -> dict[str, dict[str, Any]]:
    return {
        key: {name: values[row] for name, values in columns.items() if values[row] is not MISSING}
        for keys, columns in calls
        for row, key in enumerate(keys)
    }


def got(reader: TableReader) -> dict[str, dict[str, Any]]:
    keys, columns = reader.to_torch()
    return {
        key: {name: values[row] for name, values in columns.items() if values[row] is not MISSING}
        for row, key in enumerate(keys)
    }


@given(
    calls=appends(), batch=st.sampled_from([1, 200, 1 << 20]), rows=st.sampled_from([1, 3, 4096])
)
@settings(max_examples=100, suppress_health_check=list(HealthCheck))
def test_any_table_comes_back(calls: Appends, batch: int, rows: int) -> None:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        # Small batches, so that a few rows make several batches and segments.
        patch.setattr(table_module, "BATCH_BYTES", batch)
        patch.setattr(table_module, "BATCH_ROWS", rows)
        repository, reader = write(Path(folder), calls)
        want, have = expected(calls), got(reader)
        assert set(have) == set(want)
        for key, row in want.items():
            assert same(dict(sorted(have[key].items())), dict(sorted(row.items()))), key
            single = reader.row_torch(key)
            assert same(dict(sorted(single.items())), dict(sorted(row.items()))), key
        assert repository.verify().findings == []


def arrow_value(array: pa.Array, shapes: pa.Array | None, row: int, column: Column) -> Any:
    """What another Arrow reader sees, in the terms of `Column.value`."""
    cell = array[row]
    if not cell.is_valid:
        return MISSING
    if not column.signature.is_array:
        return cell.as_py()
    values = cell.values if column.signature.ndim else array.slice(row, 1)
    # Bits, not numbers: Arrow keeps NaN payloads in its buffers.
    width = np.dtype(values.type.to_pandas_dtype())
    start = values.offset * width.itemsize
    data = values.buffers()[1]
    raw = memoryview(data)[start : start + len(values) * width.itemsize] if data else b""
    flat = np.frombuffer(raw, width)
    shape = tuple(shapes[row].as_py()) if shapes is not None else flat.shape
    return flat.reshape(shape if column.signature.ndim else ())


@given(calls=appends(torch=False))
@settings(max_examples=80, suppress_health_check=list(HealthCheck))
def test_any_arrow_reader_sees_the_same_rows(calls: Appends) -> None:
    with tempfile.TemporaryDirectory() as folder:
        repository, reader = write(Path(folder), calls)
        for item in reader.segments():
            place = item.document.data
            path = Path(folder, layout.object_key(place.pack))
            data = path.read_bytes()[place.offset : place.offset + place.size]
            stream = pa.ipc.open_stream(data)
            position = 0
            for number, batch in enumerate(stream):
                batch.validate(full=True)
                names = batch.schema.names
                assert names[0] == "__key__"
                keys = batch.column(0).to_pylist()
                assert keys == item.keys[position : position + len(keys)]
                columns = item.read(number, slice(0, len(keys)))
                for name, column in columns.items():
                    array = batch.column(names.index(name))
                    shapes = None
                    if f"{name}#shape" in names:
                        shapes = batch.column(names.index(f"{name}#shape"))
                    for row in range(len(keys)):
                        have = arrow_value(array, shapes, row, column)
                        want = column.value(row)
                        if column.signature.kind == "value" and want is not MISSING:
                            assert same(tagged.decode(have), want)
                        elif isinstance(want, np.ndarray):
                            # Integers may be narrowed; floats and bits are stored as they are.
                            assert have.shape == want.shape
                            if want.dtype.kind in "iu":
                                assert (have.astype(want.dtype) == want).all()
                            else:
                                assert have.tobytes() == want.tobytes()
                        else:
                            assert have == want if want is not MISSING else have is MISSING
                position += len(keys)
            assert position == item.document.rows
        assert repository.verify().ok
