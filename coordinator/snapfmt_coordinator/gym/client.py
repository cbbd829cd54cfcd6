"""Asks one Gym server: within an absolute deadline, again where that is safe, typed errors.

Every control request has the same effect once or many times, so a request whose answer was lost
is sent again. An answer that comes too late meets a closed connection; each request has its own,
so it can never be taken for the answer to another one.
"""

import asyncio
import math
import random
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

import aiohttp
from pydantic import SecretStr
from yarl import URL

from snapfmt.errors import (
    ControlRefused,
    DeadlineExceeded,
    InputError,
    LimitExceeded,
    ParticipantFailed,
)
from snapfmt_coordinator.gym.answers import Answer, Interpreter
from snapfmt_coordinator.protocol.v1 import MAX_BODY, PREFIX
from snapfmt_schemas._base import Record

R = TypeVar("R", bound=Record)

GRACE_S: Final = 5.0
"""Longest wait for an answer beyond the deadline, in seconds."""
CONNECT_S: Final = 5.0
"""How long one connection may take to open, in seconds."""
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")

SessionFactory = Callable[[], aiohttp.ClientSession]


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """A Gym server: its name in the configuration, and where it listens.

    Raises:
        InputError: If the URL is not http(s) with a host, or carries a password or a query.
    """

    name: str
    url: str

    def __post_init__(self) -> None:
        try:
            url = URL(self.url)
            good = url.scheme in ("http", "https") and bool(url.host) and url.port is not None
        except (ValueError, TypeError):
            good = False
        # Without the URL in the text: what is wrong with it may be a password.
        if not self.name or not good or url.user or url.password or url.query or url.fragment:
            raise InputError(
                "a server has a name and an http(s) URL without user, query or fragment",
                what=self.name,
                hint="write it as http://host:port and give the token apart from it",
            )

    def at(self, route: str) -> URL:
        """The URL of a control route."""
        return URL(self.url.rstrip("/") + PREFIX + route)


@dataclass(frozen=True, slots=True)
class Retries:
    """How a request is sent again after a lost connection or an HTTP 5xx; in seconds."""

    first_s: float = 0.05
    longest_s: float = 1.0
    patience_s: float = 10.0
    """Gives up this long after the first failure; rollouts may be parked meanwhile."""


def open_session() -> aiohttp.ClientSession:
    """A session that suits control requests: one connection each, no cookies, no proxies."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
        cookie_jar=aiohttp.DummyCookieJar(),
    )


def control_token(token: str) -> SecretStr:
    """The token, so wrapped that no text shows it.

    Raises:
        InputError: If it cannot be sent in a header.
    """
    if not _TOKEN.fullmatch(token):
        raise InputError(
            "not a bearer token (RFC 6750)", hint="use letters, digits and ._~+/- and = at the end"
        )
    return SecretStr(token)


class ControlClient:
    """Sends control requests to one server."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        address: ServerAddress,
        *,
        token: SecretStr,
        grace_s: float = GRACE_S,
        retries: Retries = Retries(),
        watch: Callable[[str], None] | None = None,
    ) -> None:
        """`watch` gets the incarnation of each answer that has one, and may raise."""
        self.address = address
        self._watch = watch
        self._session = session
        self._token = token
        self._grace_s = min(grace_s, GRACE_S)
        self._retries = retries
        self._answers = Interpreter(address.name, token)

    async def request(
        self,
        route: str,
        body: Record | None,
        reply: type[R],
        *,
        deadline_ts: float,
        query: Mapping[str, str] | None = None,
        patience_s: float | None = None,
        watched: bool = True,
    ) -> R:
        """Asks (GET without a body, else POST) and returns the checked reply.

        `deadline_ts` is in seconds since the epoch; no attempt starts after it. `patience_s`
        replaces that of the retries. Unless it is `watched`, any process may answer.

        Raises:
            ControlRefused: If the server refused; nothing was done there.
            DeadlineExceeded: If there was no answer in time. What was asked may have been done.
            ParticipantFailed: If the server cannot be reached or answers garbage, or another
                process answers than before.
            UnsupportedFeature: If it has no such route.
        """
        data = self._encoded(route, body)
        if not math.isfinite(deadline_ts):
            raise InputError(
                "a deadline is a finite time",
                what=str(deadline_ts),
                hint="give it in seconds since 1970",
            )
        patience = self._retries.patience_s if patience_s is None else patience_s
        pause, tries, gives_up = self._retries.first_s, 0, math.inf
        if time.time() >= deadline_ts:
            raise self._late(route, "was not asked: the deadline has passed")
        while True:
            tries += 1
            answer = await self._exchange(route, data, deadline_ts, query)
            if isinstance(answer, Answer) and answer.incarnation and self._watch and watched:
                self._watch(answer.incarnation)
            if isinstance(answer, Answer) and not answer.broken:
                return self._answers.record(route, answer, reply)
            gives_up = min(gives_up, time.monotonic() + patience)
            wait = pause * random.uniform(0.5, 1.5)  # noqa: S311 - spreads the load
            if time.monotonic() + wait > gives_up or time.time() + wait >= deadline_ts:
                raise self._failed(route, answer, tries)
            await asyncio.sleep(wait)
            # A busy event loop may have slept longer.
            if time.time() >= deadline_ts:
                raise self._failed(route, answer, tries)
            pause = min(pause * 2, self._retries.longest_s)

    async def _exchange(
        self, route: str, data: bytes | None, deadline_ts: float, query: Mapping[str, str] | None
    ) -> Answer | str:
        """The answer, or why the connection gave none."""
        lost, garbage = "", False
        limit = asyncio.timeout(deadline_ts + self._grace_s - time.time())
        try:
            async with (
                limit,
                self._session.request(
                    "GET" if data is None else "POST",
                    self.address.at(route),
                    data=data,
                    params=query,
                    headers=self._headers(),
                    # The token goes to this server only; bytes are counted as they come.
                    allow_redirects=False,
                    auto_decompress=False,
                    timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
                ) as response,
            ):
                return await Answer.read(response)
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, OSError) as error:
            lost = _why(error)
        except aiohttp.ClientError:
            garbage = True
        # Raised out here, so that no error of the HTTP library, which knows the headers, is
        # its context.
        if limit.expired():
            raise self._late(route, "did not answer before the deadline")
        if garbage:
            raise ParticipantFailed(
                f"garbage from {route}: not an HTTP answer",
                what=self.address.name,
                hint="check that the address is the Gym server's",
            )
        return lost

    def clean(self, text: str) -> str:
        """What the server said, fit for an error: short, printable, without the token."""
        return self._answers.clean(text)

    def _headers(self) -> dict[str, str]:
        return {
            "Authorization": f"Bearer {self._token.get_secret_value()}",
            "Connection": "close",
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "Content-Type": "application/json",
        }

    def _encoded(self, route: str, body: Record | None) -> bytes | None:
        data = None if body is None else body.model_dump_json().encode()
        if data is not None and len(data) > MAX_BODY:
            raise LimitExceeded(
                f"a request of {len(data)} bytes to {route}, at most {MAX_BODY} are allowed",
                what=self.address.name,
                hint="send fewer runs at a time",
            )
        return data

    def _late(self, route: str, what_happened: str) -> DeadlineExceeded:
        return DeadlineExceeded(
            f"{route} {what_happened}",
            what=self.address.name,
            hint="allow more time, or look at what the server is busy with",
        )

    def _failed(
        self, route: str, answer: Answer | str, tries: int
    ) -> ParticipantFailed | ControlRefused:
        if isinstance(answer, Answer):
            error = self._answers.error(route, answer)
            if isinstance(error, ControlRefused):
                return error
            why = f"HTTP {answer.status}"
        else:
            why = answer
        return ParticipantFailed(
            f"{route} cannot be asked ({why}), tried {tries} times",
            what=self.address.name,
            hint="look whether the server runs and can be reached",
        )


def _why(error: Exception) -> str:
    """Kind and cause of a lost connection; other words may quote what the server sent."""
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    text = cause.strerror if isinstance(cause, OSError) else None
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
