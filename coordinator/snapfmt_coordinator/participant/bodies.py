"""HTTP for control routes: who may ask, what was asked, and how errors travel."""

import hmac
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from fastapi import Request
from fastapi.responses import JSONResponse
from pydantic import ValidationError

from snapfmt.errors import ControlRefused, InputError
from snapfmt_coordinator.protocol.codes import internal, refused, to_body
from snapfmt_coordinator.protocol.v1 import MAX_BODY, data
from snapfmt_schemas._base import Record

B = TypeVar("B", bound=Record)
_BEARER: Final = "bearer "
_LOG = logging.getLogger(__name__)


class Guard:
    """Lets through who has the token. The token is compared in constant time, never logged."""

    def __init__(self, token: str) -> None:
        if not token or not token.isascii() or token != token.strip():
            raise InputError(
                "the control token must be ASCII text, not empty, without space around it",
                hint="give every Gym server the token of its environment",
            )
        self._token = token.encode()

    def check(self, request: Request) -> None:
        """Refuse who has not the token.

        Raises:
            ControlRefused: `unauthorized`.
        """
        header = request.headers.get("authorization", "")
        given = header[len(_BEARER) :] if header[: len(_BEARER)].lower() == _BEARER else ""
        if not hmac.compare_digest(given.strip().encode(), self._token):
            raise refused(
                "unauthorized",
                "the control token is missing or wrong",
                hint="send it as Authorization: Bearer <token>",
            )


async def body_of(request: Request, model: type[B]) -> B:
    """The request's body.

    Raises:
        ControlRefused: `request_too_large`, `invalid_request` naming the field.
    """
    raw = bytearray()
    if _length(request) > MAX_BODY:
        raise _too_large()
    async for piece in request.stream():
        raw += piece
        if len(raw) > MAX_BODY:
            raise _too_large()
    try:
        return model.model_validate_json(bytes(raw))
    except ValidationError as error:
        raise _invalid(error) from error


def query_of(request: Request, model: type[B]) -> B:
    """The request's query.

    Raises:
        ControlRefused: `invalid_request` naming the field.
    """
    fields = dict(request.query_params)
    # A literal number is not made from text.
    if fields.get("schema_version") == "1":
        del fields["schema_version"]
    try:
        return model.model_validate_strings(fields)
    except ValidationError as error:
        raise _invalid(error) from error


async def answer(
    request: Request, guard: Guard, make: Callable[[], Awaitable[Record]]
) -> JSONResponse:
    """The response of a route: the record that `make` gives, or the refusal."""
    try:
        guard.check(request)
        return JSONResponse(data(await make()))
    except ControlRefused as error:
        refusal = error
    except Exception as error:  # noqa: BLE001 - the caller is told, the log has the rest
        _LOG.exception("control request failed: %s %s", request.method, request.url.path)
        refusal = internal(error)
    headers = {"WWW-Authenticate": "Bearer"} if refusal.status == 401 else None
    return JSONResponse(to_body(refusal), status_code=refusal.status, headers=headers)


def _length(request: Request) -> int:
    text = request.headers.get("content-length", "0")
    return int(text) if text.isascii() and text.isdigit() else 0


def _too_large() -> ControlRefused:
    return refused(
        "request_too_large",
        f"the body is larger than {MAX_BODY} bytes",
        hint="send it in shorter lists",
    )


def _invalid(error: ValidationError) -> ControlRefused:
    # Without the input, which may hold what nobody should see in a log.
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(str(step) for step in first["loc"])
    return refused(
        "invalid_request",
        f"{place or 'body'}: {first['msg']}",
        what=place or "body",
        hint="see spec/v1/13-control-routes.md",
    )
