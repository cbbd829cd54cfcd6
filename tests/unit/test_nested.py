"""A repository inside of another one, or around one, is refused when it is created."""

from collections.abc import Callable
from pathlib import Path

import pytest

from snapfmt import Repository
from snapfmt.errors import RefusedError, StorageDenied
from snapfmt.storage.local import LocalStore
from snapfmt.storage.s3 import S3Client
from snapfmt.testing.s3_servers import S3Server
from snapfmt.testing.samples import save
from snapfmt.testing.stores import WrappedStore

INSIDE = "this place is inside of a repository"
AROUND = "there is a repository inside of this place"


@pytest.mark.req("L-13")
def test_in_folders(tmp_path: Path) -> None:
    outer = Repository.create(tmp_path / "runs" / "a")
    for place in ("b", "b/c/d", "objects", "snapshots/snapshot_000001"):
        before = sorted(tmp_path.rglob("*"))
        for make in (Repository.create, lambda path: Repository.open(path, create=True)):
            with pytest.raises(RefusedError, match=INSIDE) as caught:
                make(tmp_path / "runs" / "a" / place)
            assert caught.value.what == str(tmp_path / "runs" / "a")
            assert sorted(tmp_path.rglob("*")) == before, "not even a folder was made"
    (tmp_path / "link").symlink_to(tmp_path / "runs" / "a" / "objects")
    with pytest.raises(RefusedError, match=INSIDE):
        Repository.create(tmp_path / "link" / "b")
    with pytest.raises(RefusedError, match=f"{AROUND}: .*runs: a"):
        Repository.create(tmp_path / "runs")
    Repository.create(tmp_path / "runs" / "beside")
    # Readers, and whoever opens what is there, do not look.
    save(outer)
    (tmp_path / "snapfmt.json").write_bytes((tmp_path / "runs/a/snapfmt.json").read_bytes())
    assert Repository.open(tmp_path / "runs" / "a", create=True).numbers() == [1]


def test_a_folder_that_may_not_be_looked_at_is_passed_over(tmp_path: Path) -> None:
    class Closed(WrappedStore):
        def size(self, key: str) -> int | None:
            raise StorageDenied("no", what=key)

    class Below(WrappedStore):
        def parents(self) -> list[object]:  # type: ignore[override]
            return [Closed(self.inner)]

    assert Repository.open(Below(LocalStore(tmp_path)), create=True).numbers() == []


def test_what_lies_below_and_may_not_be_looked_at_is_passed_over(tmp_path: Path) -> None:
    """As the lost+found of a disk."""
    (tmp_path / "lost+found").mkdir()

    class Closed(WrappedStore):
        def size(self, key: str) -> int | None:
            if key.startswith("lost+found/"):
                raise StorageDenied("no", what=key)
            return LocalStore(tmp_path).size(key)

    assert Repository.open(Closed(LocalStore(tmp_path)), create=True).numbers() == []


def test_the_parents_of_a_prefix() -> None:
    client = S3Client("s3://bucket/a/b/c?endpoint_url=http://h:1", {"anon": True})
    shown = [parent.location.partition("?") for parent in client.parents()]
    assert [address for address, _, _ in shown] == [
        "s3://bucket/a/b",
        "s3://bucket/a",
        "s3://bucket",
    ]
    assert {query for _, _, query in shown} == {"endpoint_url=http://h:1&anon=true"}
    assert S3Client("s3://bucket").parents() == []


def test_in_a_bucket(s3_server: S3Server, bucket_url: Callable[[], str]) -> None:
    top, options = bucket_url(), s3_server.options
    Repository.create(f"{top}/runs/a", storage_options=options)
    with pytest.raises(RefusedError, match=INSIDE) as caught:
        Repository.create(f"{top}/runs/a/b/c", storage_options=options)
    assert caught.value.what.startswith(f"{top}/runs/a?")
    with pytest.raises(RefusedError, match=AROUND):
        Repository.open(f"{top}/runs", create=True, storage_options=options)
    Repository.create(f"{top}/runs/ab", storage_options=options)
