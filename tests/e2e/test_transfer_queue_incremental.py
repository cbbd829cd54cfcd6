"""A live queue is saved on its own last snapshot, and comes back as it was."""

from pathlib import Path
from typing import Any

import pytest

from snapfmt import Repository
from snapfmt.adapters.transfer_queue import load, prepare_cut, save
from snapfmt.errors import InputError, NotPublished

pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("ignore")]

ROWS = 64


@pytest.fixture
def filled(lab: Any) -> Any:
    """Two units with rows of some size that nothing compresses."""
    import torch

    lab.start(2)
    keys = [f"k{i}" for i in range(ROWS)]
    lab.put("p", keys, {"x": torch.rand(ROWS, 2000), "n": torch.arange(ROWS)})
    return lab


def test_the_second_save_writes_what_changed(filled: Any, tmp_path: Path) -> None:
    import torch

    repository = Repository.create(tmp_path / "run")
    first = save(repository)
    assert first.base is None
    filled.clear("p", ["k0", "k1", "k2"])
    filled.put("p", ["new"], {"x": torch.rand(1, 2000), "n": torch.arange(1)})
    filled.put("p", ["k9"], {"x": torch.zeros(1, 2000), "n": torch.arange(1)})
    second = save(repository)
    assert second.base == 1
    assert second.snapshot is not None
    assert second.rows == ROWS - 2
    assert second.stored_bytes < first.stored_bytes / 5
    repository.retire(1)
    third = save(repository)
    assert third.base == 2
    assert repository.verify().ok
    before = filled.census()
    filled.empty()
    report = load(repository.snapshot())
    assert report.rows == ROWS - 2
    assert filled.census() == before
    # The rows that a restore puts are new to the units.
    after = save(repository)
    assert after.base is None or after.stored_bytes > third.stored_bytes
    assert after.rows == ROWS - 2


def test_a_full_save_and_one_on_a_given_base(filled: Any, tmp_path: Path) -> None:
    repository = Repository.create(tmp_path / "run")
    first = save(repository)
    full = save(repository, full=True)
    assert full.base is None
    assert full.stored_bytes > first.stored_bytes / 2
    given = save(repository, base=1)
    assert given.base == 1
    assert given.stored_bytes < first.stored_bytes / 5
    other = save(Repository.create(tmp_path / "other"))
    assert other.base is None
    repository.retire(1)
    with pytest.raises(NotPublished):
        save(repository, base=1)
    with pytest.raises(InputError):
        save(repository, base=2, full=True)
    with repository.begin(base=3) as attempt:
        with pytest.raises(InputError):
            save(attempt=attempt, base=3)
        assert save(attempt=attempt).stored_bytes < first.stored_bytes / 5
    assert repository.numbers() == [2, 3]


def test_a_snapshot_that_lost_an_object_is_not_built_on(filled: Any, tmp_path: Path) -> None:
    repository = Repository.create(tmp_path / "run")
    save(repository)
    save(repository, full=True)
    prepared = prepare_cut()
    assert prepared.base_in(repository) == 2
    pack = repository.snapshot(2).table("rows/p").segments()[0].document.data.pack
    digits = pack.removeprefix("sha256:")
    (tmp_path / "run/objects" / digits[:2] / digits).unlink()
    assert prepared.base_in(repository) == 1
    repository.retire(1)
    report = save(repository)
    assert report.base is None
    assert report.snapshot is not None
    assert repository.verify(report.snapshot.number).ok
