"""A unit reads small rows on its one thread, and large ones ahead on others."""

import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transfer_queue")

import torch
from transfer_queue.storage.simple_storage import StorageUnitData

from snapfmt import Repository
from snapfmt.adapters.transfer_queue import names, unit


@pytest.mark.parametrize(("tokens", "others"), [(100, False), (8192, True)])
def test_small_rows_are_read_where_they_are_put(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokens: int, others: bool
) -> None:
    rows = 400
    values = torch.arange(rows * tokens).reshape(rows, tokens)
    repository = Repository.create(tmp_path / "r")
    with repository.begin() as attempt:
        with Repository.join(attempt.ticket(names.unit_part("tq", 0))) as part:
            with part.table("rows/p") as table:
                for start in range(0, rows, 100):
                    chosen = slice(start, start + 100)
                    table.append(
                        [f"row {row}" for row in range(start, start + 100)],
                        {names.INDEX_COLUMN: torch.arange(rows)[chosen], "ids": values[chosen]},
                    )
            receipt = part.seal()
        attempt.publish([receipt])
    threads = set()
    read = unit._read

    def noted(*arguments: Any) -> Any:
        threads.add(threading.get_ident())
        return read(*arguments)

    monkeypatch.setattr(unit, "_read", noted)
    data = StorageUnitData()
    request = unit.LoadRequest(repository.location, 1, "tq", (("p", "p"),), 1, 1)
    counts = unit._load(data, request, 0, lambda: None)
    assert counts.cells == {("p", "ids"): rows}
    found = data.field_data["ids"]
    assert all(torch.equal(found[row], values[row]) for row in range(rows))
    assert (threading.get_ident() not in threads) == others
