"""HTTP from the agent to the servers that it calls: pooled, and tried again where that is safe."""

import asyncio
import json
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
from yarl import URL

from snapfmt.errors import ControlRefused, ParticipantFailed
from snapfmt_coordinator.protocol.codes import from_body
from snapfmt_coordinator.protocol.v1 import REVISION_HEADER

FIRST_PAUSE_S: Final = 0.02
LONGEST_PAUSE_S: Final = 1.0
_JSON: Final = {"content-type": "application/json"}


@dataclass(frozen=True, slots=True)
class Reply:
    """What a server answered."""

    body: dict[str, Any]
    revision: int | None
    """Of the session, where the server has sessions."""


class Link:
    """One server. All its routes are idempotent: by call id, by session, or by being pure."""

    def __init__(
        self, session: aiohttp.ClientSession, name: str, url: str, *, retry_s: float = 15.0
    ) -> None:
        """`retry_s`: how long a server that does not answer, or fails, is asked again."""
        self.name = name
        self._session = session
        self._url = URL(url)
        self._retry_s = retry_s

    async def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> Reply:
        """The server's answer.

        Raises:
            ControlRefused: If the server refuses; with its reason.
            ParticipantFailed: If it does not answer, or fails, for `retry_s`.
        """
        url = self._url.with_path(path)
        until, pause = time.monotonic() + self._retry_s, FIRST_PAUSE_S
        while True:
            try:
                return await self._once(url, body, {**_JSON, **headers})
            except ParticipantFailed:
                if time.monotonic() + pause > until:
                    raise
            # Not for secrets: it keeps those who wait from coming back together.
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311
            pause = min(pause * 2, LONGEST_PAUSE_S)

    async def _once(self, url: URL, body: bytes, headers: Mapping[str, str]) -> Reply:
        try:
            async with self._session.post(url, data=body, headers=headers) as response:
                status, text = response.status, await response.read()
                revision = response.headers.get(REVISION_HEADER)
        except (aiohttp.ClientError, OSError) as error:
            raise ParticipantFailed(
                f"no answer: {type(error).__name__}: {error}", what=f"{self.name} {url.path}"
            ) from error
        try:
            value = json.loads(text)
        except ValueError:
            value = None
        if status != 200:
            refusal = from_body(status, value)
            if refusal is not None and status < 500:
                raise refusal
            reason = refusal.detail if refusal else f"HTTP {status}"
            raise ParticipantFailed(f"it failed: {reason}", what=f"{self.name} {url.path}")
        if not isinstance(value, dict):
            raise ParticipantFailed("its answer is no JSON object", what=f"{self.name} {url.path}")
        return Reply(value, int(revision) if revision is not None else None)


def is_closed(error: ControlRefused) -> bool:
    """Whether a refusal passes with the checkpoint that is being taken."""
    return error.reason in ("model_admission_closed", "resources_admission_closed")
