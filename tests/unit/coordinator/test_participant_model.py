"""The model participant: admission, calls in flight, the ledger, and its part there and back."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from snapfmt.errors import ControlRefused
from snapfmt_coordinator.participant import agent_part
from snapfmt_coordinator.participant.ledger import Ledger
from snapfmt_coordinator.participant.model import ModelParticipant, ModelStatus
from snapfmt_coordinator.participant.model_part import FAILURES, LEDGER, OLD_LINEAGE, REFERENCES
from snapfmt_coordinator.participant.parts import published_part, texts
from snapfmt_coordinator.protocol.v1 import (
    AbortInflight,
    CommitModel,
    DiscardRestored,
    Execution,
    PauseModel,
    Restore,
    Resume,
)
from snapfmt_coordinator.sequence.outcomes import classify
from snapfmt_schemas.attempt import Receipt
from snapfmt_schemas.identity import capture_key
from snapfmt_schemas.lineage import (
    ExternalStorageReference,
    ModelFailureRow,
    ModelLineageRow,
)
from snapfmt_schemas.lines import from_line, to_line

Make = Callable[..., Any]
PART, AGENT = "gym/model/policy", "gym/agent/swe"


def run(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(body())


async def refusal(work: Any) -> str:
    with pytest.raises(ControlRefused) as caught:
        await work
    return caught.value.reason


def reason(call: Callable[[], object]) -> str:
    with pytest.raises(ControlRefused) as caught:
        call()
    return caught.value.reason


def model(**options: Any) -> ModelParticipant:
    return ModelParticipant(server_name="policy", **options)


async def enter(participant: ModelParticipant, *name: Any, **options: Any) -> None:
    async with participant.call(*name, **options):
        pass


async def chain(
    participant: ModelParticipant, row: Make, rollout_id: str, calls: Sequence[str], number: int = 0
) -> None:
    """Commits calls, each the child of the one before it."""
    parent = None
    for call in calls:
        async with participant.call(rollout_id, number, call) as inside:
            inside.commit(row(capture_key(rollout_id, number), call, parent))
        parent = call


def agent_receipt(saves: Any, records: Sequence[Any], name: str = AGENT) -> Receipt:
    """A sealed agents' part with these boundary records."""
    receipt = agent_part.write(agent_part.AgentCut(records), saves.ticket(name)).receipt
    assert receipt is not None
    return receipt


# --- calls


def test_a_call_is_in_the_ledger_only_once_it_is_committed(lineage_row: Make) -> None:
    async def body() -> None:
        participant = model()
        await enter(participant, "r", 0, "call-1")
        assert participant.rows("r", 0) == ()
        row = lineage_row("r", "call-1")
        async with participant.call("r", 0, "call-1", fingerprint="f") as call:
            assert call.replay is None
            assert call.commit(row) is row
        async with participant.call("r", 0, "call-1", fingerprint="f") as call:
            assert call.replay is row
            assert call.commit(row.model_copy(update={"weight_version": 9})) is row
        assert participant.rows("r", 0) == (row,)
        assert reason(lambda: call.commit(row)) == "stale_attempt"

    run(body)


def test_what_does_not_fit_the_ledger_is_refused(
    lineage_row: Make, control: Make, saves: Any
) -> None:
    async def body() -> None:
        participant = model()
        await chain(participant, lineage_row, "r", ["call-1"])
        assert await refusal(enter(participant, "r", 0, "call-1", fingerprint="g")) == (
            "ledger_mismatch"
        )
        async with participant.call("r", 0, "call-1") as call:
            other = lineage_row("r", "call-1", fingerprint="g")
            assert reason(lambda: call.commit(other)) == "ledger_mismatch"
        async with participant.call("r", 0, "call-3") as call:
            for row in (lineage_row("r", "call-3", "call-2"), lineage_row("r", "call-4")):
                assert reason(lambda row=row: call.commit(row)) == "ledger_mismatch"
        assert len(participant.rows("r", 0)) == 1
        async with participant.call("q", 0, "call-2") as call:
            orphan = lineage_row("q", "call-2", "call-1")
            assert reason(lambda: call.commit(orphan)) == "ledger_mismatch"
        await participant.pause(control(PauseModel))
        held = await participant.commit(control(CommitModel, ticket=saves.ticket(PART), wait=False))
        assert held.rollouts == 1

    run(body)


def test_a_retry_waits_for_the_first_try(lineage_row: Make) -> None:
    async def body() -> None:
        participant = model()
        events: list[str] = []

        async def call(name: str, row: Any) -> None:
            async with participant.call("r", 0, "call-1") as inside:
                events.append(name)
                await asyncio.sleep(0.01)
                if inside.replay is None and row is not None:
                    inside.commit(row)
                    events.append("committed")

        row = lineage_row("r", "call-1")
        # The first try fails, the second commits, the third finds its row.
        await asyncio.gather(call("one", None), call("two", row), call("three", row))
        assert events == ["one", "two", "committed", "three"]

    run(body)


# --- admission


def test_pause_refuses_new_calls_and_waits_for_those_inside(
    control: Make, lineage_row: Make
) -> None:
    async def body() -> None:
        participant = model()
        assert await refusal(participant.status(control(ModelStatus))) == "unknown_checkpoint"
        async with participant.call("r", 0, "call-1") as call:
            paused = await participant.pause(control(PauseModel))
            assert (paused.state, paused.admission, paused.inflight_total) == (
                "preparing",
                "paused",
                1,
            )
            assert await refusal(enter(participant, "q", 0, "call-1")) == "model_admission_closed"
            polled = await participant.status(
                control(ModelStatus, wait_state="paused", timeout_s=0.02)
            )
            assert polled.inflight_total == 1
            polling = asyncio.create_task(
                participant.status(control(ModelStatus, wait_state="paused", timeout_s=20))
            )
            await asyncio.sleep(0.01)
            assert not polling.done()
            call.commit(lineage_row("r", "call-1"))
        reply = await polling
        assert (reply.state, reply.inflight_total) == ("prepared", 0)
        assert await participant.pause(control(PauseModel)) == reply
        assert await refusal(participant.pause(control(PauseModel, "c2"))) == "checkpoint_conflict"
        resumed = await participant.resume(control(Resume))
        assert (resumed.state, resumed.idempotent) == ("idle", False)
        assert await refusal(participant.status(control(ModelStatus))) == "stale_checkpoint"
        await chain(participant, lineage_row, "q", ["call-1"])

    run(body)


def test_a_resume_ends_a_status_that_waits(control: Make) -> None:
    async def body() -> None:
        participant = model()
        async with participant.call("r", 0, "call-1"):
            await participant.pause(control(PauseModel))
            polling = asyncio.create_task(
                participant.status(control(ModelStatus, wait_state="paused", timeout_s=20))
            )
            await asyncio.sleep(0.01)
            await participant.resume(control(Resume))
            assert await refusal(polling) == "stale_checkpoint"

    run(body)


def test_a_cut_needs_no_call_in_flight(control: Make, saves: Any) -> None:
    async def body() -> None:
        participant = model()
        commit = control(CommitModel, ticket=saves.ticket(PART), wait=False)
        assert await refusal(participant.commit(commit)) == "unknown_checkpoint"
        async with participant.call("r", 0, "call-1"):
            await participant.pause(control(PauseModel))
            assert await refusal(participant.commit(commit)) == "ledger_not_quiescent"
        held = await participant.commit(commit)
        assert (held.state, held.ready) == ("committed_paused", False)

    run(body)


def test_a_straggler_is_given_up_with_its_run(control: Make, lineage_row: Make) -> None:
    async def body() -> None:
        participant = model()
        abort = control(AbortInflight, rollout_id="r", attempt_index=0)
        assert await refusal(participant.abort_inflight(abort)) == "unknown_checkpoint"
        async with participant.call("r", 0, "call-1") as call, participant.call("r", 0, "call-2"):
            await participant.pause(control(PauseModel))
            first, second = await asyncio.gather(
                participant.abort_inflight(abort), participant.abort_inflight(abort)
            )
            assert (first.aborted_inflight, second.aborted_inflight) == (2, 2)
            assert call.aborted.is_set()
            reply = await participant.status(control(ModelStatus))
            assert (reply.inflight_total, reply.state, reply.tombstones) == (0, "prepared", 1)
            assert reason(lambda: call.commit(lineage_row("r", "call-1"))) == "stale_attempt"
            assert reason(lambda: call.fail("late")) == "stale_attempt"
        assert participant.rows("r", 0) == ()
        await participant.resume(control(Resume))
        assert await refusal(enter(participant, "r", 0, "call-3")) == "stale_attempt"
        await enter(participant, "r", 1, "call-1")

    run(body)


def test_a_retry_does_not_wait_for_a_call_that_was_given_up(control: Make) -> None:
    async def body() -> None:
        participant = model()
        async with participant.call("r", 0, "call-1"):
            retry = asyncio.create_task(enter(participant, "r", 0, "call-1"))
            await asyncio.sleep(0)
            await participant.pause(control(PauseModel))
            abort = control(AbortInflight, rollout_id="r", attempt_index=0)
            assert (await participant.abort_inflight(abort)).aborted_inflight == 2
            assert await asyncio.wait_for(refusal(retry), 5) == "stale_attempt"

    run(body)


def test_a_call_that_generates_is_ended_and_made_again_later(
    control: Make, lineage_row: Make
) -> None:
    async def body() -> None:
        participant = model()
        made: list[str] = []

        async def generate(call_id: str, seconds: float) -> None:
            async with participant.call("r", 0, call_id) as call:
                await call.generated(asyncio.sleep(seconds))
                made.append(call_id)
                call.commit(lineage_row("r", call_id))

        slow = asyncio.create_task(generate("call-1", 60))
        retry = asyncio.create_task(generate("call-1", 60))
        await asyncio.sleep(0.01)
        async with participant.call("r", 0, "call-2") as storing:
            await storing.generated(asyncio.sleep(0))
            await participant.pause(control(PauseModel))
            reply = await participant.status(control(ModelStatus))
            assert reply.inflight_total == 3
            assert reply.inflight == (Execution(rollout_id="r", attempt_index=0),)
            end = control(AbortInflight, rollout_id="r", attempt_index=0, keep_run=True)
            # One after the other: the retry waited for the first try.
            for task in (slow, retry):
                assert (await participant.abort_inflight(end)).aborted_inflight == 1
                assert await refusal(task) == "model_admission_closed"
                await asyncio.sleep(0)
            # Its result may be stored already, so it is waited for.
            assert (await participant.abort_inflight(end)).aborted_inflight == 0
            storing.commit(lineage_row("r", "call-2"))
        reply = await participant.status(control(ModelStatus))
        assert (reply.inflight_total, reply.state, reply.tombstones) == (0, "prepared", 0)
        await participant.resume(control(Resume))
        await generate("call-1", 0)
        assert made == ["call-1"]
        assert [row.model_call_id for row in participant.rows("r", 0)] == ["call-2", "call-1"]

    run(body)


def test_who_hangs_up_while_it_generates_is_not_told_of_a_checkpoint(control: Make) -> None:
    async def body() -> None:
        participant = model()

        async def generate() -> None:
            async with participant.call("r", 0, "call-1") as call:
                await call.generated(asyncio.sleep(60))

        task = asyncio.create_task(generate())
        await asyncio.sleep(0)
        await participant.pause(control(PauseModel))
        end = control(AbortInflight, rollout_id="r", attempt_index=0, keep_run=True)
        task.cancel()
        await participant.abort_inflight(end)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await participant.status(control(ModelStatus))).inflight_total == 0

    run(body)


def test_an_auxiliary_model_takes_no_part(control: Make, lineage_row: Make, saves: Any) -> None:
    async def body() -> None:
        participant = model(instance_role="auxiliary")
        assert participant.capabilities().instance_role == "auxiliary"
        ticket = saves.ticket(PART)
        for work in (
            participant.pause(control(PauseModel)),
            participant.status(control(ModelStatus)),
            participant.abort_inflight(control(AbortInflight, rollout_id="r", attempt_index=0)),
            participant.commit(control(CommitModel, ticket=ticket)),
            participant.resume(control(Resume)),
        ):
            assert await refusal(work) == "not_a_policy_instance"
        await chain(participant, lineage_row, "r", ["call-1"])

    run(body)


def test_a_late_call_of_an_older_run_is_refused(lineage_row: Make) -> None:
    async def body() -> None:
        participant = model()
        await chain(participant, lineage_row, "r", ["call-1"], 1)
        assert await refusal(enter(participant, "r", 0, "call-1")) == "stale_attempt"
        assert participant.rows("r", 0) == ()
        # That of another rollout is not older.
        await chain(participant, lineage_row, "q", ["call-1"])
        participant.forget([Execution(rollout_id="r", attempt_index=1)])
        await chain(participant, lineage_row, "r", ["call-1"], 2)

    run(body)


def test_forget_gives_up_forgets_and_refuses(lineage_row: Make) -> None:
    async def body() -> None:
        participant = model()
        await chain(participant, lineage_row, "r", ["call-1"])
        async with participant.call("r", 0, "call-2") as call:
            for number in (1, 2):
                await chain(participant, lineage_row, "r", ["call-1"], number)
            reply = participant.forget([Execution(rollout_id="r", attempt_index=1)])
            assert (reply.retired, reply.tombstoned) == (2, 1)
            assert reason(lambda: call.fail("x")) == "stale_attempt"
        assert [len(participant.rows("r", number)) for number in range(3)] == [0, 0, 1]
        assert await refusal(enter(participant, "r", 1, "call-1")) == "stale_attempt"

    run(body)


# --- the part


async def committed(
    participant: ModelParticipant, control: Make, saves: Any, records: Sequence[Any]
) -> Any:
    await participant.pause(control(PauseModel))
    ticket = saves.ticket(PART)
    await participant.commit(control(CommitModel, ticket=ticket, wait=False))
    await participant.resume(control(Resume))
    receipts = (agent_receipt(saves, records),)
    return await participant.commit(control(CommitModel, ticket=ticket, agents=receipts))


def test_a_rollout_on_two_agents_costs_this_save_only(
    control: Make, boundary: Make, lineage_row: Make, saves: Any
) -> None:
    # Its run 0 could not be retired on one agent, and run 1 is on another.
    async def body() -> None:
        participant = model()
        for number in range(2):
            await chain(participant, lineage_row, "a", ["call-1"], number)
        await participant.pause(control(PauseModel))
        receipts = tuple(
            agent_receipt(saves, [boundary("a", number)], f"gym/agent/{number}")
            for number in range(2)
        )
        request = control(CommitModel, ticket=saves.ticket(PART), agents=receipts)
        with pytest.raises(ControlRefused, match="two agents") as caught:
            await participant.commit(request)
        assert caught.value.reason == "ledger_not_checkpointable"
        assert classify(caught.value) == "io_error"

    run(body)


def test_the_lineage_of_the_continuations_is_written_and_nothing_else(
    control: Make, boundary: Make, lineage_row: Make, saves: Any
) -> None:
    async def body() -> None:
        participant = model()
        await chain(participant, lineage_row, "a", ["call-1", "call-2", "call-3"])
        await chain(participant, lineage_row, "b", ["call-1"], 1)
        await chain(participant, lineage_row, "idle", ["call-1"])
        async with participant.call("a", 0, "bad") as call:
            call.fail("too long")
        async with participant.call("gone", 0, "call-1") as call:
            call.commit(lineage_row("gone", "call-1"))
        async with participant.call("gone", 0, "call-2"):
            await participant.pause(control(PauseModel))
            await participant.abort_inflight(
                control(AbortInflight, rollout_id="gone", attempt_index=0)
            )
        ticket = saves.ticket(PART)
        await participant.commit(control(CommitModel, ticket=ticket, wait=False))
        await participant.resume(control(Resume))
        # After the cut, and so not in it.
        async with participant.call("a", 0, "call-4") as call:
            call.commit(lineage_row("a", "call-4", "call-2"))
        records = [boundary("a", call="call-2"), boundary("b", 1), boundary("c", call=None)]
        agents = (agent_receipt(saves, records[:1]), agent_receipt(saves, records[1:], AGENT + "2"))
        commit = control(CommitModel, ticket=ticket, agents=agents)
        assert not (await participant.commit(commit.model_copy(update={"agents": None}))).ready
        first, second = await asyncio.gather(participant.commit(commit), participant.commit(commit))
        assert first == second == await participant.commit(commit)
        assert (first.ready, first.state, first.rollouts, first.rows) == (True, "idle", 2, 3)
        assert (first.excluded_inactive, first.excluded_tombstoned) == (1, 1)
        # Calls, what they refer to, and a failure.
        assert first.records == 3 + 3 + 1
        other = commit.model_copy(update={"agents": agents[:1]})
        assert await refusal(participant.commit(other)) == "checkpoint_conflict"
        part = published_part(saves.publish(*agents, first.receipt)(PART))
        stored = list(texts(part.table("lineage/policy"), "rollout_id", "row"))
        assert [owner for _, owner, _ in stored] == ["a", "a", "b"]
        rows = [from_line(ModelLineageRow, line.encode()) for *_, line in stored]
        assert [key for key, *_ in stored] == [row.staging_key for row in rows]
        assert [row.staging_key for row in rows] == ["a/call-1", "a/call-2", "b-a1/call-1"]
        assert all(row.staging_chain is None for row in rows)
        assert [row.failure_reason for row in part.records(FAILURES, ModelFailureRow)] == [
            "too long"
        ]
        references = list(part.records(REFERENCES, ExternalStorageReference))
        assert [(r.capture_key, r.boundary_model_call_id, r.key) for r in references] == [
            ("a", "call-2", "a/call-1"),
            ("a", "call-2", "a/call-2"),
            ("b-a1", "call-1", "b-a1/call-1"),
        ]
        index = first.storage_reference_index
        assert (index.path, index.records) == (REFERENCES, 3)
        assert index.digest == part.entry(REFERENCES).digest
        assert b'"rollout_id":"gone"' in part.read(LEDGER)

    run(body)


@pytest.mark.parametrize(
    ("calls", "wanted", "why"),
    [([], "call-1", "ledger_not_checkpointable"), (["call-1"], "call-2", "ledger_mismatch")],
    ids=["the server was restarted", "no boundary call"],
)
def test_a_continuation_without_its_lineage_is_refused(
    control: Make,
    boundary: Make,
    lineage_row: Make,
    saves: Any,
    calls: list[str],
    wanted: str,
    why: str,
) -> None:
    async def body() -> None:
        participant = model()
        await chain(participant, lineage_row, "a", calls)
        work = committed(participant, control, saves, [boundary("a", call=wanted)])
        assert await refusal(work) == why
        # The same cut and ticket, with an index that fits.
        right = boundary("a", call=calls[-1] if calls else None)
        agents = (agent_receipt(saves, [right], AGENT + "2"),)
        commit = control(CommitModel, ticket=saves.ticket(PART), agents=agents)
        assert (await participant.commit(commit)).ready

    run(body)


def test_receipts_that_do_not_fit_are_refused(
    control: Make, boundary: Make, lineage_row: Make, saves: Any
) -> None:
    async def body() -> None:
        participant = model()
        await chain(participant, lineage_row, "a", ["call-1"])
        await participant.pause(control(PauseModel))
        good = agent_receipt(saves, [boundary("a")])
        twice = agent_receipt(saves, [boundary("a")], AGENT + "2")
        foreign = good.model_copy(update={"attempt_id": "0" * 32})
        damaged = good.model_copy(update={"index_digest": "sha256:" + "0" * 64})
        ticket = saves.ticket(PART)
        for agents, wanted in (
            ((good, twice), "ledger_mismatch"),
            ((foreign,), "ledger_not_checkpointable"),
            ((damaged,), "ledger_not_checkpointable"),
        ):
            commit = control(CommitModel, ticket=ticket, agents=agents)
            assert await refusal(participant.commit(commit)) == wanted
        commit = control(CommitModel, ticket=ticket, agents=(good,))
        assert (await participant.commit(commit)).rows == 1

    run(body)


def test_a_run_that_was_given_up_is_no_continuation(
    control: Make, boundary: Make, lineage_row: Make, saves: Any
) -> None:
    async def body() -> None:
        participant = model()
        await chain(participant, lineage_row, "a", ["call-1"])
        await participant.pause(control(PauseModel))
        await participant.abort_inflight(control(AbortInflight, rollout_id="a", attempt_index=0))
        agents = (agent_receipt(saves, [boundary("a")]),)
        commit = control(CommitModel, ticket=saves.ticket(PART), agents=agents)
        assert await refusal(participant.commit(commit)) == "ledger_not_checkpointable"

    run(body)


def test_a_restored_ledger_is_that_of_the_next_run(
    control: Make, boundary: Make, lineage_row: Make, saves: Any
) -> None:
    async def body() -> None:
        old = model()
        await chain(old, lineage_row, "a", ["call-1", "call-2"])
        await chain(old, lineage_row, "b", ["call-1"], 2)
        async with old.call("b", 2, "bad") as call:
            call.fail("too long")
        await chain(old, lineage_row, "d", ["call-1"])
        records = [boundary("a", call="call-2"), boundary("b", 2), boundary("d")]
        reply = await committed(old, control, saves, records)
        agents = agent_receipt(saves, records)
        place = saves.publish(agents, reply.receipt)(PART)
        participant = model()
        request = control(Restore, "r1", source_checkpoint_id="c1", snapshot=place)
        first, second = await asyncio.gather(
            participant.restore(request), participant.restore(request)
        )
        assert first == second
        assert (first.state, first.restored) == ("restored_paused", 3)
        assert first.storage_reference_index == reply.storage_reference_index
        discard = control(
            DiscardRestored, "r1", executions=(Execution(rollout_id="d", attempt_index=1),)
        )
        assert (await participant.discard(discard)).discarded == 1
        assert await refusal(enter(participant, "a", 1, "call-3")) == "model_admission_closed"
        await participant.resume(control(Resume, "r1"))
        assert await refusal(enter(participant, "a", 0, "call-3")) == "stale_attempt"
        assert [row.staging_key for row in participant.rows("a", 1)] == ["a/call-1", "a/call-2"]
        assert participant.rows("d", 1) == ()
        await enter(participant, "d", 1, "call-1")
        # It goes on, is saved again, and is restored again.
        async with participant.call("a", 1, "call-3") as call:
            call.commit(lineage_row("a-a1", "call-3", "call-2"))
        saves.begin()
        records = [boundary("a", 1, call="call-3"), boundary("b", 3)]
        again = control(PauseModel, "c2")
        await participant.pause(again)
        agents = agent_receipt(saves, records)
        commit = control(CommitModel, "c2", ticket=saves.ticket(PART), agents=(agents,))
        reply = await participant.commit(commit)
        assert (reply.rollouts, reply.rows) == (2, 4)
        place = saves.publish(agents, reply.receipt)(PART)
        third = model()
        await third.restore(control(Restore, "r2", source_checkpoint_id="c2", snapshot=place))
        assert [row.staging_key for row in third.rows("a", 2)] == [
            "a/call-1",
            "a/call-2",
            "a-a1/call-3",
        ]

    run(body)


def test_a_restore_into_a_live_ledger_is_refused_whole(
    control: Make, boundary: Make, lineage_row: Make, saves: Any
) -> None:
    async def body() -> None:
        old = model()
        await chain(old, lineage_row, "a", ["call-1"])
        await chain(old, lineage_row, "b", ["call-1"])
        records = [boundary("a"), boundary("b")]
        reply = await committed(old, control, saves, records)
        place = saves.publish(agent_receipt(saves, records), reply.receipt)(PART)
        participant = model()
        request = control(Restore, "r1", source_checkpoint_id="c1", snapshot=place)
        async with participant.call("b", 0, "call-1") as call:
            assert await refusal(participant.restore(request)) == "wrong_phase"
            call.commit(lineage_row("b", "call-1"))
        assert await refusal(participant.restore(request)) == "wrong_phase"
        assert (participant.rows("a", 1), participant.fence.phase) == ((), "idle")
        participant.forget([Execution(rollout_id="b", attempt_index=0)])
        assert (await participant.restore(request)).restored == 2

    run(body)


def saved_by_hand(saves: Any, rows: Any, references: Any, ledger: Any, *, old: bool) -> Any:
    """A model's part: as it is written now, or as it was before lineage was a table."""
    with saves.attempt.part(PART) as part:
        if old:
            part.records(OLD_LINEAGE, rows, key="staging_key")
        else:
            with part.table("lineage/policy") as table:
                lines = [to_line(row).decode() for row in rows]
                table.append(
                    [row.staging_key for row in rows],
                    {"rollout_id": ["a"] * len(rows), "row": lines},
                )
        part.records(FAILURES, [])
        part.records(REFERENCES, references, key="key")
        part.json(LEDGER, ledger)
        receipt = part.seal()
    return saves.publish(receipt)(PART)


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("damage", ["", "parent", "branch", "boundary", "references", "count"])
def test_a_part_whose_files_disagree_installs_nothing(
    control: Make, lineage_row: Make, saves: Any, damage: str, old: bool
) -> None:
    async def body() -> None:
        rows = [lineage_row("a", "call-1"), lineage_row("a", "call-2", "call-1")]
        if damage == "branch":
            rows.insert(1, lineage_row("a", "call-1b", "call-1"))
        rows = [row.model_copy(update={"staging_chain": None}) for row in rows]
        run_of = {
            "rollout_id": "a",
            "attempt_index": 0,
            "boundary_model_call_id": "call-2" if damage != "boundary" else "call-9",
            "rows": len(rows) if damage != "count" else 1,
            "failures": 0,
        }
        ledger = {
            "schema_version": 1,
            "server_name": "policy",
            "runs": [run_of],
            "rows": len(rows),
            "excluded_inactive": 0,
            "excluded_tombstoned": 0,
            "tombstones": [],
        }
        references = [
            ExternalStorageReference(
                capture_key="a",
                boundary_model_call_id="call-2",
                kind="token_capture_staging",
                key=row.staging_key,
            )
            for row in rows[: 1 if damage == "references" else 3]
        ]
        if damage == "parent":
            rows[1] = rows[1].model_copy(update={"parent_call_id": "call-9"})
        place = saved_by_hand(saves, rows, references, ledger, old=old)
        participant = model()
        request = control(Restore, "r1", source_checkpoint_id="c1", snapshot=place)
        if not damage:
            assert (await participant.restore(request)).restored == 1
            assert list(participant.rows("a", 1)) == rows
            return
        assert await refusal(participant.restore(request)) == "ledger_mismatch"
        assert participant.fence.phase == "restore_failed_paused"
        assert participant.rows("a", 1) == ()
        await participant.resume(control(Resume, "r1"))
        await enter(participant, "a", 0, "call-1")

    run(body)


def test_the_cut_takes_time_by_the_runs_and_not_by_their_calls(lineage_row: Make) -> None:
    ledger = Ledger()
    rows = [lineage_row("r", f"call-{i}", f"call-{i - 1}" if i else None) for i in range(8)]
    for number in range(10_000):
        for row in rows:
            ledger.append((f"group{number:05d}_g0", 0), row)
    times = []
    for _ in range(3):
        # Processor time: what others do on this machine is no part of the cut.
        started = time.thread_time()
        cut = ledger.cut({})
        times.append(time.thread_time() - started)
    assert min(times) < 0.01
    key = ("group00000_g0", 0)
    ledger.append(key, lineage_row("r", "call-8", "call-7"))
    ledger.append(("new", 0), rows[0])
    assert sum(len(cut.rows(name)) for name in cut.runs) == 80_000
    assert (len(cut.rows(key)), cut.rows(("new", 0))) == (8, [])
    assert len(ledger.cut({}).rows(key)) == 9
