"""Whatever is added, changed and removed over saves on one another: a snapshot is the rows."""

import os
import tempfile
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapfmt import MISSING, Repository
from snapfmt.testing.samples import plain
from snapfmt.writing import carry
from snapfmt.writing import table as table_module

Model = dict[str, dict[str, Any]]

FAST = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
KEYS = st.integers(0, 40).map(lambda number: f"k{number}")
VALUES = st.one_of(
    st.integers(-5, 5),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.lists(st.integers(0, 300), max_size=4).map(lambda items: np.array(items, np.int64)),
    st.integers(0, 1 << 40).map(lambda number: np.array([number], np.int64)),
    st.floats(width=32).map(np.float32).map(np.array),
    st.just(MISSING),
)
ROW = st.fixed_dictionaries({"a": VALUES, "b": VALUES})
STEP = st.fixed_dictionaries(
    {
        "put": st.dictionaries(KEYS, ROW, max_size=12),
        "remove": st.one_of(st.sets(KEYS, max_size=6), st.sets(KEYS, min_size=8, max_size=16)),
        "append_first": st.booleans(),
        "by_key": st.booleans(),
        "on": st.integers(0, 3),
        "retire": st.booleans(),
    }
)


def save(repository: Repository, base: int | None, model: Model, step: dict[str, Any]) -> Model:
    put, gone = step["put"], set(step["remove"]) | set(step["put"])
    with repository.begin(base=base) as attempt:
        part = attempt.part("p")
        with part.table("t") as table:

            def append() -> None:
                columns = {name: [row[name] for row in put.values()] for name in ("a", "b")}
                table.append(list(put), columns)

            if step["append_first"]:
                append()
            if step["by_key"]:
                table.carry_all(gone)
            else:
                for number, segment in enumerate(table.base_segments()):
                    keep = [row for row, key in enumerate(segment.keys) if key not in gone]
                    if keep:
                        table.carry(number, keep)
            if not step["append_first"]:
                append()
        attempt.publish([part.seal()])
    return {**{key: row for key, row in model.items() if key not in gone}, **put}


def rows(repository: Repository, number: int) -> Model:
    found: Model = {}
    for batch in repository.snapshot(number).table("t").batches():
        for row, key in enumerate(batch.keys):
            assert key not in found
            found[key] = {
                name: plain(value)
                for name, column in batch.columns.items()
                if (value := column.value(row)) is not MISSING
            }
    return found


def shown(model: Model) -> Model:
    return {
        key: {name: plain(value) for name, value in row.items() if value is not MISSING}
        for key, row in model.items()
    }


@given(st.lists(STEP, min_size=2, max_size=7))
@settings(max_examples=60)
def test_incremental_saves_equal_a_dictionary(steps: list[dict[str, Any]]) -> None:
    with tempfile.TemporaryDirectory(dir=FAST) as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_module, "BATCH_ROWS", 3)
        patch.setattr(carry, "TIER_FACTOR", 3)
        repository = Repository.create(f"{folder}/run")
        models: dict[int, Model] = {}
        # Enough rows of one kind that they die in several steps.
        many = {f"k{number}": {"a": number, "b": str(number)} for number in range(30)}
        steps = [{**steps[0], "put": {**many, **steps[0]["put"]}}, *steps[1:]]
        for number, step in enumerate(steps, start=1):
            base = sorted(models)[-1 - step["on"] % len(models)] if models else None
            before = models[base] if base is not None else {}
            models[number] = save(repository, base, before, step)
            if step["retire"] and base is not None:
                repository.retire(base)
                del models[base]
            for known, model in models.items():
                assert rows(repository, known) == shown(model)
        report = repository.verify()
        assert report.ok, report.findings
        for number in models:
            segments = repository.snapshot(number).table("t").segments()
            assert all(2 * item.rows >= item.document.rows for item in segments)
