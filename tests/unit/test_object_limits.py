"""Objects that a bucket does not take are refused before they are made, and before a copy."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from snapfmt.errors import AttemptClosed, LimitExceeded
from snapfmt.format import pack
from snapfmt.repository import Repository
from snapfmt.storage.memory import MemoryClient
from snapfmt.storage.objects import ObjectStore
from snapfmt.storage.s3 import MAX_PUT, S3Client
from snapfmt.testing.bucket_world import found, repository_on, rows, save, whole
from snapfmt.testing.client_faults import FaultyClient
from snapfmt.transfer import copy_snapshot, open_target
from snapfmt.writing.part import PartWriter

MOST = 200_000


@pytest.fixture
def bucket() -> FaultyClient:
    client = FaultyClient(MemoryClient(max_object=MOST))
    save(repository_on(client, create=True), 1)
    client.requests.clear()
    return client


def sent(client: FaultyClient) -> list[str]:
    return [
        item.key for item in client.requests if (item.verb, item.key[:8]) == ("put", "objects/")
    ]


def test_what_the_clients_say() -> None:
    assert S3Client("s3://bucket").max_object == MAX_PUT == 5 * 2**30
    assert ObjectStore(MemoryClient(max_object=7)).max_object == 7


def test_an_entry_is_refused_before_any_of_it_is_taken(bucket: FaultyClient) -> None:
    """And the part goes on without it; the largest one that fits is stored and read."""
    repository, largest = repository_on(bucket), bytes(MOST - pack.HEADER_SIZE)
    with repository.begin() as attempt, attempt.part("p") as part:
        with pytest.raises(LimitExceeded, match=r"'entry large'.*split it") as caught:
            part.stage("large", largest + b"x")
        assert str(MOST) in str(caught.value)
        assert sent(bucket) == []
        part.stage("large", largest)
        part.stage("next", bytes(MOST // 2))
        part.stage("last", bytes(MOST // 2))
        attempt.publish([part.seal()])
    read = repository.snapshot().part("p")
    assert [len(read.read(name)) for name in ("large", "next", "last")] == [
        len(largest),
        MOST // 2,
        MOST // 2,
    ]
    whole(repository, "", leftovers=False)


def pieces() -> Iterator[bytes]:
    while True:
        yield bytes(1000)


def in_pieces(part: PartWriter) -> None:
    part.stage("endless", pieces())


def as_records(part: PartWriter) -> None:
    random = np.random.default_rng(0)
    part.records("lines", (b'{"a":"%s"}' % random.bytes(500).hex().encode() for _ in range(9999)))


def as_rows(part: PartWriter) -> None:
    with part.table("rows") as table:
        table.append(["a", "b"], {"x": np.random.default_rng(0).random((2, MOST // 8))})
    part.seal()


WAYS = {"entry endless": in_pieces, "records lines": as_records, "table rows": as_rows}


@pytest.mark.parametrize("what", WAYS)
def test_what_is_found_too_large_names_itself_and_is_not_sent(
    bucket: FaultyClient, what: str
) -> None:
    """Its size is not known before: it is found when it passes the limit, and ends the part."""
    repository = repository_on(bucket)
    with repository.begin() as attempt, attempt.part("p") as part:
        with pytest.raises(LimitExceeded, match=f"{MOST} bytes: '{what}'"):
            WAYS[what](part)
        with pytest.raises((LimitExceeded, AttemptClosed)):
            part.seal()
    assert sent(bucket) == []
    assert found(repository) == {1: rows(1)}
    whole(repository, "", leftovers=False)


CONTENTS: dict[str, Callable[[PartWriter], None]] = {
    "entry large of part q": lambda part: part.stage("large", bytes(MOST)),
    "table rows of part q": lambda part: part.table("rows").append(
        ["a"], {"x": np.random.default_rng(0).random((1, MOST // 8))}
    ),
}


@pytest.mark.parametrize("what", CONTENTS)
def test_a_copy_is_refused_before_anything_is_sent(tmp_path: Path, what: str) -> None:
    source = Repository.open(tmp_path / "run", create=True)
    with source.begin() as attempt, attempt.part("p") as small, attempt.part("q") as part:
        small.stage("small", b"x")
        CONTENTS[what](part)
        attempt.publish([small.seal(), part.seal()])
    client = FaultyClient(MemoryClient(max_object=MOST))
    target = open_target(ObjectStore(client), source)
    client.requests.clear()
    with pytest.raises(LimitExceeded, match=f"{what} lies.*nothing was sent.*at the target"):
        copy_snapshot(source, target, 1)
    assert {item.verb for item in client.requests} <= {"get", "list"}
    assert target.numbers() == []
