"""The agent server: plays rollouts to their end, one `/run` each.

    POST /run {"_ng_rollout_id": "p_g0", "_ng_attempt_index": 0,
               "task": {"prompt": "..", "max_turns": 12, "tools": ["counter"], "seed": 7}}

The answer is the result with its `completion_receipt`. It comes when the run is over; a caller
that hung up sends the same again: 409 while the run goes on, then the result, until that is
acknowledged. One that knows that the run is held here says so (`HELD_HEADER`): 404 if it is not,
since this server was restarted.
"""

import argparse
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from snapfmt.errors import ControlRefused, SnapfmtError
from snapfmt_coordinator.participant.agent import AgentParticipant
from snapfmt_coordinator.participant.router import control_router
from snapfmt_coordinator.protocol.codes import to_body
from snapfmt_coordinator.protocol.v1 import GENERATION_HEADER, HELD_HEADER, data
from snapfmt_coordinator.reference.links import Link
from snapfmt_coordinator.reference.rollout import Rollout, RunRequest, Servers
from snapfmt_coordinator.reference.serving import answered, application, parser, post, run
from snapfmt_schemas.completion import CompletionReceipt

_log = logging.getLogger(__name__)


class AgentServer:
    """The data route around the participant."""

    def __init__(self, participant: AgentParticipant, servers: Servers) -> None:
        self._participant = participant
        self._servers = servers

    def mount(self, app: FastAPI) -> None:
        """Adds the data route."""
        post(app, "/run", self.run)

    async def run(self, request: Request) -> Response:
        """Plays one run, or gives the result of a finished one."""
        asked = RunRequest.model_validate_json(await request.body())
        retained = self._participant.result_of(asked.rollout_id, asked.attempt_index)
        if retained is not None:
            return _finished(*retained)
        execution = await self._participant.begin(
            asked.rollout_id, asked.attempt_index, held=request.headers.get(HELD_HEADER) == "1"
        )
        headers = {GENERATION_HEADER: str(execution.generation)}
        async with execution:
            try:
                rollout = Rollout(execution, asked.task, self._servers)
                result = await rollout.play()
                calls = result["manifest"]
                receipt = execution.finish(
                    result_identity=f"result-{rollout.run}-{execution.generation}",
                    result=result,
                    terminal_model_call_id=calls[-1]["model_call_id"],
                    manifest_capture_key=rollout.run,
                )
            except ControlRefused as error:
                return answered(to_body(error), status=error.status, headers=headers)
            except SnapfmtError as error:
                _log.warning("%s failed: %s", asked.rollout_id, error)
                return answered(_failure(error), status=502, headers=headers)
        return _finished(receipt, result)


def _finished(receipt: CompletionReceipt, result: dict[str, Any]) -> Response:
    headers = {GENERATION_HEADER: str(receipt.execution_generation)}
    return answered({**result, "completion_receipt": data(receipt)}, headers=headers)


def _failure(error: SnapfmtError) -> dict[str, Any]:
    fields = {"message": error.message, "what": error.what, "hint": error.hint}
    return {"error": {"code": error.code, **fields}}


def parse_resources(values: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Name and URL of the server of each tool, from `TOOL=NAME@URL`.

    Raises:
        SystemExit: If a value is not such.
    """
    found = {}
    for value in values:
        tool, _, rest = value.partition("=")
        name, _, url = rest.partition("@")
        if not (tool and name and url):
            raise SystemExit(f"--resources takes TOOL=NAME@URL, not {value!r}")
        found[tool] = (name, url)
    return found


@asynccontextmanager
async def build(options: argparse.Namespace, token: str) -> AsyncIterator[FastAPI]:
    """The application of one agent server."""
    resources = parse_resources(options.resources)
    participant = AgentParticipant(server_name=options.name, grace_s=options.grace_s)
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60)
    async with aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
    ) as session:
        servers = Servers(
            model=Link(session, "model", options.model_url, retry_s=options.retry_s),
            resources={
                tool: Link(session, name, url, retry_s=options.retry_s)
                for tool, (name, url) in resources.items()
            },
        )
        app = application(options.name)
        app.include_router(control_router(participant, token=token))
        AgentServer(participant, servers).mount(app)
        yield app


def main() -> int:
    """Runs the server."""
    options = parser("Reference agent server.")
    options.add_argument("--model-url", required=True, help="policy model server")
    options.add_argument(
        "--resources", action="append", default=[], metavar="TOOL=NAME@URL", help="once per tool"
    )
    options.add_argument(
        "--retry-s", type=float, default=15.0, help="patience with a server that does not answer"
    )
    return run(build, options.parse_args())


if __name__ == "__main__":
    raise SystemExit(main())
