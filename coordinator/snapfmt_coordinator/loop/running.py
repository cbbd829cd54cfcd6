"""One run of a rollout over HTTP: sent, sent again where that is safe, limited in time."""

import asyncio
import hashlib
import json
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import aiohttp
from pydantic import ValidationError

from snapfmt.errors import ControlRefused, ParticipantFailed
from snapfmt_coordinator.loop.state import Finished, Run
from snapfmt_coordinator.loop.timers import PausableClock
from snapfmt_coordinator.protocol.codes import from_body
from snapfmt_coordinator.protocol.v1 import HELD_HEADER
from snapfmt_schemas.completion import CompletionReceipt
from snapfmt_schemas.identity import capture_key
from snapfmt_schemas.ledger import CallRecord, RolloutReceipt
from snapfmt_schemas.lines import from_value

SEND_AGAIN: Final = frozenset({"agent_admission_closed", "duplicate_execution"})
"""Refusals that pass: a checkpoint is being taken, or our own first request still runs."""
PATIENCE_S: Final = 20.0
"""How long a server that does not answer is asked again."""
_PAUSE_S: Final = (0.05, 0.5)
_LOOK_S: Final = 0.25


class AgentRuns:
    """Sends runs to one agent server."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        *,
        url: str,
        agent_name: str,
        clock: PausableClock,
        limit_s: float,
        admitted: Callable[[], Awaitable[None]],
    ) -> None:
        """`admitted` waits for as long as a checkpoint keeps runs out."""
        self._session = session
        self._url = url.rstrip("/") + "/run"
        self._agent_name = agent_name
        self._clock = clock
        self._limit_s = limit_s
        self._admitted = admitted

    async def run(self, run: Run, task: Mapping[str, Any]) -> Finished:
        """The run's result.

        Raises:
            ParticipantFailed: If it ended without one, or its time ran out.
        """
        sending = asyncio.create_task(self._until_answered(run, task))
        until = self._clock.now() + self._limit_s
        try:
            while not sending.done():
                left = until - self._clock.now()
                if left <= 0:
                    raise ParticipantFailed(
                        f"it did not end within {self._limit_s:.1f} s of its own time",
                        what=run.key,
                    )
                # Short, since the clock may stand still meanwhile.
                await asyncio.wait((sending,), timeout=min(left, _LOOK_S))
            return finished(sending.result(), run, self._agent_name)
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def _until_answered(self, run: Run, task: Mapping[str, Any]) -> Any:
        body = {
            "_ng_rollout_id": run.rollout_id,
            "_ng_attempt_index": run.attempt_index,
            "task": dict(task),
        }
        silent_since: float | None = None
        held = run.held
        while True:
            await self._admitted()
            try:
                return await self._once(body, run, held=held)
            except ControlRefused as refusal:
                if refusal.reason not in SEND_AGAIN:
                    raise ParticipantFailed(f"refused: {refusal}", what=run.key) from refusal
                silent_since = None
                held = held or refusal.reason == "duplicate_execution"
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                # It may have begun, unless there was no connection. What it did to its sessions
                # is there still, so a server that was restarted since must not begin it again.
                held = held or not isinstance(error, aiohttp.ClientConnectorError)
                silent_since = silent_since or time.monotonic()
                if time.monotonic() - silent_since > PATIENCE_S:
                    raise ParticipantFailed(
                        f"no answer: {type(error).__name__}: {error}", what=run.key
                    ) from error
            await asyncio.sleep(random.uniform(*_PAUSE_S))  # noqa: S311

    async def _once(self, body: Mapping[str, Any], run: Run, *, held: bool) -> Any:
        headers = {HELD_HEADER: "1"} if held else {}
        async with self._session.post(self._url, json=body, headers=headers) as response:
            raw = await response.read()
            try:
                answer = json.loads(raw)
            except ValueError as error:
                raise ParticipantFailed(
                    f"HTTP {response.status} with a body that is not JSON", what=run.key
                ) from error
            if response.status == 200:
                return answer
            refusal = from_body(response.status, answer)
            if refusal is None:
                raise ParticipantFailed(f"HTTP {response.status}: {answer}", what=run.key)
            raise refusal


def finished(answer: Any, run: Run, agent_name: str) -> Finished:
    """The result of a run, checked.

    Raises:
        ParticipantFailed: If the answer is no result, or another run's.
    """
    try:
        completion = from_value(CompletionReceipt, answer["completion_receipt"])
        receipt = RolloutReceipt(
            rollout_id=run.rollout_id,
            attempt_index=run.attempt_index,
            capture_key=run.key,
            manifest=tuple(from_value(CallRecord, call) for call in answer["manifest"]),
            extensions={
                "turns": int(answer["turns"]),
                "tools": tools_digest(answer["verify"]),
                "continued_after": answer.get("continued_after"),
            },
        )
        reward = float(answer["reward"])
    except (KeyError, TypeError, ValueError, ValidationError) as error:
        raise ParticipantFailed(
            f"its answer is no result: {type(error).__name__}: {error}", what=run.key
        ) from error
    if capture_key(completion.rollout_id, completion.attempt_index) != run.key:
        raise ParticipantFailed("its answer is another run's", what=run.key)
    return Finished(receipt, completion, reward, agent_name)


def tools_digest(verified: Mapping[str, Mapping[str, Any]]) -> str:
    """Sha256 of what the sessions of a rollout held at its end, by server."""
    states = {name: found["state"] for name, found in verified.items()}
    text = json.dumps(states, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
