"""What the tests of participants share: a save attempt, records, and a served participant."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import uvicorn
from fastapi import FastAPI

from snapfmt import Repository
from snapfmt_coordinator.participant.router import Participant, control_router
from snapfmt_coordinator.protocol.v1 import Control, PublishedPart
from snapfmt_schemas.agent import AgentBoundaryRecord
from snapfmt_schemas.attempt import Receipt, Ticket
from snapfmt_schemas.lineage import ModelLineageRow

TOKEN = "a-test-token"


class Saves:
    """One repository, and the save attempt that runs in it."""

    def __init__(self, location: Path) -> None:
        self.repository = Repository.create(location)
        self.begin()

    def begin(self) -> None:
        self.attempt = self.repository.begin()

    def ticket(self, part: str) -> Ticket:
        return self.attempt.ticket(part)

    def publish(self, *receipts: Receipt) -> Callable[[str], PublishedPart]:
        """Publishes the attempt; gives what finds a part of it."""
        self.attempt.publish(list(receipts))
        number = self.attempt.number
        digests = {item.part: item.index_digest for item in receipts}
        return lambda part: PublishedPart(
            location=self.repository.location,
            number=number,
            part=part,
            index_digest=digests[part],
        )


@pytest.fixture
def saves(tmp_path: Path) -> Saves:
    """A repository with a save attempt."""
    return Saves(tmp_path / "run")


@pytest.fixture
def control() -> Callable[..., Any]:
    """Makes a control request: its class, its id, and seconds to its deadline."""

    def make(
        kind: type[Control] = Control,
        checkpoint_id: str = "c1",
        *,
        seconds: float = 30,
        **more: Any,
    ) -> Any:
        return kind(checkpoint_id=checkpoint_id, deadline_ts=time.time() + seconds, **more)

    return make


@pytest.fixture
def boundary() -> Callable[..., AgentBoundaryRecord]:
    """Makes a boundary record of a run."""

    def make(
        rollout_id: str, attempt_index: int = 0, call: str | None = "call-1", **more: Any
    ) -> AgentBoundaryRecord:
        fields = {
            "boundary_index": 1,
            "turn_index": 1,
            "boundary_kind": "turn_complete",
            "output_items": ({"role": "assistant", "content": "hello"},),
            "resource_state_revisions": {"tools": 3},
            "created_at": 1.5,
        }
        return AgentBoundaryRecord(
            rollout_id=rollout_id,
            attempt_index=attempt_index,
            last_committed_model_call_id=call,
            **(fields | more),
        )

    return make


@pytest.fixture
def lineage_row() -> Callable[..., ModelLineageRow]:
    """Makes a ledger row: its capture key, its call and its parent."""

    def make(
        key: str, call: str, parent: str | None = None, *, fingerprint: str = "f"
    ) -> ModelLineageRow:
        return ModelLineageRow(
            model_call_id=call,
            fingerprint=fingerprint,
            parent_call_id=parent,
            staging_key=f"{key}/{call}",
            weight_version=1,
            prev_len=10 if parent else 0,
            delta_len=10,
            cum_len=20 if parent else 10,
            mode="token_in" if parent else "text",
            staging_chain=(f"{key}/{parent}",) if parent else (),
        )

    return make


class Client:
    """Speaks HTTP with one served participant."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session = session
        self.url = f"{url}/ng-control/v1"

    async def send(
        self,
        method: str,
        path: str,
        *,
        token: str | None = TOKEN,
        raw: Any = None,
        **options: Any,
    ) -> tuple[int, Any]:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        async with self.session.request(
            method, self.url + path, headers=headers, data=raw, **options
        ) as response:
            return response.status, await response.json()

    async def post(self, path: str, body: Any) -> tuple[int, Any]:
        """Posts a record."""
        return await self.send("POST", path, raw=body.model_dump_json().encode())


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, *args: Any, **options: Any) -> None:
        await super().startup(*args, **options)
        self.ready.set()


@asynccontextmanager
async def _served(participant: Participant) -> AsyncIterator[Client]:
    app = FastAPI()
    app.include_router(control_router(participant, token=TOKEN))
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", lifespan="off")
    server = _Server(config)
    task = asyncio.create_task(server.serve())
    try:
        await server.ready.wait()
        port = server.servers[0].sockets[0].getsockname()[1]
        async with aiohttp.ClientSession() as session:
            yield Client(session, f"http://127.0.0.1:{port}")
    finally:
        server.should_exit = True
        await task


@pytest.fixture
def served() -> Callable[[Participant], Any]:
    """Serves a participant on a free port of this machine, as an async context manager."""
    return _served
