"""The judge of a soak: what is a leak, and what a format allows to stay."""

import shutil
from pathlib import Path

import pytest

from snapfmt import Repository
from snapfmt.errors import StorageError
from snapfmt.format import layout
from snapfmt.storage.memory import MemoryClient
from snapfmt.storage.objects import ObjectStore
from snapfmt.testing import soak_model
from snapfmt.testing.soak_check import settle

RETIRING = layout.snapshot_key(1, layout.RETIRING)


def filled(repository: Repository) -> Repository:
    for _ in range(2):
        with repository.begin() as attempt:
            attempt.publish(soak_model.save(repository, attempt))
    return repository


@pytest.fixture
def bucket() -> Repository:
    return filled(Repository.open(ObjectStore(MemoryClient()), create=True))


def test_the_copy_of_a_retirement_that_died_is_none(
    bucket: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = MemoryClient.put

    def die(self: MemoryClient, key: str, *args: object, **kwargs: object) -> object:
        if key == layout.manifest_key(1):
            raise StorageError("killed")
        return put(self, key, *args, **kwargs)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(MemoryClient, "put", die)
        with pytest.raises(StorageError):
            bucket.retire(1)
    assert bucket.numbers() == [1, 2]
    assert bucket.store.size(RETIRING) is not None
    found = settle(bucket, {}, {})
    assert (found.losses, found.leaks, found.published) == ([], [], 2)


def test_other_bytes_of_that_name_are_one(bucket: Repository) -> None:
    bucket.store.create(RETIRING, b"{}")
    assert RETIRING in settle(bucket, {}, {}).leaks


def test_on_a_disk_every_copy_is_one(tmp_path: Path) -> None:
    repository = filled(Repository.create(tmp_path / "run"))
    shutil.copy(tmp_path / "run" / layout.manifest_key(1), tmp_path / "run" / RETIRING)
    assert settle(repository, {}, {}).leaks == [RETIRING]
