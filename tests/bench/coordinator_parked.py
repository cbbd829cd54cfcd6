"""Very many runs on one agent server: a whole save of them, and how large its bodies are."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn
from coordinator_parts import AGENT, TOKEN, Control
from fastapi import FastAPI

from snapfmt import Repository
from snapfmt_coordinator.gym.client import ServerAddress
from snapfmt_coordinator.gym.side import GymSide
from snapfmt_coordinator.participant.agent import AgentParticipant
from snapfmt_coordinator.participant.model import ModelParticipant
from snapfmt_coordinator.participant.resources import ResourcesParticipant
from snapfmt_coordinator.participant.router import Participant, control_router
from snapfmt_coordinator.protocol.v1 import PREFIX
from snapfmt_coordinator.sequence.gates import CheckpointLock, DataPlaneBarrier, DispatchGate
from snapfmt_coordinator.sequence.save import SaveResult, SaveSequence
from snapfmt_schemas.agent import AgentBoundaryRecord
from snapfmt_schemas.lineage import ModelLineageRow
from snapfmt_schemas.resources import ResourceSnapshot

POLICY, TOOLS, CALL = "policy", "tools", "call-1"
DEADLINE_S = 120.0
Largest = dict[str, int]
"""Bytes of the largest body, by direction and route."""


class Sizes:
    """ASGI middleware that notes how large the bodies of each route are."""

    def __init__(self, app: Any, largest: Largest) -> None:
        self._app = app
        self._largest = largest

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serves one request."""
        sizes = {"request": 0, "reply": 0}

        async def counted_receive() -> Any:
            message = await receive()
            sizes["request"] += len(message.get("body", b""))
            return message

        async def counted_send(message: Any) -> None:
            sizes["reply"] += len(message.get("body", b""))
            await send(message)

        await self._app(scope, counted_receive, counted_send)
        route = scope["path"].removeprefix(PREFIX)
        for direction, size in sizes.items():
            name = f"{direction} {scope['method']} {route}"
            self._largest[name] = max(self._largest.get(name, 0), size)


class Sessions:
    """A session of each run; a `participant.resources.SessionStore`."""

    def __init__(self) -> None:
        self.of: dict[tuple[str, int], int] = {}

    def __len__(self) -> int:
        return len(self.of)

    def export(self) -> Iterable[tuple[str, int, int, dict[str, Any]]]:
        return [(*run, revision, {"used": revision}) for run, revision in self.of.items()]

    def install(self, sessions: Iterable[ResourceSnapshot]) -> None:
        self.of |= {(one.rollout_id, one.attempt_index): one.state_revision for one in sessions}

    def drop(self, rollout_id: str, attempt_index: int) -> bool:
        return self.of.pop((rollout_id, attempt_index), None) is not None


class Rows:
    """A data plane that holds no more than the keys of the staged rows."""

    lease_s = 600.0

    def __init__(self) -> None:
        self.staged: set[str] = set()

    async def prepare(self, repository: Repository) -> None:
        return None

    async def take_cut(self) -> "Rows":
        held = Rows()
        held.staged = set(self.staged)
        return held

    async def write(self, source: Any) -> tuple[()]:
        return ()

    async def keys(self, partition: str) -> frozenset[str]:
        return frozenset(self.staged)

    async def renew(self) -> None:
        return None

    async def drop(self) -> None:
        return None


class Crowd:
    """`parking` runs that will park and `ending` runs that end while a save prepares.

    All have made a model call and are inside a tool call until `tool` is set.
    """

    def __init__(self, parking: int, ending: int, *, id_length: int = 0) -> None:
        """`id_length`: of a rollout's id, at least."""
        self.agent = AgentParticipant(server_name=AGENT, grace_s=DEADLINE_S)
        self.model = ModelParticipant(server_name=POLICY, grace_s=DEADLINE_S)
        self.sessions, self.rows, self.control = Sessions(), Rows(), Control()
        self.tools = ResourcesParticipant(self.sessions, server_name=TOOLS, grace_s=DEADLINE_S)
        self.tool = asyncio.Event()
        self.largest: Largest = {}
        self._ids = [f"{'p' * id_length}{number:06}_g0" for number in range(parking + ending)]
        self._parking = parking
        self._inside = 0
        self._all_inside = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Returns when every run is inside its tool call."""
        for number, rollout_id in enumerate(self._ids):
            work = self._run(rollout_id, parks=number < self._parking)
            self._tasks.append(asyncio.create_task(work))
        await self._all_inside.wait()

    async def finish(self) -> None:
        """Returns when every run is over."""
        await asyncio.gather(*self._tasks)

    async def _run(self, rollout_id: str, *, parks: bool) -> None:
        self.control.sent.add(rollout_id)
        async with await self.agent.begin(rollout_id, 0) as execution:
            async with self.model.call(rollout_id, 0, CALL) as call:
                row = call.commit(_row(rollout_id))
                self.rows.staged.add(row.staging_key)
            async with self.tools.operation(rollout_id, 0):
                self.sessions.of[rollout_id, 0] = 1
            self._inside += 1
            if self._inside == len(self._ids):
                self._all_inside.set()
            await self.tool.wait()
            if parks:
                await execution.boundary(_boundary(rollout_id))
            receipt = execution.finish(
                result_identity=f"result-{rollout_id}"[-128:],
                result={"turns": 1},
                terminal_model_call_id=CALL,
                manifest_capture_key=rollout_id,
            )
            self.control.adopt(receipt)

    @asynccontextmanager
    async def served(self) -> AsyncIterator[GymSide]:
        """Serves the three participants on free ports, and what asks them."""
        addresses, servers, tasks = [], [], []
        for participant in (self.agent, self.model, self.tools):
            server = _Server(_config(participant, self.largest))
            servers.append(server)
            tasks.append(asyncio.create_task(server.serve()))
            await server.ready.wait()
            port = server.servers[0].sockets[0].getsockname()[1]
            addresses.append(ServerAddress(participant.server_name, f"http://127.0.0.1:{port}"))
        try:
            yield GymSide(addresses, token=TOKEN)
        finally:
            for server in servers:
                server.should_exit = True
            await asyncio.gather(*tasks)


async def save(crowd: Crowd, side: GymSide, location: Path) -> SaveResult:
    """A whole save; the tool calls end once the agent was asked to park."""
    sequence = SaveSequence(
        Repository.create(location),
        side,
        crowd.control,
        crowd.rows,
        DispatchGate(),
        DataPlaneBarrier(),
        CheckpointLock(),
        prepare_timeout_s=DEADLINE_S,
        write_timeout_s=DEADLINE_S,
    )
    saving = asyncio.create_task(sequence.save())
    reply = "reply POST /agent-checkpoint/prepare"
    # The first answer, which names runs that do not stand, has gone out.
    while reply not in crowd.largest and not saving.done():  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    crowd.tool.set()
    return await saving


async def end(crowd: Crowd, side: GymSide) -> None:
    """All runs end, are acknowledged, and retired."""
    await crowd.finish()
    owed = crowd.control.acknowledgements()
    receipts = [(item.agent_name, item.receipt) for item in owed]
    await side.acknowledge(receipts, deadline_ts=time.time() + DEADLINE_S)
    crowd.control.acknowledged(owed)
    await side.retire(crowd.control.over)


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, *args: Any, **options: Any) -> None:
        await super().startup(*args, **options)
        self.ready.set()


def _config(participant: Participant, largest: Largest) -> uvicorn.Config:
    app = FastAPI()
    app.include_router(control_router(participant, token=TOKEN))
    options: dict[str, Any] = {"host": "127.0.0.1", "port": 0, "log_level": "error"}
    return uvicorn.Config(Sizes(app, largest), lifespan="off", **options)


def _row(rollout_id: str) -> ModelLineageRow:
    return ModelLineageRow(
        model_call_id=CALL,
        fingerprint="f" * 64,
        staging_key=f"{rollout_id}/{CALL}",
        weight_version=1,
        prev_len=0,
        delta_len=10,
        cum_len=10,
        mode="text",
    )


def _boundary(rollout_id: str) -> AgentBoundaryRecord:
    return AgentBoundaryRecord(
        rollout_id=rollout_id,
        attempt_index=0,
        boundary_index=1,
        turn_index=1,
        boundary_kind="turn_complete",
        output_items=({"role": "assistant", "content": "hello"},),
        last_committed_model_call_id=CALL,
        resource_state_revisions={TOOLS: 1},
        created_at=1.5,
    )
