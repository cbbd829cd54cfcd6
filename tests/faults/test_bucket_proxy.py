"""Real servers behind a proxy that spoils every request of a small save, in every way."""

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from snapfmt import Repository
from snapfmt.errors import (
    CommitOutcomeUnknown,
    ConflictError,
    SnapfmtError,
    StorageUnavailable,
)
from snapfmt.format import pack
from snapfmt.storage.objects import ObjectStore
from snapfmt.storage.retry import RetryPolicy
from snapfmt.storage.s3 import S3Client
from snapfmt.testing.bucket_world import found, rows, save, whole
from snapfmt.testing.fault_proxy import WAYS, FaultProxy, Rule, Seen, Way, shape
from snapfmt.testing.s3_servers import S3Server
from snapfmt.writing import lease as lease_module

TIMEOUT_S = 1.0
SILENT: Final = ("cut in the request", "cut in the reply", "delayed past the timeout")
"""Ways after which no answer comes; where one comes, a slow machine may take its time for it."""


@pytest.fixture
def all_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every owner of a lease is dead, as it is after a crash; here it is this very process."""
    monkeypatch.setattr(lease_module, "is_dead", lambda _: True)


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[FaultProxy]:
    with FaultProxy(s3_server.endpoint).running() as proxy:
        yield proxy


def options(proxy: FaultProxy, server: S3Server, way: Way) -> dict[str, Any]:
    seconds = TIMEOUT_S if way in SILENT else 60.0
    return server.options | {
        "endpoint_url": proxy.endpoint,
        "config_kwargs": {"read_timeout": seconds, "connect_timeout": 60.0},
    }


def through(proxy: FaultProxy, server: S3Server, url: str, way: Way) -> ObjectStore:
    retry = RetryPolicy(attempts=5, first_s=0.01)
    return ObjectStore(S3Client(url, options(proxy, server, way)), retry=retry)


def direct(server: S3Server, url: str) -> Repository:
    return Repository.open(url, storage_options=server.options)


def kinds(requests: list[Seen]) -> list[Seen]:
    """Requests that differ in more than the ids in their paths."""
    return list(dict.fromkeys(Seen(seen.method, shape(seen.path)) for seen in requests))


@pytest.mark.usefixtures("all_dead")
@pytest.mark.parametrize("way", WAYS)
def test_a_save_behind_a_proxy_at_every_kind_of_request(
    proxy: FaultProxy, s3_server: S3Server, bucket_url: Callable[[], str], way: Way
) -> None:
    """Either server gets every other kind, and both the publication; one fault each."""
    url = bucket_url()
    store = through(proxy, s3_server, url, way)
    Repository.open(store, create=True)
    proxy.spoil()
    save(Repository.open(store), 0)
    every = kinds(proxy.requests)
    publication = Seen("PUT", "/snapshots/snapshot_*/manifest.json")
    assert publication in every
    assert len(every) >= 14
    half = every[(WAYS.index(way) + (s3_server.name == "seaweedfs")) % 2 :: 2]
    rules = [
        Rule(way, seen.method, seen.path, delay_s=TIMEOUT_S * 1.5) for seen in {*half, publication}
    ]
    proxy.spoil(*rules)
    manifest = save(Repository.open(store), 1)
    assert [rule for rule in rules if rule.fired != 1] == []
    proxy.spoil()
    repository = direct(s3_server, url)
    assert found(repository) == {1: rows(0), manifest.number: rows(1)}
    whole(repository, way)
    assert repository.leases() == []


LOST: dict[Way, bool] = {
    "reset before it is sent": False,
    "applied and the reply dropped": True,
    "503": False,
}


@pytest.mark.usefixtures("all_dead")
@pytest.mark.parametrize("way", LOST)
def test_no_answer_to_the_publication_ever(
    proxy: FaultProxy, s3_server: S3Server, bucket_url: Callable[[], str], way: Way
) -> None:
    """Unknown until the server is well again; then it is there, or it never will be."""
    url = bucket_url()
    store = through(proxy, s3_server, url, way)
    save(Repository.open(store, create=True), 1)
    proxy.spoil(Rule(way, path="snapshot_000002/manifest.json", times=1000))
    with pytest.raises(CommitOutcomeUnknown):
        save(Repository.open(store), 2)
    repository = direct(s3_server, url)
    assert [lease.number for lease in repository.leases()] == [2]
    expected = {1: rows(1)} | ({2: rows(2)} if LOST[way] else {})
    assert found(repository) == expected
    repository.clean_up()
    assert found(repository) == expected
    assert repository.leases() == []
    whole(repository, way, leftovers=False)
    assert save(repository, 3).number == 3


@pytest.mark.parametrize("way", WAYS)
def test_what_the_client_says_of_a_put(
    seaweedfs: S3Server, bucket_url: Callable[[], str], way: Way
) -> None:
    """That a request was not sent is said only where it is sure."""
    # More than once: the HTTP library itself tries again where a connection broke.
    rule = Rule(way, times=9, delay_s=TIMEOUT_S * 1.5)
    with FaultProxy(seaweedfs.endpoint, [rule]).running() as proxy:
        client = S3Client(bucket_url(), options(proxy, seaweedfs, way))
        with pytest.raises(SnapfmtError) as caught:
            client.put("pins/x", b"x" * 5000, exclusive=True, metadata={})
    assert 1 <= rule.fired <= 2
    if way in ("409", "sent twice"):
        assert isinstance(caught.value, ConflictError)
    else:
        assert isinstance(caught.value, StorageUnavailable)
        assert caught.value.sent


def test_what_the_client_says_of_a_port_where_nobody_listens(bucket_url: Callable[[], str]) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{held.getsockname()[1]}"
        given = {"key": "k", "secret": "s", "endpoint_url": endpoint}
        client = S3Client(bucket_url(), given)
        with pytest.raises(StorageUnavailable) as caught:
            client.put("pins/x", b"x", exclusive=True, metadata={})
    assert not caught.value.sent
    assert caught.value.__context__ is None


def test_a_part_is_given_up_while_the_server_hangs(
    seaweedfs: S3Server, bucket_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for the request; what it still brings about is an orphan."""
    monkeypatch.setattr(pack, "TARGET_SIZE", 2**20)
    url, gate = bucket_url(), threading.Event()
    save(Repository.open(url, create=True, storage_options=seaweedfs.options), 1)
    hang = Rule("delayed past the timeout", "PUT", "/objects/", times=9, delay_s=600.0, gate=gate)
    with FaultProxy(seaweedfs.endpoint, [hang]).running() as proxy:
        given = seaweedfs.options | {"endpoint_url": proxy.endpoint}
        attempt = Repository.open(url, storage_options=given).begin()
        part = attempt.part("p", workers=1)
        for number in range(2):
            part.stage(f"e{number}", bytes([number]) * 2**21)
        while hang.fired < 2:
            threading.Event().wait(0.01)
        ending = threading.Thread(target=attempt.abandon, daemon=True)
        ending.start()
        ending.join(60.0)
        assert not ending.is_alive()
        repository = direct(seaweedfs, url)
        assert repository.leases() == []
        gate.set()
        for thread in threading.enumerate():
            if thread.name == "snapfmt-pack-finish":
                thread.join(60.0)
    report = repository.collect()
    assert len([item for item in report.objects if item.removed]) == 2
    assert found(repository) == {1: rows(1)}
    whole(repository, url, leftovers=False)
