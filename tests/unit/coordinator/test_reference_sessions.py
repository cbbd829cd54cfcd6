"""Sessions of the reference tools: once per call, saved whole, restored whole."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from snapfmt.errors import ControlRefused, RestoreRefused
from snapfmt_coordinator.participant.agent import AgentParticipant
from snapfmt_coordinator.reference import tools
from snapfmt_coordinator.reference.links import Reply
from snapfmt_coordinator.reference.rollout import Rollout, Servers, Task
from snapfmt_coordinator.reference.serving import ATTEMPT_HEADER, ROLLOUT_HEADER
from snapfmt_coordinator.reference.sessions import REMEMBERED, MutationLog, Sessions
from snapfmt_schemas.lines import from_line, to_line
from snapfmt_schemas.redaction import redact_record
from snapfmt_schemas.resources import ResourceSnapshot

ARGUMENTS: dict[str, Any] = {
    "counter": {"add": 3},
    "dice": {"sides": 20},
    "notes": {"op": "write", "title": "t", "text": "x"},
    "sandbox": {"command": "ls"},
}


def opened(kind: str, log: MutationLog | None = None) -> tuple[Sessions, str]:
    sessions = Sessions(tools.tool(kind), log=log)
    session = sessions.seed("p_g0", 0, seed=7, seeded_by="p_g0:1")
    return sessions, session.session_id


def carried(sessions: Sessions, run: int) -> list[ResourceSnapshot]:
    """The sessions as they are after they were stored and read back."""
    found = []
    for rollout_id, _, revision, state in sessions.export():
        record = ResourceSnapshot(
            rollout_id=rollout_id,
            attempt_index=run,
            state_revision=revision,
            state=state,
            created_at=1.0,
        )
        kept, hidden = redact_record(record)
        assert hidden == ()
        found.append(from_line(ResourceSnapshot, to_line(kept)))
    return found


class Local:
    """Asks sessions of this process for a session."""

    name = "tools"

    def __init__(self, sessions: Sessions) -> None:
        self.sessions = sessions

    async def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> Reply:
        assert path == "/seed_session"
        asked = json.loads(body)
        who = headers[ROLLOUT_HEADER], int(headers[ATTEMPT_HEADER])
        session = self.sessions.seed(*who, seed=asked["seed"], seeded_by=asked["execution"])
        return Reply({"session_id": session.session_id}, session.revision)


def test_a_restarted_agent_meets_no_session_that_was_half_used() -> None:
    async def begun(link: Any) -> Rollout:
        execution = await AgentParticipant(server_name="swe").begin("p_g0", 0)
        task = Task(prompt="x", max_turns=3, tools=("counter",), seed=7)
        rollout = Rollout(execution, task, Servers(link, {"counter": link}))
        await rollout._start()
        return rollout

    async def body() -> None:
        link = Local(Sessions(tools.tool("counter")))
        first = await begun(link)
        session_id = first._place.sessions["tools"]
        link.sessions.act("p_g0", 0, session_id, "call-1", 0, ARGUMENTS["counter"])
        # A process of its own counts its generations from the beginning.
        second = await begun(link)
        assert second._execution.generation == first._execution.generation
        assert second._place.revisions == {"tools": 0}
        assert second._place.sessions["tools"] != session_id

    asyncio.run(body())


@pytest.mark.parametrize("kind", sorted(ARGUMENTS))
def test_a_call_counts_once_however_often_it_is_sent(kind: str, tmp_path: Path) -> None:
    log = MutationLog(tmp_path / "log")
    sessions, name = opened(kind, log)
    first = sessions.act("p_g0", 0, name, "call-1", 0, ARGUMENTS[kind])
    again = sessions.act("p_g0", 0, name, "call-1", 0, ARGUMENTS[kind])
    other = sessions.act("p_g0", 0, name, "call-1", 1, ARGUMENTS[kind])
    log.close()
    assert first == again
    assert other[0].revision == 2
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [line["model_call_id"] for line in lines] == ["call-1", "call-1"]
    assert {(line["rollout_id"], line["attempt_index"]) for line in lines} == {("p_g0", 0)}


@pytest.mark.parametrize("kind", ["counter", "dice", "notes"])
def test_a_restored_session_goes_on_where_it_was_saved(kind: str) -> None:
    sessions, name = opened(kind)
    for number in range(REMEMBERED + 3):
        sessions.act("p_g0", 0, name, f"call-{number}", 0, ARGUMENTS[kind])
    saved = carried(sessions, run=1)
    expected = sessions.act("p_g0", 0, name, "next", 0, ARGUMENTS[kind])

    fresh = Sessions(tools.tool(kind))
    fresh.seed("other_g0", 0, seed=1, seeded_by="x")
    fresh.install(saved)
    assert [item["rollout_id"] for item in fresh.listing()] == ["other_g0", "p_g0"]
    last = f"call-{REMEMBERED + 2}"
    retried = fresh.act("p_g0", 1, name, last, 0, ARGUMENTS[kind])
    assert retried[0].revision == REMEMBERED + 3
    got = fresh.act("p_g0", 1, name, "next", 0, ARGUMENTS[kind])
    assert got == expected
    assert fresh.public("p_g0", 1, name)[1] == sessions.public("p_g0", 0, name)[1]


def test_what_was_exported_does_not_change_with_later_calls() -> None:
    for kind in ("counter", "dice", "notes"):
        sessions, name = opened(kind)
        sessions.act("p_g0", 0, name, "call-1", 0, ARGUMENTS[kind])
        exported = [*sessions.export()]
        before = json.dumps(exported)
        sessions.act("p_g0", 0, name, "call-2", 0, ARGUMENTS[kind])
        sessions.seed("q_g0", 0, seed=1, seeded_by="x")
        assert json.dumps(exported) == before


def test_a_sandbox_is_not_saved_and_ends_with_its_process() -> None:
    sessions, name = opened("sandbox")
    assert [*sessions.export()] == []
    fresh, other = opened("sandbox")
    assert other != name
    with pytest.raises(ControlRefused) as caught:
        fresh.act("p_g0", 0, name, "call-1", 0, ARGUMENTS["sandbox"])
    assert caught.value.reason == "unknown_execution"


def test_one_execution_seeds_once_and_another_one_starts_afresh() -> None:
    sessions, name = opened("counter")
    sessions.act("p_g0", 0, name, "call-1", 0, {"add": 5})
    assert sessions.seed("p_g0", 0, seed=7, seeded_by="p_g0:1").session_id == name
    assert sessions.seed("p_g0", 0, seed=7, seeded_by="p_g0:1").revision == 1
    fresh = sessions.seed("p_g0", 0, seed=7, seeded_by="p_g0:2")
    assert (fresh.revision, fresh.state["total"]) == (0, 0)
    with pytest.raises(ControlRefused, match="no such session"):
        sessions.public("p_g0", 0, name)


def test_a_read_does_not_raise_the_revision() -> None:
    sessions, name = opened("notes")
    session, output = sessions.act("p_g0", 0, name, "c", 0, {"op": "read", "title": "t"})
    assert (session.revision, output) == (0, {"text": None})


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("counter", {}),
        ("counter", {"add": True}),
        ("dice", {"sides": 1}),
        ("notes", {"op": "burn", "title": "t"}),
        ("notes", {"op": "write", "title": "t"}),
        ("sandbox", {"command": 1}),
    ],
)
def test_arguments_that_a_tool_does_not_take_change_nothing(
    kind: str, arguments: dict[str, Any]
) -> None:
    sessions, name = opened(kind)
    with pytest.raises(ControlRefused) as caught:
        sessions.act("p_g0", 0, name, "call-1", 0, arguments)
    assert caught.value.reason == "invalid_request"
    assert sessions.public("p_g0", 0, name)[0].revision == 0


def test_a_restore_is_all_or_nothing() -> None:
    sessions, _ = opened("counter")
    dice, _ = opened("dice")
    for state in ({}, {**carried(dice, 1)[0].state}, {**carried(dice, 1)[0].state, "state": 3}):
        wrong = ResourceSnapshot(
            rollout_id="q_g0", attempt_index=1, state_revision=0, state=state, created_at=1.0
        )
        with pytest.raises(RestoreRefused) as caught:
            sessions.install([*carried(sessions, 1), wrong])
        assert caught.value.what == "q_g0-a1"
        assert [(i["rollout_id"], i["attempt_index"]) for i in sessions.listing()] == [("p_g0", 0)]


def test_rewards_depend_on_state_and_answer() -> None:
    seen = {
        tools.reward(kind, public, answer)
        for kind in ("counter", "dice")
        for public in ({"total": 1}, {"total": 2})
        for answer in ("a", "b")
    }
    assert len(seen) == 8
    assert all(0 <= value < 1 for value in seen)


def test_a_retired_run_has_no_session() -> None:
    sessions, name = opened("counter")
    assert sessions.drop("p_g0", 0)
    assert not sessions.drop("p_g0", 0)
    assert len(sessions) == 0
    with pytest.raises(ControlRefused):
        sessions.public("p_g0", 0, name)
