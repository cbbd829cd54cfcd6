"""Buckets with options of the user's own: a save is whole, and nothing waits for ever."""

from collections.abc import Callable
from typing import Any

import pytest

from snapfmt.errors import StorageDenied, StoreNotFound
from snapfmt.repository import Repository
from snapfmt.storage.pieces import BLOCK, Pieces
from snapfmt.storage.s3_http import PieceBody
from snapfmt.testing.s3_servers import SECRET_KEY, S3Server


@pytest.mark.parametrize(
    "config",
    [
        {"s3": {"payload_signing_enabled": True}},
        {"s3": {"addressing_style": "path"}},
        {"connect_timeout": None, "read_timeout": None},
    ],
    ids=str,
)
def test_a_save_with_options_for_the_client(
    seaweedfs: S3Server, bucket_url: Callable[[], str], config: dict[str, Any]
) -> None:
    options = {**seaweedfs.options, "config_kwargs": config}
    repository = Repository.open(bucket_url(), create=True, storage_options=options)
    with repository.begin() as attempt, attempt.part("p") as part:
        # Its hash takes more than one read of the client's.
        part.stage("large", bytes(range(251)) * 10_000)
        part.stage("small", b"abc")
        attempt.publish([part.seal()])
    assert repository.verify(1).findings == []
    assert repository.snapshot(1).part("p").read("small") == b"abc"


def test_keys_that_the_environment_has_later_count(
    seaweedfs: S3Server, bucket_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a notebook, where the first error says which ones to set."""
    url = f"{bucket_url()}?endpoint_url={seaweedfs.endpoint}"
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(StorageDenied, match="no credentials"):
        Repository.open(url, create=True)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, seaweedfs.environment[name])
    assert Repository.open(url, create=True).numbers() == []


def test_a_server_that_the_environment_names_later_counts(
    seaweedfs: S3Server,
    ministack: S3Server,
    bucket_url: Callable[[], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also with keys of the caller's: a client of the server before would write to that one."""
    url, keys = bucket_url(), {"key": seaweedfs.options["key"], "secret": SECRET_KEY}
    monkeypatch.setenv("AWS_ENDPOINT_URL", seaweedfs.endpoint)
    Repository.open(url, create=True, storage_options=keys)
    monkeypatch.setenv("AWS_ENDPOINT_URL", ministack.endpoint)
    with pytest.raises(StoreNotFound):
        Repository.open(url, storage_options=keys)


def test_a_body_is_read_as_a_file_is() -> None:
    pieces = Pieces()
    given = [bytes([number]) * size for number, size in enumerate([3, BLOCK - 1, 2 * BLOCK + 1, 5])]
    for piece in given:
        pieces.add(piece)
    body = PieceBody(pieces)
    for size in (1000, BLOCK, 4 * BLOCK):
        found = bytearray()
        while data := body.read(size):
            assert len(data) <= size
            found += data
        assert found == b"".join(given)
        assert body.tell() == len(pieces)
        assert body.seek(0) == 0
    assert body.read() == bytes(pieces)
    assert body.read() == body.read(1) == b""
