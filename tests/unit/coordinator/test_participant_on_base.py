"""Saves of the participants on one another: what is written, what is carried, and what never is."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from snapfmt import Repository
from snapfmt.errors import FormatError, LeaseExpired, NotPublished
from snapfmt.reading.snapshot import Part
from snapfmt_coordinator.participant import agent_part, model_part, parts, sessions_part
from snapfmt_coordinator.participant.agent import AgentParticipant
from snapfmt_coordinator.participant.execution import AgentExecution
from snapfmt_coordinator.participant.ledger import Ledger
from snapfmt_coordinator.participant.on_base import SaveMemory
from snapfmt_coordinator.participant.resources import ResourcesParticipant
from snapfmt_coordinator.participant.sessions_part import SessionCut
from snapfmt_coordinator.protocol.v1 import (
    Commit,
    Control,
    Execution,
    PrepareAgents,
    PublishedPart,
    Restore,
    Resume,
)
from snapfmt_schemas.agent import AgentBoundaryRecord, BoundaryHead
from snapfmt_schemas.continuation import Continuation
from snapfmt_schemas.redacted import RedactedRun

Make = Callable[..., Any]
Item = dict[str, Any]


def run(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(body())


def said(count: int, start: int = 0) -> list[Item]:
    return [{"role": "assistant", "content": f"item {n}"} for n in range(start, start + count)]


def written(part: Part, kind: str) -> int:
    """Rows of a part's table that lie in packs of its own attempt."""
    (name,) = part.table_names()
    assert name.startswith(f"{kind}/")
    own = {entry.location.pack for entry in part.entries()}
    return sum(item.rows for item in part.segments(name) if item.document.data.pack in own)


class Agents:
    """An agent server and its runs."""

    def __init__(self, repository: Repository, control: Make, name: str = "swe", **options: Any):
        self.repository = repository
        self.side = AgentParticipant(server_name=name, **options)
        self.executions: dict[str, AgentExecution] = {}
        self.records: dict[str, AgentBoundaryRecord] = {}
        self._control = control
        self._saves = 0

    async def say(self, name: str, items: list[Item], number: int = 0, **fields: Any) -> None:
        """The run's newest boundary has this conversation."""
        if name not in self.executions:
            self.executions[name] = await self.side.begin(name, number)
        record = AgentBoundaryRecord(
            rollout_id=name,
            attempt_index=number,
            boundary_index=1,
            turn_index=len(items),
            boundary_kind="turn_complete",
            output_items=tuple(items),
            last_committed_model_call_id="call-1",
            created_at=1.5,
            **fields,
        )
        self.records[name] = record
        await self.executions[name].boundary(record)

    def end(self, name: str) -> None:
        """The run ends without a result."""
        self.executions.pop(name).fail()
        del self.records[name]

    async def save(self, base: int | None = None, *, publish: bool = True) -> Part:
        """A save; checks that it reads as the runs are, and gives its part."""
        self._saves += 1
        name = f"c{self._saves}"
        await self.side.prepare(self._control(PrepareAgents, name))
        parked = [asyncio.ensure_future(one.wait_admission()) for one in self.executions.values()]
        await self.side.prepare(self._control(PrepareAgents, name, wait_s=5))
        with self.repository.begin(base=base) as attempt:
            commit = self._control(Commit, name, ticket=attempt.ticket(self.side.part))
            reply = await self.side.commit(commit)
            if publish:
                attempt.publish([reply.receipt])
        await self.side.resume(self._control(Resume, name))
        await asyncio.gather(*parked)
        if not publish:
            return None  # type: ignore[return-value]
        part = self.repository.snapshot(attempt.number).part(self.side.part)
        self.check(part)
        return part

    def cut(self) -> agent_part.AgentCut:
        """What a commit takes, without a checkpoint."""
        return agent_part.AgentCut(
            list(self.records.values()), [one.marks for one in self.side._runs]
        )

    def check(self, part: Part) -> None:
        found = {record.rollout_id: record for record in agent_part.read(part).records}
        assert found == self.records


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository.create(tmp_path / "run")


@pytest.mark.req("P-1", "P-2")
def test_a_save_writes_the_items_that_were_added(repository: Repository, control: Make) -> None:
    async def body() -> None:
        agents = Agents(repository, control)
        a, b = said(60), said(40, 100)
        await agents.say("a", a)
        await agents.say("b", b, number=2)
        assert written(await agents.save(), "items") == 100
        assert written(await agents.save(1), "items") == 0
        await agents.say("a", [*a, *said(3, 60)])
        part = await agents.save(2)
        assert written(part, "items") == 3
        assert part.receipt.tables[0].rows == 103
        heads = {head.rollout_id: head for head in part.records("boundaries.jsonl", BoundaryHead)}
        assert {name: head.item_count for name, head in heads.items()} == {"a": 63, "b": 40}
        assert b"item" not in part.read("boundaries.jsonl").replace(b"item_count", b"").replace(
            b"output_items", b""
        )
        row = repository.snapshot(3).table("items/swe").row("b/2/7")
        assert row == {"item": '{"role": "assistant", "content": "item 107"}'}

    run(body)


@pytest.mark.req("P-3")
@pytest.mark.parametrize("at", [0, 20, 59])
def test_an_item_that_was_replaced_is_seen(repository: Repository, control: Make, at: int) -> None:
    async def body() -> None:
        agents = Agents(repository, control)
        items = said(60)
        await agents.say("a", items)
        await agents.save()
        # Equal to the old one in Python, and another JSON value.
        items = [*items]
        items[at] = {"role": "assistant", "content": True}
        await agents.say("a", items)
        part = await agents.save(1)
        # A segment of which few rows stay is rewritten: then all are.
        assert written(part, "items") == (60 - at if at > 30 else 60)
        items = [*items]
        items[at] = {"role": "assistant", "content": 1}
        await agents.say("a", items)
        text = repr(agent_part.read(await agents.save(2)).records[0].output_items[at])
        assert text == "{'role': 'assistant', 'content': 1}"

    run(body)


def test_a_conversation_that_lost_its_end_and_went_on(
    repository: Repository, control: Make
) -> None:
    async def body() -> None:
        agents = Agents(repository, control)
        items = said(60)
        await agents.say("a", items)
        await agents.save()
        await agents.say("a", items[:50])
        assert written(await agents.save(1), "items") == 0
        # The same objects again: they were gone, so their rows are new ones.
        await agents.say("a", items)
        assert written(await agents.save(2), "items") == 10

    run(body)


def test_items_of_runs_that_ended_go(repository: Repository, control: Make) -> None:
    async def body() -> None:
        agents = Agents(repository, control)
        for name in "abc":
            await agents.say(name, said(20))
        await agents.save()
        agents.end("b")
        part = await agents.save(1)
        assert (written(part, "items"), part.receipt.tables[0].rows) == (0, 40)
        # The same run once more has the same keys, and other rows.
        await agents.say("b", said(5, 500))
        part = await agents.save(2)
        assert (written(part, "items"), part.receipt.tables[0].rows) == (5, 45)

    run(body)


@pytest.mark.req("P-2")
def test_only_a_published_part_is_built_on(repository: Repository, control: Make) -> None:
    async def body() -> None:
        agents = Agents(repository, control)
        items = said(30)
        await agents.say("a", items)
        await agents.save()
        items = [*items, *said(10, 30)]
        await agents.say("a", items)
        await agents.save(1, publish=False)
        # On the save before the one that failed.
        assert written(await agents.save(1), "items") == 10
        # A save without a base, and one on a base that was sealed long ago.
        assert written(await agents.save(), "items") == 40
        for base in (3, 4, 5):
            assert written(await agents.save(base), "items") == 0
        assert written(await agents.save(1), "items") == 40
        # A base that a server before this one sealed.
        other = Agents(repository, control)
        await other.say("a", items)
        assert written(await other.save(7), "items") == 40

    run(body)


def test_a_base_that_is_damaged_is_not_built_on(repository: Repository, control: Make) -> None:
    async def body() -> None:
        agents = Agents(repository, control)
        items = said(30)
        await agents.say("a", items)
        first = await agents.save()
        items = [*items, *said(10, 30)]
        await agents.say("a", items)
        (segment,) = first.segments("items/swe")
        place = segment.document.keys
        name = place.pack.removeprefix("sha256:")
        path = Path(repository.location) / "objects" / name[:2] / name
        data = bytearray(path.read_bytes())
        data[place.offset + place.size // 2] ^= 1
        path.chmod(0o644)
        path.write_bytes(data)
        # Keys are read, since rows are appended: the part is written in full.
        assert written(await agents.save(1), "items") == 40
        assert written(await agents.save(2), "items") == 0

    run(body)


def test_an_attempt_that_is_over_fails_and_nothing_is_forgotten(
    repository: Repository, control: Make
) -> None:
    async def body() -> None:
        agents = Agents(repository, control)
        await agents.say("a", said(30))
        await agents.save()
        records = list(agents.records.values())
        attempt = repository.begin(base=1)
        ticket = attempt.ticket("gym/agent/swe")
        attempt.abandon()
        cut = agent_part.AgentCut(records, [range(30)])
        with pytest.raises(LeaseExpired):
            agent_part.write(cut, ticket, "redact", SaveMemory())
        assert written(await agents.save(1), "items") == 0

    run(body)


def test_old_snapshots_are_retired_and_the_newest_stays_whole(
    repository: Repository, control: Make
) -> None:
    async def body() -> None:
        agents = Agents(repository, control)
        items: list[Item] = []
        for turn in range(12):
            items = [*items, *said(4, 4 * turn)]
            await agents.say("a", items)
            part = await agents.save(turn or None)
            if turn > 1:
                repository.retire(turn - 1)
        assert len(part.segments("items/swe")) < 9
        assert repository.numbers() == [11, 12]
        assert repository.verify(deep=True).damage == []
        agents.check(repository.snapshot().part("gym/agent/swe"))

    run(body)


@pytest.mark.parametrize("left", ["retiring.json", ""], ids=["retiring", "gone"])
def test_a_base_that_was_taken_out_while_it_is_built_on(
    repository: Repository, control: Make, left: str
) -> None:
    async def body() -> None:
        agents = Agents(repository, control)
        items = said(30)
        await agents.say("a", items)
        await agents.save()
        await agents.say("a", [*items, *said(3, 30)])
        manifest = Path(repository.location) / "snapshots/snapshot_000001/manifest.json"
        with repository.begin(base=1) as attempt:
            # As a retirement leaves it that saw the attempt's lease too late, or not at all.
            manifest.rename(manifest.with_name(left or "retired.json"))
            ticket = attempt.ticket(agents.side.part)
            if not left:
                with pytest.raises(NotPublished):
                    agent_part.write(agents.cut(), ticket, "redact", agents.side._memory)
                return
            reply = agent_part.write(agents.cut(), ticket, "redact", agents.side._memory)
            attempt.publish([reply.receipt])  # type: ignore[list-item]
        part = repository.snapshot(2).part(agents.side.part)
        agents.check(part)
        assert written(part, "items") == 3

    run(body)


def test_two_agents_of_one_snapshot(repository: Repository, control: Make) -> None:
    async def body() -> None:
        sides = [Agents(repository, control, name) for name in ("one", "two")]
        for side, name in zip(sides, ("a", "b"), strict=True):
            await side.say(name, said(20))
        for number in (None, 1):
            with repository.begin(base=number) as attempt:
                receipts = []
                for side in sides:
                    ticket = attempt.ticket(side.side.part)
                    reply = agent_part.write(side.cut(), ticket, "redact", side.side._memory)
                    receipts.append(reply.receipt)
                attempt.publish(receipts)  # type: ignore[arg-type]
            snapshot = repository.snapshot()
            for side in sides:
                part = snapshot.part(side.side.part)
                side.check(part)
                assert written(part, "items") == (20 if number is None else 0)
        assert snapshot.table("items/one").num_rows == 20

    run(body)


@pytest.mark.parametrize("secrets", ["redact", "keep"])
def test_an_item_that_lost_something_is_listed_by_every_save(
    repository: Repository, control: Make, secrets: Any
) -> None:
    async def body() -> None:
        agents = Agents(repository, control, secrets=secrets)
        items = said(30)
        items[7] = {"role": "user", "password": "hunter2", "deep": [{"api_key": "hunter2"}]}
        await agents.say("a", items)
        await agents.say("b", said(30))
        if secrets == "redact":
            agents.check = lambda part: None  # type: ignore[method-assign]
        for base in (None, 1, 2):
            part = await agents.save(base)
            found = agent_part.read(part)
            listed = list(part.records("redacted.jsonl", RedactedRun))
            if secrets == "keep":
                assert (listed, found.redacted) == ([], frozenset())
                assert written(part, "items") == (60 if base is None else 0)
                continue
            (lost,) = listed
            assert (lost.capture_key, lost.replaced) == ("a", 2)
            assert lost.paths == ("output_items[7].deep[0].api_key", "output_items[7].password")
            assert found.redacted == {"a"}
            assert found.records[0].output_items[7]["password"] == "[redacted]"
            assert written(part, "items") == (60 if base is None else 1)
            texts = [text for _, text in parts.texts(part.table("items/swe"), "item")]
            assert not any("hunter2" in text for text in texts)

    run(body)


def test_the_first_save_after_a_restore_is_full(repository: Repository, control: Make) -> None:
    async def body() -> None:
        old = Agents(repository, control)
        items = said(30)
        await old.say("a", items)
        part = await old.save()
        new = Agents(repository, control)
        place = PublishedPart(
            location=repository.location,
            number=1,
            part=part.name,
            index_digest=part.receipt.index_digest,
        )
        await new.side.restore(control(Restore, "r1", source_checkpoint_id="c1", snapshot=place))
        await new.side.resume(control(Resume, "r1"))
        execution = await new.side.begin("a", 1)
        restored = execution.restored
        assert restored is not None
        assert list(restored.output_items) == items
        new.executions["a"] = execution
        new.records["a"] = restored
        assert written(await new.save(1), "items") == 30
        # It goes on with the objects that it was given.
        await new.say("a", [*restored.output_items, *said(2, 30)], number=1)
        assert written(await new.save(2), "items") == 2

    run(body)


@pytest.mark.req("P-1")
@pytest.mark.parametrize("damage", ["count", "key", "run", "no object", "twice", "column"])
def test_a_conversation_that_is_not_whole_is_refused(
    repository: Repository, boundary: Make, damage: str
) -> None:
    record = boundary("a", output_items=tuple(said(3)))
    head = BoundaryHead.of(record)
    if damage == "count":
        head = head.model_copy(update={"item_count": 4})
    keys = ["a/0/0", "a/0/1", "a/0/2"]
    if damage in ("key", "run"):
        keys[1] = {"key": "a/0/01", "run": "a/1/1"}[damage]
    texts = ['{"x": 1}', "[1]" if damage == "no object" else "{}", "{}"]
    if damage == "twice":
        texts[2] = '{"x": 1, "x": 2}'
    with repository.begin() as attempt:
        with attempt.part("gym/agent/swe") as part:
            with part.table("items/swe") as table:
                table.append(keys, {"other" if damage == "column" else "item": texts})
            part.records("boundaries.jsonl", [head], key="rollout_id")
            lines: list[Continuation | None] = [record.continuation()]
            part.records("continuations.jsonl", lines, key="capture_key")  # type: ignore[arg-type]
            receipt = part.seal()
        attempt.publish([receipt])
    found = repository.snapshot().part("gym/agent/swe")
    if damage == "column":
        with pytest.raises(Exception, match="no such column"):
            agent_part.read(found)
        return
    with pytest.raises(FormatError):
        agent_part.read(found)


# --- lineage


@pytest.mark.req("P-4")
def test_a_save_writes_the_calls_that_were_added(
    repository: Repository, boundary: Make, lineage_row: Make
) -> None:
    ledger, memory = Ledger(), SaveMemory()

    def call(name: str, number: int) -> None:
        parent = f"call-{number - 1}" if number else None
        ledger.append((name, 0), lineage_row(name, f"call-{number}", parent))

    def save(base: int | None, **last: int) -> Part:
        records = [boundary(name, call=f"call-{number}") for name, number in last.items()]
        with repository.begin(base=base) as attempt:
            agents = agent_part.write(
                agent_part.AgentCut(records), attempt.ticket("gym/agent/swe")
            ).receipt
            ticket = attempt.ticket("gym/model/policy")
            reply = model_part.write(ledger.cut({}), "policy", [agents], ticket, memory)  # type: ignore[list-item]
            attempt.publish([agents, reply.receipt])  # type: ignore[list-item]
        part = repository.snapshot(attempt.number).part("gym/model/policy")
        runs = model_part.read(part).runs
        assert {key[0]: len(item.rows) - 1 for key, item in runs.items()} == last
        for key, item in runs.items():
            bare = {"staging_chain": None}
            known = ledger.of(key)
            assert known is not None
            expected = [row.model_copy(update=bare) for row in known.rows[: len(item.rows)]]
            assert item.rows == expected
        return part

    for number in range(20):
        call("a", number)
        call("b", number)
    assert written(save(None, a=19, b=19), "lineage") == 40
    call("a", 20)
    assert written(save(1, a=20, b=19), "lineage") == 1
    # One goes back, and the other is given up.
    assert written(save(2, a=15, b=19), "lineage") == 0
    call("c", 0)
    part = save(3, a=20, c=0)
    restored = Ledger()
    for key, item in model_part.read(part).runs.items():
        restored.adopt(key, item)
    marks = [mark for key in restored for _, mark in restored.cut({}).marked_rows(key)]
    assert len(set(marks)) == len(marks) == 22


# --- sessions


class Tools:
    """A resources server whose sessions say how often they were seeded."""

    def __init__(self, repository: Repository, control: Make) -> None:
        self.repository = repository
        self.sessions: dict[tuple[str, int], tuple[int, Item]] = {}
        self.side = ResourcesParticipant(self, server_name="tools")
        self._control = control
        self._saves = 0

    def export(self) -> list[tuple[str, int, int, Item]]:
        return [(*key, revision, dict(state)) for key, (revision, state) in self.sessions.items()]

    def install(self, sessions: Any) -> None:
        raise NotImplementedError

    def drop(self, rollout_id: str, attempt_index: int) -> bool:
        return self.sessions.pop((rollout_id, attempt_index), None) is not None

    async def use(self, name: str, state: Item, revision: int, number: int = 0) -> None:
        async with self.side.operation(name, number):
            self.sessions[name, number] = (revision, state)

    async def save(self, base: int | None = None) -> int:
        """How many sessions were written."""
        self._saves += 1
        name = f"c{self._saves}"
        await self.side.prepare(self._control(Control, name))
        with self.repository.begin(base=base) as attempt:
            ticket = attempt.ticket(self.side.part)
            reply = await self.side.commit(self._control(Commit, name, ticket=ticket))
            attempt.publish([reply.receipt])  # type: ignore[list-item]
        await self.side.resume(self._control(Resume, name))
        part = self.repository.snapshot(attempt.number).part(self.side.part)
        server, found = sessions_part.read(part)
        assert {
            (item.rollout_id, item.attempt_index): (item.state_revision, item.state)
            for item in found
        } == self.sessions
        assert server.sessions == len(found)
        return written(part, "sessions")


@pytest.mark.req("P-5")
def test_a_save_writes_the_sessions_that_were_used(repository: Repository, control: Make) -> None:
    async def body() -> None:
        tools = Tools(repository, control)
        for number in range(8):
            await tools.use(f"r{number}", {"n": number}, 2**63 - 1)
        assert await tools.save() == 8
        assert await tools.save(1) == 0
        await tools.use("r3", {"n": 30}, 5)
        assert await tools.save(2) == 1
        # Seeded anew: the same run and revision, and another session.
        await tools.use("r3", {"n": 31}, 5)
        # Changed by what no operation stands around.
        tools.sessions["r4", 0] = (99, {"n": 40})
        assert await tools.save(3) == 2
        # The next run of a rollout, and one that is over.
        tools.drop("r5", 0)
        await tools.use("r5", {"n": 50}, 5, number=1)
        tools.side.retire([Execution(rollout_id="r6", attempt_index=0)])
        assert await tools.save(4) == 1
        assert await tools.save(5) == 0
        # It came from elsewhere, and nothing is known of it.
        tools.sessions["new", 0] = (1, {})
        assert await tools.save(6) == 1
        assert await tools.save(7) == 1

    run(body)


@pytest.mark.req("P-5")
@pytest.mark.parametrize("damage", ["key", "revision", "no revision", "line"])
def test_a_session_that_is_not_what_it_says_is_refused(repository: Repository, damage: str) -> None:
    cut = SessionCut([("a", 2, 5, {"x": 1})], 1.0)
    with repository.begin() as attempt:
        good = sessions_part.write(
            cut, "tools", "export_restore", attempt.ticket("gym/resources/tools")
        )
        attempt.publish([good.receipt])  # type: ignore[list-item]
    part = repository.snapshot().part("gym/resources/tools")
    row = part.table("sessions/tools").row("a/2")
    assert row["state_revision"] == 5
    key, columns = "a/2", {"session": [row["session"]], "state_revision": [5]}
    if damage == "key":
        key = "a/02"
    elif damage == "line":
        columns["session"] = ['{"rollout_id": "a"}']
    else:
        columns["state_revision"] = [6] if damage == "revision" else [True]
    with repository.begin() as attempt:
        with attempt.part("gym/resources/tools") as writer:
            with writer.table("sessions/tools") as table:
                table.append([key], columns)
            writer.stage("server.json", part.read("server.json"), media_type="application/json")
            receipt = writer.seal()
        attempt.publish([receipt])
    found = repository.snapshot().part("gym/resources/tools")
    with pytest.raises(FormatError):
        sessions_part.read(found)
    with pytest.raises(FormatError) if damage in ("key", "no revision") else nullcontext():
        sessions_part.revisions(found)
