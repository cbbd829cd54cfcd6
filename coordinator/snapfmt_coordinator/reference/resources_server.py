"""A resources server: sessions of one tool, over HTTP.

    POST /seed_session {"seed": 7, "execution": "p_g0:1:c0ffee"}          -> {"session_id": ..}
    POST /tool         {"arguments": {..}, "action_index": 0}      -> {"output": {..}}
    POST /verify       {"answer": ".."}                            -> {"reward": 0.5, "state": ..}
    GET  /sessions                                                 -> {"sessions": [..]}

Every POST carries the identity headers, all but the first the session's id too; every answer
carries the session's revision. A tool call may ask to take long with `delay_s`.
"""

import argparse
import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from snapfmt_coordinator.participant.resources import ResourcesParticipant
from snapfmt_coordinator.participant.router import control_router
from snapfmt_coordinator.protocol.codes import refused
from snapfmt_coordinator.protocol.v1 import REVISION_HEADER
from snapfmt_coordinator.reference import policy, tools
from snapfmt_coordinator.reference.serving import (
    SESSION_HEADER,
    answered,
    application,
    get,
    identity,
    json_object,
    parser,
    post,
    run,
)
from snapfmt_coordinator.reference.sessions import MutationLog, Session, Sessions

MAX_DELAY_S: Final = 3600.0


class ResourcesServer:
    """The data routes around the sessions of one tool."""

    def __init__(
        self,
        kind: str,
        sessions: Sessions,
        participant: ResourcesParticipant,
        *,
        delay_s: float = 0.0,
    ) -> None:
        """`delay_s`: how long every tool call takes at least."""
        self._kind = kind
        self._sessions = sessions
        self._participant = participant
        self._delay_s = delay_s

    def mount(self, app: FastAPI) -> None:
        """Adds the data routes."""
        post(app, "/seed_session", self.seed_session)
        post(app, "/tool", self.call_tool)
        post(app, "/verify", self.verify)
        get(app, "/sessions", self.list_sessions)

    async def seed_session(self, request: Request) -> Response:
        """Opens the run's session."""
        who, body = identity(request), await json_object(request)
        seed, execution = body.get("seed"), body.get("execution")
        if type(seed) is not int:
            raise refused("invalid_request", "not a whole number", what="seed")
        if not isinstance(execution, str) or not execution:
            raise refused("invalid_request", "not a name", what="execution")
        async with self._participant.operation(who.rollout_id, who.attempt_index):
            session = self._sessions.seed(
                who.rollout_id, who.attempt_index, seed=seed, seeded_by=execution
            )
        return _answer(session, {"session_id": session.session_id})

    async def call_tool(self, request: Request) -> Response:
        """Makes one call of the tool, once."""
        who, body = identity(request, call=True), await json_object(request)
        arguments, action = body.get("arguments"), body.get("action_index", 0)
        if not isinstance(arguments, dict):
            raise refused("invalid_request", "not an object", what="arguments")
        if type(action) is not int or action < 0:
            raise refused("invalid_request", "not a count", what="action_index")
        delay_s = self._delay(body.get("delay_s", 0))
        place = (
            who.rollout_id,
            who.attempt_index,
            request.headers.get(SESSION_HEADER, ""),
            str(who.model_call_id),
            action,
        )
        async with self._participant.operation(who.rollout_id, who.attempt_index):
            _, known = self._sessions.answer(*place)
            if delay_s and known is None:
                await asyncio.sleep(delay_s)
            session, output = self._sessions.act(*place, arguments)
        return _answer(session, {"output": output})

    async def verify(self, request: Request) -> Response:
        """The reward that the session and the model's answer have earned."""
        who, body = identity(request), await json_object(request)
        answer = body.get("answer")
        if not isinstance(answer, str):
            raise refused("invalid_request", "not text", what="answer")
        async with self._participant.operation(who.rollout_id, who.attempt_index):
            session, public = self._sessions.public(
                who.rollout_id, who.attempt_index, request.headers.get(SESSION_HEADER, "")
            )
        reward = tools.reward(self._kind, public, answer)
        return _answer(session, {"reward": reward, "state": public})

    async def list_sessions(self, request: Request) -> Response:
        """Every session, for tests and audits."""
        return answered({"sessions": [*self._sessions.listing()]})

    def _delay(self, asked: Any) -> float:
        if type(asked) not in (int, float) or not 0 <= asked <= MAX_DELAY_S:
            raise refused("invalid_request", "not a number of seconds", what="delay_s")
        return max(float(asked), self._delay_s)


def _answer(session: Session, body: dict[str, Any]) -> Response:
    return answered(body, headers={REVISION_HEADER: str(session.revision)})


@asynccontextmanager
async def build(options: argparse.Namespace, token: str) -> AsyncIterator[FastAPI]:
    """The application of one resources server."""
    tool = tools.tool(options.tool)
    log = MutationLog(options.mutation_log) if options.mutation_log else None
    sessions = Sessions(tool, log=log)
    participant = ResourcesParticipant(
        sessions,
        server_name=options.name,
        mode=tool.mode,
        concurrency_contract="serialized_per_session",
        grace_s=options.grace_s,
    )
    app = application(options.name)
    app.include_router(control_router(participant, token=token))
    ResourcesServer(options.tool, sessions, participant, delay_s=options.delay_s).mount(app)
    yield app
    if log is not None:
        log.close()


def main() -> int:
    """Runs the server."""
    options = parser("Reference resources server.")
    options.add_argument("--tool", choices=policy.TOOLS, required=True)
    options.add_argument("--mutation-log", type=Path, help="file that mutations are appended to")
    options.add_argument("--delay-s", type=float, default=0.0, help="least time of a tool call")
    return run(build, options.parse_args())


if __name__ == "__main__":
    raise SystemExit(main())
