"""URLs and options of buckets: what is taken, what is refused, and what is never shown."""

import asyncio
import http.server
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Self

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
    UnsupportedFilesystem,
)
from snapfmt.storage.objects import ObjectStore
from snapfmt.storage.retry import RetryPolicy
from snapfmt.storage.s3 import S3Client
from snapfmt.storage.s3_url import MAX_PREFIX, parse

SECRET = "SEKRIT"
KEYS = {"key": "AKIATEST", "secret": SECRET}
AT_ONCE = RetryPolicy(sleep=lambda _: pytest.fail("tried again"))


@pytest.mark.parametrize(
    ("url", "bucket", "prefix", "location"),
    [
        ("s3://b2k", "b2k", "", "s3://b2k"),
        ("s3://b2k/", "b2k", "", "s3://b2k"),
        ("s3a://b.k/run/7/", "b.k", "run/7", "s3://b.k/run/7"),
        ("s3://b2k/a b/é%41+", "b2k", "a b/é%41+", "s3://b2k/a b/é%41+"),
        (
            "s3://b2k/r?endpoint_url=http://127.0.0.1:8333&anon=yes",
            "b2k",
            "r",
            "s3://b2k/r?endpoint_url=http://127.0.0.1:8333&anon=true",
        ),
        ("s3://b2k/r?anon=0", "b2k", "r", "s3://b2k/r"),
    ],
)
def test_a_url_names_a_place(url: str, bucket: str, prefix: str, location: str) -> None:
    place = parse(url, None)
    assert (place.bucket, place.prefix, place.location) == (bucket, prefix, location)
    again = parse(place.location, None)
    assert (again.location, again.prefix) == (place.location, place.prefix)


@pytest.mark.parametrize(
    "url",
    [
        "s3://", "s3:///x", "s3://b", "s3://-b/x", f"s3://user:{SECRET}@b2k/x", f"s3://k:{SECRET}",
        "s3://b2k//x", "s3://b2k/a//b", "s3://b2k/x//", "s3://b2k/./x", "s3://b2k/a/..",
        "s3://b2k/a\\b", "s3://b2k/x#seed1", "s3://b2k/a\tb", "s3://b2k/a\nb", "s3://b2k/a\x7fb",
        "s3://b2k/\ud800", "s3://b2k/" + "x" * (MAX_PREFIX + 1), "s3://[x", "s3:/b2k/x", "s3:b2k",
        f"s3:k:{SECRET}@b2k/x", f"S3A:/k:{SECRET}@b2k/x",
        f"s3://b2k/x?secret={SECRET}", "s3://b2k/x?anon=perhaps", "s3://b2k/x?endpoint_url=",
        "s3://b2k/x?endpoint_url=notaurl", "s3://b2k/x?endpoint_url=ftp://h",
        f"s3://b2k/x?endpoint_url=http://u:{SECRET}@h", "s3://b2k/x?endpoint_url=http://h:port",
        f"s3://b2k/x?endpoint_url=http://h/%3Ftoken%3D{SECRET}",
    ],
)  # fmt: skip
def test_a_url_that_could_mean_another_place_is_refused(url: str) -> None:
    with pytest.raises(InputError) as caught:
        Repository.open(url, create=True)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        "abc", 5, {1: 2}, {"client_kwargs": 3}, {"config_kwargs": "x"}, {"endpoint_url": 5},
        {"config_kwargs": {"s3": "x"}},
        {"use_listings_cache": True}, {"asynchronous": True}, {"anon": "no idea"},
        {"endpoint_url": f"http://h/?token={SECRET}"},
        {"client_kwargs": {"endpoint_url": f"http://h/#{SECRET}"}},
    ],
    ids=str,
)  # fmt: skip
def test_options_that_are_none_are_refused(options: Any) -> None:
    with pytest.raises(InputError) as caught:
        Repository.open("s3://b2k/x", storage_options=options)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [{"nonsense": 1}, {"client_kwargs": {"nonsense": 1}}, {"profile": "no-such"}],
    ids=str,
)
def test_options_that_make_no_client_are_refused_at_once(options: dict[str, Any]) -> None:
    """Nothing is tried again, since no server was asked."""
    client = S3Client("s3://b2k/x", {**KEYS, **options})
    with pytest.raises(InputError):
        Repository.open(ObjectStore(client, retry=AT_ONCE))


def test_an_option_that_nobody_takes_is_named() -> None:
    options = {**KEYS, "endpoint": f"http://{SECRET}", "foo": 1}
    with pytest.raises(InputError, match="no such option: 'endpoint, foo'") as caught:
        Repository.open("s3://b2k/x", storage_options=options)
    assert SECRET not in str(caught.value)


def test_an_endpoint_of_the_client_is_in_the_location() -> None:
    options = {**KEYS, "client_kwargs": {"endpoint_url": "http://127.0.0.1:1", "verify": False}}
    client = S3Client("s3://b2k/x", options)
    assert client.location == "s3://b2k/x?endpoint_url=http://127.0.0.1:1"
    assert options["client_kwargs"] == {"endpoint_url": "http://127.0.0.1:1", "verify": False}


class _Body:
    """As much of a body as came."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def read(self, size: int = -1) -> bytes:
        found, self._data = (
            (self._data, b"") if size < 0 else (self._data[:size], self._data[size:])
        )
        return found


@pytest.mark.parametrize(("came", "said"), [(50, 100), (100, 100), (50, 200)])
@pytest.mark.parametrize("asked", [100, 150])
def test_a_body_that_is_shorter_than_said_is_an_outage(
    monkeypatch: pytest.MonkeyPatch, came: int, said: int, asked: int
) -> None:
    """Whatever HTTP library lies between."""

    class Server:
        async def _call_s3(self, *_: object, **__: object) -> dict[str, Any]:
            return {"ContentLength": said, "Body": _Body(b"x" * came)}

    client = S3Client("s3://b2k/x", KEYS)
    monkeypatch.setattr(client, "_run", lambda key, work, *, size: asyncio.run(work(Server())))
    if came == said:
        assert client.get("k", 0, asked) == b"x" * came
    else:
        with pytest.raises(StorageUnavailable):
            client.get("k", 0, asked)


def test_a_client_is_not_pickled() -> None:
    client = S3Client("s3://b2k/x", KEYS)
    for protocol in (2, 4, 5):
        with pytest.raises(InputError):
            client.__reduce_ex__(protocol)


def test_a_repository_takes_no_options_for_an_open_store() -> None:
    with pytest.raises(InputError):
        Repository.open(ObjectStore(S3Client("s3://b2k/x", KEYS)), storage_options=KEYS)
    for location in (None, 5, b"s3://b2k/x"):
        with pytest.raises(InputError):
            Repository.open(location)  # type: ignore[arg-type]


# Servers that are none


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """Starts a server that answers everything alike; gives its URL."""
    servers: list[http.server.ThreadingHTTPServer] = []

    def start(status: int, headers: dict[str, str], body: bytes = b"", seen: Any = None) -> str:
        class Handler(http.server.BaseHTTPRequestHandler):
            def answer(self) -> None:
                if seen is not None:
                    seen.append((self.command, dict(self.headers)))
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = answer  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def store_at(endpoint: str, **config: Any) -> ObjectStore:
    options = {**KEYS, "token": f"TOKEN-{SECRET}", "endpoint_url": endpoint}
    client = S3Client("s3://b2k/x", {**options, "config_kwargs": config})
    return ObjectStore(client, retry=RetryPolicy(attempts=2, first_s=0.0))


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_not_followed(serve: Callable[..., str], status: int) -> None:
    seen: list[Any] = []
    other = serve(200, {"Content-Length": "0"}, seen=seen)
    headers = {"Location": f"{other}/b2k/x/k", "Content-Length": "0"}
    store = store_at(serve(status, headers))
    for ask in (
        lambda: store.get("k", limit=9),
        lambda: store.size("k"),
        lambda: store.replace("k", b"data"),
        lambda: store.create("k", b"data"),
    ):
        with pytest.raises((StorageError, OutcomeUnknownError)):
            ask()
    assert seen == []


@pytest.mark.parametrize(
    ("status", "code", "kind", "says"),
    [
        (400, "ExpiredToken", StorageDenied, "ExpiredToken.*credentials"),
        (403, "SignatureDoesNotMatch", StorageDenied, "SignatureDoesNotMatch.*credentials"),
        (400, "AuthorizationHeaderMalformed", StorageError, "elsewhere.*region"),
        (301, "PermanentRedirect", StorageError, "elsewhere.*region"),
        (405, "MethodNotAllowed", StorageError, "MethodNotAllowed"),
        (407, "", StorageError, "HTTP_PROXY"),
    ],
)
def test_a_refusal_says_why(
    serve: Callable[..., str], status: int, code: str, kind: type[StorageError], says: str
) -> None:
    """Also of a look at a head, whose answer has no body."""
    body = f"<Error><Code>{code}</Code><Message>{SECRET}</Message></Error>".encode()
    headers = {"Content-Type": "application/xml", "x-amz-bucket-region": "eu-west-1"}
    store = store_at(serve(status, headers, body))
    asks = (
        lambda: store.size("k"),
        lambda: store.get("k", limit=9),
        lambda: Repository.open(store),
    )
    for ask in asks:
        with pytest.raises(kind, match=says) as caught:
            ask()
        assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"key": "AKIATEST\n"}, "line break"),
        ({"token": f"{SECRET}\r\n"}, "line break"),
        ({"client_kwargs": {"verify": "/none/ca.pem"}}, "AWS_CA_BUNDLE"),
        ({"client_kwargs": {"verify": __file__}}, "AWS_CA_BUNDLE"),
    ],
)
def test_what_no_request_can_be_made_with_is_no_outage(
    serve: Callable[..., str], options: dict[str, Any], hint: str
) -> None:
    """Nothing is tried again, and nobody looks for the fault at the server."""
    client = S3Client("s3://b2k/x", {**KEYS, "endpoint_url": serve(404, {}), **options})
    with pytest.raises(InputError, match=hint) as caught:
        Repository.open(ObjectStore(client, retry=AT_ONCE))
    assert SECRET not in str(caught.value)


def test_a_bucket_that_is_not_there_is_said_to_be_none(serve: Callable[..., str]) -> None:
    body = b"<Error><Code>NoSuchBucket</Code></Error>"
    store = store_at(serve(404, {"Content-Type": "application/xml"}, body))
    with pytest.raises(StoreNotFound, match="no such bucket"):
        Repository.open(store)


def test_a_page_is_no_bucket(serve: Callable[..., str]) -> None:
    page = b"<html>hello</html>"
    store = store_at(serve(200, {"Content-Type": "text/html"}, page))
    for ask in (
        lambda: store.size("snapfmt.json"),
        lambda: store.names("snapshots"),
        store.prepare,
    ):
        with pytest.raises(SnapfmtError):
            ask()


def test_a_server_that_finds_nothing_is_refused(serve: Callable[..., str]) -> None:
    store = store_at(serve(404, {"Content-Length": "0"}))
    with pytest.raises(UnsupportedFilesystem, match="not found"):
        store.prepare()


def test_a_listing_of_something_else_is_refused(serve: Callable[..., str]) -> None:
    body = (
        b'<?xml version="1.0"?><ListBucketResult><IsTruncated>false</IsTruncated>'
        b"<Contents><Key>zzz/other</Key><Size>1</Size></Contents></ListBucketResult>"
    )
    store = store_at(serve(200, {"Content-Type": "application/xml"}, body))
    with pytest.raises(StorageError, match="was not asked for"):
        store.names("snapshots")


@pytest.mark.parametrize("size", [10, 4 * 2**20])
def test_a_server_that_says_nothing_is_given_up(size: int) -> None:
    """Also while a body is being sent to it."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(16)
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        store = store_at(endpoint, connect_timeout=0.3, read_timeout=0.3)
        begun = time.monotonic()
        for ask in (
            lambda: store.get("k", limit=9),
            lambda: store.names("snapshots"),
            lambda: store.replace("k", bytes(size)),
        ):
            with pytest.raises(StorageUnavailable):
                ask()
        # Six tries of 0.3 s; with the timeouts that it has otherwise, twelve minutes.
        assert time.monotonic() - begun < 300
