"""The agent participant: generations, parking, results owed, and its part there and back."""

import asyncio
import gc
import hashlib
import json
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pydantic import ValidationError

from snapfmt.errors import ControlRefused, FormatError, InvalidRecord
from snapfmt_coordinator.participant import agent_part
from snapfmt_coordinator.participant.agent import NAMED, AgentExecution, AgentParticipant
from snapfmt_coordinator.participant.agent_part import BOUNDARIES, CONTINUATIONS
from snapfmt_coordinator.participant.parts import published_part
from snapfmt_coordinator.protocol.v1 import (
    Commit,
    DiscardRestored,
    Execution,
    PrepareAgents,
    Restore,
    Resume,
)
from snapfmt_schemas.agent import AgentBoundaryRecord, BoundaryHead, PendingModel
from snapfmt_schemas.completion import CompletionReceipt
from snapfmt_schemas.continuation import Continuation
from snapfmt_schemas.redacted import RedactedRun

Make = Callable[..., Any]
PART = "gym/agent/swe"


def run(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(body())


async def refusal(work: Coroutine[Any, Any, Any]) -> str:
    with pytest.raises(ControlRefused) as caught:
        await work
    return caught.value.reason


def reason(call: Callable[[], object]) -> str:
    with pytest.raises(ControlRefused) as caught:
        call()
    return caught.value.reason


def done(execution: AgentExecution, name: str = "r1") -> Any:
    return execution.finish(result_identity=name, result={"reward": 1.0})


def agent(**options: Any) -> AgentParticipant:
    return AgentParticipant(server_name="swe", **options)


def keep_busy(seconds: float) -> None:
    """No timer of the loop runs meanwhile."""
    time.sleep(seconds)


@contextmanager
def cost() -> Iterator[list[float]]:
    """Processor time of this thread: of the work alone, whatever else the machine does.

    A collection of garbage goes over all that earlier tests have left.
    """
    seconds: list[float] = []
    gc.collect()
    gc.disable()
    started = time.thread_time()
    try:
        yield seconds
        seconds.append(time.thread_time() - started)
    finally:
        gc.enable()


async def park(
    participant: AgentParticipant, record: AgentBoundaryRecord
) -> tuple[AgentExecution, asyncio.Task[None]]:
    """Begins a run whose boundary comes once a checkpoint is in force."""
    execution = await participant.begin(record.rollout_id, record.attempt_index)

    async def wait() -> None:
        await participant.fence.changed.wait_for(lambda: execution.parking, 60)
        await execution.boundary(record)

    return execution, asyncio.create_task(wait())


# --- runs


def test_a_run_is_begun_once_and_a_newer_one_takes_its_place(boundary: Make) -> None:
    async def body() -> None:
        participant = agent()
        first = await participant.begin("r", 0)
        assert (first.generation, first.restored, first.parking) == (1, None, False)
        assert await refusal(participant.begin("r", 0)) == "duplicate_execution"
        second = await participant.begin("r", 1)
        assert second.generation == 1
        assert await refusal(participant.begin("r", 0)) == "stale_attempt"
        assert await refusal(first.boundary(boundary("r"))) == "stale_attempt"
        assert await refusal(first.wait_admission()) == "stale_attempt"
        first.fail()
        await second.boundary(boundary("r", 1))

    run(body)


def test_a_late_handler_of_an_older_generation_can_do_nothing(boundary: Make) -> None:
    async def body() -> None:
        participant = agent()
        old = await participant.begin("r", 0)
        old.fail()
        new = await participant.begin("r", 0)
        assert new.generation == 2
        assert await refusal(old.boundary(boundary("r", call="late"))) == "stale_attempt"
        assert reason(lambda: done(old)) == "stale_attempt"
        old.fail()
        await new.boundary(boundary("r"))
        receipt = done(new)
        late = receipt.model_copy(update={"execution_generation": 1})
        assert reason(lambda: participant.acknowledge([late])) == (
            "completed_execution_acknowledgement_error"
        )
        assert participant.result_of("r", 0) == (receipt, {"reward": 1.0})

    run(body)


def test_a_run_that_leaves_without_a_result_is_forgotten() -> None:
    async def body() -> None:
        participant = agent()
        with pytest.raises(KeyError):
            async with await participant.begin("r", 0):
                raise KeyError("agent")
        async with await participant.begin("r", 0) as execution:
            done(execution)
        assert participant.result_of("r", 0) is not None
        assert await refusal(participant.begin("r", 0)) == "duplicate_execution"

    run(body)


def test_a_boundary_of_another_run_is_refused(boundary: Make) -> None:
    async def body() -> None:
        execution = await agent().begin("r", 0)
        for record in (boundary("q"), boundary("r", 1)):
            with pytest.raises(InvalidRecord):
                await execution.boundary(record)

    run(body)


# --- results


def test_a_receipt_is_upstreams() -> None:
    async def body() -> None:
        execution = await agent().begin("r", 0)
        result = {"b": [1, None], "a": "\u00e9"}
        receipt = execution.finish(
            result_identity="x",
            result=result,
            terminal_model_call_id="call-2",
            manifest_capture_key="r",
        )
        text = json.dumps(result, sort_keys=True, separators=(",", ":"))
        assert receipt.result_digest == hashlib.sha256(text.encode()).hexdigest()
        assert (receipt.execution_generation, receipt.terminal_model_call_id) == (1, "call-2")
        again = execution.finish(
            result_identity="x",
            result=result,
            terminal_model_call_id="call-2",
            manifest_capture_key="r",
        )
        assert again == receipt
        assert reason(lambda: done(execution, "y")) == "duplicate_execution"

    run(body)


@pytest.mark.parametrize(
    "bad", [{"result_identity": ""}, {"result": {"x": object()}}, {"terminal_model_call_id": "c"}]
)
def test_what_is_no_result_leaves_the_run_as_it_was(bad: dict[str, Any]) -> None:
    async def body() -> None:
        execution = await agent().begin("r", 0)
        with pytest.raises(InvalidRecord):
            execution.finish(**({"result_identity": "x", "result": {}} | bad))
        done(execution)

    run(body)


@pytest.mark.parametrize(
    "change",
    [
        {"execution_generation": 2},
        {"result_identity": "other"},
        {"result_digest": "0" * 64},
        {"manifest_capture_key": "r", "terminal_model_call_id": "c"},
    ],
)
def test_only_the_exact_receipt_is_acknowledged(change: dict[str, Any]) -> None:
    async def body() -> None:
        participant = agent()
        good = done(await participant.begin("good", 0))
        receipt = done(await participant.begin("r", 0))
        wrong = receipt.model_copy(update=change)
        assert reason(lambda: participant.acknowledge([good, wrong])) == (
            "completed_execution_acknowledgement_error"
        )
        assert participant.result_of("good", 0) is not None
        assert participant.result_of("r", 0) is not None
        assert participant.acknowledge([good, receipt]).idempotent == 0
        assert participant.result_of("r", 0) is None
        # The same again, also one by one, and the run stays over.
        assert participant.acknowledge([receipt, good]).idempotent == 2
        assert reason(lambda: participant.acknowledge([wrong])) == (
            "completed_execution_acknowledgement_error"
        )
        assert await refusal(participant.begin("r", 0)) == "stale_attempt"

    run(body)


@pytest.mark.parametrize("change", [{"rollout_id": "q"}, {"attempt_index": 1}])
def test_a_receipt_of_a_run_that_is_not_held_counts_as_acknowledged(change: dict[str, Any]) -> None:
    async def body() -> None:
        participant = agent()
        receipt = done(await participant.begin("r", 0))
        other = receipt.model_copy(update=change)
        name = Execution(rollout_id=other.rollout_id, attempt_index=other.attempt_index)
        reply = participant.acknowledge([receipt, other, other])
        assert (len(reply.acknowledged), reply.unknown, reply.idempotent) == (1, (name,), 0)
        # From now on it is known, and over.
        reply = participant.acknowledge([other])
        assert (reply.acknowledged, reply.unknown, reply.idempotent) == ((name,), (), 1)
        assert await refusal(participant.begin(*other_run(other))) == "stale_attempt"
        wrong = other.model_copy(update={"result_identity": "another"})
        assert reason(lambda: participant.acknowledge([wrong])) == (
            "completed_execution_acknowledgement_error"
        )

    run(body)


def test_a_receipt_of_a_run_that_goes_on_is_refused() -> None:
    async def body() -> None:
        participant = agent()
        receipt = done(await participant.begin("r", 0))
        restarted = agent()
        await restarted.begin("r", 0)
        assert reason(lambda: restarted.acknowledge([receipt])) == (
            "completed_execution_acknowledgement_error"
        )

    run(body)


def other_run(receipt: CompletionReceipt) -> tuple[str, int]:
    return receipt.rollout_id, receipt.attempt_index


def test_a_completion_receipt_can_be_looked_up(boundary: Make) -> None:
    async def body() -> None:
        participant = agent()
        asked = Execution(rollout_id="r", attempt_index=0)
        execution = await participant.begin("r", 0)
        assert reason(lambda: participant.completion_receipt(asked)) == "unknown_execution"
        receipt = done(execution)
        assert participant.completion_receipt(asked) == receipt
        participant.acknowledge([receipt])
        assert participant.completion_receipt(asked) == receipt
        other = Execution(rollout_id="r", attempt_index=1)
        assert reason(lambda: participant.completion_receipt(other)) == "unknown_execution"

    run(body)


# --- prepare


def test_prepare_parks_runs_and_waits_for_acknowledgements(control: Make, boundary: Make) -> None:
    async def body() -> None:
        participant = agent()
        parked = await participant.begin("parked", 0)
        bare = await participant.begin("bare", 0)
        receipt = done(await participant.begin("done", 0))
        reply = await participant.prepare(control(PrepareAgents))
        assert (reply.state, reply.ready_to_commit, reply.running) == ("preparing", False, 2)
        assert [item.rollout_id for item in reply.blocking_attempts] == ["parked", "bare"]
        assert [item.rollout_id for item in reply.completed_unacknowledged_attempts] == ["done"]
        assert bare.parking
        assert await refusal(participant.begin("new", 0)) == "agent_admission_closed"
        waiting = asyncio.create_task(bare.wait_admission())
        task = asyncio.create_task(parked.boundary(boundary("parked")))
        await asyncio.sleep(0.01)
        reply = await participant.prepare(control(PrepareAgents))
        assert (reply.running, reply.completed_unacknowledged, reply.ready_to_commit) == (
            0,
            1,
            False,
        )
        participant.acknowledge([receipt])
        reply = await participant.prepare(control(PrepareAgents))
        assert (reply.state, reply.ready_to_commit, reply.parked) == ("prepared", True, 2)
        assert (reply.parked_with_boundary, reply.parked_without_boundary) == (1, 1)
        assert (reply.active, reply.acknowledged_completed) == (2, 1)
        released = await participant.resume(control(Resume))
        assert (released.released, released.state, released.idempotent) == (2, "idle", False)
        await asyncio.gather(task, waiting)
        assert (await participant.resume(control(Resume))).idempotent
        assert not parked.parking
        await participant.begin("new", 0)

    run(body)


def test_prepare_waits_as_long_as_it_is_told(control: Make, boundary: Make) -> None:
    async def body() -> None:
        participant = agent()
        execution = await participant.begin("r", 0)
        before = time.monotonic()
        reply = await participant.prepare(control(PrepareAgents, wait_s=0.05))
        assert not reply.ready_to_commit
        assert time.monotonic() - before >= 0.045
        asked = [
            asyncio.create_task(participant.prepare(control(PrepareAgents, wait_s=20)))
            for _ in range(2)
        ]
        await asyncio.sleep(0.01)
        parked = asyncio.create_task(execution.boundary(boundary("r")))
        first, second = await asyncio.gather(*asked)
        assert first == second
        assert first.ready_to_commit
        await participant.resume(control(Resume))
        await parked

    run(body)


def test_a_resume_ends_a_prepare_that_waits(control: Make) -> None:
    async def body() -> None:
        participant = agent()
        await participant.begin("r", 0)
        asked = asyncio.create_task(participant.prepare(control(PrepareAgents, wait_s=20)))
        await asyncio.sleep(0.01)
        await participant.resume(control(Resume))
        assert await refusal(asked) == "stale_checkpoint"  # type: ignore[arg-type]

    run(body)


def test_a_parked_run_stays_parked_when_the_next_checkpoint_comes_at_once(
    control: Make, boundary: Make
) -> None:
    async def body() -> None:
        participant = agent()
        _, task = await park(participant, boundary("r"))
        await participant.prepare(control(PrepareAgents, wait_s=5))
        await participant.resume(control(Resume))
        reply = await participant.prepare(control(PrepareAgents, "c2"))
        assert reply.ready_to_commit
        await asyncio.sleep(0.01)
        assert not task.done()
        assert (await participant.prepare(control(PrepareAgents, "c2"))).parked == 1
        await participant.resume(control(Resume, "c2"))
        await task

    run(body)


def test_parked_runs_go_on_when_nobody_resumes(control: Make, boundary: Make) -> None:
    async def body() -> None:
        participant = agent(grace_s=0.05)
        _, task = await park(participant, boundary("r"))
        await participant.prepare(control(PrepareAgents, seconds=1.0))
        await asyncio.wait_for(task, 60)
        assert await refusal(participant.prepare(control(PrepareAgents))) == "stale_checkpoint"
        await participant.begin("new", 0)

    run(body)


def test_a_handler_that_is_cancelled_while_parked_is_forgotten(
    control: Make, boundary: Make
) -> None:
    async def body() -> None:
        participant = agent()

        async def handler() -> None:
            async with await participant.begin("r", 0) as execution:
                await participant.fence.changed.wait_for(lambda: execution.parking, 60)
                await execution.boundary(boundary("r"))

        task = asyncio.create_task(handler())
        await asyncio.sleep(0)
        assert (await participant.prepare(control(PrepareAgents, wait_s=5))).parked == 1
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        reply = await participant.prepare(control(PrepareAgents))
        assert (reply.active, reply.ready_to_commit) == (0, True)

    run(body)


def test_wait_admission_does_not_spin_while_the_model_alone_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def body() -> None:
        pauses: list[float] = []
        sleep = asyncio.sleep

        async def noted(seconds: float) -> None:
            pauses.append(seconds)
            await sleep(0)

        execution = await agent().begin("r", 0)
        monkeypatch.setattr(asyncio, "sleep", noted)
        await execution.wait_admission()
        assert pauses == [], "the first time it is asked again at once"
        for _ in range(3):
            await execution.wait_admission()
        assert pauses == sorted(pauses)
        assert sum(pauses) > 0.1

    run(body)


def test_retire_forgets_refuses_and_wakes(control: Make, boundary: Make) -> None:
    async def body() -> None:
        participant = agent()
        _, parked = await park(participant, boundary("r", 1))
        done(await participant.begin("d", 0))
        await participant.prepare(control(PrepareAgents, wait_s=0.02))
        executions = [Execution(rollout_id=name, attempt_index=1) for name in ("r", "d", "x")]
        reply = participant.retire(executions)
        assert (reply.retired, reply.tombstoned) == (2, 3)
        assert await refusal(parked) == "stale_attempt"  # type: ignore[arg-type]
        assert (await participant.prepare(control(PrepareAgents))).state == "prepared"
        await participant.resume(control(Resume))
        for name in ("r", "d", "x"):
            assert await refusal(participant.begin(name, 1)) == "stale_attempt"
        await participant.begin("r", 2)

    run(body)


# --- the part


def test_a_commit_needs_every_run_parked(control: Make, saves: Any) -> None:
    async def body() -> None:
        participant = agent()
        ticket = saves.ticket(PART)
        commit = control(Commit, ticket=ticket)
        assert await refusal(participant.commit(commit)) == "unknown_checkpoint"
        execution = await participant.begin("r", 0)
        await participant.prepare(control(PrepareAgents))
        assert await refusal(participant.commit(commit)) == "agent_prepare_incomplete"
        execution.fail()
        wrong = control(Commit, ticket=saves.ticket("gym/agent/other"))
        assert await refusal(participant.commit(wrong)) == "invalid_request"
        assert (await participant.commit(commit)).ready

    run(body)


def test_a_deferred_commit_holds_the_cut_while_the_runs_go_on(
    control: Make, boundary: Make, saves: Any
) -> None:
    async def body() -> None:
        participant = agent()
        executions, tasks = zip(
            *[await park(participant, boundary(f"r{i}", call=f"c{i}")) for i in range(3)],
            strict=True,
        )
        await participant.prepare(control(PrepareAgents, wait_s=5))
        ticket = saves.ticket(PART)
        held = await participant.commit(control(Commit, ticket=ticket, wait=False))
        assert (held.state, held.ready, held.records) == ("committed_paused", False, 3)
        assert held == await participant.commit(control(Commit, ticket=ticket, wait=False))
        await participant.resume(control(Resume))
        await asyncio.gather(*tasks)
        await executions[0].boundary(boundary("r0", call="c9", boundary_index=2))
        done(executions[1])
        commit = control(Commit, ticket=ticket)
        first, second = await asyncio.gather(participant.commit(commit), participant.commit(commit))
        assert first == second == await participant.commit(commit)
        assert (first.state, first.ready, first.records) == ("idle", True, 3)
        assert (await participant.commit(control(Commit, ticket=ticket, wait=False))).ready
        part = published_part(saves.publish(first.receipt)(PART))
        lines = list(part.records(CONTINUATIONS, Continuation))
        assert [line.last_committed_model_call_id for line in lines] == ["c0", "c1", "c2"]
        assert [line.resource_state_revisions for line in lines] == [{"tools": 3}] * 3
        index = first.continuation_index
        assert (index.path, index.records) == (CONTINUATIONS, 3)
        assert index.digest == part.entry(CONTINUATIONS).digest
        assert part.record(BOUNDARIES, "r1", BoundaryHead).item_count == 1
        assert agent_part.read(part).records[1] == boundary("r1", call="c1")

    run(body)


def test_one_checkpoint_goes_into_one_attempt(control: Make, saves: Any) -> None:
    async def body() -> None:
        participant = agent()
        await participant.prepare(control(PrepareAgents))
        await participant.commit(control(Commit, ticket=saves.ticket(PART), wait=False))
        saves.begin()
        other = control(Commit, ticket=saves.ticket(PART))
        assert await refusal(participant.commit(other)) == "checkpoint_conflict"

    run(body)


def test_a_cut_is_let_go_of_by_the_next_prepare_and_by_its_lease(control: Make, saves: Any) -> None:
    async def body() -> None:
        participant = agent(grace_s=0.05)
        commit = control(Commit, ticket=saves.ticket(PART), seconds=1.0, wait=False)
        await participant.prepare(control(PrepareAgents, seconds=1.0))
        await participant.commit(commit)
        await participant.resume(control(Resume))
        await asyncio.sleep(1.15)
        late = control(Commit, ticket=saves.ticket(PART))
        assert await refusal(participant.commit(late)) == "stale_checkpoint"
        await participant.prepare(control(PrepareAgents, "c2"))
        await participant.commit(control(Commit, "c2", ticket=saves.ticket(PART), wait=False))
        await participant.resume(control(Resume, "c2"))
        await participant.prepare(control(PrepareAgents, "c3"))
        late = control(Commit, "c2", ticket=saves.ticket(PART))
        assert await refusal(participant.commit(late)) == "stale_checkpoint"

    run(body)


@pytest.mark.parametrize("jump", [86_400.0, -86_400.0])
def test_a_wall_clock_that_is_set_does_not_take_the_cut(
    control: Make, saves: Any, jump: float
) -> None:
    async def body() -> None:
        set_by = [0.0]
        participant = agent(grace_s=1.5, clock=lambda: time.time() + set_by[0])
        ticket = saves.ticket(PART)
        await participant.prepare(control(PrepareAgents, seconds=1.0))
        await participant.commit(control(Commit, ticket=ticket, seconds=1.0, wait=False))
        set_by[0] = jump
        await asyncio.sleep(1.0)
        await participant.resume(control(Resume, seconds=30 + jump))
        commit = control(Commit, ticket=ticket, seconds=1.0 + jump, wait=False)
        assert not (await participant.commit(commit)).ready
        await asyncio.sleep(2.6)
        late = control(Commit, ticket=ticket, seconds=30 + jump)
        assert await refusal(participant.commit(late)) == "stale_checkpoint"

    run(body)


@pytest.mark.parametrize("ended", [False, True])
def test_admission_looks_at_the_lease_and_not_at_its_timer(control: Make, ended: bool) -> None:
    async def body() -> None:
        participant = agent(grace_s=0.0)
        await participant.prepare(control(PrepareAgents, seconds=1.0 if ended else 60.0))
        keep_busy(1.05 if ended else 0.01)
        if ended:
            await participant.begin("a", 0)
        else:
            assert await refusal(participant.begin("a", 0)) == "agent_admission_closed"

    run(body)


def test_commit_requests_keep_the_cut(control: Make, saves: Any) -> None:
    async def body() -> None:
        participant = agent(grace_s=0.0)
        await participant.prepare(control(PrepareAgents, seconds=1.0))
        ticket = saves.ticket(PART)
        await participant.commit(control(Commit, ticket=ticket, seconds=1.0, wait=False))
        await participant.resume(control(Resume))
        await participant.commit(control(Commit, ticket=ticket, seconds=60, wait=False))
        await asyncio.sleep(1.1)
        assert (await participant.commit(control(Commit, ticket=ticket))).ready

    run(body)


def test_a_failed_write_can_be_tried_again(control: Make, boundary: Make, saves: Any) -> None:
    async def body() -> None:
        participant = agent()
        _, task = await park(participant, boundary("r"))
        await participant.prepare(control(PrepareAgents, wait_s=5))
        ticket = saves.ticket(PART)
        past = ticket.model_copy(update={"deadline_ns": 1})
        wrong = control(Commit, ticket=past)
        results = await asyncio.gather(
            participant.commit(wrong), participant.commit(wrong), return_exceptions=True
        )
        assert [item.reason for item in results] == ["agent_checkpoint_error"] * 2  # type: ignore[union-attr]
        assert "DeadlineExceeded" in str(results[0])
        assert (await participant.commit(control(Commit, ticket=ticket))).ready
        await participant.resume(control(Resume))
        await task

    run(body)


@pytest.mark.req("R-1")
@pytest.mark.parametrize("secrets", ["redact", "keep"])
def test_an_item_that_is_not_json_is_refused_by_the_name_of_its_run(
    control: Make, boundary: Make, saves: Any, secrets: Any
) -> None:
    with pytest.raises(ValidationError, match="nan is not JSON"):
        boundary("r", output_items=({"x": float("nan")},))

    async def body() -> None:
        participant = AgentParticipant(server_name="swe", secrets=secrets)
        item: dict[str, Any] = {"x": 1.0}
        _, task = await park(participant, boundary("r", output_items=({"y": 1}, item)))
        await participant.prepare(control(PrepareAgents, wait_s=5))
        # Changed after it was handed over.
        item["x"] = float("nan")
        commit = participant.commit(control(Commit, ticket=saves.ticket(PART)))
        with pytest.raises(ControlRefused, match="not a JSON value") as caught:
            await commit
        assert (caught.value.reason, caught.value.what) == ("agent_checkpoint_error", "r/0/1")
        await participant.resume(control(Resume))
        await task

    run(body)


def test_a_server_whose_revision_would_be_redacted_is_refused(
    control: Make, boundary: Make, saves: Any
) -> None:
    async def body() -> None:
        participant = agent()
        record = boundary("r", resource_state_revisions={"secrets": 1})
        _, task = await park(participant, record)
        await participant.prepare(control(PrepareAgents, wait_s=5))
        commit = participant.commit(control(Commit, ticket=saves.ticket(PART)))
        with pytest.raises(ControlRefused, match=r"agent_checkpoint_error.*'secrets'"):
            await commit
        await participant.resume(control(Resume))
        await task

    run(body)


async def saved(
    control: Make, saves: Any, records: list[AgentBoundaryRecord], **options: Any
) -> Callable[[str], Any]:
    """Publishes the part of an agent server that holds these records."""
    participant = agent(**options)
    tasks = [(await park(participant, record))[1] for record in records]
    await participant.prepare(control(PrepareAgents, wait_s=5))
    reply = await participant.commit(control(Commit, ticket=saves.ticket(PART)))
    await participant.resume(control(Resume))
    await asyncio.gather(*tasks)
    place: Callable[[str], Any] = saves.publish(reply.receipt)
    return place


def test_a_restored_run_goes_on_as_the_next_one(control: Make, boundary: Make, saves: Any) -> None:
    async def body() -> None:
        pending = PendingModel(
            model_call_id="call-3",
            response={"text": "hi"},
            model_server_cookies={"session": "s3cret"},
        )
        records = [
            boundary("a", agent_state={"depth": [1, {"api_key": "s3cret", "n": 2**70}]}),
            boundary("e", agent_state={"depth": [1, {"n": 2**70}]}),
            boundary("b", 2, boundary_kind="pending_model", pending_model=pending),
            boundary("c", call=None),
            boundary("d"),
        ]
        place = await saved(control, saves, records)
        stored = b"".join(place_bytes(place(PART)))
        assert b"s3cret" not in stored
        participant = agent()
        request = control(Restore, "r1", source_checkpoint_id="c1", snapshot=place(PART))
        first, second = await asyncio.gather(
            participant.restore(request), participant.restore(request)
        )
        assert first == second == await participant.restore(request)
        assert (first.state, first.restored) == ("restored_paused", 4)
        assert first.continuation_index.records == 4
        assert await refusal(participant.begin("a", 1)) == "agent_admission_closed"
        drop = (
            Execution(rollout_id="d", attempt_index=1),
            Execution(rollout_id="d", attempt_index=0),
        )
        assert await refusal(agent().begin("e", 1, held=True)) == "unknown_execution"
        for _ in range(2):
            discard = control(DiscardRestored, "r1", executions=drop)
            assert (await participant.discard(discard)).discarded == 1
        await participant.resume(control(Resume, "r1"))
        assert await refusal(participant.begin("a", 0)) == "stale_attempt"
        # Its state is not whole any more.
        assert (await participant.begin("a", 1)).restored is None
        # What the caller knows to be here is not begun from nothing.
        assert await refusal(participant.begin("a", 2, held=True)) == "unknown_execution"
        assert await refusal(participant.begin("z", 0, held=True)) == "unknown_execution"
        one = await participant.begin("e", 1, held=True)
        assert await refusal(participant.begin("e", 1, held=True)) == "duplicate_execution"
        assert one.generation == 1
        assert one.restored is not None
        assert one.restored.attempt_index == 1
        assert one.restored.agent_state == {"depth": [1, {"n": 2**70}]}
        two = await participant.begin("b", 3)
        assert two.restored is not None
        assert two.restored.pending_model is not None
        assert two.restored.pending_model.response == {"text": "hi"}
        assert two.restored.pending_model.model_server_cookies == {"session": "[redacted]"}
        assert await refusal(participant.begin("d", 0)) == "stale_attempt"
        assert (await participant.begin("d", 1)).restored is None

    run(body)


def secretive(boundary: Make) -> list[AgentBoundaryRecord]:
    """Runs with values under names that read like a secret's, in all places."""

    def pending(**fields: Any) -> PendingModel:
        return PendingModel(model_call_id="c", **({"response": {}} | fields))

    cookies = pending(model_server_cookies={"session": "hunter2", "more": [{"x": "hunter2"}]})
    answer = pending(response={"token": "hunter2"})
    return [
        boundary("cookies", 1, boundary_kind="pending_model", pending_model=cookies),
        boundary("answer", 2, boundary_kind="pending_model", pending_model=answer),
        boundary("items", output_items=({"password": "hunter2"}, {"text": "hi"})),
        boundary("state", call=None, agent_state={"secret_word": "hunter2", "\ud800": [{}]}),
        boundary("count", agent_state={"max_tokens": 5, "token": 7}),
    ]


def test_runs_whose_state_is_not_whole_are_listed(
    control: Make, boundary: Make, saves: Any
) -> None:
    async def body() -> None:
        participant = agent()
        tasks = [(await park(participant, record))[1] for record in secretive(boundary)]
        await participant.prepare(control(PrepareAgents, wait_s=5))
        reply = await participant.commit(control(Commit, ticket=saves.ticket(PART)))
        await participant.resume(control(Resume))
        await asyncio.gather(*tasks)
        assert (reply.rollouts, reply.redacted) == (5, 3)
        place = saves.publish(reply.receipt)(PART)
        assert b"hunter2" not in b"".join(place_bytes(place))
        part = published_part(place)
        found = {item.capture_key: item for item in part.records("redacted.jsonl", RedactedRun)}
        assert {key: item.paths for key, item in found.items()} == {
            "answer-a2": ("pending_model.response.token",),
            "items": ("output_items[0].password",),
            "state": ("agent_state.secret_word",),
        }
        assert agent_part.read(part).redacted == {"answer", "items", "state"}

    run(body)


def test_an_owner_may_keep_all_of_its_state(control: Make, boundary: Make, saves: Any) -> None:
    async def body() -> None:
        records = [
            *secretive(boundary),
            boundary("used", resource_state_revisions={"secrets": 1}),
        ]
        place = (await saved(control, saves, records, secrets="keep"))(PART)
        part = published_part(place)
        assert list(part.records("redacted.jsonl", RedactedRun)) == []
        restored = agent()
        request = control(Restore, "r1", source_checkpoint_id="c1", snapshot=place)
        assert (await restored.restore(request)).restored == len(records)
        await restored.resume(control(Resume, "r1"))
        for record in records:
            run_index = record.attempt_index + 1
            execution = await restored.begin(record.rollout_id, run_index)
            assert execution.restored == record.model_copy(update={"attempt_index": run_index})

    run(body)


def test_a_part_without_the_list_is_read_and_a_list_of_others_is_not(
    boundary: Make, saves: Any
) -> None:
    record = boundary("a")
    for listed in (None, "b"):
        saves.begin()
        with saves.attempt.part(PART) as part:
            part.records(BOUNDARIES, [record], key="rollout_id")
            part.records(CONTINUATIONS, [record.continuation()], key="capture_key")
            if listed:
                part.records("redacted.jsonl", [RedactedRun.of(listed, ("x",))])
            receipt = part.seal()
        found = published_part(saves.publish(receipt)(PART))
        if listed is None:
            assert agent_part.read(found).redacted == frozenset()
        else:
            with pytest.raises(FormatError, match="not there"):
                agent_part.read(found)


def place_bytes(place: Any) -> list[bytes]:
    part = published_part(place)
    return [part.read(entry.path) for entry in part.entries()]


def test_a_restored_run_that_was_not_begun_is_in_the_next_cut(
    control: Make, boundary: Make, saves: Any
) -> None:
    async def body() -> None:
        place = await saved(control, saves, [boundary("a"), boundary("b"), boundary("c")])
        participant = agent()
        await participant.restore(
            control(Restore, "r1", source_checkpoint_id="c1", snapshot=place(PART))
        )
        await participant.resume(control(Resume, "r1"))
        begun = await participant.begin("b", 1)
        # Begun, and parked before it has a boundary of its own.
        waiting = asyncio.create_task(begun.wait_admission())
        await waiting
        prepare = control(PrepareAgents, "c2")
        await participant.prepare(prepare)
        waiting = asyncio.create_task(begun.wait_admission())
        reply = await participant.prepare(control(PrepareAgents, "c2", wait_s=5))
        assert (reply.parked, reply.parked_with_boundary, reply.running) == (3, 3, 0)
        saves.begin()
        commit = control(Commit, "c2", ticket=saves.ticket(PART))
        committed = await participant.commit(commit)
        await participant.resume(control(Resume, "c2"))
        await waiting
        part = published_part(saves.publish(committed.receipt)(PART))
        found = [
            (item.rollout_id, item.attempt_index) for item in part.records(BOUNDARIES, BoundaryHead)
        ]
        assert found == [("a", 1), ("b", 1), ("c", 1)]

    run(body)


def test_a_restore_into_a_live_server_is_refused_whole(
    control: Make, boundary: Make, saves: Any
) -> None:
    async def body() -> None:
        place = await saved(control, saves, [boundary("a"), boundary("b")])
        participant = agent()
        running = await participant.begin("b", 0)
        request = control(Restore, "r1", source_checkpoint_id="c1", snapshot=place(PART))
        assert await refusal(participant.restore(request)) == "wrong_phase"
        assert not participant.fence.closed
        await participant.begin("other", 0)
        await running.boundary(boundary("b"))
        participant.retire([Execution(rollout_id="b", attempt_index=0)])
        assert (await participant.restore(request)).restored == 2

    run(body)


def test_a_part_that_is_damaged_or_another_ones_installs_nothing(
    control: Make, boundary: Make, saves: Any
) -> None:
    async def body() -> None:
        place = (await saved(control, saves, [boundary("a")]))(PART)
        participant = agent()
        other = place.model_copy(update={"part": "gym/agent/other"})
        request = control(Restore, "r1", source_checkpoint_id="c1", snapshot=other)
        assert await refusal(participant.restore(request)) == "topology_mismatch"
        assert not participant.fence.closed
        for wrong in (
            {"index_digest": "sha256:" + "0" * 64},
            {"number": 99},
            {"location": "nowhere"},
        ):
            snapshot = place.model_copy(update=wrong)
            request = control(Restore, "r1", source_checkpoint_id="c1", snapshot=snapshot)
            assert await refusal(participant.restore(request)) == "agent_checkpoint_error"
            assert participant.fence.phase == "restore_failed_paused"
        assert await refusal(participant.begin("a", 1)) == "agent_admission_closed"
        right = control(Restore, "r1", source_checkpoint_id="c1", snapshot=place)
        assert (await participant.restore(right)).restored == 1
        changed = right.model_copy(update={"source_checkpoint_id": "other"})
        assert await refusal(participant.restore(changed)) == "checkpoint_conflict"
        await participant.resume(control(Resume, "r1"))
        assert (await participant.begin("a", 1)).restored is not None

    run(body)


def test_an_index_that_disagrees_with_the_records_is_refused(
    control: Make, boundary: Make, saves: Any
) -> None:
    async def body() -> None:
        record = boundary("a")
        line = record.continuation().model_copy(update={"resource_state_revisions": {"tools": 4}})
        with saves.attempt.part(PART) as part:
            part.records(BOUNDARIES, [record], key="rollout_id")
            part.records(CONTINUATIONS, [line], key="capture_key")
            receipt = part.seal()
        place = saves.publish(receipt)(PART)
        participant = agent()
        request = control(Restore, "r1", source_checkpoint_id="c1", snapshot=place)
        with pytest.raises(ControlRefused, match="does not agree"):
            await participant.restore(request)
        await participant.resume(control(Resume, "r1"))
        assert (await participant.begin("a", 0)).restored is None

    run(body)


def test_a_resume_during_a_restore_installs_nothing(
    control: Make, boundary: Make, saves: Any
) -> None:
    async def body() -> None:
        place = (await saved(control, saves, [boundary("a")]))(PART)
        participant = agent()
        request = control(Restore, "r1", source_checkpoint_id="c1", snapshot=place)
        restoring = asyncio.create_task(participant.restore(request))
        await participant.fence.changed.wait_for(lambda: participant.fence.closed, 60)
        await participant.resume(control(Resume, "r1"))
        assert await refusal(restoring) == "stale_checkpoint"  # type: ignore[arg-type]
        assert (await participant.begin("a", 1)).restored is None

    run(body)


def test_ten_thousand_parked_runs(control: Make, boundary: Make, saves: Any) -> None:
    async def body() -> None:
        participant = agent()
        count, blocked = 10_000, 300
        records = [boundary(f"group{i:05d}_g{i % 16}", call=f"call-{i}") for i in range(count)]
        begun = [await participant.begin(record.rollout_id, 0) for record in records]
        running = [await participant.begin(f"running{i:05d}_g0", 0) for i in range(blocked)]
        for i in range(blocked):
            done(await participant.begin(f"finished{i:05d}_g0", 0))
        await participant.prepare(control(PrepareAgents))
        parked = [
            asyncio.create_task(execution.boundary(record))
            for execution, record in zip(begun, records, strict=True)
        ]
        await asyncio.sleep(0)
        with cost() as seconds:
            reply = await participant.prepare(control(PrepareAgents))
        assert seconds[0] < 0.1
        assert (reply.parked, reply.running, reply.completed_unacknowledged) == (
            count,
            blocked,
            blocked,
        )
        assert len(reply.blocking_attempts) == NAMED
        assert len(reply.model_dump_json()) < 64 * 1024
        participant.acknowledge(
            [participant.result_of(f"finished{i:05d}_g0", 0)[0] for i in range(blocked)]  # type: ignore[index]
        )
        for execution in running:
            execution.fail()
        commit = control(Commit, ticket=saves.ticket(PART), wait=False)
        with cost() as seconds:
            held = await participant.commit(commit)
        assert seconds[0] < 0.05
        assert held.records == count
        await participant.resume(control(Resume))
        await asyncio.gather(*parked)

    run(body)
