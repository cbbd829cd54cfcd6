"""Folders that cannot be looked into (spec/v1/09-retention.md, K-18)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from snapfmt.errors import SnapfmtError, StorageError, StorageUnavailable
from snapfmt.reading.folders import files, names
from snapfmt.storage.local import LocalStore


class Faulty(LocalStore):
    """Does not list what lies below `bad`; and where nobody answers, not its folders either."""

    bad = "objects"
    answers = True

    def walk(self, prefix: str) -> Iterator[tuple[str, int]]:
        if f"{self.bad}/".startswith(prefix):
            raise StorageError("input/output error", what=self.bad)
        return super().walk(prefix)

    def names(self, prefix: str) -> list[str]:
        if not self.answers:
            raise StorageUnavailable("no answer", what=prefix)
        if prefix == self.bad:
            raise StorageError("input/output error", what=self.bad)
        return super().names(prefix)


@pytest.fixture
def store(tmp_path: Path) -> Faulty:
    for folder in ("objects/aa", "attempts"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "file").write_bytes(b"four")
    return Faulty(tmp_path)


def test_a_bad_folder_is_told_and_hides_nothing_beside_it(store: Faulty) -> None:
    told: list[tuple[str, SnapfmtError]] = []

    def failed(folder: str, error: SnapfmtError) -> None:
        told.append((folder, error))

    assert list(files(store, "", failed)) == [("attempts/file", 4)]
    assert names(store, "objects", failed) == []
    assert [folder for folder, _ in told] == ["objects", "objects"]
    store.bad = "objects/aa"
    told.clear()
    assert list(files(store, "", failed)) == [("attempts/file", 4)]
    assert [folder for folder, _ in told] == ["objects/aa"]


def test_an_outage_is_raised_even_where_an_error_came_before(store: Faulty) -> None:
    told: list[str] = []
    store.answers = False
    for look in (files, names):
        with pytest.raises(StorageUnavailable):
            list(look(store, "objects", lambda folder, _: told.append(folder)))
    assert told == []
