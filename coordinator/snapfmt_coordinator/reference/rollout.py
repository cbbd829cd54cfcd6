"""The multi-turn loop of one run: model, tool, boundary, and again.

What is finished at a boundary is in the boundary's record: the conversation with the record of
each model call, the sessions, their revisions. A run that goes on from a record calls neither the
model nor a tool for what is in it.
"""

import hashlib
import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from snapfmt.errors import ControlRefused
from snapfmt_coordinator.participant.agent import AgentExecution
from snapfmt_coordinator.protocol.codes import refused
from snapfmt_coordinator.reference import policy
from snapfmt_coordinator.reference.links import Link, Reply, is_closed
from snapfmt_coordinator.reference.serving import (
    ATTEMPT_HEADER,
    CALL_HEADER,
    PARENT_HEADER,
    ROLLOUT_HEADER,
    SESSION_HEADER,
    dumps,
)
from snapfmt_schemas._base import Record
from snapfmt_schemas.agent import AgentBoundaryRecord
from snapfmt_schemas.identity import Count, RolloutId, capture_key
from snapfmt_schemas.opaque import PARSED

CHAT: Final = "/v1/chat/completions"
CALL: Final = "call"
"""Where an item of the conversation has the record of the model call that made it."""


class Task(Record):
    """What a rollout is to do."""

    prompt: str
    max_turns: Annotated[int, Field(ge=1, le=policy.MAX_TURNS)]
    tools: tuple[Literal["counter", "dice", "notes", "sandbox"], ...]
    seed: int
    delay_s: Annotated[float, Field(ge=0, description="Least time of each tool call.")] = 0.0

    def digest(self) -> str:
        """Digest of the whole task."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()


class RunRequest(Record):
    """Body of `/run`."""

    rollout_id: Annotated[RolloutId, Field(alias="_ng_rollout_id")]
    attempt_index: Annotated[Count, Field(alias="_ng_attempt_index")]
    task: Task


@dataclass(frozen=True, slots=True)
class Servers:
    """The servers that an agent calls; `resources` by the tool that they have."""

    model: Link
    resources: Mapping[str, Link]


@dataclass(slots=True)
class _Place:
    """Where the run is. Lists only grow, so that a record of it stays as it is."""

    turn: int = 0
    boundaries: int = 0
    items: list[dict[str, Any]] = field(default_factory=list)
    sessions: dict[str, str] = field(default_factory=dict)
    revisions: dict[str, int] = field(default_factory=dict)
    last_call: str | None = None
    pending: dict[str, Any] | None = None
    """The model's reply, with its call record, while its tool has not answered."""


class Rollout:
    """One execution of one run."""

    def __init__(self, execution: AgentExecution, task: Task, servers: Servers) -> None:
        """Raises: ControlRefused: invalid_request, if a tool of the task has no server."""
        missing = sorted({*task.tools} - {*servers.resources})
        if missing:
            raise refused("invalid_request", "no server has this tool", what=", ".join(missing))
        self._execution = execution
        self._task = task
        self._servers = servers
        self._place = _Place()
        self._continued: str | None = None
        self._messages: list[bytes] = []
        self._task_digest = task.digest()
        self._identity = {
            ROLLOUT_HEADER: execution.rollout_id,
            ATTEMPT_HEADER: str(execution.attempt_index),
        }
        self._tail = b'],"tools":%b,"metadata":%b}' % (
            dumps([policy.definition(tool) for tool in task.tools]),
            dumps({"seed": str(task.seed), "max_turns": str(task.max_turns)}),
        )

    @property
    def run(self) -> str:
        """The run's capture key."""
        return capture_key(self._execution.rollout_id, self._execution.attempt_index)

    async def play(self) -> dict[str, Any]:
        """Plays the run to its end; its result.

        Raises:
            ControlRefused: stale_attempt, when a newer run of the rollout has taken over, or
                what a server refused for good.
            ParticipantFailed: If a server does not answer.
        """
        place = self._place
        if self._execution.restored is not None:
            self._continue(self._execution.restored)
        else:
            await self._start()
        while not self._is_over():
            if place.pending is None:
                await self._think()
                if self._execution.parking and _tool_call(place.pending) is not None:
                    await self._execution.boundary(self._record())
            await self._act()
            place.turn += 1
            await self._execution.boundary(self._record())
        return await self._verify()

    async def _start(self) -> None:
        self._append({"role": "user", "content": self._task.prompt})
        # A restarted agent counts its generations anew, and must find no session half used.
        execution = f"{self.run}:{self._execution.generation}:{secrets.token_hex(8)}"
        body = dumps({"seed": self._task.seed, "execution": execution})
        for tool in sorted({*self._task.tools}):
            link = self._servers.resources[tool]
            reply = await self._admitted(link, "/seed_session", body, self._identity)
            self._place.sessions[link.name] = str(reply.body["session_id"])
            self._note_revision(link, reply)

    def _continue(self, record: AgentBoundaryRecord) -> None:
        state = record.agent_state
        if state.get("task_digest") != self._task_digest:
            raise refused(
                "invalid_request",
                "the task is not the one that the saved run was given",
                what=self.run,
                hint="send the rollout's own task",
            )
        for item in record.output_items:
            self._append(item)
        self._place.turn = record.turn_index
        self._place.boundaries = record.boundary_index
        self._place.sessions = dict(state["sessions"])
        self._place.revisions = dict(record.resource_state_revisions or {})
        self._place.last_call = self._continued = record.last_committed_model_call_id
        if record.pending_model is not None:
            self._place.pending = dict(record.pending_model.response)

    def _is_over(self) -> bool:
        last = self._place.items[-1]
        return last["role"] == "assistant" and _tool_call(last) is None

    async def _think(self) -> None:
        place = self._place
        call_id = f"call-{place.turn + 1}"
        headers = {**self._identity, CALL_HEADER: call_id}
        if place.last_call is not None:
            headers[PARENT_HEADER] = place.last_call
        body = b'{"model":"policy","messages":[' + b",".join(self._messages) + self._tail
        reply = await self._admitted(self._servers.model, CHAT, body, headers)
        message = reply.body["choices"][0]["message"]
        place.pending = {**message, CALL: reply.body["call_record"]}
        place.last_call = call_id

    async def _act(self) -> None:
        place = self._place
        item = place.pending or {}
        call = _tool_call(item)
        if call is None:
            self._append(item)
            place.pending = None
            return
        function = call["function"]
        link = self._servers.resources[function["name"]]
        body = dumps(
            {
                "arguments": json.loads(function["arguments"]),
                "action_index": 0,
                "delay_s": self._task.delay_s,
            }
        )
        headers = {
            **self._identity,
            CALL_HEADER: str(item[CALL]["model_call_id"]),
            SESSION_HEADER: place.sessions[link.name],
        }
        reply = await self._admitted(link, "/tool", body, headers)
        self._note_revision(link, reply)
        content = json.dumps(reply.body["output"], sort_keys=True)
        self._append(item)
        self._append({"role": "tool", "tool_call_id": call["id"], "content": content})
        place.pending = None

    async def _verify(self) -> dict[str, Any]:
        place = self._place
        answer = str(place.items[-1]["content"])
        verified: dict[str, Any] = {}
        for tool in sorted({*self._task.tools}):
            link = self._servers.resources[tool]
            headers = {**self._identity, SESSION_HEADER: place.sessions[link.name]}
            reply = await self._admitted(link, "/verify", dumps({"answer": answer}), headers)
            verified[link.name] = reply.body
        rewards = [found["reward"] for found in verified.values()]
        manifest = [item[CALL] for item in place.items if CALL in item]
        return {
            "rollout_id": self._execution.rollout_id,
            "attempt_index": self._execution.attempt_index,
            "capture_key": self.run,
            "reward": sum(rewards) / len(rewards) if rewards else 0.0,
            "turns": place.turn,
            "model_calls": len(manifest),
            "answer": answer,
            "conversation_digest": hashlib.sha256(b"\n".join(self._messages)).hexdigest(),
            "continued_after": self._continued,
            "resource_state_revisions": dict(place.revisions),
            "verify": verified,
            "manifest": manifest,
        }

    def _append(self, item: dict[str, Any]) -> None:
        self._place.items.append(item)
        self._messages.append(dumps({k: v for k, v in item.items() if k != CALL}))

    def _note_revision(self, link: Link, reply: Reply) -> None:
        if reply.revision is not None:
            self._place.revisions = {**self._place.revisions, link.name: reply.revision}

    async def _admitted(
        self, link: Link, path: str, body: bytes, headers: Mapping[str, str]
    ) -> Reply:
        """Asks a server; while a checkpoint keeps it closed, the run is parked."""
        while True:
            try:
                return await link.post(path, body, headers)
            except ControlRefused as error:
                if not is_closed(error):
                    raise
            await self._execution.wait_admission()

    def _record(self) -> AgentBoundaryRecord:
        place = self._place
        place.boundaries += 1
        pending = place.pending
        value = {
            "rollout_id": self._execution.rollout_id,
            "attempt_index": self._execution.attempt_index,
            "boundary_index": place.boundaries,
            "turn_index": place.turn,
            "boundary_kind": "turn_complete" if pending is None else "pending_model",
            "pending_model": pending
            and {"model_call_id": pending[CALL]["model_call_id"], "response": pending},
            "output_items": tuple(place.items),
            "last_committed_model_call_id": place.last_call,
            "resource_state_revisions": place.revisions,
            "agent_state": {"sessions": place.sessions, "task_digest": self._task_digest},
            "created_at": time.time(),
        }
        # Everything in it came from a JSON parser: it is not walked again at each turn.
        return AgentBoundaryRecord.model_validate(value, context=PARSED)


def _tool_call(item: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    calls = item.get("tool_calls") if item else None
    return calls[0] if calls else None
