"""Names in a bucket that others made: markers of folders, and what lies below a document's name."""

import pytest

from snapfmt.reading.report import VerifyReport
from snapfmt.repository import Repository
from snapfmt.storage.memory import MemoryClient
from snapfmt.testing.bucket_world import repository_on, save


@pytest.fixture
def client() -> MemoryClient:
    client = MemoryClient()
    repository = repository_on(client, create=True)
    save(repository, 1)
    save(repository, 2)
    return client


def add(client: MemoryClient, *keys: str) -> Repository:
    for key in keys:
        client.put(key, b"", exclusive=True, metadata={})
    return repository_on(client)


def paths(report: VerifyReport) -> set[str]:
    return {finding.path for finding in report.findings}


MARKERS = ["pins/", "snapshots/", "attempts/", "objects/", "snapshots/snapshot_000001/"]


def test_markers_of_folders_are_nothing(client: MemoryClient) -> None:
    """Consoles, mounts and copy tools make them where somebody looks or copies."""
    repository = add(client, *MARKERS, "/")
    assert repository.pins() == {}
    repository.pin("keep", 1)
    assert repository.pins() == {"keep": 1}
    assert repository.keep_latest(1) == []
    repository.unpin("keep")
    assert repository.keep_latest(1) == [1]
    repository.collect()
    assert repository.verify().ok
    save(repository, 3)
    assert repository.numbers() == [2, 3]


def test_steps_without_a_name_are_told_and_break_nothing(client: MemoryClient) -> None:
    odd = ["snapshots//manifest.json", "objects//x", "snapshots/snapshot_000001//x"]
    repository = add(client, *odd)
    assert repository.numbers() == [1, 2]
    assert paths(repository.verify()) == set(odd[1:])
    assert repository.keep_latest(1) == [1]


def test_what_lies_below_a_manifests_name_is_no_snapshot(client: MemoryClient) -> None:
    repository = add(client, "snapshots/snapshot_000009/manifest.json/x")
    assert repository.numbers() == [1, 2]
    assert repository.snapshot().number == 2
