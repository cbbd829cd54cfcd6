"""All servers together: who is asked what, in which order, and what happens when one fails."""

import asyncio
import json
import socket
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Self

import pytest
import uvicorn
from fastapi import FastAPI, Request, Response

from snapfmt import Repository
from snapfmt.errors import (
    ControlRefused,
    DeadlineExceeded,
    FormatError,
    InputError,
    ParticipantFailed,
    RestoreRefused,
    SnapfmtError,
    UnsupportedFeature,
)
from snapfmt.reading.snapshot import Snapshot
from snapfmt_coordinator.gym import observing
from snapfmt_coordinator.gym.client import Retries, ServerAddress
from snapfmt_coordinator.gym.parts import METADATA_KEY, GymParts, from_metadata, to_metadata
from snapfmt_coordinator.gym.side import GymSide
from snapfmt_coordinator.participant import agent_part, model_part, sessions_part
from snapfmt_coordinator.participant.ledger import Ledger
from snapfmt_coordinator.participant.sessions_part import SessionCut
from snapfmt_coordinator.protocol import v1
from snapfmt_coordinator.protocol.codes import Reason, refused, to_body
from snapfmt_schemas.agent import AgentBoundaryRecord
from snapfmt_schemas.attempt import Receipt, Ticket
from snapfmt_schemas.completion import CompletionReceipt
from snapfmt_schemas.topology import ParticipantName

TOKEN = "side-t0ken"
QUICK = Retries(first_s=0.01, longest_s=0.05, patience_s=0.2)
FEATURES = {
    "agent": (v1.TICKET, v1.DEFERRED, v1.PART_RESTORE, v1.ACKNOWLEDGEMENT, v1.CONTINUATION_INDEX),
    "model": (v1.TICKET, v1.DEFERRED, v1.PART_RESTORE, v1.STORAGE_REFERENCES),
    "resources": (v1.TICKET, v1.DEFERRED, v1.PART_RESTORE),
}
HANG_S = 3600.0
ATTEMPT = "a" * 32
Json = dict[str, Any]
Reply = Callable[[Json], "Json | tuple[int, Json] | Response"]


def digest(text: str) -> str:
    return "sha256:" + (text.encode().hex() * 64)[:64]


def index_of(name: str, path: str) -> v1.ReferenceIndex:
    return v1.ReferenceIndex(part=name, path=path, digest=digest(name + path), records=2)


def receipt_of(name: str, attempt: str = ATTEMPT) -> Receipt:
    return Receipt(
        part=name,
        attempt_id=attempt,
        index_digest=digest(name),
        index_size=10,
        entries=1,
        records=2,
        stored_bytes=100,
        new_objects=1,
    )


def ticket_for(name: str) -> Ticket:
    return Ticket(
        location="nowhere",
        repository_id="b" * 32,
        attempt_id=ATTEMPT,
        number=1,
        part=name,
        deadline_ns=time.time_ns() + 10**11,
    )


class Fake:
    """Answers the routes of one server with what a good participant would say."""

    def __init__(self, name: str, component: Any, **capabilities: Any) -> None:
        self.name = name
        self.part = f"gym/{component}/{name}"
        role = "policy" if component == "model" else None
        fields: Json = {
            "component": component,
            "name": component,
            "server_name": name,
            "checkpoint_mode": "export_restore",
            "concurrency_contract": "transactional_parallel",
            "instance_role": role,
            "features": FEATURES[component],
        }
        self.capabilities = v1.Capabilities(**(fields | capabilities))
        self.component = component
        self.replies: dict[str, Reply] = {}
        self.delays: dict[str, float] = {}

    def reply(self, route: str, body: Json) -> "Json | tuple[int, Json] | Response":
        if route in self.replies:
            return self.replies[route](body)
        return v1.data(getattr(self, route.rsplit("/", 1)[1].replace("-", "_"))(body))

    def pause(self, body: Json) -> v1.ModelAdmission:
        return v1.ModelAdmission(state="preparing", admission="paused", inflight_total=1)

    def status(self, body: Json) -> v1.ModelAdmission:
        return v1.ModelAdmission(
            state="prepared", admission="paused", inflight_total=0, tombstones=1
        )

    def prepare(self, body: Json) -> v1.AgentsPrepared | v1.ResourcesPrepared:
        if self.component == "resources":
            return v1.ResourcesPrepared(state="prepared", sessions=3)
        return agents_prepared(parked=2, parked_with_boundary=2)

    def commit(self, body: Json) -> v1.Committed:
        if not body["wait"]:
            return v1.Committed(state="committed_paused", ready=False, records=2)
        return v1.Committed(
            state="idle",
            ready=True,
            records=2,
            receipt=receipt_of(self.part),
            **self.indexes(),
        )

    def indexes(self) -> Json:
        if self.component == "agent":
            return {"continuation_index": index_of(self.part, "continuations.jsonl")}
        if self.component == "model":
            return {"storage_reference_index": index_of(self.part, "storage-references.jsonl")}
        return {}

    def resume(self, body: Json) -> v1.Resumed:
        return v1.Resumed(state="idle", released=1)

    def restore(self, body: Json) -> v1.Restored:
        return v1.Restored(state="restored_paused", restored=2, **self.indexes())

    def acknowledge_completed(self, body: Json) -> v1.Acknowledged:
        return v1.Acknowledged(
            acknowledged=tuple(
                v1.Execution(rollout_id=item["rollout_id"], attempt_index=item["attempt_index"])
                for item in body["executions"]
            )
        )

    def discard_restored_continuation(self, body: Json) -> v1.Discarded:
        return v1.Discarded(discarded=len(body["executions"]))

    def retire(self, body: Json) -> v1.Retired:
        return v1.Retired(retired=len(body["executions"]), tombstoned=len(body["executions"]))


def agents_prepared(*, ready: bool = True, running: int = 0, **fields: Any) -> v1.AgentsPrepared:
    counts = {
        "parked": 0,
        "parked_with_boundary": 0,
        "parked_without_boundary": 0,
        "completed_unacknowledged": 0,
        "active": 0,
    }
    return v1.AgentsPrepared(
        state="prepared" if ready else "preparing",
        ready_to_commit=ready,
        running=running,
        **(counts | fields),
    )


def refusal(reason: Reason, message: str = "no") -> Reply:
    error = refused(reason, message, what="r1")
    return lambda _: (error.status, to_body(error))


class Host:
    """One real HTTP server that plays all Gym servers, each below a path of its own."""

    def __init__(self) -> None:
        self.fakes: dict[str, Fake] = {}
        self.log: list[tuple[str, str, Json]] = []
        self.busy = 0
        self.let_go = threading.Event()
        """Ends every delay."""
        app = FastAPI()

        @app.api_route("/{name}/ng-control/v1/{route:path}", methods=["GET", "POST"])
        async def control(name: str, route: str, request: Request) -> Response:
            assert request.headers["authorization"] == f"Bearer {TOKEN}"
            text = await request.body()
            body = json.loads(text) if text else dict(request.query_params)
            self.log.append((name, route, body))
            fake = self.fakes[name]
            delay = fake.delays.get(route, 0.0)
            self.busy += delay > 0
            until = time.monotonic() + delay
            try:
                while time.monotonic() < until and not self.let_go.is_set():  # noqa: ASYNC110
                    await asyncio.sleep(min(delay, 0.005))
            finally:
                self.busy -= delay > 0
            if route == "capabilities" and route not in fake.replies:
                found: Any = v1.data(fake.capabilities)
            else:
                found = fake.reply(route, body)
            if isinstance(found, Response):
                return found
            status, value = found if isinstance(found, tuple) else (200, found)
            return Response(json.dumps(value), status, media_type="application/json")

        held = socket.socket()
        held.bind(("127.0.0.1", 0))
        self.port = held.getsockname()[1]
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="critical"))
        self._thread = threading.Thread(target=self._server.run, args=([held],), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        while not self._server.started:
            assert self._thread.is_alive()
            time.sleep(0.005)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join()

    def asked(self) -> list[str]:
        return [f"{name}:{route}" for name, route, _ in self.log]


@pytest.fixture(scope="module")
def running() -> Iterator[Host]:
    with Host() as host:
        yield host


class World:
    """Two agents, a policy model, a judge, two resource servers; and the side that asks them."""

    def __init__(self, host: Host, extra: tuple[ServerAddress, ...] = ()) -> None:
        self.host = host
        self.a1, self.a2 = Fake("a1", "agent"), Fake("a2", "agent")
        self.m1 = Fake("m1", "model")
        self.judge = Fake("judge", "model", instance_role="auxiliary", features=())
        self.r1, self.r2 = Fake("r1", "resources"), Fake("r2", "resources")
        self.fakes = [self.r2, self.a2, self.a1, self.judge, self.m1, self.r1]
        host.fakes = {fake.name: fake for fake in self.fakes}
        host.log.clear()
        self.steps: list[tuple[str, str, dict[str, int]]] = []
        addresses = [
            ServerAddress(fake.name, f"http://127.0.0.1:{host.port}/{fake.name}")
            for fake in self.fakes
        ]
        self.side = GymSide((*addresses, *extra), token=TOKEN, grace_s=0.2, retries=QUICK)

    def observe(
        self, step: str, actor: str, started_ns: int, ended_ns: int, counts: dict[str, int]
    ) -> None:
        assert time.time_ns() - 10**11 < started_ns <= ended_ns <= time.time_ns()
        self.steps.append((step, actor, counts))

    def forget(self) -> None:
        self.host.log.clear()
        self.steps.clear()

    def first(self, text: str) -> int:
        return next(i for i, one in enumerate(self.host.asked()) if one.endswith(text))

    def last(self, text: str) -> int:
        return max(i for i, one in enumerate(self.host.asked()) if one.endswith(text))

    def bodies(self, name: str, route: str) -> list[Json]:
        return [body for who, where, body in self.host.log if (who, where) == (name, route)]


@pytest.fixture
def world(running: Host) -> Iterator[World]:
    yield World(running)
    # Nothing that still hangs is left to the next test.
    running.let_go.set()
    while running.busy:
        time.sleep(0.005)
    running.let_go.clear()


def soon(seconds: float = 60.0) -> float:
    return time.time() + seconds


def prepare(world: World, seconds: float = 60.0) -> Any:
    return asyncio.run(world.side.prepare("c1", deadline_ts=soon(seconds), observe=world.observe))


def commit(world: World) -> None:
    asyncio.run(
        world.side.commit("c1", deadline_ts=soon(), tickets=ticket_for, observe=world.observe)
    )


def collect(world: World, seconds: float = 60.0) -> GymParts:
    return asyncio.run(
        world.side.collect(
            "c1", deadline_ts=soon(seconds), tickets=ticket_for, observe=world.observe
        )
    )


def resume(world: World, seconds: float = 60.0) -> None:
    asyncio.run(world.side.resume("c1", deadline_ts=soon(seconds), observe=world.observe))


def at_once(world: World, count: int, work: Coroutine[Any, Any, Any]) -> None:
    """Does it; nothing that hangs is answered before so many requests hang at the same time."""

    async def body() -> None:
        task = asyncio.create_task(work)
        while world.host.busy < count:
            assert not task.done()
            await asyncio.sleep(0.005)
        world.host.let_go.set()
        await task

    asyncio.run(body())


def failing(call: Callable[..., Any], *args: Any, server: str) -> SnapfmtError:
    """The error of a call, once it is sure that it names the server and not the token."""
    with pytest.raises(SnapfmtError) as caught:
        call(*args)
    text = "".join(traceback.format_exception(caught.value))
    assert TOKEN not in text
    assert server in str(caught.value)
    return caught.value


# --- discover


def test_all_servers_are_asked_once_what_they_can_do(world: World) -> None:
    found = asyncio.run(world.side.discover())
    assert {item.server_name for item in found} == {"a1", "a2", "m1", "judge", "r1", "r2"}
    assert asyncio.run(world.side.discover()) == found
    assert sorted(world.host.asked()) == sorted(f"{fake.name}:capabilities" for fake in world.fakes)
    names = [item.participant.server_name for item in world.side.topology().participants]
    assert names == ["a1", "a2", "judge", "m1", "r1", "r2"]


def test_the_topology_is_not_known_before(world: World) -> None:
    with pytest.raises(InputError, match="discover"):
        world.side.topology()


@pytest.mark.parametrize(
    ("name", "feature"),
    [
        (name, feature)
        for name, component in (("a2", "agent"), ("m1", "model"), ("r1", "resources"))
        for feature in FEATURES[component]
    ],
)
def test_a_missing_feature_is_refused_by_name(world: World, name: str, feature: str) -> None:
    fake = world.host.fakes[name]
    left = tuple(one for one in fake.capabilities.features if one != feature)
    fake.capabilities = fake.capabilities.model_copy(update={"features": left})
    error = failing(asyncio.run, world.side.discover(), server=name)
    assert isinstance(error, UnsupportedFeature)
    assert feature in str(error)


def test_a_restart_only_resource_asks_more_of_agents(world: World) -> None:
    mode = {"checkpoint_mode": "restart_only"}
    world.r1.capabilities = world.r1.capabilities.model_copy(update=mode)
    error = failing(asyncio.run, world.side.discover(), server="a1")
    assert v1.DISCARD in str(error)
    for fake in (world.a1, world.a2):
        features = (*FEATURES["agent"], v1.DISCARD, v1.DEPENDENCIES)
        fake.capabilities = fake.capabilities.model_copy(update={"features": features})
    assert len(asyncio.run(world.side.discover())) == 6


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"instance_role": None}, "instance_role"),
        ({"multi_process": v1.MultiProcess(mode="unmanaged", num_workers=2)}, "unmanaged"),
        ({"server_name": "m2"}, "m2"),
    ],
)
def test_what_cannot_be_checkpointed_is_refused(world: World, change: Json, says: str) -> None:
    world.m1.capabilities = world.m1.capabilities.model_copy(update=change)
    error = failing(asyncio.run, world.side.discover(), server="m1")
    assert says in str(error)


def test_two_policy_models_are_refused_by_name(world: World) -> None:
    world.judge.capabilities = world.m1.capabilities.model_copy(update={"server_name": "judge"})
    error = failing(asyncio.run, world.side.discover(), server="m1")
    assert isinstance(error, UnsupportedFeature)
    assert "judge" in str(error)
    # No server was told anything but to say what it is.
    assert {route for _, route, _ in world.host.log} == {"capabilities"}


def test_every_silent_server_is_named(world: World) -> None:
    for fake in (world.a2, world.r1):
        fake.delays["capabilities"] = HANG_S
    work = world.side.discover(deadline_ts=soon(3))
    error = failing(asyncio.run, work, server="a2, r1")
    assert isinstance(error, DeadlineExceeded)
    assert error.what == "a2, r1"


def test_a_name_that_a_server_makes_up_cannot_show_the_token(world: World) -> None:
    world.m1.capabilities = world.m1.capabilities.model_copy(
        update={"server_name": f"x{TOKEN}\n{'y' * 5000}"}
    )
    error = failing(asyncio.run, world.side.discover(), server="m1")
    assert "[redacted]" in str(error)
    assert len(str(error)) < 1000


def test_a_rollout_that_a_server_makes_up_cannot_show_the_token(world: World) -> None:
    made_up = v1.Execution(rollout_id=f"r-{TOKEN}", attempt_index=0)
    world.a1.replies["agent-checkpoint/prepare"] = lambda _: v1.data(
        agents_prepared(ready=False, running=1, blocking_attempts=(made_up,))
    )
    error = failing(prepare, world, 2.0, server="a1")
    assert "[redacted]" in str(error)


def test_a_server_without_control_routes_is_refused(world: World) -> None:
    world.r2.replies["capabilities"] = lambda _: (404, {"detail": "Not Found"})
    assert isinstance(failing(asyncio.run, world.side.discover(), server="r2"), UnsupportedFeature)


def test_a_failed_discovery_is_not_remembered(world: World) -> None:
    world.r2.replies["capabilities"] = refusal("internal_error")
    failing(asyncio.run, world.side.discover(), server="r2")
    del world.r2.replies["capabilities"]
    assert len(asyncio.run(world.side.discover())) == 6


def test_a_name_must_fit_into_the_name_of_a_part(running: Host) -> None:
    world = World(running)
    running.fakes["a1"].capabilities = world.a1.capabilities.model_copy(
        update={"server_name": "a 1"}
    )
    side = GymSide(
        [ServerAddress("a 1", f"http://127.0.0.1:{running.port}/a1")], token=TOKEN, retries=QUICK
    )
    with pytest.raises(InputError, match="a 1"):
        asyncio.run(side.discover())


def test_servers_have_different_names() -> None:
    address = ServerAddress("a", "http://host")
    with pytest.raises(InputError, match="a, a"):
        GymSide([address, address], token=TOKEN)


# --- prepare


def test_prepare_closes_from_the_outside_in(world: World) -> None:
    for fake in (world.m1, world.a1, world.a2, world.r1):
        fake.delays = dict.fromkeys(("model-admission/pause", "agent-checkpoint/prepare"), 0.05)
    counts = prepare(world)
    assert counts.parked == 4
    assert counts.parked_with_boundary == 4
    assert counts.sessions == 6
    assert counts.tombstones == 1
    assert counts.as_counts()["parked"] == 4
    assert world.last("model-admission/pause") < world.first("agent-checkpoint/prepare")
    assert world.last("agent-checkpoint/prepare") < world.first("resources-checkpoint/prepare")
    assert world.last("resources-checkpoint/prepare") < world.first("model-admission/status")
    assert not [one for one in world.host.asked() if one.startswith("judge:model")]
    status = world.bodies("m1", "model-admission/status")[0]
    assert status["checkpoint_id"] == "c1"
    assert status["wait_state"] == "paused"
    assert 0 < float(status["timeout_s"]) <= 5
    assert (
        float(status["deadline_ts"])
        == world.bodies("a1", "agent-checkpoint/prepare")[0]["deadline_ts"]
    )


def test_the_servers_of_a_stage_are_asked_at_once(world: World) -> None:
    asyncio.run(world.side.discover())
    for fake in (world.r1, world.r2):
        fake.delays["resources-checkpoint/prepare"] = HANG_S
    at_once(world, 2, world.side.prepare("c1", deadline_ts=soon()))


def test_an_agent_is_asked_until_it_is_ready(world: World) -> None:
    left = [
        agents_prepared(ready=False, running=2),
        agents_prepared(ready=False, completed_unacknowledged=1),
        agents_prepared(ready=False, running=1),
    ]
    world.a2.replies["agent-checkpoint/prepare"] = lambda _: v1.data(
        left.pop(0) if left else agents_prepared(parked=7)
    )
    assert prepare(world).parked == 9
    waits = [body["wait_s"] for body in world.bodies("a2", "agent-checkpoint/prepare")]
    assert waits[0] == 0
    assert all(0 < wait <= 5 for wait in waits[1:])
    assert len(waits) == 4
    assert ("prepare.park", "gym/agent/a2", {"parked": 7, "parked_without_boundary": 0}) in (
        world.steps
    )


def test_the_model_is_asked_until_no_call_is_in_flight(world: World) -> None:
    left = [3, 2, 0]
    world.m1.replies["model-admission/status"] = lambda _: v1.data(
        v1.ModelAdmission(state="prepared", admission="paused", inflight_total=left.pop(0))
    )
    prepare(world)
    assert left == []


def test_an_agent_that_does_not_park_is_named_with_its_rollouts(world: World) -> None:
    stuck = tuple(v1.Execution(rollout_id=f"p{i}_g0", attempt_index=i) for i in range(9))
    world.a2.replies["agent-checkpoint/prepare"] = lambda _: v1.data(
        agents_prepared(ready=False, running=9, completed_unacknowledged=1, blocking_attempts=stuck)
    )
    asyncio.run(world.side.discover())
    started = time.monotonic()
    error = failing(prepare, world, 2.0, server="a2")
    assert isinstance(error, DeadlineExceeded)
    assert "9 running, 1 finished and not acknowledged; p0_g0 run 0; p1_g0 run 1" in str(error)
    assert "p3_g0" not in str(error)
    assert time.monotonic() - started < 20
    # It does not hammer the server: 25 ms is the shortest pause.
    assert len(world.bodies("a2", "agent-checkpoint/prepare")) <= 81


def test_an_agent_that_falls_silent_is_named_with_what_it_said_last(world: World) -> None:
    asyncio.run(world.side.discover())

    def reply(_: Json) -> Json:
        if len(world.bodies("a2", "agent-checkpoint/prepare")) == 2:
            world.a2.delays["agent-checkpoint/prepare"] = HANG_S
        return v1.data(agents_prepared(ready=False, running=8))

    world.a2.replies["agent-checkpoint/prepare"] = reply
    error = failing(prepare, world, 2.0, server="a2")
    assert isinstance(error, DeadlineExceeded)
    assert "8 running" in str(error)


def test_calls_that_never_end_are_named(world: World) -> None:
    world.m1.replies["model-admission/status"] = lambda _: v1.data(
        v1.ModelAdmission(state="prepared", admission="paused", inflight_total=4)
    )
    asyncio.run(world.side.discover())
    error = failing(prepare, world, 2.0, server="m1")
    assert isinstance(error, DeadlineExceeded)
    assert "4 model calls" in str(error)


@pytest.mark.parametrize(
    ("name", "route", "reply", "says"),
    [
        (
            "m1",
            "model-admission/pause",
            v1.ModelAdmission(state="idle", admission="accepting", inflight_total=0),
            "accepts",
        ),
        (
            "m1",
            "model-admission/status",
            v1.ModelAdmission(state="idle", admission="accepting", inflight_total=0),
            "accepts calls again",
        ),
        ("a1", "agent-checkpoint/prepare", agents_prepared(running=1), "1 running"),
        (
            "r1",
            "resources-checkpoint/prepare",
            v1.ResourcesPrepared(state="prepared", sessions=1, inflight_total=2),
            "2 operations",
        ),
    ],
)
def test_a_reply_that_cannot_be_true_is_refused(
    world: World, name: str, route: str, reply: Any, says: str
) -> None:
    world.host.fakes[name].replies[route] = lambda _: v1.data(reply)
    error = failing(prepare, world, server=name)
    assert isinstance(error, ParticipantFailed)
    assert says in str(error)


@pytest.mark.parametrize("late", [False, True])
def test_one_agent_that_refuses_ends_the_prepare_and_all_can_be_resumed(
    world: World, late: bool
) -> None:
    """At the first question, or while it is being waited for."""
    calm = [v1.data(agents_prepared(ready=False, running=1))] * int(late)
    no = refusal("agent_prepare_incomplete", f"cannot with {TOKEN}")
    world.a2.replies["agent-checkpoint/prepare"] = lambda body: calm.pop() if calm else no(body)
    world.a1.replies["agent-checkpoint/prepare"] = lambda _: v1.data(
        agents_prepared(ready=False, running=1)
    )
    started = time.monotonic()
    error = failing(prepare, world, 600.0, server="a2")
    assert time.monotonic() - started < 60
    assert isinstance(error, ControlRefused)
    assert error.reason == "agent_prepare_incomplete"
    # Every agent has heard of the checkpoint; resources have not, and say so.
    assert world.bodies("a1", "agent-checkpoint/prepare")
    assert not world.bodies("r1", "resources-checkpoint/prepare")
    assert ("prepare.park", "gym/agent/a2", {"failed": 1}) in world.steps or not late
    for fake in (world.r1, world.r2):
        fake.replies["resources-checkpoint/resume"] = refusal("unknown_checkpoint")
    world.forget()
    resume(world)
    assert len(world.host.log) == 5


def test_one_agent_that_is_down_ends_the_prepare(running: Host) -> None:
    with Host() as other:
        other.fakes["a3"] = Fake("a3", "agent")
        world = World(running, (ServerAddress("a3", f"http://127.0.0.1:{other.port}/a3"),))
        asyncio.run(world.side.discover())
    error = failing(prepare, world, 30.0, server="a3")
    assert isinstance(error, ParticipantFailed)
    world.forget()
    error = failing(resume, world, 3.0, server="a3")
    assert isinstance(error, ParticipantFailed)
    assert sorted(world.host.asked()) == [
        "a1:agent-checkpoint/resume",
        "a2:agent-checkpoint/resume",
        "m1:model-admission/resume",
        "r1:resources-checkpoint/resume",
        "r2:resources-checkpoint/resume",
    ]


@pytest.mark.parametrize("seconds", [0.0, -10.0])
def test_a_deadline_that_has_passed_changes_nothing(world: World, seconds: float) -> None:
    asyncio.run(world.side.discover())
    world.forget()
    assert isinstance(failing(prepare, world, seconds, server="a1"), DeadlineExceeded)
    assert world.host.log == []


def test_a_server_that_became_another_one_is_discovered_again(world: World) -> None:
    asyncio.run(world.side.discover())
    world.forget()
    prepare(world)
    asked = [name for name, route, _ in world.host.log if route == "capabilities"]
    assert sorted(asked) == ["a1", "a2", "m1", "r1", "r2"]
    for fake in (world.a1, world.a2):
        features = (*FEATURES["agent"], v1.DISCARD, v1.DEPENDENCIES)
        fake.capabilities = fake.capabilities.model_copy(update={"features": features})
    restarted = {"checkpoint_mode": "restart_only", "incarnation": "another"}
    world.r1.capabilities = world.r1.capabilities.model_copy(update=restarted)
    prepare(world)
    modes = {
        item.participant.server_name: item.checkpoint_mode
        for item in world.side.topology().participants
    }
    assert (modes["r1"], modes["r2"]) == ("restart_only", "export_restore")


def test_a_server_that_became_one_that_cannot_take_part_closes_nobody(world: World) -> None:
    asyncio.run(world.side.discover())
    world.forget()
    world.r1.capabilities = world.r1.capabilities.model_copy(update={"features": ()})
    assert isinstance(failing(prepare, world, server="r1"), UnsupportedFeature)
    assert {route for _, route, _ in world.host.log} == {"capabilities"}


# --- commit, collect


def test_commit_holds_everywhere_and_writes_nothing(world: World) -> None:
    asyncio.run(world.side.discover())
    for fake in world.fakes:
        fake.delays = dict.fromkeys(
            ("agent-checkpoint/commit", "model-checkpoint/commit", "resources-checkpoint/commit"),
            HANG_S,
        )
    world.forget()
    told = {"deadline_ts": soon(), "tickets": ticket_for, "observe": world.observe}
    at_once(world, 5, world.side.commit("c1", **told))
    assert sorted(name for name, _, _ in world.host.log) == ["a1", "a2", "m1", "r1", "r2"]
    for name, route, body in world.host.log:
        component = route.split("-")[0]
        assert body["wait"] is False
        assert body["ticket"]["part"] == f"gym/{component}/{name}"
        assert body.get("agents") is None
    assert ("commit", "gym/model/m1", {"records": 2}) in world.steps


def test_commit_asks_nobody_when_the_attempt_is_over(world: World) -> None:
    asyncio.run(world.side.discover())
    world.forget()

    def over(name: str) -> Ticket:
        if name == "gym/resources/r2":
            raise RestoreRefused("over")
        return ticket_for(name)

    with pytest.raises(RestoreRefused):
        asyncio.run(world.side.commit("c1", deadline_ts=soon(), tickets=over))
    assert world.host.log == []


def test_collect_gives_the_model_what_the_agents_wrote(world: World) -> None:
    world.a2.delays["agent-checkpoint/commit"] = 0.2
    parts = collect(world)
    assert world.last("agent-checkpoint/commit") < world.last("model-checkpoint/commit")
    # Resources do not wait for agents.
    assert world.last("resources-checkpoint/commit") < world.last("model-checkpoint/commit")
    kept, body = world.bodies("m1", "model-checkpoint/commit")
    # Told at once until when to keep its cut.
    assert (kept["wait"], kept["agents"]) == (False, None)
    assert kept["deadline_ts"] == body["deadline_ts"]
    assert [one["part"] for one in body["agents"]] == ["gym/agent/a1", "gym/agent/a2"]
    assert body["agents"][0] == v1.data(receipt_of("gym/agent/a1"))
    assert body["wait"] is True
    assert [one.part for one in parts.receipts] == [
        "gym/agent/a1",
        "gym/agent/a2",
        "gym/model/m1",
        "gym/resources/r1",
        "gym/resources/r2",
    ]
    assert set(parts.continuation_indexes) == {"gym/agent/a1", "gym/agent/a2"}
    assert set(parts.storage_reference_indexes) == {"gym/model/m1"}
    assert parts.counts == {"records": 10, "stored_bytes": 500}
    assert ("write", "gym/model/m1", {"records": 2, "stored_bytes": 100}) in world.steps


def test_collect_asks_again_while_a_part_is_written(world: World) -> None:
    left = [v1.Committed(state="idle", ready=False)] * 3
    world.r1.replies["resources-checkpoint/commit"] = lambda body: v1.data(
        left.pop() if left else world.r1.commit(body)
    )
    assert len(collect(world).receipts) == 5
    assert left == []
    left = [v1.Committed(state="idle", ready=False)] * 1000
    assert isinstance(failing(collect, world, 2.0, server="r1"), DeadlineExceeded)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("a1", {"receipt": None}),
        ("a1", {"receipt": receipt_of("gym/agent/a2")}),
        ("r1", {"receipt": receipt_of("gym/resources/r1", "c" * 32)}),
        ("a2", {"continuation_index": None}),
        ("a2", {"continuation_index": index_of("gym/agent/a1", "continuations.jsonl")}),
        ("m1", {"storage_reference_index": None}),
    ],
)
def test_a_receipt_must_be_that_of_the_ticket(world: World, name: str, change: Json) -> None:
    fake = world.host.fakes[name]
    good = fake.commit({"wait": True})
    fake.replies[f"{fake.component}-checkpoint/commit"] = lambda _: v1.data(
        good.model_copy(update=change)
    )
    assert isinstance(failing(collect, world, server=name), ParticipantFailed)


def test_a_part_that_cannot_be_written_ends_the_save(world: World) -> None:
    world.m1.replies["model-checkpoint/commit"] = refusal("ledger_mismatch")
    error = failing(collect, world, server="m1")
    assert isinstance(error, ControlRefused)
    assert error.reason == "ledger_mismatch"


# --- resume


def test_resume_opens_from_the_inside_out(world: World) -> None:
    asyncio.run(world.side.discover())
    world.forget()
    for fake in world.fakes:
        fake.delays = dict.fromkeys(("resources-checkpoint/resume", "model-admission/resume"), 0.1)
    resume(world)
    assert world.last("resources-checkpoint/resume") < world.first("model-admission/resume")
    assert world.last("model-admission/resume") < world.first("agent-checkpoint/resume")
    assert len(world.host.log) == 5
    assert [step for step in world.steps if step[1] == "gym/agent/a1"] == [
        ("resume", "gym/agent/a1", {"released": 1})
    ]


@pytest.mark.parametrize("reason", ["unknown_checkpoint", "stale_checkpoint"])
def test_a_server_that_knows_nothing_of_it_is_open(world: World, reason: Reason) -> None:
    world.m1.replies["model-admission/resume"] = refusal(reason)
    resume(world)


def test_resume_tries_all_and_raises_afterwards(world: World) -> None:
    world.r1.replies["resources-checkpoint/resume"] = refusal("checkpoint_conflict", "r1 busy")
    world.a2.replies["agent-checkpoint/resume"] = lambda _: v1.data(v1.Resumed(state="prepared"))
    error = failing(resume, world, server="r1")
    assert isinstance(error, ControlRefused)
    assert error.reason == "checkpoint_conflict"
    assert any("a2" in note and "prepared" in note for note in error.__notes__)
    assert {name for name, route, _ in world.host.log if "resume" in route} == {
        "a1",
        "a2",
        "m1",
        "r1",
        "r2",
    }
    assert ("resume", "gym/resources/r1", {"failed": 1}) in world.steps


def test_a_server_that_hangs_holds_the_others_up_for_a_moment_only(world: World) -> None:
    asyncio.run(world.side.discover())
    world.r1.delays["resources-checkpoint/resume"] = HANG_S
    opened: dict[str, int] = {}
    started = time.time_ns()

    def observe(step: str, actor: str, _: int, ended_ns: int, counts: dict[str, int]) -> None:
        opened[actor] = ended_ns - started

    with pytest.raises(DeadlineExceeded, match="r1"):
        asyncio.run(world.side.resume("c1", deadline_ts=soon(3.0), observe=observe))
    assert opened["gym/resources/r2"] < opened["gym/model/m1"] < opened["gym/agent/a1"]
    assert opened["gym/agent/a1"] < opened["gym/resources/r1"]
    # A quarter of the time: nobody is left out.
    assert opened["gym/model/m1"] >= 0.3e9
    assert any(name == "a1" and route.endswith("/resume") for name, route, _ in world.host.log)


def test_resume_outlasts_failures_until_its_deadline(world: World) -> None:
    left = [0] * 8
    world.r1.replies["resources-checkpoint/resume"] = lambda body: (
        (503, {"pop": left.pop()}) if left else v1.data(world.r1.resume(body))
    )
    asyncio.run(world.side.resume("c1", deadline_ts=soon()))
    assert left == []


# --- acknowledge, discard, retire


def completion(i: int, *, long: bool = False) -> CompletionReceipt:
    tail = "x" * 490 if long else ""
    return CompletionReceipt(
        rollout_id=f"r{i}{tail}",
        attempt_index=i % 3,
        execution_generation=1,
        result_identity=f"i{i}{tail}",
        result_digest="0" * 64,
        manifest_capture_key=f"r{i}{tail}",
        terminal_model_call_id=f"c{i}{tail}",
    )


@pytest.mark.parametrize(
    ("count", "long", "pages"), [(300, False, 1), (300, True, 2), (1300, False, 3)]
)
def test_acknowledgements_go_in_pages_to_their_agent(
    world: World, count: int, long: bool, pages: int
) -> None:
    owed = [("a1", completion(i, long=long)) for i in range(count)]
    mixed = [*owed[:100], ("a2", completion(7)), *owed[100:]]
    asyncio.run(world.side.acknowledge(mixed, deadline_ts=soon(), observe=world.observe))
    sent = world.bodies("a1", "agent-checkpoint/acknowledge-completed")
    assert len(sent) == pages
    assert max(len(body["executions"]) for body in sent) <= v1.MAX_LIST
    assert max(len(json.dumps(body)) for body in sent) <= v1.MAX_BODY
    flat = [one for body in sent for one in body["executions"]]
    assert flat == [v1.data(receipt) for _, receipt in owed]
    (other,) = world.bodies("a2", "agent-checkpoint/acknowledge-completed")
    assert len(other["executions"]) == 1
    assert ("acknowledge", "gym/agent/a1", {"acknowledged": count}) in world.steps


def test_no_acknowledgements_ask_nobody(world: World) -> None:
    asyncio.run(world.side.discover())
    world.forget()
    asyncio.run(world.side.acknowledge([], deadline_ts=soon()))
    assert world.host.log == []


def test_a_result_that_its_agent_does_not_know_counts_as_acknowledged(world: World) -> None:
    owed = [("a1", completion(index)) for index in range(2)]
    world.a1.replies["agent-checkpoint/acknowledge-completed"] = lambda body: v1.data(
        v1.Acknowledged(
            acknowledged=(),
            unknown=tuple(
                v1.Execution(rollout_id=item["rollout_id"], attempt_index=item["attempt_index"])
                for item in body["executions"]
            ),
        )
    )
    work = world.side.acknowledge(owed, deadline_ts=soon(), observe=world.observe)
    asyncio.run(work)
    assert ("acknowledge", "gym/agent/a1", {"acknowledged": 2, "unknown": 2}) in world.steps


def test_an_acknowledgement_that_is_not_confirmed_is_an_error(world: World) -> None:
    world.a1.replies["agent-checkpoint/acknowledge-completed"] = lambda body: v1.data(
        world.a1.acknowledge_completed({"executions": body["executions"][:-1]})
    )
    owed = [("a1", completion(i)) for i in range(5)]
    error = failing(asyncio.run, world.side.acknowledge(owed, deadline_ts=soon()), server="a1")
    assert isinstance(error, ParticipantFailed)
    assert "r4 run 1" in str(error)


def test_an_unknown_agent_is_refused_before_anything_is_sent(world: World) -> None:
    asyncio.run(world.side.discover())
    world.forget()
    owed = [("a1", completion(1)), ("a3", completion(2))]
    with pytest.raises(InputError, match="a3"):
        asyncio.run(world.side.acknowledge(owed, deadline_ts=soon()))
    assert world.host.log == []


def test_a_refused_receipt_names_the_agent(world: World) -> None:
    world.a1.replies["agent-checkpoint/acknowledge-completed"] = refusal(
        "completed_execution_acknowledgement_error"
    )
    owed = [("a1", completion(1)), ("a2", completion(2))]
    error = failing(asyncio.run, world.side.acknowledge(owed, deadline_ts=soon()), server="a1")
    assert isinstance(error, ControlRefused)
    assert world.bodies("a2", "agent-checkpoint/acknowledge-completed")


def runs(count: int) -> list[v1.Execution]:
    return [v1.Execution(rollout_id=f"r{i}", attempt_index=1) for i in range(count)]


def test_discard_goes_in_pages_to_its_agent(world: World) -> None:
    done = asyncio.run(
        world.side.discard("restore-1", {"a1": runs(1030), "a2": runs(1)}, deadline_ts=soon())
    )
    assert done == 1031
    sent = world.bodies("a1", "agent-checkpoint/discard-restored-continuation")
    assert [len(body["executions"]) for body in sent] == [512, 512, 6]
    assert {body["checkpoint_id"] for body in sent} == {"restore-1"}
    # The new run must meet neither lineage nor a session of the old one.
    for name, component in (("m1", "model"), ("r1", "resources"), ("r2", "resources")):
        told = world.bodies(name, f"{component}-checkpoint/discard-restored-continuation")
        assert sum(len(body["executions"]) for body in told) == 1031


def test_only_agents_must_know_how_to_discard(world: World) -> None:
    missing: Reply = lambda _: (404, {"detail": "Not Found"})  # noqa: E731
    world.m1.replies["model-checkpoint/discard-restored-continuation"] = missing
    world.r1.replies["resources-checkpoint/discard-restored-continuation"] = missing
    runs_of = {"a1": runs(2)}
    assert asyncio.run(world.side.discard("restore-1", runs_of, deadline_ts=soon())) == 2
    world.a1.replies["agent-checkpoint/discard-restored-continuation"] = missing
    call = world.side.discard("restore-1", runs_of, deadline_ts=soon())
    assert isinstance(failing(asyncio.run, call, server="a1"), UnsupportedFeature)
    world.r1.replies["resources-checkpoint/discard-restored-continuation"] = refusal("wrong_phase")
    del world.a1.replies["agent-checkpoint/discard-restored-continuation"]
    call = world.side.discard("restore-1", runs_of, deadline_ts=soon())
    assert isinstance(failing(asyncio.run, call, server="r1"), ControlRefused)


def test_retire_tells_agents_before_those_whom_they_call(world: World) -> None:
    asyncio.run(world.side.retire(runs(600), observe=world.observe))
    assert world.last("agent-checkpoint/retire") < world.first("model-checkpoint/retire")
    assert world.last("agent-checkpoint/retire") < world.first("resources-checkpoint/retire")
    assert len([one for one in world.host.asked() if one.endswith("/retire")]) == 10
    assert ("retire", "gym/resources/r2", {"retired": 600}) in world.steps


def test_retire_tells_all_whatever_one_of_them_answers(world: World) -> None:
    for one, route in ((world.a1, "agent"), (world.r1, "resources")):
        one.replies[f"{route}-checkpoint/retire"] = refusal("internal_error", "broken")
    error = failing(asyncio.run, world.side.retire(runs(1)), server="a1")
    assert any("r1" in note for note in error.__notes__)
    told = {one.split(":")[0] for one in world.host.asked() if one.endswith("/retire")}
    assert told == {"a1", "a2", "m1", "r1", "r2"}


# --- what a snapshot says of Gym


def test_the_metadata_gives_the_parts_back(world: World) -> None:
    parts = collect(world)
    value = to_metadata(parts)
    assert json.loads(json.dumps(value, allow_nan=False)) == value
    assert value["checkpoint_id"] == "c1"
    first = value["participants"][0]
    assert {name: first[name] for name in list(first)[:5]} == {
        "server_name": "a1",
        "component": "agent",
        "participant_name": "agent",
        "part": "gym/agent/a1",
        "index_digest": digest("gym/agent/a1"),
    }
    others = (receipt_of("rl/controller"), *reversed(parts.receipts))
    assert from_metadata(json.loads(json.dumps(value)), others) == parts


@pytest.mark.parametrize(
    "spoil",
    [
        lambda value: "text",
        lambda value: value | {"extra": 1},
        lambda value: value | {"participants": value["participants"] * 2},
        lambda value: value | {"checkpoint_id": "../x"},
        lambda value: json.loads(json.dumps(value).replace("gym/agent/a1", "gym/agent/a9")),
        lambda value: json.loads(
            json.dumps(value).replace(digest("gym/model/m1"), digest("other"))
        ),
    ],
)
def test_metadata_that_contradicts_the_manifest_is_refused(
    world: World, spoil: Callable[[Any], Any]
) -> None:
    parts = collect(world)
    with pytest.raises(FormatError):
        from_metadata(spoil(to_metadata(parts)), parts.receipts)


# --- restore


def boundary(rollout_id: str, attempt_index: int) -> AgentBoundaryRecord:
    return AgentBoundaryRecord(
        rollout_id=rollout_id,
        attempt_index=attempt_index,
        boundary_index=1,
        turn_index=1,
        boundary_kind="turn_complete",
        created_at=1.0,
    )


@pytest.fixture
def snapshot(world: World, tmp_path: Path) -> Snapshot:
    """A published one, with a part of each server that takes part."""
    repository = Repository.create(tmp_path / "run")
    with repository.begin() as attempt:
        written = [
            agent_part.write(
                agent_part.AgentCut([boundary(f"{fake.name}-p", 2)]), attempt.ticket(fake.part)
            )
            for fake in (world.a1, world.a2)
        ]
        agents = [reply.receipt for reply in written if reply.receipt is not None]
        ticket = attempt.ticket(world.m1.part)
        written.append(model_part.write(Ledger().cut({}), "m1", agents, ticket))
        for fake in (world.r1, world.r2):
            cut = SessionCut([("a1-p", 2, 1, {}), ("lone", 0, 1, {})], 1.0)
            ticket = attempt.ticket(fake.part)
            written.append(sessions_part.write(cut, fake.name, "export_restore", ticket))
        receipts = tuple(reply.receipt for reply in written if reply.receipt is not None)
        parts = GymParts(
            checkpoint_id="c1",
            receipts=receipts,
            participants={
                fake.part: ParticipantName(
                    server_name=fake.name,
                    component=fake.component,
                    participant_name=fake.component,
                )
                for fake in world.fakes
            },
            continuation_indexes={
                fake.part: index_of(fake.part, "continuations.jsonl")
                for fake in (world.a1, world.a2)
            },
            storage_reference_indexes={
                world.m1.part: index_of(world.m1.part, "storage-references.jsonl")
            },
        )
        attempt.publish(receipts, user_metadata={METADATA_KEY: to_metadata(parts)})
    return repository.snapshot()


def restore(world: World, snapshot: Snapshot, **how: Any) -> int:
    arguments = {"source_checkpoint_id": "c1", "deadline_ts": soon(), "observe": world.observe}
    return asyncio.run(world.side.restore("restore-1", snapshot=snapshot, **(arguments | how)))


def resumed(world: World) -> list[str]:
    return sorted(
        name
        for name, route, body in world.host.log
        if route.endswith("/resume") and body["checkpoint_id"] == "restore-1"
    )


def test_restore_goes_through_models_agents_resources(world: World, snapshot: Snapshot) -> None:
    for fake in world.fakes:
        fake.delays = dict.fromkeys(("model-checkpoint/restore", "agent-checkpoint/restore"), 0.1)
    assert restore(world, snapshot) == 10
    assert world.last("model-checkpoint/restore") < world.first("agent-checkpoint/restore")
    assert world.last("agent-checkpoint/restore") < world.first("resources-checkpoint/restore")
    (body,) = world.bodies("a1", "agent-checkpoint/restore")
    assert body["snapshot"] == {
        "location": snapshot.location,
        "number": snapshot.number,
        "part": "gym/agent/a1",
        "index_digest": snapshot.part("gym/agent/a1").receipt.index_digest,
    }
    assert (body["checkpoint_id"], body["source_checkpoint_id"]) == ("restore-1", "c1")
    assert resumed(world) == []
    assert ("load", "gym/resources/r2", {"restored": 2}) in world.steps


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("m1", "refused"),
        ("m1", "another index"),
        ("m1", "no index"),
        ("a2", "failed"),
        ("a2", "another index"),
        ("a2", "no index"),
        ("r1", "not paused"),
        ("r1", "another index"),
        ("r1", "garbage"),
    ],
)
def test_one_server_that_fails_leaves_none_restored(
    world: World, snapshot: Snapshot, name: str, how: str
) -> None:
    fake = world.host.fakes[name]
    index = index_of(fake.part, "other.jsonl")
    replies: dict[str, Reply] = {
        "refused": refusal("topology_mismatch"),
        "not paused": lambda _: v1.data(v1.Restored(state="idle", restored=1)),
        "failed": lambda _: v1.data(v1.Restored(state="restore_failed_paused", restored=0)),
        "another index": lambda _: v1.data(
            v1.Restored(
                state="restored_paused",
                restored=1,
                continuation_index=index,
                storage_reference_index=index,
            )
        ),
        "no index": lambda _: v1.data(v1.Restored(state="restored_paused", restored=1)),
        "garbage": lambda _: Response("<html>", media_type="text/html"),
    }
    fake.replies[f"{fake.component}-checkpoint/restore"] = replies[how]
    error = failing(restore, world, snapshot, server=name)
    assert isinstance(error, ParticipantFailed)
    assert isinstance(error.__cause__, SnapfmtError)
    assert resumed(world) == ["a1", "a2", "m1", "r1", "r2"]
    # Before it opens, everybody lets go of what it may have installed.
    for one, component in (("a1", "agent"), ("m1", "model"), ("r2", "resources")):
        (body,) = world.bodies(one, f"{component}-checkpoint/discard-restored-continuation")
        assert [tuple(run.values()) for run in body["executions"]] == [
            ("a1-p", 3),
            ("a2-p", 3),
            ("lone", 1),
        ]
    assert world.last("discard-restored-continuation") < world.first("/resume")
    # Whoever comes after it was never asked to restore.
    after = {"m1": "agent-checkpoint", "a2": "resources-checkpoint"}.get(name, "none")
    assert not [one for one in world.host.asked() if one.endswith(f"{after}/restore")]


def test_a_restore_that_fails_late_still_opens_all(world: World, snapshot: Snapshot) -> None:
    asyncio.run(world.side.discover())
    world.r1.delays["resources-checkpoint/restore"] = HANG_S
    error = failing(lambda: restore(world, snapshot, deadline_ts=soon(3.0)), server="r1")
    assert isinstance(error.__cause__, DeadlineExceeded)
    assert resumed(world) == ["a1", "a2", "m1", "r1", "r2"]


def test_a_restore_that_is_cancelled_opens_all(world: World, snapshot: Snapshot) -> None:
    world.r1.delays["resources-checkpoint/restore"] = HANG_S

    async def body() -> None:
        task = asyncio.create_task(
            world.side.restore(
                "restore-1", deadline_ts=soon(), snapshot=snapshot, source_checkpoint_id="c1"
            )
        )
        while not world.bodies("r1", "resources-checkpoint/restore"):
            assert not task.done()
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(body())
    assert resumed(world) == ["a1", "a2", "m1", "r1", "r2"]


def test_a_restore_that_is_cancelled_twice_lets_go_all_the_same(
    world: World, snapshot: Snapshot
) -> None:
    discard = "discard-restored-continuation"
    world.r1.delays["resources-checkpoint/restore"] = HANG_S
    world.a1.delays[f"agent-checkpoint/{discard}"] = HANG_S

    async def body() -> None:
        task = asyncio.create_task(
            world.side.restore(
                "restore-1", deadline_ts=soon(), snapshot=snapshot, source_checkpoint_id="c1"
            )
        )
        for name, route in (
            ("r1", "resources-checkpoint/restore"),
            ("a1", f"agent-checkpoint/{discard}"),
        ):
            while not world.bodies(name, route):
                assert not task.done()
                await asyncio.sleep(0.01)
            task.cancel()
        await asyncio.sleep(0.01)
        world.host.let_go.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(body())
    assert resumed(world) == ["a1", "a2", "m1", "r1", "r2"]
    assert world.last(discard) < world.first("/resume")


def test_any_other_failure_opens_all_too(world: World, snapshot: Snapshot) -> None:
    def observe(step: str, actor: str, *_: object) -> None:
        if (step, actor) == ("load", "gym/resources/r1"):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        restore(world, snapshot, observe=observe)
    assert resumed(world) == ["a1", "a2", "m1", "r1", "r2"]


def test_a_server_that_stays_closed_is_in_the_error(world: World, snapshot: Snapshot) -> None:
    world.r1.replies["resources-checkpoint/restore"] = refusal("resources_checkpoint_error")
    world.a1.replies["agent-checkpoint/resume"] = refusal("checkpoint_conflict", "other")
    for reason, fake in (
        ("wrong_phase", world.r1),
        ("unknown_checkpoint", world.r2),
        ("ledger_mismatch", world.m1),
    ):
        route = f"{fake.component}-checkpoint/discard-restored-continuation"
        fake.replies[route] = refusal(reason)
    error = failing(restore, world, snapshot, server="r1")
    kept, closed = error.__notes__
    assert "m1" in kept
    assert "a1" in closed
    assert len(resumed(world)) == 5


def test_a_snapshot_that_cannot_be_read_again_stops_no_resume(
    world: World, snapshot: Snapshot
) -> None:
    world.r1.replies["resources-checkpoint/restore"] = refusal("resources_checkpoint_error")
    digest_of = snapshot.part("gym/agent/a1").receipt.index_digest.removeprefix("sha256:")
    (Path(snapshot.location) / "objects" / digest_of[:2] / digest_of).unlink()
    fresh = Repository.open(snapshot.location).snapshot()
    error = failing(restore, world, fresh, server="r1")
    assert any("gym/agent/a1" in note for note in error.__notes__)
    assert len(resumed(world)) == 5
    # What is in the other parts is let go of all the same.
    (body,) = world.bodies("a2", "agent-checkpoint/discard-restored-continuation")
    assert {"rollout_id": "a2-p", "attempt_index": 3} in body["executions"]


def test_nothing_is_asked_when_the_snapshot_does_not_fit(
    world: World, snapshot: Snapshot, tmp_path: Path
) -> None:
    asyncio.run(world.side.discover())
    world.forget()
    with pytest.raises(RestoreRefused, match="c1"):
        restore(world, snapshot, source_checkpoint_id="c2")
    other = Repository.create(tmp_path / "other")
    with other.begin() as attempt:
        attempt.publish([])
    without_gym = other.snapshot()
    with pytest.raises(RestoreRefused, match="no state of Gym"):
        restore(world, without_gym)
    assert world.host.log == []


def test_other_servers_than_those_of_the_snapshot_are_refused(
    running: Host, world: World, snapshot: Snapshot
) -> None:
    servers = [
        ServerAddress(name, f"http://127.0.0.1:{running.port}/{name}")
        for name in ("a1", "a2", "m1", "r1")
    ]
    running.fakes["r3"] = Fake("r3", "resources")
    servers.append(ServerAddress("r3", f"http://127.0.0.1:{running.port}/r3"))
    world.side = GymSide(servers, token=TOKEN, retries=QUICK)
    with pytest.raises(RestoreRefused, match=r"r3 has no part.*r2 has no server"):
        restore(world, snapshot)
    assert not [one for one in world.host.asked() if "restore" in one]


# --- the timeline


def test_every_step_of_a_save_is_observed_also_without_anybody_to_see(world: World) -> None:
    prepare(world)
    commit(world)
    resume(world)
    collect(world)
    steps = [(step, actor) for step, actor, _ in world.steps]
    assert len(steps) == len(set(steps))
    assert [step for step, _ in steps if step != observing.DISCOVER] == [
        observing.PAUSE,
        *[observing.PARK] * 2,
        *[observing.FREEZE] * 2,
        observing.DRAIN,
        *[observing.HOLD] * 5,
        *[observing.RESUME] * 5,
        *[observing.WRITE] * 5,
    ]
    asyncio.run(world.side.prepare("c2", deadline_ts=soon()))
