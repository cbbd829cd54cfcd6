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
    ConflictError,
    InputError,
    MissingObject,
    SnapfmtError,
    StorageDenied,
    StorageError,
    StorageFull,
    StorageUnavailable,
    StoreNotFound,
    UnsupportedFeature,
    UnsupportedFilesystem,
)
from snapfmt.storage.client import ObjectInfo
from snapfmt.storage.pieces import Body, Pieces
from snapfmt.storage.s3_url import parse

MAX_PUT: Final = 5 * 2**30
"""Bytes that one PUT may have."""
CONNECT_S: Final = 10
READ_S: Final = 120
SLOWEST: Final = 2**20
"""Bytes per second below which a request counts as stalled."""
_PIECE: Final = 2**16
_BUSY: Final = frozenset({408, 429, 500, 502, 503, 504})
"""Also after the request was carried out in part: some servers call a lost quorum SlowDown."""
_DENIED: Final = frozenset({"ExpiredToken", "InvalidToken", "TokenRefreshRequired"})
_NO_S3: Final = "is the endpoint that of an S3 server?"
_FULL: Final = frozenset({"QuotaExceeded", "InsufficientCapacity", "XMinioStorageFull"})


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
        except _RangeError:
            # Begins behind the end, as every range of an empty object does.
            return b""
        return data

    def head(self, key: str) -> ObjectInfo | None:
        """One HeadObject."""
        try:
            answer = self._call("head_object", key)
        except MissingObject:
            return None
        metadata = {name.lower(): value for name, value in answer.get("Metadata", {}).items()}
        size = self._field(answer, "ContentLength", key)
        return ObjectInfo(key, size, _ns(answer), metadata)

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
            failure = _typed(error, key, self.location)
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

            from snapfmt.storage.s3_http import PlainSession
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
                # One that s3fs made before would know neither of keys that the environment has
                # now, nor of another profile.
                skip_instance_cache="key" not in options,
            )
            fs.retries = 1
            # Before the session is made, which notes how it is to be closed.
            fs.close_session = functools.partial(_close, os.getpid(), type(fs).close_session)
            sync(fs.loop, fs.set_session)
        except Exception as error:  # noqa: BLE001 - nothing was asked of any server yet
            kind = type(error).__name__
        else:
            kind = ""
        if kind:
            # Outside, so that it has no context, and without its text: it may repeat a secret.
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


class _RangeError(StorageError):
    """The range begins behind the end; only a request that has one may be refused so."""


def _typed(error: Exception, key: str, location: str) -> Exception:
    """The typed error of a request; never the text of the server, which may repeat secrets."""
    response = getattr(error.__cause__ or error, "response", None) or {}
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    code = str(response.get("Error", {}).get("Code", "")) or type(error).__name__
    said = f"{code}, status {status}" if status is not None else type(error).__name__
    if status is None:
        return _without_answer(error, key, location, said)
    if status in (409, 412):
        return ConflictError(f"the server refused it ({said})", what=key)
    if status == 416:
        return _RangeError(f"the server refused it ({said})", what=key)
    if status == 404:
        if code == "NoSuchBucket":
            return StoreNotFound("no such bucket", what=location, hint="create it first")
        return MissingObject("not there", what=key, hint="run `snapfmt verify`")
    if status == 501:
        return UnsupportedFilesystem(
            f"the server cannot do this ({said})",
            what=location,
            hint="use a server that honours conditional writes",
        )
    if code in _FULL or status == 507:
        return StorageFull(f"no space left ({said})", what=location)
    if status in (401, 403) or code in _DENIED:
        return StorageDenied(
            f"the server refused access ({said})",
            what=key,
            hint=f"check the credentials and the policy for {location}",
        )
    if status in _BUSY or code in ("RequestTimeout", "BadDigest", "XAmzContentSHA256Mismatch"):
        return StorageUnavailable(
            f"the server could not answer ({said})",
            what=key,
            hint=f"is {location} well?",
        )
    return StorageError(f"the server refused it ({said})", what=key)


def _without_answer(error: Exception, key: str, location: str, said: str) -> Exception:
    from aiohttp import ClientConnectorError
    from botocore import exceptions

    from snapfmt.storage.s3_http import Redirected

    if isinstance(error, FileNotFoundError):
        return MissingObject("not there", what=key)
    if isinstance(error, (exceptions.NoCredentialsError, exceptions.PartialCredentialsError)):
        return StorageDenied(
            "no credentials",
            what=location,
            hint="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or storage_options",
        )
    if isinstance(error, (exceptions.ParamValidationError, exceptions.ProfileNotFound)):
        return InputError(f"s3fs does not take this ({said})", what=location)
    # An EndpointConnectionError may also be a connection that broke in the middle of a request.
    cause = getattr(error, "kwargs", {}).get("error")
    if isinstance(cause, Redirected):
        return StorageError(
            f"the server points elsewhere (status {cause.args[0]})",
            what=location,
            hint="check the endpoint and the region; redirects are not followed",
        )
    refused = isinstance(cause, ClientConnectorError)
    return StorageUnavailable(
        f"no answer ({said})", what=key, hint=f"is {location} reachable?", sent=not refused
    )


def _ns(answer: Mapping[str, Any]) -> int:
    modified = answer.get("LastModified")
    return 0 if modified is None else int(modified.timestamp() * 1e9)
