"""Below s3fs: its session, no redirects, bodies in pieces. Imported when a bucket is opened."""

import functools
import inspect
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

from aiobotocore.httpsession import AIOHTTPSession
from aiobotocore.session import AioSession
from aiohttp.payload import Payload
from botocore.loaders import create_loader

from snapfmt.storage.base import Buffer
from snapfmt.storage.pieces import Pieces

_REGION: Final = "x-amz-bucket-region"
"""With it AWS says in which region to ask again, and botocore does, at AWS."""


_loader = functools.cache(create_loader)


def new_session(options: Mapping[str, Any]) -> AioSession:
    """A session that reads the environment and AWS' files anew, but not its library's own data.

    That data takes most of the time in which a bucket is opened.
    """
    session = AioSession(**options)
    loader = _loader(session.get_config_variable("data_path"))
    session.register_component("data_loader", loader)
    parsers = session.get_component("response_parser_factory")
    parsers.set_parser_defaults(timestamp_parser=instant)
    return session


def instant(text: Any) -> datetime:
    """When something was, as a server says it: an HTTP date, ISO 8601, or seconds since 1970.

    botocore's own parser takes a time of no zone, or of one that it does not know, for one of
    this machine's.

    Raises:
        ValueError: If it is none of these, or has no zone.
    """
    try:
        return datetime.fromtimestamp(float(text), UTC)
    except (OverflowError, OSError) as error:
        raise ValueError("a time out of range") from error
    except ValueError:
        try:
            found = datetime.fromisoformat(text)
        except ValueError:
            found = parsedate_to_datetime(text)
    if found.tzinfo is None:
        raise ValueError("a time without a zone")
    return found


def unknown_options(names: Iterable[str]) -> list[str]:
    """Those that neither s3fs nor its session takes."""
    import s3fs

    known = {"listings_expiry_time", "max_paths", "batch_size"}
    for taker in (s3fs.S3FileSystem.__init__, AioSession.__init__):
        known |= inspect.signature(taker).parameters.keys()
    return sorted(set(names) - known)


class Redirected(Exception):
    """The server points elsewhere; its argument is the status."""


class PieceBody:
    """A body for botocore, which wants a file or bytes; the session below sends its pieces."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self._rest, self._ahead, self._at = pieces.blocks(), memoryview(b""), 0

    def __len__(self) -> int:
        return len(self._pieces)

    def blocks(self) -> Iterator[Buffer]:
        """As `Pieces`, wherever a reader is."""
        return self._pieces.blocks()

    def read(self, size: int = -1) -> bytes:
        """The next bytes, at most so many; botocore reads them to sign them, where it is told to.

        Raises:
            AttemptClosed: If the bytes were dropped.
        """
        if size < 0:
            found = b"".join([self._ahead, *self._rest])
            self._ahead = memoryview(b"")
        else:
            self._ahead = self._ahead or memoryview(next(self._rest, b""))
            found = bytes(self._ahead[:size])
            self._ahead = self._ahead[size:]
        self._at += len(found)
        return found

    def seek(self, offset: int) -> int:
        """Back to the beginning, from where it is always sent."""
        if offset:
            raise ValueError("only the beginning can be found again")
        self._rest, self._ahead, self._at = self.blocks(), memoryview(b""), 0
        return 0

    def tell(self) -> int:
        """How far it was read."""
        return self._at


class PlainSession(AIOHTTPSession):  # type: ignore[misc]
    """Follows no redirect.

    That would hand the session's token, and the bytes, to whatever host it names.
    """

    async def _get_session(self, proxy_url: Any) -> Any:
        return _Straight(await super()._get_session(proxy_url))


class _Straight:
    def __init__(self, session: Any) -> None:
        self._session = session

    async def request(self, *args: Any, **kwargs: Any) -> Any:
        if isinstance(body := kwargs.get("data"), PieceBody):
            kwargs["data"] = _PiecePayload(body)
            # Asked for by botocore for every file, and not signed: not every server answers it.
            kwargs["headers"].pop("Expect", None)
        response = await self._session.request(*args, allow_redirects=False, **kwargs)
        if 300 <= response.status < 400 and _REGION not in response.headers:
            response.close()
            raise Redirected(response.status)
        return response


class _PiecePayload(Payload):
    """Written block by block, each one when the one before is with the system.

    One large piece would be copied into the connection's own buffer first.
    """

    _autoclose = True

    def __init__(self, body: PieceBody) -> None:
        super().__init__(body)
        self._size = len(body)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """For messages about a body; none is made of this one."""
        del encoding, errors
        return f"{self._size} bytes"

    async def write(self, writer: Any) -> None:
        """Every block, waiting for the connection after each."""
        for block in self._value.blocks():
            await writer.write(block)
