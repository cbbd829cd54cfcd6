"""Fuzz targets: HTTP bodies of every control route, and what servers answer.

The routes of the three kinds of participants are called as an ASGI server would call them; the
answers of servers are read as the coordinator reads them.
"""

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fastapi import FastAPI
from pydantic import SecretStr

from snapfmt.errors import SnapfmtError
from snapfmt.repository import Repository
from snapfmt.testing.fuzz_documents import example, same
from snapfmt.testing.fuzzing import Ground, Prepared, Target, Wrong
from snapfmt_coordinator.gym.answers import Answer, Interpreter
from snapfmt_coordinator.participant.agent import AgentParticipant
from snapfmt_coordinator.participant.model import ModelParticipant
from snapfmt_coordinator.participant.resources import ResourcesParticipant
from snapfmt_coordinator.participant.router import control_router
from snapfmt_coordinator.participant.sessions_part import _head
from snapfmt_coordinator.protocol import v1
from snapfmt_coordinator.protocol.codes import STATUS, from_body, refused, to_body
from snapfmt_schemas._base import Record
from snapfmt_schemas.resources import ResourceSnapshot

TOKEN = "a-test-token"
REPLIES: tuple[type[Record], ...] = (
    v1.Capabilities,
    v1.Acknowledged,
    v1.AgentsPrepared,
    v1.Committed,
    v1.Discarded,
    v1.Retired,
    v1.ModelAdmission,
    v1.AbortedInflight,
    v1.ResourcesPrepared,
    v1.Restored,
    v1.Resumed,
)


class Sessions:
    """A resources server with one session."""

    def export(self) -> list[tuple[str, int, int, dict[str, Any]]]:
        return [("a", 0, 3, {"n": 3})]

    def install(self, sessions: Sequence[ResourceSnapshot]) -> None:
        return

    def drop(self, rollout_id: str, attempt_index: int) -> bool:
        return False


PARTICIPANTS: dict[str, Callable[[], Any]] = {
    "agent": lambda: AgentParticipant(server_name="swe"),
    "model": lambda: ModelParticipant(server_name="policy"),
    "resources": lambda: ResourcesParticipant(Sessions(), server_name="tools"),
}


def targets() -> Iterator[Target]:
    for name in PARTICIPANTS:
        yield Target(name=f"http:{name}", prepare=_routes(name), cost=4)
        yield Target(name=f"http-json:{name}", prepare=_bodies(name), only_json=True, cost=4)
    for model in REPLIES:
        yield Target(name=f"reply:{model.__name__}", prepare=_reply(model), json=True)
    yield Target(name="refusal", prepare=_refusal, json=True)
    yield Target(name="session-head", prepare=_session_head, json=True)


class Caller:
    """Sends requests to one participant, each to a fresh one after some."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop = asyncio.new_event_loop()
        self.routes = [
            (method, route.path)
            for route in control_router(PARTICIPANTS[name](), token=TOKEN).routes
            for method in sorted(route.methods)
        ]
        self._renew()

    def _renew(self) -> None:
        self._app = FastAPI()
        self._app.include_router(control_router(PARTICIPANTS[self._name](), token=TOKEN))

    def send(
        self, number: int, body: bytes, *, query: bytes = b"", headers: Sequence[Any] = ()
    ) -> None:
        method, path = self.routes[number % len(self.routes)]
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query,
            "root_path": "",
            "headers": [(b"authorization", f"Bearer {TOKEN}".encode()), *headers],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
        }
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        self._loop.run_until_complete(self._app(scope, receive, send))
        _check_answer(sent)


def _check_answer(sent: list[dict[str, Any]]) -> None:
    """It is a record, or a refusal that has a reason; never an error that none foresees."""
    status = sent[0]["status"]
    value = json.loads(b"".join(item.get("body", b"") for item in sent[1:]))
    if status == 200:
        if "error" in value:
            raise Wrong(f"200 with {value}")
        return
    error = from_body(status, value)
    if error is None or STATUS.get(error.reason) != status:
        raise Wrong(f"{status} with {value}")
    if error.reason == "internal_error" and error.detail.partition(":")[0] not in _typed_codes():
        raise Wrong(f"{value}")
    raise error


def _typed_codes(root: type[SnapfmtError] = SnapfmtError) -> set[str]:
    return {root.code}.union(*map(_typed_codes, root.__subclasses__()))


def _request(model: type[Record], location: str, repository_id: str) -> bytes:
    value = example(model.model_json_schema())
    if "deadline_ts" in value:
        value["deadline_ts"] = time.time() + 1e6
    for holder in (value.get("ticket"), value.get("snapshot")):
        if isinstance(holder, dict):
            holder["location"] = location
            if "repository_id" in holder:
                holder["repository_id"] = repository_id
    return json.dumps(value).encode()


def _seeds(ground: Ground, caller: Caller) -> list[bytes]:
    """A request of each route: its number, then the body."""
    root = ground.folder / "run"
    repository = Repository.create(root)
    models: dict[str, type[Record]] = {
        "prepare": v1.PrepareAgents,
        "acknowledge-completed": v1.AcknowledgeCompleted,
        "completion-receipt": v1.Execution,
        "retire": v1.Retire,
        "pause": v1.PauseModel,
        "abort_inflight": v1.AbortInflight,
        "commit": v1.Commit,
        "restore": v1.Restore,
        "discard-restored-continuation": v1.DiscardRestored,
        "resume": v1.Resume,
    }
    seeds = []
    for number, (_, path) in enumerate(caller.routes):
        model = models.get(path.rpartition("/")[2])
        body = b"" if model is None else _request(model, str(root), repository.id)
        seeds.append(bytes([number]) + body)
    return seeds


def _leads_away(body: bytes) -> bool:
    """Whether a body names a bucket: a participant with the token's owner's word goes there."""
    return b"s3" in body.lower() or b"\\u" in body


def _bodies(name: str) -> Callable[[Ground], Prepared]:
    """JSON bodies: the route is a member of the value."""

    def prepare(ground: Ground) -> Prepared:
        caller = Caller(name)

        def run(data: bytes) -> None:
            try:
                value = json.loads(data.decode("utf-8"))
                number = value.pop("route") if isinstance(value, dict) else None
                body = json.dumps(value).encode()
            except (ValueError, KeyError, RecursionError):
                number, body = None, data
            if not _leads_away(body):
                caller.send(number if type(number) is int else len(data), body)

        seeds = []
        for seed in _seeds(ground, caller):
            value = json.loads(seed[1:] or b"{}") | {"route": seed[0]}
            seeds.append(json.dumps(value).encode())
        return Prepared(run, seeds)

    return prepare


def _routes(name: str) -> Callable[[Ground], Prepared]:
    """Raw requests: the route, which headers and query, then the body."""

    def prepare(ground: Ground) -> Prepared:
        caller = Caller(name)

        def run(data: bytes) -> None:
            number, how = (*data[:2], 0, 0)[:2]
            body = data[2:]
            if _leads_away(body):
                return
            headers: list[tuple[bytes, bytes]] = []
            query = b""
            if how & 1:
                line, _, body = body.partition(b"\n")
                headers.append((b"content-length", line))
            if how & 2:
                query, _, body = body.partition(b"\n")
            if how & 4:
                line, _, body = body.partition(b"\n")
                headers.insert(0, (b"authorization", line))
            caller.send(number, body, query=query, headers=headers)

        seeds = [seed[:1] + b"\0" + seed[1:] for seed in _seeds(ground, caller)]
        status = f"schema_version=1&checkpoint_id=c&deadline_ts={time.time() + 1e6}".encode()
        seeds += [bytes([n, 2]) + status for n in range(len(caller.routes))]
        seeds += [bytes([1, 7]) + b"12\na=%ff&b\nBearer x\n{}"]
        return Prepared(run, seeds)

    return prepare


def _interpreter() -> Interpreter:
    return Interpreter("swe", SecretStr(TOKEN))


def _reply(model: type[Record]) -> Callable[[Ground], Prepared]:
    def run(data: bytes) -> None:
        reader = _interpreter()
        found = reader.record("/x", Answer(200, "application/json", data), model)
        again = found.model_dump_json().encode()
        same(found, reader.record("/x", Answer(200, "application/json", again), model))

    seed = json.dumps(example(model.model_json_schema())).encode()
    return lambda ground: Prepared(run, [seed, b"{}"])


def _refusal(ground: Ground) -> Prepared:
    """A status, then the body of an answer that is not 2xx."""

    def run(data: bytes) -> None:
        status = 300 + int.from_bytes(data[:2], "little") % 300
        error = _interpreter().error("/x", Answer(status, "text/" + repr(data[:9]), data[2:]))
        if TOKEN in str(error):
            raise Wrong("the token is in the error")
        raise error

    seeds = [
        number.to_bytes(2, "little") + json.dumps(to_body(refused("stale_attempt", "m"))).encode()
        for number in (100, 104, 109, 200)
    ]
    return Prepared(run, [*seeds, b"\0\0<html>", b"d\0" + TOKEN.encode()])


def _session_head(ground: Ground) -> Prepared:
    def run(data: bytes) -> None:
        name, attempt, revision = _head(data, "hostile")
        if type(name) is not str or type(attempt) is not int or type(revision) is not int:
            raise Wrong(f"the head of a session is {name!r:.99}, {attempt!r:.99}, {revision!r:.99}")

    value = {"rollout_id": "a", "attempt_index": 0, "state_revision": 3, "state": {"n": 1}}
    return Prepared(
        run, [json.dumps(value).encode(), json.dumps(value | {"x": 1}).encode(), b"[1]"]
    )
