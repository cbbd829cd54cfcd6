"""Control routes of the first generation for one participant.

`app.include_router(control_router(participant, token=token))` is all that a server adds.
"""

import os
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from snapfmt_coordinator.participant.agent import AgentParticipant
from snapfmt_coordinator.participant.bodies import Guard, answer, body_of, query_of
from snapfmt_coordinator.participant.model import ModelParticipant, ModelStatus
from snapfmt_coordinator.participant.resources import ResourcesParticipant
from snapfmt_coordinator.protocol import v1
from snapfmt_schemas._base import Record
from snapfmt_schemas.completion import CompletionReceipt

B = TypeVar("B", bound=Record)
Participant = AgentParticipant | ModelParticipant | ResourcesParticipant
_INCARNATION_BYTES: Final = 12


def control_router(participant: Participant, *, token: str) -> APIRouter:
    """Every route that the coordinator asks this participant.

    Raises:
        InputError: If the token is empty.
    """
    routes = _Routes(token)
    routes.get(v1.CAPABILITIES, lambda _: _now(routes.capabilities(participant)))
    if isinstance(participant, AgentParticipant):
        _agent(routes, participant)
    elif isinstance(participant, ModelParticipant):
        _model(routes, participant)
    else:
        _resources(routes, participant)
    return routes.router


class _Routes:
    def __init__(self, token: str) -> None:
        self.router = APIRouter(prefix=v1.PREFIX, tags=["checkpoint control"])
        self._guard = Guard(token)
        self._made = secrets.token_hex(_INCARNATION_BYTES)

    def capabilities(self, participant: Participant) -> v1.Capabilities:
        """What a participant says of itself, and which process says it."""
        return participant.capabilities().model_copy(update={"incarnation": self._incarnation})

    @property
    def _incarnation(self) -> str:
        # With the process id, since a server may make its routes and then fork its workers.
        return f"{self._made}-{os.getpid()}"

    async def _answer(
        self, request: Request, make: Callable[[], Awaitable[Record]]
    ) -> JSONResponse:
        response = await answer(request, self._guard, make)
        response.headers[v1.INCARNATION_HEADER] = self._incarnation
        return response

    def post(self, path: str, model: type[B], act: Callable[[B], Awaitable[Record]]) -> None:
        async def route(request: Request) -> JSONResponse:
            async def make() -> Record:
                return await act(await body_of(request, model))

            return await self._answer(request, make)

        self.router.add_api_route(path, route, methods=["POST"], name=path, response_model=None)

    def get(self, path: str, act: Callable[[Request], Awaitable[Record]]) -> None:
        async def route(request: Request) -> JSONResponse:
            return await self._answer(request, lambda: act(request))

        self.router.add_api_route(path, route, methods=["GET"], name=path, response_model=None)


def _agent(routes: _Routes, agent: AgentParticipant) -> None:
    at = v1.AGENT
    routes.post(f"{at}/prepare", v1.PrepareAgents, agent.prepare)
    routes.post(
        f"{at}/acknowledge-completed",
        v1.AcknowledgeCompleted,
        lambda body: _now(agent.acknowledge(body.executions)),
    )
    routes.post(
        f"{at}/acknowledge", CompletionReceipt, lambda body: _now(agent.acknowledge((body,)))
    )
    routes.post(
        f"{at}/completion-receipt",
        v1.Execution,
        lambda body: _now(agent.completion_receipt(body)),
    )
    routes.post(f"{at}/retire", v1.Retire, lambda body: _now(agent.retire(body.executions)))
    _common(routes, at, agent, v1.Commit)


def _model(routes: _Routes, model: ModelParticipant) -> None:
    async def status(request: Request) -> Record:
        return await model.status(query_of(request, ModelStatus))

    routes.post(f"{v1.MODEL_ADMISSION}/pause", v1.PauseModel, model.pause)
    routes.get(f"{v1.MODEL_ADMISSION}/status", status)
    routes.post(f"{v1.MODEL_ADMISSION}/abort_inflight", v1.AbortInflight, model.abort_inflight)
    routes.post(f"{v1.MODEL}/retire", v1.Retire, lambda body: _now(model.forget(body.executions)))
    _common(routes, v1.MODEL, model, v1.CommitModel, resume=f"{v1.MODEL_ADMISSION}/resume")


def _resources(routes: _Routes, resources: ResourcesParticipant) -> None:
    at = v1.RESOURCES
    routes.post(f"{at}/prepare", v1.Control, resources.prepare)
    routes.post(f"{at}/retire", v1.Retire, lambda body: _now(resources.retire(body.executions)))
    _common(routes, at, resources, v1.Commit)


def _common(
    routes: _Routes, at: str, participant: Any, commit: type[Record], *, resume: str = ""
) -> None:
    routes.post(f"{at}/commit", commit, participant.commit)
    routes.post(f"{at}/restore", v1.Restore, participant.restore)
    routes.post(f"{at}/discard-restored-continuation", v1.DiscardRestored, participant.discard)
    routes.post(resume or f"{at}/resume", v1.Resume, participant.resume)


async def _now(record: Record) -> Record:
    return record
