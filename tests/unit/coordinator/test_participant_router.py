"""Control routes over real HTTP: every refusal has its code, and the server goes on."""

import asyncio
import io
import json
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from snapfmt.errors import InputError
from snapfmt_coordinator.participant.agent import AgentParticipant
from snapfmt_coordinator.participant.model import ModelParticipant
from snapfmt_coordinator.participant.resources import ResourcesParticipant
from snapfmt_coordinator.participant.router import control_router
from snapfmt_coordinator.protocol.codes import STATUS, from_body
from snapfmt_coordinator.protocol.v1 import (
    INCARNATION_HEADER,
    MAX_BODY,
    MAX_LIST,
    AbortInflight,
    AcknowledgeCompleted,
    Acknowledged,
    AgentsPrepared,
    Capabilities,
    Commit,
    CommitModel,
    Committed,
    Control,
    DiscardRestored,
    Execution,
    ModelAdmission,
    PauseModel,
    PrepareAgents,
    ResourcesPrepared,
    Restore,
    Restored,
    Resume,
    Resumed,
    Retire,
    Retired,
)
from snapfmt_schemas.completion import CompletionReceipt
from snapfmt_schemas.resources import ResourceSnapshot

Make = Callable[..., Any]
TOKEN = "a-test-token"
AGENT, MODEL, TOOLS = "gym/agent/swe", "gym/model/policy", "gym/resources/tools"


class Store:
    """One session."""

    def __init__(self) -> None:
        self.installed: list[ResourceSnapshot] = []

    def export(self) -> list[tuple[str, int, int, dict[str, Any]]]:
        return [("a", 0, 3, {"n": 3})]

    def install(self, sessions: Sequence[ResourceSnapshot]) -> None:
        self.installed = list(sessions)

    def drop(self, rollout_id: str, attempt_index: int) -> bool:
        return False


def run(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(body())


def code(answer: tuple[int, Any]) -> str:
    """The answer's reason, after a look at its status and its form."""
    status, body = answer
    assert set(body) == {"error"}, body
    assert status == STATUS[body["error"]["code"]]
    error = from_body(status, body)
    assert error is not None
    return error.reason


def agent() -> AgentParticipant:
    return AgentParticipant(server_name="swe")


def model() -> ModelParticipant:
    return ModelParticipant(server_name="policy")


def tools() -> ResourcesParticipant:
    return ResourcesParticipant(Store(), server_name="tools")


@pytest.mark.parametrize("make", [agent, model, tools])
def test_every_route_asks_for_the_token(served: Make, make: Callable[[], Any]) -> None:
    async def body() -> None:
        participant = make()
        routes = [
            (method, route.path.removeprefix("/ng-control/v1"))
            for route in control_router(participant, token="t").routes
            for method in route.methods  # type: ignore[attr-defined]
        ]
        assert len(routes) > 5
        async with served(participant) as client:
            for method, path in routes:
                for token in (None, "", "wrong", "a-test-toke", "\u00e9"):
                    assert code(await client.send(method, path, token=token)) == "unauthorized"
            assert (await client.send("GET", "/capabilities"))[0] == 200

    run(body)


@pytest.mark.parametrize("token", ["", " ", "a ", "\u00e9", "a\n"])
def test_a_token_that_protects_nothing_is_refused(token: str) -> None:
    with pytest.raises(InputError):
        control_router(agent(), token=token)


@pytest.mark.parametrize("make", [agent, model, tools])
def test_capabilities(served: Make, control: Make, make: Callable[[], Any]) -> None:
    async def body() -> None:
        participant = make()
        async with served(participant) as client:
            status, answer = await client.send("GET", "/capabilities")
            assert status == 200
            found = Capabilities.model_validate_json(json.dumps(answer))
            made = found.incarnation
            assert found == participant.capabilities().model_copy(update={"incarnation": made})
            assert found.phase == "idle"
            assert found.topology().participant.server_name == participant.server_name
            participant.fence.enter(control(), "preparing")
            _, answer = await client.send("GET", "/capabilities")
            assert (answer["phase"], answer["active_checkpoint_id"]) == ("preparing", "c1")

    run(body)


def test_bad_bodies_are_told_by_their_field_and_change_nothing(served: Make, control: Make) -> None:
    async def body() -> None:
        participant = agent()
        path = "/agent-checkpoint/prepare"
        good = control(PrepareAgents, wait_s=1.5).model_dump_json()
        bodies = {
            b"": "body",
            b"{": "body",
            b"\xff\xfe": "body",
            b"[1]": "body",
            b"[" * 100_000: "body",
            b"{}": "checkpoint_id",
            good.replace('"c1"', '"../c1"').encode(): "checkpoint_id",
            good.replace('"c1"', f'"{"c" * 129}"').encode(): "checkpoint_id",
            good.replace('"schema_version":1', '"schema_version":2').encode(): "schema_version",
            good.replace('"wait_s":1.5', '"wait_s":"0"').encode(): "wait_s",
            good.replace('"wait_s":1.5', '"wait_s":1e9').encode(): "wait_s",
            good.replace("{", '{"more":1,', 1).encode(): "more",
            b'{"checkpoint_id":"c1","deadline_ts":NaN}': "deadline_ts",
            b'{"checkpoint_id":"c1","deadline_ts":-1}': "deadline_ts",
            b'{"checkpoint_id":"c1","deadline_ts":true}': "deadline_ts",
            b'{"checkpoint_id":"c1","deadline_ts":1700000000000}': "deadline_ts",
        }
        async with served(participant) as client:
            for raw, field in bodies.items():
                answer = await client.send("POST", path, raw=raw)
                assert code(answer) == "invalid_request", raw[:80]
                assert answer[1]["error"]["what"] == field, raw[:80]
            assert not participant.fence.closed
            (await participant.begin("r", 0)).fail()
            assert (await client.send("POST", path, raw=good.encode()))[0] == 200

    run(body)


def test_a_body_that_is_too_large_is_refused(served: Make, control: Make) -> None:
    async def body() -> None:
        participant = agent()
        path = "/agent-checkpoint/prepare"

        async def pieces(count: int) -> Any:
            for _ in range(count):
                yield b" " * 65_536

        async with served(participant) as client:
            bodies = [io.BytesIO(b" " * (MAX_BODY + 1)), io.BytesIO(b" " * 16 * MAX_BODY)]
            for raw in (*bodies, pieces(17), pieces(256)):
                assert code(await client.send("POST", path, raw=raw)) == "request_too_large"
            full = control(PrepareAgents).model_dump_json().encode().ljust(MAX_BODY)
            assert (await client.send("POST", path, raw=io.BytesIO(full)))[0] == 200

    run(body)


def test_lists_are_bounded(served: Make) -> None:
    async def body() -> None:
        items = [{"rollout_id": f"r{i}", "attempt_index": 0} for i in range(MAX_LIST + 1)]
        raw = json.dumps({"executions": items}).encode()
        async with served(agent()) as client:
            answer = await client.send("POST", "/agent-checkpoint/retire", raw=raw)
            assert code(answer) == "invalid_request"
            assert answer[1]["error"]["what"] == "executions"

    run(body)


CASES = [
    (agent, "/agent-checkpoint/prepare", PrepareAgents, "/agent-checkpoint/resume"),
    (model, "/model-admission/pause", PauseModel, "/model-admission/resume"),
    (tools, "/resources-checkpoint/prepare", Control, "/resources-checkpoint/resume"),
]


@pytest.mark.parametrize(("make", "prepare", "kind", "resume"), CASES)
def test_ids_and_deadlines(
    served: Make, control: Make, make: Callable[[], Any], prepare: str, kind: Any, resume: str
) -> None:
    async def body() -> None:
        participant = make()
        async with served(participant) as client:
            unknown = control(Resume, "other")
            assert code(await client.post(resume, unknown)) == "unknown_checkpoint"
            late = control(kind, seconds=-1)
            assert code(await client.post(prepare, late)) == "deadline_passed"
            assert not participant.fence.closed
            asked = [client.post(prepare, control(kind)) for _ in range(4)]
            answers = await asyncio.gather(*asked)
            assert [status for status, _ in answers] == [200] * 4
            assert all(answer == answers[0] for answer in answers)
            assert answers[0][1]["state"] == "prepared"
            other = await client.post(prepare, control(kind, "c2"))
            assert code(other) == "checkpoint_conflict"
            assert participant.fence.active_id == "c1"
            assert (await client.post(resume, control(Resume)))[1]["idempotent"] is False
            assert (await client.post(resume, control(Resume)))[1]["idempotent"] is True
            assert code(await client.post(prepare, control(kind))) == "stale_checkpoint"
            assert not participant.fence.closed
            assert (await client.post(prepare, control(kind, "c2")))[0] == 200

    run(body)


def test_the_status_of_the_model(served: Make, control: Make) -> None:
    async def body() -> None:
        participant = model()
        path = "/model-admission/status"

        def query(**more: Any) -> dict[str, Any]:
            return {"checkpoint_id": "c1", "deadline_ts": f"{time.time() + 30!r}"} | more

        async with served(participant) as client:
            for params, field in (
                ({}, "checkpoint_id"),
                (query(deadline_ts="soon"), "deadline_ts"),
                (query(timeout_s="61"), "timeout_s"),
                (query(wait_state="open"), "wait_state"),
            ):
                answer = await client.send("GET", path, params=params)
                assert code(answer) == "invalid_request"
                assert answer[1]["error"]["what"] == field
            answer = await client.send("GET", path, params=query())
            assert code(answer) == "unknown_checkpoint"
            async with participant.call("r", 0, "call-1"):
                await client.post("/model-admission/pause", control(PauseModel))
                params = query(wait_state="paused", timeout_s="0.05", schema_version="1")
                status, answer = await client.send("GET", path, params=params)
                assert (status, answer["inflight_total"], answer["admission"]) == (200, 1, "paused")
                params = query(wait_state="paused", timeout_s="20")
                waiting = asyncio.create_task(client.send("GET", path, params=params))
                await asyncio.sleep(0.05)
                assert not waiting.done()
                abort = control(AbortInflight, rollout_id="r", attempt_index=0)
                answer = await client.post("/model-admission/abort_inflight", abort)
                assert answer == (200, {"aborted_inflight": 1})
            status, answer = await waiting
            assert ModelAdmission.model_validate_json(json.dumps(answer)).state == "prepared"

    run(body)


def test_every_answer_says_which_process_gave_it(served: Make, control: Make) -> None:
    async def body() -> None:
        told = []
        for _ in range(2):
            async with served(agent()) as client:
                _, answer = await client.send("GET", "/capabilities")
                told.append(answer["incarnation"])
                headers = {"Authorization": f"Bearer {TOKEN}"}
                for route, request, wanted in (
                    ("prepare", control(PrepareAgents), 200),
                    ("resume", control(Resume, "other"), 404),
                ):
                    async with client.session.post(
                        f"{client.url}/agent-checkpoint/{route}",
                        data=request.model_dump_json().encode(),
                        headers=headers,
                    ) as response:
                        assert response.status == wanted
                        assert response.headers[INCARNATION_HEADER] == told[-1]
        assert told[0] != told[1]

    run(body)


def test_results_are_acknowledged_over_http(served: Make) -> None:
    async def body() -> None:
        participant = agent()
        receipts = []
        for name in ("a", "b"):
            async with await participant.begin(name, 0) as execution:
                receipts.append(execution.finish(result_identity=name, result={}))
        at = "/agent-checkpoint"
        async with served(participant) as client:
            asked = Execution(rollout_id="a", attempt_index=0)
            status, answer = await client.post(f"{at}/completion-receipt", asked)
            assert CompletionReceipt.model_validate(answer) == receipts[0]
            unknown = Execution(rollout_id="x", attempt_index=0)
            answer = await client.post(f"{at}/completion-receipt", unknown)
            assert code(answer) == "unknown_execution"
            wrong = receipts[0].model_copy(update={"result_digest": "0" * 64})
            batch = AcknowledgeCompleted(executions=(receipts[1], wrong))
            answer = await client.post(f"{at}/acknowledge-completed", batch)
            assert code(answer) == "completed_execution_acknowledgement_error"
            assert participant.result_of("b", 0) is not None
            status, answer = await client.post(f"{at}/acknowledge", receipts[0])
            assert (status, answer["idempotent"]) == (200, 0)
            batch = AcknowledgeCompleted(executions=tuple(receipts))
            status, answer = await client.post(f"{at}/acknowledge-completed", batch)
            assert (status, answer["idempotent"], len(answer["acknowledged"])) == (200, 1, 2)
            retire = Retire(executions=(asked,))
            assert await client.post(f"{at}/retire", retire) == (
                200,
                {"retired": 0, "tombstoned": 1},
            )

    run(body)


def test_an_error_that_nobody_foresaw_is_told_without_its_trace(
    served: Make, control: Make, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        participant = tools()
        path = "/resources-checkpoint/retire"
        retire = Retire(executions=(Execution(rollout_id="r", attempt_index=0),))
        store = participant._store

        def broken(*_: object) -> bool:
            raise ZeroDivisionError("in the store")

        store.drop = broken  # type: ignore[method-assign]
        async with served(participant) as client:
            with caplog.at_level(logging.ERROR):
                answer = await client.post(path, retire)
            assert code(answer) == "internal_error"
            assert answer[1]["error"]["message"] == "ZeroDivisionError"
            assert "a-test-token" not in caplog.text
            assert "ZeroDivisionError" in caplog.text
            del store.drop
            assert (await client.post(path, retire))[0] == 200
            assert not participant.fence.closed

    run(body)


def test_a_save_and_a_restore_over_http(
    served: Make, control: Make, saves: Any, boundary: Make, lineage_row: Make
) -> None:
    async def save(client_of: dict[str, Any], sides: dict[str, Any]) -> Any:
        execution = await sides["agent"].begin("a", 0)
        async with sides["model"].call("a", 0, "call-1") as call:
            call.commit(lineage_row("a", "call-1"))
        agents, policy, resources = (client_of[name] for name in ("agent", "model", "tools"))
        status, answer = await policy.post("/model-admission/pause", control(PauseModel))
        assert ModelAdmission.model_validate_json(json.dumps(answer)).state == "prepared"
        prepare = control(PrepareAgents, wait_s=0.01)
        status, answer = await agents.post("/agent-checkpoint/prepare", prepare)
        assert not answer["ready_to_commit"]
        parked = asyncio.create_task(execution.boundary(boundary("a")))
        prepare = control(PrepareAgents, wait_s=10)
        status, answer = await agents.post("/agent-checkpoint/prepare", prepare)
        assert answer["ready_to_commit"], answer
        status, answer = await resources.post("/resources-checkpoint/prepare", control())
        assert ResourcesPrepared.model_validate(answer).state == "prepared"

        tickets = {name: saves.ticket(name) for name in (AGENT, MODEL, TOOLS)}
        commits = [
            (agents, "/agent-checkpoint/commit", Commit, AGENT),
            (policy, "/model-checkpoint/commit", CommitModel, MODEL),
            (resources, "/resources-checkpoint/commit", Commit, TOOLS),
        ]
        for client, path, kind, part in commits:
            held = control(kind, ticket=tickets[part], wait=False)
            status, answer = await client.post(path, held)
            assert (status, answer["ready"]) == (200, False), answer
        for client, path in (
            (resources, "/resources-checkpoint/resume"),
            (policy, "/model-admission/resume"),
            (agents, "/agent-checkpoint/resume"),
        ):
            status, answer = await client.post(path, control(Resume))
            assert status == 200
        await asyncio.wait_for(parked, 60)

        receipts = []
        for client, path, kind, part in commits:
            more = {"agents": (receipts[0],)} if part == MODEL else {}
            request = control(kind, ticket=tickets[part], **more)
            answers = await asyncio.gather(*[client.post(path, request) for _ in range(2)])
            assert answers[0] == answers[1]
            status, answer = answers[0]
            assert (status, answer["ready"]) == (200, True), answer
            receipts.append(Committed.model_validate_json(json.dumps(answer)).receipt)
        return saves.publish(*receipts)

    async def restore(client_of: dict[str, Any], sides: dict[str, Any], place: Any) -> None:
        for name, prefix, part in (
            ("model", "/model-checkpoint", MODEL),
            ("agent", "/agent-checkpoint", AGENT),
            ("tools", "/resources-checkpoint", TOOLS),
        ):
            request = control(Restore, "r1", source_checkpoint_id="c1", snapshot=place(part))
            status, answer = await client_of[name].post(f"{prefix}/restore", request)
            assert (status, answer.get("restored")) == (200, 1), answer
        discard = control(DiscardRestored, "r1", executions=())
        answer = await client_of["agent"].post(
            "/agent-checkpoint/discard-restored-continuation", discard
        )
        assert answer == (200, {"discarded": 0})
        for name, path in (
            ("tools", "/resources-checkpoint/resume"),
            ("model", "/model-admission/resume"),
            ("agent", "/agent-checkpoint/resume"),
        ):
            assert (await client_of[name].post(path, control(Resume, "r1")))[0] == 200
        execution = await sides["agent"].begin("a", 1)
        assert execution.restored.last_committed_model_call_id == "call-1"
        assert [row.staging_key for row in sides["model"].rows("a", 1)] == ["a/call-1"]
        (session,) = sides["tools"]._store.installed
        assert (session.attempt_index, session.state) == (1, {"n": 3})

    async def with_servers(work: Callable[..., Coroutine[Any, Any, Any]], *more: Any) -> Any:
        sides = {"agent": agent(), "model": model(), "tools": tools()}
        async with (
            served(sides["agent"]) as one,
            served(sides["model"]) as two,
            served(sides["tools"]) as three,
        ):
            return await work({"agent": one, "model": two, "tools": three}, sides, *more)

    async def body() -> None:
        place = await with_servers(save)
        await with_servers(restore, place)

    run(body)


def test_replies_are_records_of_the_protocol(served: Make, control: Make) -> None:
    """What a client validates is what a route sends."""

    async def body() -> None:
        async with served(agent()) as client:
            at = "/agent-checkpoint"
            for path, request, kind in (
                ("prepare", control(PrepareAgents), AgentsPrepared),
                ("resume", control(Resume), Resumed),
                ("retire", Retire(executions=()), Retired),
                ("acknowledge-completed", AcknowledgeCompleted(executions=()), Acknowledged),
            ):
                status, answer = await client.post(f"{at}/{path}", request)
                assert status == 200
                assert kind.model_validate_json(json.dumps(answer))
            assert Restored(state="idle", restored=0)

    run(body)
