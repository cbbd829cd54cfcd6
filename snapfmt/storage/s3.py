"""An S3-compatible bucket through s3fs; one request per call, nothing cached.

s3fs brings sessions, credentials, endpoints and TLS, as users of fsspec know them. Its files,
moves, listings cache and own retries are not used: they publish half objects, copy and delete,
go stale, or hide what a lost reply meant.
"""

import base64
import functools
import os
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, quote, urlencode, urlsplit

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
from snapfmt.storage.base import Buffer
from snapfmt.storage.client import ObjectInfo

SCHEMES: Final = ("s3", "s3a")
PLAIN_OPTIONS: Final = ("endpoint_url", "profile", "anon")
"""Options that hold no secret: they may stand in the URL's query, and do in `location`."""
MAX_PUT: Final = 5 * 2**30
"""Bytes that one PUT may have."""
CONNECT_S: Final = 10
READ_S: Final = 120
_BUSY: Final = frozenset({408, 429, 500, 502, 503, 504})
"""Also after the request was carried out in part: some servers call a lost quorum SlowDown."""
_DENIED: Final = frozenset({"ExpiredToken", "InvalidToken", "TokenRefreshRequired"})
_FULL: Final = frozenset({"QuotaExceeded", "InsufficientCapacity", "XMinioStorageFull"})


class S3Client:
    """Objects below `s3://bucket/prefix`; implements `storage.client.ObjectClient`."""

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        """`options` are those of s3fs; endpoint, profile and anon may stand in the URL's query.

        Raises:
            InputError: If it is no such URL.
            UnsupportedFeature: If s3fs is not installed.
        """
        parts = _split(url)
        self._options = _options(parts.query, options or {})
        self._bucket = parts.netloc
        self._prefix = parts.path.strip("/")
        self._opened: tuple[int, Any] | None = None

    @property
    def location(self) -> str:
        """The URL, with the options that hold no secret."""
        path = f"/{self._prefix}" if self._prefix else ""
        plain = {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name in PLAIN_OPTIONS
            if (value := self._options.get(name)) not in (None, "", False)
        }
        query = f"?{urlencode(plain, quote_via=quote, safe=':/')}" if plain else ""
        return f"s3://{self._bucket}{path}{query}"

    def put(
        self,
        key: str,
        data: Buffer,
        *,
        exclusive: bool,
        metadata: Mapping[str, str],
        sha256: bytes | None = None,
    ) -> None:
        """One PutObject, with `If-None-Match: *` if exclusive."""
        if len(data) > MAX_PUT:
            raise StorageError(f"one PUT holds at most {MAX_PUT} bytes", what=key)
        extra: dict[str, Any] = {"IfNoneMatch": "*"} if exclusive else {}
        if sha256 is not None:
            extra["ChecksumSHA256"] = base64.b64encode(sha256).decode("ascii")
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
            async with answer["Body"] as body:
                data: bytes = await body.read()
            expected = answer.get("ContentLength")
            if expected is not None and len(data) != expected:
                raise StorageUnavailable("the body was cut off", what=key)
            return data

        try:
            data: bytes = self._run(key, read)[:size]
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
        return ObjectInfo(key, answer["ContentLength"], _ns(answer), metadata)

    def list(self, prefix: str, *, deep: bool) -> Iterator[ObjectInfo]:
        """ListObjectsV2, page by page."""
        begin = len(self._key(""))
        more: dict[str, Any] = {} if deep else {"Delimiter": "/"}
        while True:
            answer = self._call("list_objects_v2", prefix, named="Prefix", **more)
            for item in answer.get("Contents", ()):
                yield ObjectInfo(item["Key"][begin:], item["Size"], _ns(item))
            for item in answer.get("CommonPrefixes", ()):
                yield ObjectInfo(item["Prefix"][begin:], 0)
            if not answer.get("IsTruncated"):
                return
            more["ContinuationToken"] = answer["NextContinuationToken"]

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

        return self._run(key, call)

    def _run(self, key: str, work: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
        from fsspec.asyn import sync

        try:
            fs = self._fs()
            return sync(fs.loop, work, fs)
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
        except ImportError as error:
            raise UnsupportedFeature(
                "buckets need s3fs", what=self.location, hint="pip install 'snapfmt[s3]'"
            ) from error
        options = dict(self._options)
        config = {
            "connect_timeout": CONNECT_S,
            "read_timeout": READ_S,
            "max_pool_connections": 32,
            "request_checksum_calculation": "when_required",
            # The sha256 of each body is known, signed as a header, and compared by the server;
            # to hash the body once more for its signature would say nothing new.
            "s3": {"payload_signing_enabled": False},
            **options.pop("config_kwargs", {}),
            "retries": {"total_max_attempts": 1},
        }
        fs = s3fs.S3FileSystem(
            **options,
            config_kwargs=config,
            use_listings_cache=False,
        )
        fs.retries = 1
        fs.close_session = functools.partial(_close, os.getpid(), type(fs).close_session)
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


class _RangeError(Exception):
    """The range begins behind the end."""


def _options(query: str, given: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in PLAIN_OPTIONS:
            raise InputError(
                "not an option for a URL",
                what=name,
                hint=f"a URL may hold {', '.join(PLAIN_OPTIONS)}; the rest are storage_options",
            )
        found[name] = value == "true" if name == "anon" else value
    found |= given
    if "@" in str(found.get("endpoint_url") or ""):
        raise InputError("an endpoint with a user or a password in it", what="endpoint_url")
    return found


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
        return _RangeError()
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
    refused = isinstance(cause, ClientConnectorError)
    return StorageUnavailable(
        f"no answer ({said})", what=key, hint=f"is {location} reachable?", sent=not refused
    )


def _ns(answer: Mapping[str, Any]) -> int:
    modified = answer.get("LastModified")
    return 0 if modified is None else int(modified.timestamp() * 1e9)


def _split(url: str) -> SplitResult:
    """The parts of a bucket's URL; an error shows nothing of what may be a user and a password."""
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme in SCHEMES and parts.netloc and not {"@", ":"} & set(parts.netloc):
        return parts
    scheme, _, rest = url.partition("?")[0].partition("://")
    shown = f"{scheme}://..." if set(rest) & set("@:[") else f"{scheme}://{rest}"
    raise InputError("not a URL of a bucket", what=shown, hint="s3://bucket/prefix")
