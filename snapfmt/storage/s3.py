"""An S3-compatible bucket through s3fs; one request per call, nothing cached.

s3fs brings sessions, credentials, endpoints and TLS, as users of fsspec know them. Its files,
moves, listings cache and own retries are not used: they publish half objects, copy and delete,
go stale, or hide what a lost reply meant.
"""

import asyncio
import base64
import dataclasses
import functools
import os
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any, Final, NoReturn

from snapfmt.errors import (
    InputError,
    MissingObject,
    SnapfmtError,
    StorageError,
    StorageUnavailable,
    StoreNotFound,
    UnsupportedFeature,
)
from snapfmt.storage.client import ObjectInfo
from snapfmt.storage.pieces import Body, Pieces
from snapfmt.storage.s3_errors import is_behind_the_end, typed
from snapfmt.storage.s3_url import parse

MAX_PUT: Final = 5 * 2**30
"""Bytes that one PUT may have."""
CONNECT_S: Final = 10
READ_S: Final = 120
SLOWEST: Final = 2**20
"""Bytes per second below which a request counts as stalled."""
_PIECE: Final = 2**16
_NO_S3: Final = "is the endpoint that of an S3 server?"


class S3Client:
    """Objects below `s3://bucket/prefix`; implements `storage.client.ObjectClient`."""

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        """`options` are those of s3fs; endpoint, profile and anon may stand in the URL's query.

        Raises:
            InputError: If it is no such URL.
            UnsupportedFeature: If s3fs is not installed.
        """
        self._place = parse(url, options)
        self._bucket, self._prefix = self._place.bucket, self._place.prefix
        self._opened: tuple[int, Any] | None = None

    def parents(self) -> "list[S3Client]":
        """One for each step of the prefix, and one for the bucket."""
        steps = self._prefix.split("/") if self._prefix else []
        prefixes = ["/".join(steps[:count]) for count in reversed(range(len(steps)))]
        places = [dataclasses.replace(self._place, prefix=prefix) for prefix in prefixes]
        found = [S3Client(place.location, place.options) for place in places]
        for client in found:
            client._opened = self._opened
        return found

    def __reduce__(self) -> NoReturn:
        # It may hold a secret key.
        raise InputError(
            "a bucket's client is not pickled", what=self.location, hint="hand its location on"
        )

    @property
    def location(self) -> str:
        """The URL, with the options that hold no secret."""
        return self._place.location

    @property
    def max_object(self) -> int:
        """Of S3, and of those that follow it."""
        return MAX_PUT

    def put(
        self,
        key: str,
        data: Body,
        *,
        exclusive: bool,
        metadata: Mapping[str, str],
        sha256: bytes | None = None,
    ) -> None:
        """One PutObject, with `If-None-Match: *` if exclusive."""
        if len(data) > self.max_object:
            raise StorageError(f"one PUT holds at most {self.max_object} bytes", what=key)
        extra: dict[str, Any] = {"IfNoneMatch": "*"} if exclusive else {}
        if sha256 is not None:
            extra["ChecksumSHA256"] = base64.b64encode(sha256).decode("ascii")
        if isinstance(data, Pieces):
            from snapfmt.storage.s3_http import PieceBody

            body: Any = PieceBody(data)
        else:
            body = data if isinstance(data, bytes) else bytes(data)
        self._call("put_object", key, Body=body, Metadata=dict(metadata), **extra)

    def get(self, key: str, offset: int, size: int) -> bytes:
        """One GetObject of a range."""

        async def read(fs: Any) -> bytes:
            answer = await fs._call_s3(
                "get_object",
                Bucket=self._bucket,
                Key=self._key(key),
                Range=f"bytes={offset}-{offset + size - 1}",
            )
            expected = answer.get("ContentLength")
            async with answer["Body"] as body:
                data = await _read_most(body, size, expected)
            if expected is not None and len(data) < min(expected, size):
                raise StorageUnavailable("the body was cut off", what=key)
            return data

        try:
            data: bytes = self._run(key, read, size=size)[:size]
        except StorageError as error:
            if not is_behind_the_end(error):
                raise
            # As every range of an empty object does.
            return b""
        return data

    def head(self, key: str) -> ObjectInfo | None:
        """One HeadObject."""
        failure: SnapfmtError | None = None
        try:
            answer = self._call("head_object", key)
        except MissingObject:
            return None
        except StorageUnavailable:
            raise
        except StorageError as error:
            failure = error
        if failure is not None:
            raise self._reason(key) or failure
        metadata = {name.lower(): value for name, value in answer.get("Metadata", {}).items()}
        size = self._field(answer, "ContentLength", key)
        return ObjectInfo(key, size, _ns(answer), metadata)

    def _reason(self, key: str) -> SnapfmtError | None:
        """Why a look at a head is refused: its answer has no body, which would say so."""
        try:
            self.get(key, 0, 1)
        except (StorageUnavailable, MissingObject):
            return None
        except (StorageError, StoreNotFound) as error:
            return error
        return None

    def list(self, prefix: str, *, deep: bool) -> Iterator[ObjectInfo]:
        """ListObjectsV2, page by page."""
        above = self._key("")
        more: dict[str, Any] = {} if deep else {"Delimiter": "/"}
        while True:
            answer = self._call("list_objects_v2", prefix, named="Prefix", **more)
            for item in answer.get("Contents", ()):
                name = self._field(item, "Key", prefix)
                yield ObjectInfo(self._below(name, above), item.get("Size", 0), _ns(item))
            for item in answer.get("CommonPrefixes", ()):
                yield ObjectInfo(self._below(self._field(item, "Prefix", prefix), above), 0)
            if not self._field(answer, "IsTruncated", prefix):
                return
            more["ContinuationToken"] = self._field(answer, "NextContinuationToken", prefix)

    def _below(self, name: str, above: str) -> str:
        if not name.startswith(above):
            raise StorageError(
                "the server lists what was not asked for", what=self.location, hint=_NO_S3
            )
        return name[len(above) :]

    def _field(self, answer: Mapping[str, Any], name: str, key: str) -> Any:
        if name not in answer:
            raise StorageError(f"the answer has no {name}", what=key, hint=_NO_S3)
        return answer[name]

    def delete(self, key: str) -> None:
        """One DeleteObject."""
        try:
            self._call("delete_object", key)
        except MissingObject:
            return

    def _key(self, key: str) -> str:
        return f"{self._prefix}/{key}" if self._prefix else key

    def _call(self, method: str, key: str, *, named: str = "Key", **arguments: Any) -> Any:
        arguments = {"Bucket": self._bucket, named: self._key(key), **arguments}

        async def call(fs: Any) -> Any:
            return await fs._call_s3(method, **arguments)

        return self._run(key, call, size=len(arguments.get("Body", b"")))

    def _run(
        self, key: str, work: Callable[[Any], Coroutine[Any, Any, Any]], *, size: int = 0
    ) -> Any:
        from fsspec.asyn import sync

        try:
            fs = self._fs()
            config = fs.config_kwargs
            # The HTTP library's own limits do not hold while a body is being sent.
            waits = (config["connect_timeout"] or CONNECT_S) + (config["read_timeout"] or READ_S)
            limit = waits + size / SLOWEST

            async def bounded() -> Any:
                return await asyncio.wait_for(work(fs), limit)

            return sync(fs.loop, bounded)
        except SnapfmtError as error:
            failure: Exception = error
        except Exception as error:  # noqa: BLE001 - all are made typed
            failure = typed(error, key, self.location)
        # Outside, so that it has no context: its frames hold requests and their signatures.
        raise failure

    def _fs(self) -> Any:
        """The file system of this process: its sessions do not survive a fork.

        Without a lock, which a fork might leave locked; opening it twice does no harm.
        """
        opened = self._opened
        if opened is not None and opened[0] != os.getpid():
            _disown(opened[1]._loop)
            opened = None
        if opened is None:
            opened = self._opened = (os.getpid(), self._open())
        return opened[1]

    def _open(self) -> Any:
        try:
            import s3fs
            from fsspec.asyn import sync

            from snapfmt.storage.s3_http import PlainSession, new_session, unknown_options
        except ImportError as error:
            raise UnsupportedFeature(
                "buckets need s3fs", what=self.location, hint="pip install 'snapfmt[s3]'"
            ) from error
        options = dict(self._place.options)
        given = dict(options.pop("config_kwargs", None) or {})
        config = {
            "connect_timeout": CONNECT_S,
            "read_timeout": READ_S,
            "max_pool_connections": 32,
            "request_checksum_calculation": "when_required",
            **given,
            # The sha256 of each body is known, signed as a header, and compared by the server;
            # to hash the body once more for its signature would say nothing new.
            "s3": {"payload_signing_enabled": False, **(given.get("s3") or {})},
            "http_session_cls": PlainSession,
            "retries": {"total_max_attempts": 1},
        }
        try:
            fs = s3fs.S3FileSystem(
                **options,
                config_kwargs=config,
                use_listings_cache=False,
                # One that s3fs made before would know nothing of what the environment says now:
                # keys, a profile, a CA, a proxy, another server.
                skip_instance_cache=True,
            )
            fs.retries = 1
            fs.session = new_session(fs.kwargs)
            # Before the session is made, which notes how it is to be closed.
            fs.close_session = functools.partial(_close, os.getpid(), type(fs).close_session)
            sync(fs.loop, fs.set_session)
        except Exception as error:  # noqa: BLE001 - nothing was asked of any server yet
            kind = type(error).__name__
        else:
            kind = ""
        if kind:
            # Outside, so that it has no context, and without its text: it may repeat a secret.
            if unknown := unknown_options(options):
                raise InputError(
                    "s3fs has no such option",
                    what=", ".join(unknown),
                    hint="such as endpoint_url, key, secret, token, profile, anon, client_kwargs",
                )
            raise InputError(
                f"the options do not make a client ({kind})",
                what=self.location,
                hint="check storage_options, the profile and the files that AWS tools read",
            )
        return fs


def _close(owner: int, close: Callable[[Any, Any], None], loop: Any, session: Any) -> None:
    """Close a session where it was opened; a forked child must not."""
    if os.getpid() == owner:
        close(loop, session)
    else:
        _disown(loop)


def _disown(loop: Any) -> None:
    """Mark a forked child's copy of its parent's loop as closed, which it never runs.

    The two share one epoll: a socket that the child closes through it is lost to the parent,
    whose request then waits until it times out.
    """
    loop._closed = True
    # Sessions that are dropped without being closed are the parent's to close.
    loop.set_exception_handler(lambda *_: None)


async def _read_most(body: Any, size: int, expected: int | None) -> bytes:
    """A body that should have `size` bytes; of a longer or an endless one no more is kept."""
    if expected is not None and expected <= size:
        data: bytes = await body.read()
        return data
    found = bytearray()
    while len(found) <= size and (piece := await body.read(_PIECE)):
        found += piece
    return bytes(found)


def _ns(answer: Mapping[str, Any]) -> int:
    modified = answer.get("LastModified")
    return 0 if modified is None else int(modified.timestamp() * 1e9)
