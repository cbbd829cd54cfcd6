"""What a save tells of itself: outcomes, timeline, metrics; and the waiting under it."""

import asyncio
import threading
import time
from typing import Any, get_args

import pytest

from snapfmt.errors import (
    AttemptClosed,
    AttemptError,
    CommitConflict,
    CommitOutcomeUnknown,
    ConflictError,
    CorruptObject,
    CutInconsistent,
    DeadlineExceeded,
    FingerprintMismatch,
    LeaseExpired,
    ParticipantFailed,
    StorageFull,
    UnsupportedFeature,
)
from snapfmt_coordinator.protocol.codes import Reason as WireReason
from snapfmt_coordinator.protocol.codes import refused
from snapfmt_coordinator.sequence import metrics
from snapfmt_coordinator.sequence.gates import CheckpointHold, GateReport
from snapfmt_coordinator.sequence.outcomes import (
    RETRYABLE,
    FailureCounter,
    Outcome,
    Reason,
    classify,
    flatten,
    grouped,
)
from snapfmt_coordinator.sequence.ray_metrics import RayMetrics, ray_name
from snapfmt_coordinator.sequence.restore import RestoreResult
from snapfmt_coordinator.sequence.save import SaveResult
from snapfmt_coordinator.sequence.timeline import TimelineRecorder, render, seconds
from snapfmt_coordinator.sequence.waiting import before, in_thread, to_the_end
from snapfmt_schemas.attempt import Receipt, TableSummary
from snapfmt_schemas.manifest import Manifest

SECOND = 1_000_000_000


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(28, "full"), "io_error"),
        (StorageFull("full"), "io_error"),
        (ParticipantFailed("dead"), "io_error"),
        (CommitConflict("first"), "io_error"),
        (CommitOutcomeUnknown("who knows"), "io_error"),
        (TimeoutError(), "timeout"),
        (DeadlineExceeded("late"), "timeout"),
        (LeaseExpired("over"), "timeout"),
        (AttemptClosed("the cut is gone"), "timeout"),
        (CutInconsistent("parts differ"), "invariant_error"),
        (CorruptObject("read back"), "invariant_error"),
        (FingerprintMismatch("differs"), "invariant_error"),
        (UnsupportedFeature("old server"), "invariant_error"),
        (ConflictError("misuse"), "invariant_error"),
        (AttemptError("what else"), "invariant_error"),
        (AssertionError(), "invariant_error"),
        (KeyError("bug"), "invariant_error"),
        (ExceptionGroup("two", [TimeoutError(), OSError()]), "io_error"),
        (ExceptionGroup("two", [TimeoutError(), TimeoutError()]), "timeout"),
        (ExceptionGroup("two", [OSError(), ExceptionGroup("x", [KeyError()])]), "invariant_error"),
    ],
)
def test_every_error_has_its_reason(error: BaseException, reason: str) -> None:
    assert classify(error) == reason
    assert reason in get_args(Reason)


NOT_NOW = {
    "agent_prepare_incomplete",
    "ledger_not_quiescent",
    "deadline_passed",
    "stale_checkpoint",
    "unknown_checkpoint",
    "agent_admission_closed",
    "model_admission_closed",
    "resources_admission_closed",
}
COULD_NOT = {
    "agent_checkpoint_error",
    "resources_checkpoint_error",
    "ledger_not_checkpointable",
    "internal_error",
    "checkpoint_conflict",
    "wrong_phase",
}


@pytest.mark.parametrize("reason", get_args(WireReason))
def test_every_refusal_has_its_reason(reason: Any) -> None:
    expected = "timeout" if reason in NOT_NOW else "io_error"
    if reason not in NOT_NOW | COULD_NOT:
        expected = "invariant_error"
    assert classify(refused(reason, "planned")) == expected


def test_failures_in_a_row_are_counted() -> None:
    counter = FailureCounter()
    assert counter.limit == 3
    assert not counter.record("failed", "io_error")
    assert not counter.record("failed", "timeout")
    assert counter.record("failed", "io_error")
    assert not counter.record("skipped", "missing_trainer_anchor")
    assert counter.count == 0
    assert not counter.record("failed", "timeout")
    assert not counter.record("completed", "completed")
    assert counter.count == 0
    assert counter.record("failed", "invariant_error")
    assert set(get_args(Outcome)) == {"completed", "failed", "skipped"}
    assert set(get_args(Reason)) > RETRYABLE
    assert len(get_args(Reason)) == 8


def test_errors_are_told_together() -> None:
    one = DeadlineExceeded("late")
    assert grouped([one], "save") is one
    plain = grouped([ValueError("bug")], "save")
    assert isinstance(plain, AttemptError)
    assert str(plain) == "ValueError: bug: 'save'"
    assert isinstance(plain.__cause__, ValueError)
    inner = ExceptionGroup("writers", [one, OSError("disk")])
    both = grouped([inner, KeyError("bug")], "save", kind=ParticipantFailed, hint="look")
    assert isinstance(both, ParticipantFailed)
    assert [type(item) for item in flatten([both.__cause__ or one])] == [
        DeadlineExceeded,
        OSError,
        KeyError,
    ]
    assert "late; then OSError: disk; then KeyError: 'bug'" in str(both)
    assert "look" in str(both)


def recorded() -> TimelineRecorder:
    """A recorder with a timeline of two seconds."""
    recorder = TimelineRecorder("save")
    start = recorder.started_at_ns
    recorder.add("write", "rl/tq", start + SECOND, start + 2 * SECOND, counts={"stored_bytes": 7})
    recorder.add("gate", "coordinator", start, start + SECOND // 4, waited=("new rollouts",))
    recorder.add("write", "gym", start + SECOND, start + SECOND * 3 // 2)
    return recorder


def test_phases_come_in_the_order_in_which_they_began() -> None:
    async def body() -> None:
        recorder = recorded()

        async def fails() -> None:
            async with recorder.phase("prepare", "gym", waited=("a",)) as notes:
                notes.count(parked=3)
                notes.count(parked=4, running=1)
                raise RuntimeError

        def in_a_thread() -> None:
            with recorder.block("cut"):
                pass

        with pytest.raises(RuntimeError):
            await fails()
        await asyncio.gather(*(asyncio.to_thread(in_a_thread) for _ in range(3)))
        timeline = recorder.timeline()
        names = [phase.name for phase in timeline.phases]
        assert names == ["gate", "prepare", "cut", "cut", "cut", "write", "write"]
        failed = timeline.phases[1]
        assert failed.counts == {"parked": 4, "running": 1}
        assert failed.waited == ("a",)
        assert failed.ended_at_ns >= failed.started_at_ns

    asyncio.run(body())


def test_a_clock_that_is_set_back_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = TimelineRecorder("restore")
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    with recorder.block("load"):
        pass
    (phase,) = recorder.timeline().phases
    assert phase.started_at_ns >= recorder.started_at_ns > 0


def test_seconds_span_all_phases_of_a_name() -> None:
    timeline = recorded().timeline()
    assert seconds(timeline, "write") == 1.0
    assert seconds(timeline, "write", "gym") == 0.5
    assert seconds(timeline, "gate") == 0.25
    assert seconds(timeline, "resume") == 0.0


def test_a_timeline_is_rendered_as_bars() -> None:
    lines = render(recorded().timeline()).splitlines()
    assert lines[0] == "save: 2.000 s"
    assert lines[1].startswith("  phase  actor")
    gate, first, second = lines[2:]
    assert gate.split("|")[1] == "#" * 5 + " " * 35
    assert gate.endswith("| new rollouts")
    assert {first.split()[1], second.split()[1]} == {"gym", "rl/tq"}
    rows = first if "rl/tq" in first else second
    assert rows.split("|")[1] == " " * 20 + "#" * 20
    assert rows.endswith("| stored_bytes 7")
    assert all(line == line.rstrip() for line in lines)
    assert render(TimelineRecorder("restore").timeline()) == "restore: nothing was done"
    at_once = TimelineRecorder("save")
    at_once.add("gate", "", 5, 5)
    assert "#" in render(at_once.timeline())


def receipt(part: str, *tables: tuple[str, int]) -> Receipt:
    return Receipt(
        part=part,
        attempt_id="0" * 32,
        index_digest="sha256:" + "0" * 64,
        index_size=1,
        entries=1,
        records=0,
        tables=tuple(TableSummary(name=name, rows=rows, logical_bytes=1) for name, rows in tables),
        stored_bytes=10,
        new_objects=1,
    )


def manifest(number: int) -> Manifest:
    return Manifest(
        repository_id="0" * 32,
        number=number,
        attempt_id="0" * 32,
        write_id="0" * 32,
        created_at_ns=1,
        writer="test",
        parts=(),
    )


def completed() -> SaveResult:
    return SaveResult(
        outcome="completed",
        reason="completed",
        manifest=manifest(7),
        timeline=recorded().timeline(),
        total_s=2.5,
        gate=GateReport("id", 0.75, 4),
        hold=CheckpointHold(0.1, 3, 0.02, 2, 0.015),
        receipts=(
            receipt("rl/controller"),
            receipt("rl/tq/unit-0000", ("rows/rollout_staging", 5)),
            receipt("rl/tq/controller", ("state/rollout_staging", 9)),
        ),
        staging_rows=5,
    )


def test_the_numbers_of_a_save_have_upstreams_names() -> None:
    numbers = metrics.save_metrics(completed(), {"replay_groups": 2, "ledger_groups": 3})
    upstream = {
        "snapshot_sequence": 7,
        "total_save_seconds": 2.5,
        "tq_save_seconds": 1.0,
        "barrier_wait_seconds": 0.1,
        "exclusive_hold_seconds": 0.02,
        "sidecar_save_seconds": 0.0,
        "snapshot_commit_seconds": 0.0,
        "replay_groups": 2,
        "ledger_groups": 3,
        "staging_rows": 5,
        "snapshot_rows": 5,
        "controller_sidecar_bytes": 10,
    }
    for name, value in upstream.items():
        assert numbers[f"timing/rollout_checkpoint/{name}"] == value, name
    assert numbers["timing/rollout_checkpoint/gate_closed_seconds"] == 0.75
    assert numbers["rollout/checkpoint_outcome/completed"] == 1
    assert numbers["rollout/checkpoint_outcome/failed"] == 0
    assert numbers["rollout/checkpoint_outcome/reason/completed"] == 1
    assert sum(value for name, value in numbers.items() if "/reason/" in name) == 1


def test_a_skipped_save_has_no_numbers_of_a_snapshot() -> None:
    skipped = SaveResult(
        outcome="skipped",
        reason="no_data_plane_mutations",
        timeline=TimelineRecorder("save").timeline(),
        total_s=0.5,
    )
    numbers = metrics.save_metrics(skipped, {"replay_groups": 2})
    timing = [name for name in numbers if name.startswith("timing")]
    assert timing == ["timing/rollout_checkpoint/total_save_seconds"]
    assert numbers["rollout/checkpoint_outcome/reason/no_data_plane_mutations"] == 1


def test_the_numbers_of_a_restore() -> None:
    recorder = TimelineRecorder("restore")
    start = recorder.started_at_ns
    for position, (name, actor) in enumerate(
        [("load", "rl/tq"), ("load", "gym"), ("assign", "rl/controller"), ("resume", "gym")]
    ):
        begin = start + position * SECOND
        recorder.add(name, actor, begin, begin + (position + 1) * SECOND)
    result = RestoreResult(
        restore_id="restore-1",
        checkpoint_id="c",
        manifest=manifest(3),
        passed_over=((4, "damaged"),),
        timeline=recorder.timeline(),
        total_s=9.0,
    )
    numbers = metrics.restore_metrics(result)
    prefix = "timing/rollout_checkpoint"
    assert numbers[f"{prefix}/tq_load_seconds"] == 1.0
    assert numbers[f"{prefix}/ledger_load_seconds"] == 3.0
    assert numbers[f"{prefix}/recovery_prepare_seconds"] == 6.0
    assert numbers[f"{prefix}/passed_over_snapshots"] == 1.0


def test_names_are_such_as_ray_takes() -> None:
    assert ray_name("timing/rollout_checkpoint/x-y") == "timing_rollout_checkpoint_x_y"
    assert ray_name("9lives") == "_9lives"
    assert ray_name("") == "_"


def test_numbers_are_exported_through_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    util = pytest.importorskip("ray.util.metrics")
    seen: list[tuple[str, str, float, Any]] = []

    def note(kind: str) -> Any:
        def call(self: Any, value: float = 1.0, tags: Any = None) -> None:
            seen.append((kind, self.info["name"], value, tags))

        return call

    monkeypatch.setattr(util.Gauge, "set", note("gauge"))
    monkeypatch.setattr(util.Counter, "inc", note("counter"))
    exported = RayMetrics({"run": "a"})
    for _ in range(2):
        exported.export(metrics.save_metrics(completed()))
    counters = [item for item in seen if item[0] == "counter"]
    name = "rollout_checkpoint_outcome_completed"
    assert counters.count(("counter", name, 1.0, {"run": "a"})) == 2
    assert len(counters) == 4, "what did not happen is not counted"
    total = "timing_rollout_checkpoint_total_save_seconds"
    assert ("gauge", total, 2.5, {"run": "a"}) in seen


def test_work_is_awaited_to_the_end_although_its_caller_is_cancelled() -> None:
    async def body() -> None:
        done: list[int] = []
        end = asyncio.Event()
        end.set()

        async def work(error: BaseException | None = None) -> int:
            await end.wait()
            done.append(1)
            if error is not None:
                raise error
            return 7

        assert await to_the_end(work()) == 7
        with pytest.raises(ValueError, match="bug"):
            await to_the_end(work(ValueError("bug")))
        for error in (None, ValueError("bug")):
            end.clear()
            task = asyncio.create_task(to_the_end(work(error)))
            await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.sleep(0.01)
            assert not task.done()
            end.set()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert len(done) == 4

    asyncio.run(body())


def test_work_that_hangs_is_given_up_after_some_patience() -> None:
    async def body() -> None:
        task = asyncio.create_task(to_the_end(asyncio.sleep(60), patience_s=0.05))
        await asyncio.sleep(0.01)
        task.cancel()
        started = time.monotonic()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert 0.03 < time.monotonic() - started < 30.0

    asyncio.run(body())


def test_a_thread_is_awaited_too() -> None:
    async def body() -> None:
        done: list[int] = []
        end = threading.Event()

        def work() -> None:
            assert end.wait(60)
            done.append(1)

        task = asyncio.create_task(in_thread(work))
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.sleep(0.01)
        assert not task.done()
        end.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert done == [1]

    asyncio.run(body())


def test_a_deadline_names_what_was_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("snapfmt_coordinator.sequence.waiting.GRACE_S", 0.02)

    async def own() -> None:
        raise TimeoutError("its own")

    async def body() -> None:
        with pytest.raises(DeadlineExceeded, match="'prepare'"):
            await before(time.time() - 5, "prepare", asyncio.sleep(60))
        with pytest.raises(TimeoutError, match="its own") as caught:
            await before(time.time() + 60, "prepare", own())
        assert not isinstance(caught.value, DeadlineExceeded)
        assert await before(time.time() + 60, "prepare", asyncio.sleep(0, 5)) == 5

    asyncio.run(body())
