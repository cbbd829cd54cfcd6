"""No secret, access key or signature shows in an error, a record of the log, or the bucket."""

import logging
import socket
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from snapfmt import Repository
from snapfmt.errors import (
    InputError,
    OutcomeUnknownError,
    SnapfmtError,
    StorageDenied,
    StorageError,
    StorageUnavailable,
    StoreNotFound,
)
from snapfmt.storage.objects import ObjectStore
from snapfmt.storage.retry import RetryPolicy
from snapfmt.storage.s3 import S3Client
from snapfmt.testing.bucket_world import save
from snapfmt.testing.fault_proxy import WAYS, FaultProxy, Rule, Way
from snapfmt.testing.s3_servers import ACCESS_KEY, BUCKET, SECRET_KEY, S3Server

WRONG = "wrongsecretwrongsecret"
MARKS = (SECRET_KEY, WRONG, ACCESS_KEY, "Signature=", "AWS4-HMAC")


def hides(text: str) -> None:
    for mark in MARKS:
        assert mark not in text


def shown(error: BaseException) -> None:
    """All that a log or a bug report would hold, with the values of the variables of our frames."""
    hides(str(error) + repr(error) + repr(error.__dict__) + repr(error.args))
    hides("".join(traceback.format_exception(error)))
    assert error.__context__ is None or isinstance(error.__context__, SnapfmtError)
    assert error.__cause__ is None or isinstance(error.__cause__, SnapfmtError)
    for linked in (error.__cause__, error.__context__):
        if linked is not None:
            shown(linked)


@pytest.fixture(autouse=True)
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """At the levels that are on where nobody debugs the HTTP library itself."""
    caplog.set_level(logging.INFO)
    caplog.set_level(logging.DEBUG, logger="snapfmt")
    caplog.set_level(logging.DEBUG, logger="s3fs")
    yield
    for record in caplog.records:
        hides(record.getMessage() + repr(record.__dict__))


def opened(url: str, options: dict[str, Any]) -> ObjectStore:
    return ObjectStore(S3Client(url, options), retry=RetryPolicy(attempts=2, first_s=0.01))


def test_a_wrong_secret_is_denied(seaweedfs: S3Server, bucket_url: Callable[[], str]) -> None:
    for changed in ({"secret": WRONG}, {"key": "nobodyatall"}):
        store = opened(bucket_url(), seaweedfs.options | changed)
        for call in (
            store.prepare,
            lambda store=store: store.get("snapfmt.json", limit=9),
            lambda store=store: store.size("snapfmt.json"),
            lambda store=store: store.names(""),
            lambda store=store: store.delete("x"),
            lambda store=store: Repository.open(store, create=True),
        ):
            with pytest.raises(StorageDenied) as caught:
                call()
            shown(caught.value)
            hides(repr(store) + repr(store.location))


@pytest.mark.parametrize("way", WAYS)
def test_requests_that_fail(seaweedfs: S3Server, bucket_url: Callable[[], str], way: Way) -> None:
    url = bucket_url()
    Repository.open(url, create=True, storage_options=seaweedfs.options)
    config = {"read_timeout": 0.2, "connect_timeout": 0.2}
    with FaultProxy(seaweedfs.endpoint).running() as proxy:
        options = {"endpoint_url": proxy.endpoint, "config_kwargs": config}
        store = opened(url, seaweedfs.options | options)
        for method in ("GET", "HEAD", "PUT"):
            proxy.spoil(Rule(way, method, times=1000, delay_s=0.3))
            try:
                save(Repository.open(store), 1)
            except (StorageError, OutcomeUnknownError) as error:
                shown(error)
            else:
                assert way == "sent twice" or (way, method) == ("409", "HEAD")


def test_what_is_not_there_or_not_understood(
    seaweedfs: S3Server, bucket_url: Callable[[], str]
) -> None:
    with pytest.raises(StoreNotFound) as caught:
        Repository.open(bucket_url(), storage_options=seaweedfs.options)
    shown(caught.value)
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{held.getsockname()[1]}"
        store = opened(bucket_url(), seaweedfs.options | {"endpoint_url": endpoint})
        with pytest.raises(StorageUnavailable) as refused:
            store.create("pins/x", b"1")
    shown(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        f"s3://{ACCESS_KEY}:{SECRET_KEY}@bucket/run",
        f"s3://{ACCESS_KEY}:se/{SECRET_KEY}@bucket/run",
        f"s3://bucket/run?key={ACCESS_KEY}&secret={SECRET_KEY}",
        f"s3://bucket:{SECRET_KEY}?x",
        f"s3://[{SECRET_KEY}",
        f"s3://bucket/run?endpoint_url=http://{ACCESS_KEY}:{SECRET_KEY}@127.0.0.1:1",
    ],
)
def test_urls_with_secrets_are_refused_without_showing_them(url: str) -> None:
    with pytest.raises(InputError) as caught:
        Repository.open(url)
    shown(caught.value)


def test_what_is_stored_and_handed_on(seaweedfs: S3Server, bucket_url: Callable[[], str]) -> None:
    repository = Repository.open(
        bucket_url(), create=True, storage_options=seaweedfs.options | {"token": ""}
    )
    attempt = repository.begin()
    hides(attempt.ticket("p").model_dump_json())
    hides(repr(repository) + repr(repository.store) + repr(attempt) + repr(repository.leases()))
    hides(repository.location + repr(repository.document))
    save(repository, 2)
    client = S3Client(repository.location, seaweedfs.options)
    objects = list(client.list("", deep=True))
    assert len(objects) > 5
    for item in objects:
        info = client.head(item.key)
        assert info is not None
        hides(repr(info) + client.get(item.key, 0, item.size + 1).decode("latin-1"))
    hides(BUCKET)
