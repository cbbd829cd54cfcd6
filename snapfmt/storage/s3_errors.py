"""The typed error of a request to a bucket, without the server's text: it may repeat secrets."""

import ssl
from collections.abc import Mapping
from typing import Any, Final

from snapfmt.errors import (
    ConflictError,
    InputError,
    MissingObject,
    StorageDenied,
    StorageError,
    StorageFull,
    StorageUnavailable,
    StoreNotFound,
    UnsupportedFilesystem,
)

_BUSY: Final = frozenset({408, 429, 500, 502, 503, 504})
"""Also after the request was carried out in part: some servers call a lost quorum SlowDown."""
_DENIED: Final = frozenset({"ExpiredToken", "InvalidToken", "TokenRefreshRequired"})
_ELSEWHERE: Final = frozenset(
    {"AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "PermanentRedirect"}
)
"""What AWS says to who signs for another region than the bucket's."""
_FULL: Final = frozenset({"QuotaExceeded", "InsufficientCapacity", "XMinioStorageFull"})


class _RangeError(StorageError):
    """The range begins behind the end; only a request that has one may be refused so."""


def is_behind_the_end(error: StorageError) -> bool:
    """Whether the range that was asked for begins behind the end of the object."""
    return isinstance(error, _RangeError)


def typed(error: Exception, key: str, location: str) -> Exception:
    """The typed error of a request that failed."""
    response = getattr(error.__cause__ or error, "response", None) or {}
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    if status is None:
        return _without_answer(error, key, location)
    return _answered(response, status, key, location)


def _answered(response: Mapping[str, Any], status: int, key: str, location: str) -> Exception:
    code = str(response.get("Error", {}).get("Code", ""))
    # The client calls an answer without a body by its status.
    said = f"status {status}" if code in ("", str(status)) else f"{code}, status {status}"
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
    if status == 407:
        return StorageError(
            f"the proxy asks who it is ({said})",
            what=location,
            hint="check HTTP_PROXY, HTTPS_PROXY and NO_PROXY",
        )
    if 300 <= status < 400 or code in _ELSEWHERE:
        return StorageError(
            f"the bucket is elsewhere ({said})",
            what=location,
            hint="check the region (AWS_DEFAULT_REGION, the profile) and the endpoint",
        )
    return StorageError(
        f"the server refused it ({said})",
        what=key,
        hint=f"check the credentials, the region and the endpoint of {location}",
    )


def _without_answer(error: Exception, key: str, location: str) -> Exception:
    from aiohttp import ClientConnectorError
    from botocore import exceptions

    from snapfmt.storage.s3_http import Redirected

    said = type(error).__name__
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
    if isinstance(cause, (FileNotFoundError, PermissionError)) or _is_no_certificate(cause):
        # No connection was begun: these are the files that it needs.
        return InputError(
            f"the certificates cannot be read ({type(cause).__name__})",
            what=location,
            hint="check AWS_CA_BUNDLE, ca_bundle of the profile, or verify of client_kwargs",
        )
    if isinstance(cause, ValueError) and "header" in str(cause):
        return InputError(
            "the credentials or options hold what no request can",
            what=location,
            hint="does a key or a token end with a line break?",
        )
    hint = f"is {location} reachable?"
    if isinstance(error, exceptions.ProxyConnectionError):
        hint = f"is the proxy of HTTP_PROXY or HTTPS_PROXY well, and may {location} go through it?"
    elif isinstance(cause, ssl.SSLError):
        hint = f"is its CA known here (AWS_CA_BUNDLE), and is {location} https?"
    return StorageUnavailable(f"no answer ({said})", what=key, hint=hint, sent=not refused)


def _is_no_certificate(cause: object) -> bool:
    """Whether a file has none, which is not what is wrong with a connection."""
    return isinstance(cause, ssl.SSLError) and getattr(cause, "library", "") in ("PEM", "X509")
