"""A repair between a local disk and a real S3 server: the pushed copy makes it whole."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from snapfmt import Repository
from snapfmt.format import layout
from snapfmt.repair import repair
from snapfmt.storage.base import Store
from snapfmt.storage.urls import open_store
from snapfmt.testing.corruption import flip
from snapfmt.testing.s3_servers import S3Server
from snapfmt.testing.samples import all_contents, contents, save, save_on
from snapfmt.transfer import copy_snapshot, open_target


@pytest.fixture
def store(seaweedfs: S3Server, bucket_url: Callable[[], str]) -> Callable[[], Store]:
    """Empty prefixes of a bucket."""
    return lambda: open_store(bucket_url(), storage_options=seaweedfs.options)


def content(store: Store) -> dict[str, bytes]:
    return {key: store.get(key, limit=1 << 30) for key, _ in store.walk("")}


@pytest.mark.req("M-1", "M-2", "M-6")
def test_with_a_bucket_as_source_as_target_and_beside(
    store: Callable[[], Store], tmp_path: Path
) -> None:
    source = Repository.create(tmp_path / "run")
    save(source, value=1)
    save_on(source, 1, value=2)
    saved: dict[int, Any] = all_contents(source)
    tier, fresh, rest = store(), store(), store()
    pushed = open_target(tier, source)
    for number in (1, 2):
        copy_snapshot(source, pushed, number)
    # Each lost something of both snapshots.
    rows = source.snapshot(1).part("rl/tq/train").index.tables[0].segments[0].data
    flip(Path(source.location) / layout.object_key(rows.pack), rows.offset + 400)
    notes = source.snapshot(2).part("own/2").entry("note").location
    tier.delete(layout.object_key(notes.pack))
    before = content(tier)

    alone = repair(tier, fresh, pieces=rest)
    assert (alone.whole, alone.numbers("pieces"), alone.closed) == ([1], [2], 3)
    target = Repository.open(fresh)
    assert all_contents(target) == {1: saved[1]}
    assert not target.verify().damage
    assert save(target).number == 4
    pieces = Repository.open(rest, salvage=True)
    assert pieces.verify().findings == []
    found = contents(pieces.snapshot(2))
    assert set(saved[2]) - set(found) == {"own/2/note"}
    assert all(found[key] == saved[2][key] for key in found if key != "manifest")

    together = store()
    report = repair(source.location, together, also=[tier])
    assert report.ok
    assert all_contents(Repository.open(together)) == saved
    assert Repository.open(together).verify().findings == []
    assert content(tier) == before
