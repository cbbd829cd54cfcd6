"""The policy model server: OpenAI's chat completions, a ledger of calls, token-capture rows.

    POST /v1/chat/completions   messages, tools, metadata {"seed": "7", "max_turns": "12"}
    GET  /captured              how many rows were put; with ?check=1 which, and what is wrong

A call's row is stored before the call enters the ledger, and both before the answer goes out.
The same call again with the same request gets the same answer and makes no second row.
"""

import argparse
import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from snapfmt_coordinator.participant.model import ModelParticipant
from snapfmt_coordinator.participant.router import control_router
from snapfmt_coordinator.protocol.codes import refused
from snapfmt_coordinator.reference import tokens
from snapfmt_coordinator.reference.capture import (
    CaptureSink,
    MemorySink,
    ModelCall,
    capture_row,
    check_digests,
)
from snapfmt_coordinator.reference.chat import (
    ChatRequest,
    completion,
    lineage_row,
    message_digest,
)
from snapfmt_coordinator.reference.engine import Engine, LocalEngine
from snapfmt_coordinator.reference.serving import (
    PARENT_HEADER,
    answered,
    application,
    get,
    identity,
    json_object,
    parser,
    post,
    raw_answer,
    run,
)
from snapfmt_schemas.lineage import ModelLineageRow
from snapfmt_schemas.rows import check_capture_row

REMEMBERED: Final = 4096
"""Answers that a retry gets without asking the engine again."""


class PolicyServer:
    """The data routes around ledger, engine and sink."""

    def __init__(
        self, name: str, participant: ModelParticipant, engine: Engine, sink: CaptureSink
    ) -> None:
        self._name = name
        self._participant = participant
        self._engine = engine
        self._sink = sink
        self._answers: OrderedDict[str, bytes] = OrderedDict()

    def mount(self, app: FastAPI) -> None:
        """Adds the data routes."""
        post(app, "/v1/chat/completions", self.chat_completions)
        if isinstance(self._sink, MemorySink):
            get(app, "/captured", self.captured)

    async def chat_completions(self, request: Request) -> Response:
        """One reply of the model."""
        who = identity(request, call=True)
        parent = request.headers.get(PARENT_HEADER) or None
        asked = ChatRequest.read(who, parent, await json_object(request))
        return raw_answer(await self.answer(asked))

    async def captured(self, request: Request) -> Response:
        """The rows of the memory sink; with `check` each is checked."""
        if not isinstance(self._sink, MemorySink):
            raise refused("invalid_request", "the rows are not kept here")
        if not request.query_params.get("check"):
            return answered({"puts": self._sink.puts})
        rows = self._sink.rows
        problems = [
            f"{key}: {problem}"
            for key, row in rows.items()
            for problem in (*check_capture_row(row.columns), *check_digests(row.columns))
        ]
        body = {"puts": self._sink.puts, "keys": sorted(rows), "problems": problems}
        return answered(body)

    async def answer(self, asked: ChatRequest) -> bytes:
        """The body of the answer to one call.

        Raises:
            ControlRefused: model_admission_closed, stale_attempt, ledger_mismatch.
        """
        admitted_at = time.time()
        async with self._participant.call(
            asked.rollout_id,
            asked.attempt_index,
            asked.model_call_id,
            fingerprint=asked.fingerprint,
        ) as call:
            if call.replay is not None:
                return await self._again(asked, call.replay)
            parent = self._parent(asked)
            message, weight_version = await call.generated(self._engine.generate(asked.ask))
            row = capture_row(
                ModelCall(
                    rollout_id=asked.rollout_id,
                    attempt_index=asked.attempt_index,
                    model_call_id=asked.model_call_id,
                    parent=parent,
                    prompt=tokens.token_ids(asked.prompt),
                    generated=tokens.token_ids(tokens.body(message)),
                    weight_version=weight_version,
                )
            )
            await self._sink.put(row)
            line = call.commit(lineage_row(asked, message, row, admitted_at=admitted_at))
        answer = completion(self._name, message, line)
        self._remember(asked.key, answer)
        return answer

    async def _again(self, asked: ChatRequest, line: ModelLineageRow) -> bytes:
        known = self._answers.get(asked.key)
        if known is not None:
            return known
        # Not remembered: the policy says the same again, or this is not the call.
        message, _ = await self._engine.generate(asked.ask)
        if message_digest(message) != line.output_fingerprint:
            raise _mismatch(asked, "the ledger has another reply")
        return completion(self._name, message, line)

    def _parent(self, asked: ChatRequest) -> ModelLineageRow | None:
        if asked.parent_call_id is None:
            return None
        rows = self._participant.rows(asked.rollout_id, asked.attempt_index)
        for row in reversed(rows):
            if row.model_call_id == asked.parent_call_id:
                break
        else:
            raise _mismatch(asked, f"its parent {asked.parent_call_id!r} is not in the ledger")
        prefix = tokens.token_ids(asked.prompt[: row.cum_len])
        if len(asked.prompt) <= row.cum_len or (
            tokens.prefix_hash(prefix).hex() != row.cumulative_hash
        ):
            raise _mismatch(asked, "its messages do not continue those of its parent")
        return row

    def _remember(self, key: str, answer: bytes) -> None:
        self._answers[key] = answer
        while len(self._answers) > REMEMBERED:
            self._answers.popitem(last=False)


def _mismatch(asked: ChatRequest, message: str) -> Exception:
    return refused("ledger_mismatch", message, what=asked.key, hint="give another call another id")


@asynccontextmanager
async def build(options: argparse.Namespace, token: str) -> AsyncIterator[FastAPI]:
    """The application of one policy model server."""
    engine, sink = await asyncio.to_thread(_parts, options)
    participant = ModelParticipant(server_name=options.name, grace_s=options.grace_s)
    app = application(options.name)
    app.include_router(control_router(participant, token=token))
    PolicyServer(options.name, participant, engine, sink).mount(app)
    yield app
    await engine.close()
    await sink.close()


def _parts(options: argparse.Namespace) -> tuple[Engine, CaptureSink]:
    remote = options.ray_address is not None
    engine_kind = options.engine or ("ray" if remote else "local")
    sink_kind = options.sink or ("transfer-queue" if remote else "memory")
    if not remote and "ray" in (engine_kind, sink_kind.replace("transfer-queue", "ray")):
        raise SystemExit("--engine ray and --sink transfer-queue need --ray-address")
    if remote:
        from snapfmt_coordinator.reference import ray_session

        ray_session.connect(options.ray_address, options.ray_namespace)
    engine: Any = LocalEngine(weight_version=options.weight_version, delay_s=options.generation_s)
    if engine_kind == "ray":
        from snapfmt_coordinator.reference.ray_engine import RayEngine

        engine = RayEngine.find(options.engine_name, options.ray_namespace)
    sink: Any = MemorySink()
    if sink_kind == "transfer-queue":
        from snapfmt_coordinator.reference import ray_session
        from snapfmt_coordinator.reference.ray_capture import TransferQueueSink

        ray_session.join_queue()
        sink = TransferQueueSink()
    return engine, sink


def main() -> int:
    """Runs the server."""
    options = parser("Reference policy model server.")
    options.add_argument("--ray-address", help="cluster with the engine and the queue")
    options.add_argument("--ray-namespace", default="snapfmt")
    options.add_argument("--engine", choices=("local", "ray"), help="default: as the address says")
    options.add_argument("--engine-name", default="generation-engine")
    options.add_argument("--sink", choices=("memory", "transfer-queue"), help="default: likewise")
    options.add_argument("--weight-version", type=int, default=0, help="of the local engine")
    options.add_argument("--generation-s", type=float, default=0.0, help="time of a local reply")
    return run(build, options.parse_args())


if __name__ == "__main__":
    raise SystemExit(main())
