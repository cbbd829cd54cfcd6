"""The resources participant: freezing, the three modes, and its part there and back."""

import asyncio
import copy
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

import pytest

from snapfmt.errors import ControlRefused, FormatError
from snapfmt_coordinator.participant import sessions_part
from snapfmt_coordinator.participant.parts import published_part
from snapfmt_coordinator.participant.resources import ResourcesParticipant
from snapfmt_coordinator.participant.sessions_part import OLD_SESSIONS, SERVER
from snapfmt_coordinator.protocol.v1 import (
    Commit,
    Control,
    DiscardRestored,
    Execution,
    Restore,
    Resume,
)
from snapfmt_schemas.redacted import RedactedRun
from snapfmt_schemas.resources import ResourceSnapshot

Make = Callable[..., Any]
PART = "gym/resources/tools"


class Store:
    """Sessions that count their mutations."""

    def __init__(self) -> None:
        self.sessions: dict[tuple[str, int], dict[str, Any]] = {}
        self.broken = ""

    def __len__(self) -> int:
        if self.broken == "len":
            raise KeyError("len")
        return len(self.sessions)

    def export(self) -> Iterator[tuple[str, int, int, dict[str, Any]]]:
        if self.broken == "export":
            raise KeyError("no such session")
        for (rollout_id, number), state in self.sessions.items():
            yield rollout_id, number, state["n"], copy.deepcopy(state)

    def install(self, sessions: Sequence[ResourceSnapshot]) -> None:
        if self.broken == "install":
            raise KeyError("install")
        for item in sessions:
            self.sessions[item.rollout_id, item.attempt_index] = dict(item.state)

    def drop(self, rollout_id: str, attempt_index: int) -> bool:
        return self.sessions.pop((rollout_id, attempt_index), None) is not None


class Tools:
    """A resources server without HTTP."""

    def __init__(self, **options: Any) -> None:
        self.store = Store()
        self.side = ResourcesParticipant(self.store, server_name="tools", **options)

    async def use(
        self, rollout_id: str, number: int = 0, until: asyncio.Event | None = None
    ) -> int:
        async with self.side.operation(rollout_id, number):
            state = self.store.sessions.setdefault((rollout_id, number), {"n": 0})
            state["n"] += 1
            await (asyncio.sleep(0) if until is None else until.wait())
            return int(state["n"])


def run(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(body())


async def refusal(work: Any) -> str:
    with pytest.raises(ControlRefused) as caught:
        await work
    return caught.value.reason


def test_prepare_freezes_and_waits_for_those_inside(control: Make) -> None:
    async def body() -> None:
        tools, leave = Tools(), asyncio.Event()
        inside = asyncio.create_task(tools.use("r", until=leave))
        await asyncio.sleep(0)
        asked = [asyncio.create_task(tools.side.prepare(control())) for _ in range(2)]
        await asyncio.sleep(0.01)
        assert not inside.done()
        assert await refusal(tools.use("r")) == "resources_admission_closed"
        leave.set()
        first, second = await asyncio.gather(*asked)
        assert inside.done()
        assert first == second == await tools.side.prepare(control())
        assert (first.state, first.sessions, first.inflight_total) == ("prepared", 1, 0)
        assert await refusal(tools.side.prepare(control(Control, "c2"))) == "checkpoint_conflict"
        assert (await tools.side.resume(control(Resume))).state == "idle"
        assert (await tools.side.resume(control(Resume))).idempotent
        assert await tools.use("r") == 2
        assert await refusal(tools.side.prepare(control())) == "stale_checkpoint"

    run(body)


def test_a_prepare_that_misses_its_deadline_opens_again(control: Make) -> None:
    async def body() -> None:
        tools, leave = Tools(), asyncio.Event()
        inside = asyncio.create_task(tools.use("r", until=leave))
        await asyncio.sleep(0)
        assert await refusal(tools.side.prepare(control(seconds=0.05))) == "deadline_passed"
        assert await tools.use("q") == 1
        leave.set()
        await inside
        assert (await tools.side.resume(control(Resume))).idempotent
        assert (await tools.side.prepare(control(Control, "c2"))).state == "prepared"

    run(body)


def test_a_resume_ends_a_prepare_that_waits(control: Make) -> None:
    async def body() -> None:
        tools, leave = Tools(), asyncio.Event()
        inside = asyncio.create_task(tools.use("r", until=leave))
        await asyncio.sleep(0)
        asked = asyncio.create_task(tools.side.prepare(control()))
        await asyncio.sleep(0.01)
        await tools.side.resume(control(Resume))
        assert await refusal(asked) == "stale_checkpoint"
        leave.set()
        await inside

    run(body)


def test_older_and_retired_runs_are_refused() -> None:
    async def body() -> None:
        tools = Tools()
        await tools.use("r", 0)
        await tools.use("r", 1)
        assert await refusal(tools.use("r", 0)) == "stale_attempt"
        reply = tools.side.retire([Execution(rollout_id="r", attempt_index=1)])
        assert (reply.retired, reply.tombstoned) == (1, 1)
        assert list(tools.store.sessions) == [("r", 0)]
        assert await refusal(tools.use("r", 1)) == "stale_attempt"
        assert await tools.use("r", 2) == 1

    run(body)


def test_sessions_are_cut_by_value_and_written_later(control: Make, saves: Any) -> None:
    async def body() -> None:
        tools = Tools()
        ticket = saves.ticket(PART)
        for name, number in (("a", 0), ("b", 0), ("b", 1), ("gone", 0)):
            await tools.use(name, number)
        tools.store.sessions["a", 0] |= {"password": "hunter2", "log": [1, {"x": None}]}
        # The store keeps the older run's session; the cut does not.
        tools.side.retire([Execution(rollout_id="gone", attempt_index=1)])
        commit = control(Commit, ticket=ticket)
        assert await refusal(tools.side.commit(commit)) == "unknown_checkpoint"
        await tools.side.prepare(control())
        held = await tools.side.commit(control(Commit, ticket=ticket, wait=False))
        assert (held.ready, held.sessions) == (False, 2)
        await tools.side.resume(control(Resume))
        assert await tools.use("a") == 2
        first, second = await asyncio.gather(tools.side.commit(commit), tools.side.commit(commit))
        assert first == second
        assert (first.ready, first.sessions, first.redacted) == (True, 2, 1)
        part = published_part(saves.publish(first.receipt)(PART))
        one, two = sessions_part.records(part)
        assert (one.rollout_id, one.attempt_index, one.state_revision) == ("a", 0, 1)
        assert one.state == {"n": 1, "password": "[redacted]", "log": [1, {"x": None}]}
        assert (two.rollout_id, two.attempt_index) == ("b", 1)

    run(body)


@pytest.mark.parametrize("mode", ["restart_only", "stateless"])
def test_a_server_that_exports_nothing_takes_part(control: Make, saves: Any, mode: Any) -> None:
    async def body() -> None:
        tools = Tools(mode=mode)
        await tools.use("a")
        tools.store.broken = "export"
        assert (await tools.side.prepare(control())).sessions == 0
        reply = await tools.side.commit(control(Commit, ticket=saves.ticket(PART)))
        assert (reply.ready, reply.sessions) == (True, 0)
        await tools.side.resume(control(Resume))
        place = saves.publish(reply.receipt)(PART)
        again = Tools(mode=mode)
        request = control(Restore, "r1", source_checkpoint_id="c1", snapshot=place)
        restored = await again.side.restore(request)
        assert (restored.restored, restored.state) == (0, "restored_paused")
        await again.side.resume(control(Resume, "r1"))
        assert await again.use("a", 1) == 1

    run(body)


def test_a_store_that_fails_is_told_and_can_be_asked_again(
    control: Make, saves: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        tools = Tools()
        await tools.use("a")
        tools.store.broken = "len"
        with pytest.raises(KeyError):
            await tools.side.prepare(control())
        assert await tools.use("a") == 2
        tools.store.broken = "export"
        await tools.side.prepare(control())
        commit = control(Commit, ticket=saves.ticket(PART))
        assert await refusal(tools.side.commit(commit)) == "resources_checkpoint_error"
        assert logged(caplog) == ["the sessions were not exported: KeyError"]
        tools.store.broken = ""
        tools.store.sessions["a", 0]["bad"] = {1, 2}
        assert await refusal(tools.side.commit(commit)) == "resources_checkpoint_error"
        assert logged(caplog)[1:] == ["the part was not written: InvalidRecord"]

    run(body)


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What a server's log has of failures, each with the kind of the error in its traceback."""
    return [
        f"{record.getMessage()}: {record.exc_info[0].__name__}"
        for record in caplog.records
        if record.exc_info and record.exc_info[0]
    ]


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ((1, 2), "tuple is not JSON"),
        (float("nan"), "nan is not JSON"),
        ([float("inf")], "inf is not JSON"),
        ({1: 2}, "key 1 is not text"),
    ],
)
@pytest.mark.req("R-1")
def test_a_state_that_is_not_json_is_refused_by_the_name_of_its_run(
    control: Make, saves: Any, caplog: pytest.LogCaptureFixture, bad: object, said: str
) -> None:
    async def body() -> None:
        tools = Tools()
        await tools.use("a")
        await tools.use("b", 2)
        tools.store.sessions["b", 2] |= {"secret_word": "hunter2", "bad": bad}
        await tools.side.prepare(control())
        with pytest.raises(ControlRefused, match=said) as caught:
            await tools.side.commit(control(Commit, ticket=saves.ticket(PART)))
        assert (caught.value.reason, caught.value.what) == ("resources_checkpoint_error", "b-a2")
        assert "finite numbers" in caught.value.hint
        assert "the part was not written" in caplog.text
        assert "hunter2" not in caplog.text

    run(body)


async def saved(
    control: Make, saves: Any, *names: tuple[str, int], secret: str = "", **options: Any
) -> Any:
    tools = Tools(**options)
    for name, number in names:
        await tools.use(name, number)
        if name == secret:
            tools.store.sessions[name, number]["secret_word"] = "hunter2"
    await tools.side.prepare(control())
    reply = await tools.side.commit(control(Commit, ticket=saves.ticket(PART)))
    return saves.publish(reply.receipt)(PART)


def test_a_session_that_is_not_whole_is_listed_and_not_installed(control: Make, saves: Any) -> None:
    async def body() -> None:
        place = await saved(control, saves, ("a", 0), ("b", 2), secret="b")
        part = published_part(place)
        (listed,) = part.records("redacted.jsonl", RedactedRun)
        assert (listed.capture_key, listed.paths) == ("b-a2", ("state.secret_word",))
        tools = Tools()
        request = control(Restore, "r1", source_checkpoint_id="c1", snapshot=place)
        assert (await tools.side.restore(request)).restored == 1
        assert list(tools.store.sessions) == [("a", 1)]
        await tools.side.resume(control(Resume, "r1"))
        assert await refusal(tools.use("b", 2)) == "stale_attempt"
        assert await tools.use("b", 3) == 1

    run(body)


def test_an_owner_may_keep_all_of_its_sessions(control: Make, saves: Any) -> None:
    async def body() -> None:
        place = await saved(control, saves, ("a", 0), secret="a", secrets="keep")
        tools = Tools()
        request = control(Restore, "r1", source_checkpoint_id="c1", snapshot=place)
        assert (await tools.side.restore(request)).restored == 1
        assert tools.store.sessions["a", 1]["secret_word"] == "hunter2"

    run(body)


@pytest.mark.parametrize(
    "line",
    [
        '{"schema_version": 1, HEAD, "state": {"x": [1, {"state": 2}]}, "created_at": 1.0}',
        '{"state": {"a": 1, "state": {}}, "created_at": 1.0, HEAD}',
    ],
    ids=["as written", "in another order"],
)
def test_revisions_are_read_without_the_states(saves: Any, line: str) -> None:
    head = '"rollout_id": "a", "attempt_index": 2, "state_revision": 5'
    with saves.attempt.part(PART) as part:
        part.records(OLD_SESSIONS, [line.replace("HEAD", head).encode()])
        receipt = part.seal()
    found = published_part(saves.publish(receipt)(PART))
    assert sessions_part.revisions(found) == {"a-a2": 5}


@pytest.mark.parametrize(
    "line",
    [
        *(b'{"rollout_id": "a"}', b'{"rollout_id": "a", "state": {}}'),
        b'{"rollout_id": "a", "attempt_index": 0, "state_revision": "x", "state": {}}',
        b'{"rollout_id": [], "attempt_index": true, "state_revision": 1}',
    ],
)
def test_a_line_that_is_no_session_has_no_revision(saves: Any, line: bytes) -> None:
    with saves.attempt.part(PART) as part:
        part.records(OLD_SESSIONS, [line])
        receipt = part.seal()
    found = published_part(saves.publish(receipt)(PART))
    with pytest.raises(FormatError, match="not a session"):
        sessions_part.revisions(found)


def test_restored_sessions_are_those_of_the_next_runs(control: Make, saves: Any) -> None:
    async def body() -> None:
        place = await saved(control, saves, ("a", 0), ("b", 2), ("d", 0))
        tools = Tools()
        request = control(Restore, "r1", source_checkpoint_id="c1", snapshot=place)
        first, second = await asyncio.gather(
            tools.side.restore(request), tools.side.restore(request)
        )
        assert first == second
        assert (first.state, first.restored) == ("restored_paused", 3)
        assert sorted(tools.store.sessions) == [("a", 1), ("b", 3), ("d", 1)]
        assert await refusal(tools.use("a", 1)) == "resources_admission_closed"
        discard = control(
            DiscardRestored, "r1", executions=(Execution(rollout_id="d", attempt_index=1),)
        )
        assert (await tools.side.discard(discard)).discarded == 1
        await tools.side.resume(control(Resume, "r1"))
        assert await refusal(tools.use("a", 0)) == "stale_attempt"
        assert [await tools.use("a", 1), await tools.use("b", 3), await tools.use("d", 1)] == [
            2,
            2,
            1,
        ]

    run(body)


def test_what_was_discarded_can_be_restored_again(control: Make, saves: Any) -> None:
    async def body() -> None:
        place = await saved(control, saves, ("a", 0), ("b", 2))
        tools = Tools()
        request = control(Restore, "r1", source_checkpoint_id="c1", snapshot=place)
        assert (await tools.side.restore(request)).restored == 2
        runs = (
            Execution(rollout_id="a", attempt_index=1),
            Execution(rollout_id="b", attempt_index=3),
        )
        discard = control(DiscardRestored, "r1", executions=runs)
        assert (await tools.side.discard(discard)).discarded == 2
        await tools.side.resume(control(Resume, "r1"))
        again = control(Restore, "r2", source_checkpoint_id="c1", snapshot=place)
        assert (await tools.side.restore(again)).restored == 2
        await tools.side.resume(control(Resume, "r2"))
        assert await tools.use("a", 1) == 2

    run(body)


def test_a_restore_is_all_or_nothing(
    control: Make, saves: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        place = await saved(control, saves, ("a", 0), ("b", 0))
        request = control(Restore, "r1", source_checkpoint_id="c1", snapshot=place)
        busy = Tools()
        await busy.use("b")
        assert await refusal(busy.side.restore(request)) == "wrong_phase"
        assert (await busy.use("b"), len(busy.store)) == (2, 1)
        other = Tools(mode="restart_only")
        assert await refusal(other.side.restore(request)) == "topology_mismatch"
        assert await other.use("a") == 1
        broken = Tools()
        broken.store.broken = "install"
        assert await refusal(broken.side.restore(request)) == "resources_checkpoint_error"
        assert logged(caplog) == ["the sessions were not installed: KeyError"]
        assert broken.side.fence.phase == "restore_failed_paused"
        await broken.side.resume(control(Resume, "r1"))
        assert await broken.use("a", 0) == 1

    run(body)


@pytest.mark.parametrize("damage", ["count", "twice", "document"])
def test_a_part_whose_files_disagree_installs_nothing(
    control: Make, saves: Any, damage: str
) -> None:
    async def body() -> None:
        snapshots = [
            ResourceSnapshot(
                rollout_id="a", attempt_index=number, state_revision=1, state={}, created_at=1.0
            )
            for number in range(2 if damage == "twice" else 1)
        ]
        server: dict[str, Any] = {
            "schema_version": 1,
            "server_name": "tools",
            "mode": "export_restore",
            "sessions": 2 if damage != "document" else "two",
        }
        with saves.attempt.part(PART) as part:
            part.records(OLD_SESSIONS, snapshots)
            part.json(SERVER, server)
            receipt = part.seal()
        place = saves.publish(receipt)(PART)
        tools = Tools()
        request = control(Restore, "r1", source_checkpoint_id="c1", snapshot=place)
        assert await refusal(tools.side.restore(request)) == "resources_checkpoint_error"
        assert tools.store.sessions == {}

    run(body)
