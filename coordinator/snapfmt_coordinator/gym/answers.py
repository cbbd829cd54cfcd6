"""What a server answered: read within bounds, and turned into a record or a typed error."""

import json
import re
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, TypeVar

import aiohttp
from pydantic import SecretStr, ValidationError

from snapfmt.errors import (
    ControlRefused,
    DeadlineExceeded,
    ParticipantFailed,
    SnapfmtError,
    UnsupportedFeature,
)
from snapfmt_coordinator.protocol.codes import from_body
from snapfmt_coordinator.protocol.v1 import INCARNATION_HEADER, MAX_BODY
from snapfmt_schemas._base import Record

R = TypeVar("R", bound=Record)

LONGEST_TEXT: Final = 500
"""Characters of a server's own words that an error repeats."""
HIDDEN: Final = "[redacted]"


@dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP answer; `body` is None when it was larger than `MAX_BODY`."""

    status: int
    media_type: str
    body: bytes | None
    incarnation: str = ""
    """Which process of the server answered; empty where it does not tell."""

    @property
    def fine(self) -> bool:
        """Whether the server says that it did what was asked."""
        return HTTPStatus.OK <= self.status < HTTPStatus.MULTIPLE_CHOICES

    @property
    def broken(self) -> bool:
        """Whether the server or a proxy failed, so that asking again may help."""
        return self.status >= HTTPStatus.INTERNAL_SERVER_ERROR

    @classmethod
    async def read(cls, response: aiohttp.ClientResponse) -> "Answer":
        """The answer, of which no more is kept than `MAX_BODY`."""
        pieces: list[bytes] = []
        size = 0
        async for piece in response.content.iter_any():
            size += len(piece)
            if size > MAX_BODY:
                return cls(response.status, response.content_type, None)
            pieces.append(piece)
        incarnation = response.headers.get(INCARNATION_HEADER, "")
        return cls(response.status, response.content_type, b"".join(pieces), incarnation)


class Interpreter:
    """Reads the answers of one server. No error that it makes holds the token."""

    def __init__(self, server: str, token: SecretStr) -> None:
        self._server = server
        self._secret = re.compile(re.escape(token.get_secret_value()), re.IGNORECASE)

    def clean(self, text: str) -> str:
        """Text from outside, fit for an error: short, printable, without the token."""
        # Header values, such as a media type, may come back in lower case.
        text = self._secret.sub(HIDDEN, text)[:LONGEST_TEXT]
        return "".join(letter if letter.isprintable() else " " for letter in text)

    def record(self, route: str, answer: Answer, model: type[R]) -> R:
        """The record in an answer.

        Raises:
            ControlRefused: If the server refused.
            DeadlineExceeded: If it refused since the deadline has passed.
            UnsupportedFeature: If it has no such route.
            ParticipantFailed: If the answer is none of this protocol.
        """
        if not answer.fine:
            raise self.error(route, answer)
        if answer.body is None:
            raise self._garbage(route, answer, f"more than {MAX_BODY} bytes")
        try:
            return model.model_validate_json(answer.body)
        except ValidationError as error:
            # Without the input: it is not ours to repeat.
            found = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(step) for step in found["loc"])
        why = f"not {model.__name__}: {found['msg']}" + (f" at {place}" if place else "")
        raise self._garbage(route, answer, why)

    def error(self, route: str, answer: Answer) -> SnapfmtError:
        """The error for an answer that is not 2xx."""
        refused = from_body(answer.status, _parsed(answer.body))
        if refused is not None:
            return self._refusal(route, refused)
        if answer.status in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED):
            return UnsupportedFeature(
                f"the server has no control route {route}",
                what=self._server,
                hint="mount the participant's control router on it, or leave it out",
            )
        return self._garbage(route, answer, "no body of this protocol")

    def _refusal(self, route: str, refused: ControlRefused) -> SnapfmtError:
        message = f"server {self._server!r}, {route}: {self.clean(refused.detail)}"
        if refused.reason == "deadline_passed":
            return DeadlineExceeded(
                message,
                what=self._server,
                hint="if the deadline lay ahead, compare the clocks of the two machines",
            )
        return ControlRefused(
            message,
            reason=refused.reason,
            status=refused.status,
            what=self.clean(refused.what) or self._server,
            hint=self.clean(refused.hint),
        )

    def _garbage(self, route: str, answer: Answer, why: str) -> ParticipantFailed:
        size = "" if answer.body is None else f", {len(answer.body)} bytes"
        kind = self.clean(f"HTTP {answer.status}, {answer.media_type}{size}")
        return ParticipantFailed(
            f"garbage from {route}: {self.clean(why)} ({kind})",
            what=self._server,
            hint="check that the address is the Gym server's and that its version fits",
        )


def _parsed(body: bytes | None) -> Any:
    try:
        return json.loads(body or b"")
    except (ValueError, RecursionError):
        return None
