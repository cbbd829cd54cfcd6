"""Fuzz target: what an S3 server answers, through the whole of s3fs and botocore, unsent."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, Final
from unittest import mock

from snapfmt.storage.s3 import S3Client
from snapfmt.testing.fuzzing import Ground, Prepared, Target, Wrong

_MOST: Final = 8
"""Requests of one call; then the server is gone, so that a listing without an end has one."""
_ERROR: Final = (
    b"<Error><Code>SlowDown</Code><Message>m</Message><Key>k</Key><RequestId>1</RequestId></Error>"
)
_LIST: Final = (
    b'<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
    b"<IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>"
    b"<Contents><Key>run/a</Key><LastModified>2026-01-02T03:04:05.000Z</LastModified>"
    b"<Size>3</Size></Contents><CommonPrefixes><Prefix>run/b/</Prefix></CommonPrefixes>"
    b"</ListBucketResult>"
)
_HEAD: Final = b"content-length: 3\nlast-modified: Fri, 02 Jan 2026 03:04:05 GMT\nx-amz-meta-a: b\n"


def targets() -> Iterator[Target]:
    """Every target of this module."""
    yield Target(name="s3-answer", prepare=_answer, cost=40)


class _Body:
    """The bytes of an answer, as aiohttp gives them."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.taken = 0

    async def read(self, size: int = -1) -> bytes:
        cut = len(self._data) if size < 0 else size
        found, self._data = self._data[:cut], self._data[cut:]
        self.taken += len(found)
        return found


class Server:
    """Gives one answer to every request, then none."""

    def __init__(self) -> None:
        self.asked = 0
        self.status, self.headers, self.body = 200, b"", b""
        self.taken = lambda: 0
        """How many bytes of the last body were read."""

    async def request(self, method: str, **sent: Any) -> Any:
        """What `aiohttp.ClientSession.request` would give."""
        from aiohttp import ClientConnectionError

        self.asked += 1
        if self.asked > _MOST:
            raise ClientConnectionError
        lines = [line.partition(b":") for line in self.headers.split(b"\n") if b":" in line]
        raw = [(name.strip(), value.strip()) for name, _, value in lines]
        text = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in raw}
        # The HTTP library has refused other bytes before.
        raw = [(name.encode("ascii", "replace"), value) for name, value in _ascii(text)]
        body = _Body(self.body)
        self.taken = lambda: body.taken
        return SimpleNamespace(
            url=sent["url"], status=self.status, raw_headers=raw, headers=text, content=body,
            read=body.read, close=lambda: None, release=lambda: None,
        )  # fmt: skip


def _ascii(text: dict[str, str]) -> Iterator[tuple[str, bytes]]:
    for name, value in text.items():
        yield name, value.encode("utf-8")


def client_of(server: Server) -> S3Client:
    """A client of it, with a real session."""
    from snapfmt.storage import s3_http

    class Session(s3_http.PlainSession):
        """Of a server that is not there."""

        async def _get_session(self, proxy_url: Any) -> Any:
            return s3_http._Straight(server)

    # fsspec gives the same file system for the same options, and so another's session.
    own = {"key": f"k{id(server)}", "secret": "s"}
    client = S3Client("s3://bucket/run?endpoint_url=http://127.0.0.1:9", own)
    with mock.patch.object(s3_http, "PlainSession", Session):
        client._fs()
    return client


def _answer(ground: Ground) -> Prepared:
    """What is asked, the status, the lines of the head, an empty one, the body."""
    server = Server()
    client = client_of(server)
    calls: tuple[Callable[[], object], ...] = (
        lambda: _bounded(client.get("a", 0, 5), 5),
        lambda: client.head("a"),
        lambda: _listed(client.list("", deep=False)),
        lambda: _listed(client.list("", deep=True)),
        lambda: client.put("a", b"data", exclusive=True, metadata={"w": "1"}),
        lambda: client.delete("a"),
    )

    def run(data: bytes) -> None:
        head, _, body = data[3:].partition(b"\n\n")
        server.asked, server.headers, server.body = 0, head, body
        server.status = 200 if len(data) < 3 else int.from_bytes(data[1:3], "little") % 600
        calls[data[0] % len(calls) if data else 0]()

    seeds = [
        bytes([call]) + status.to_bytes(2, "little") + _HEAD + b"\n" + body
        for call, body in enumerate((b"abc", b"", _LIST, _LIST, b"", b""))
        for status in (200, 206)
    ]
    seeds += [
        bytes([call]) + status.to_bytes(2, "little") + b"a: b\n\n" + _ERROR
        for call in range(len(calls))
        for status in (301, 404, 409, 412, 416, 503)
    ]
    return Prepared(run, seeds)


def _bounded(data: bytes, size: int) -> None:
    if len(data) > size:
        raise Wrong(f"{len(data)} bytes, asked were {size}")


def _listed(found: Iterator[Any]) -> None:
    for item in found:
        if not isinstance(item.key, str) or type(item.size) is not int:
            raise Wrong(f"listed {item!r:.99}")
