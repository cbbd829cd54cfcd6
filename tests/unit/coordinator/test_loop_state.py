"""The loop's bookkeeping: who is where, what a cut has of it, and what a restore makes of that."""

import asyncio
import itertools
from pathlib import Path
from typing import Any

import pytest

from snapfmt import Repository
from snapfmt.errors import (
    CutInconsistent,
    FormatError,
    InvalidRecord,
    ParticipantFailed,
    RestoreRefused,
)
from snapfmt_coordinator.loop.control import Control
from snapfmt_coordinator.loop.prompts import PromptLoader, prompt_of
from snapfmt_coordinator.loop.saved import PART, CutState, RunPlace, SavedState
from snapfmt_coordinator.loop.state import Finished, RlState, Run
from snapfmt_schemas.completion import CompletionReceipt
from snapfmt_schemas.ledger import CallRecord, RecoveryLedger, RolloutReceipt
from snapfmt_schemas.manifest import TrainerAnchor
from snapfmt_schemas.replay import KVBatchMeta, ReplayGroup

GENERATIONS, CAPACITY = 2, 4


def state(prompts: int = 3, **changes: Any) -> RlState:
    options = {"seed": 7, "prompts": prompts, "generations": GENERATIONS, "capacity": CAPACITY}
    return RlState(**{**options, **changes})


def result(run: Run, reward: float = 0.5) -> Finished:
    return Finished(
        receipt=RolloutReceipt(
            rollout_id=run.rollout_id,
            attempt_index=run.attempt_index,
            capture_key=run.key,
            manifest=(CallRecord(model_call_id="call-1", staging_key=f"{run.key}/call-1"),),
            extensions={"turns": 1, "tools": "t"},
        ),
        completion=CompletionReceipt(
            rollout_id=run.rollout_id,
            attempt_index=run.attempt_index,
            execution_generation=1,
            result_identity=run.key,
            result_digest="0" * 64,
        ),
        reward=reward,
        agent_name="agent",
    )


def rows(group_id: str) -> ReplayGroup:
    keys = tuple(f"{group_id}_g{i}" for i in range(GENERATIONS))
    meta = KVBatchMeta(partition_id="rollout_buffer", sample_ids=keys)
    return ReplayGroup(meta=meta, start_weight=0, end_weight=0, group_id=group_id)


def finish(one: RlState, runs: tuple[Run, ...]) -> None:
    """Sends and seals these runs."""
    for run in runs:
        one.dispatch(run)
        assert one.adopt(run, result(run))


def finalize(one: RlState, group_id: str) -> None:
    one.begin_finalize(group_id)
    one.finalized(rows(group_id))


def test_two_runs_of_a_seed_have_equal_group_ids() -> None:
    first, second = state(), state()
    assert [first.reserve(0) for _ in range(4)] == [second.reserve(0) for _ in range(4)]
    ids = {prompt_of(seed, index).group_id for seed in (7, 8) for index in range(3)}
    assert len(ids) == 6


def test_the_last_prompt_is_followed_by_nothing() -> None:
    one = state(prompts=1)
    assert len(one.reserve(0)) == GENERATIONS
    assert one.reserve(0) == ()
    assert not one.idle()


def test_no_more_groups_are_admitted_than_the_buffer_holds() -> None:
    one = state(prompts=9, capacity=2)
    first, second = one.reserve(0), one.reserve(0)
    assert one.reserve(0) == ()
    finish(one, first)
    finalize(one, first[0].group_id)
    # Rows in the replay take room as well, also while they are trained on.
    assert one.reserve(0) == ()
    assert [group.group_id for group in one.claim(1)] == [first[0].group_id]
    assert one.reserve(0) == ()
    one.trained([first[0].group_id])
    assert len(one.reserve(0)) == GENERATIONS
    assert second[0].prompt_index == 1


def test_a_group_is_ready_when_all_its_runs_are_sealed() -> None:
    one = state()
    first, second = one.reserve(0)
    one.dispatch(first)
    assert one.adopt(first, result(first))
    assert one.ready() == ()
    one.dispatch(second)
    assert one.adopt(second, result(second))
    (group,) = one.ready()
    assert group.status == "ready_to_finalize"
    assert [run.reward for _, run in group.runs()] == [0.5, 0.5]


def test_a_result_that_comes_twice_or_too_late_does_not_count() -> None:
    one = state()
    first, _ = one.reserve(0)
    assert not one.adopt(first, result(first)), "it was never sent"
    one.dispatch(first)
    again = one.fail(first)
    assert (again.rollout_id, again.attempt_index) == (first.rollout_id, 1)
    assert not one.adopt(first, result(first)), "run 1 has taken its place"
    one.dispatch(again)
    assert one.adopt(again, result(again))
    assert not one.adopt(again, result(again))
    assert len(one.owed()) == 1


def test_a_result_of_another_run_is_refused() -> None:
    one = state()
    first, second = one.reserve(0)
    one.dispatch(first)
    with pytest.raises(InvalidRecord, match=second.rollout_id):
        one.adopt(first, result(second))


def test_runs_that_always_fail_end_the_training() -> None:
    one = state(max_attempts=2)
    run, _ = one.reserve(0)
    one.dispatch(run)
    run = one.fail(run)
    one.dispatch(run)
    with pytest.raises(ParticipantFailed, match="2 runs"):
        one.fail(run)


def test_acknowledgements_are_owed_until_that_very_receipt_is_confirmed() -> None:
    one = state()
    run, _ = one.reserve(0)
    one.dispatch(run)
    one.adopt(run, result(run))
    (owed,) = one.owed()
    other = owed.receipt.model_copy(update={"execution_generation": 2})
    one.acknowledged([owed.model_copy(update={"receipt": other})])
    assert one.owed() == (owed,)
    one.acknowledged([owed])
    assert one.owed() == ()


def test_the_last_step_takes_what_is_left() -> None:
    one = state(prompts=3)
    groups = [one.reserve(0) for _ in range(3)]
    for runs in groups[:2]:
        finish(one, runs)
        finalize(one, runs[0].group_id)
    assert one.claim(3) == (), "the third is still under way"
    assert len(one.claim(1)) == 1
    finish(one, groups[2])
    finalize(one, groups[2][0].group_id)
    assert len(one.claim(3)) == 2
    one.trained([runs[0].group_id for runs in groups])
    assert one.idle()


def middle() -> tuple[RlState, list[tuple[Run, ...]]]:
    """One group claimed, one in the replay, one ready, one half sealed."""
    one = state(prompts=6)
    groups = [one.reserve(2) for _ in range(4)]
    for runs in groups[:3]:
        finish(one, runs)
    for runs in groups[:2]:
        finalize(one, runs[0].group_id)
    assert len(one.claim(1)) == 1
    one.dispatch(groups[3][0])
    one.acknowledged(one.owed())
    return one, groups


def cut_of(one: RlState) -> CutState:
    cut = one.cut()
    place = RunPlace(
        train_steps=2, trainer_version=2, generations=GENERATIONS, rolled_back=cut.rolled_back
    )
    return CutState(cut, place, CAPACITY)


def test_a_cut_gives_claimed_groups_back_and_drops_canonical_ones_from_the_ledger() -> None:
    one, groups = middle()
    ids = [runs[0].group_id for runs in groups]
    cut = cut_of(one)
    assert [group.group_id for group in cut.replay().groups] == ids[:2]
    assert cut.run.rolled_back == (ids[0],)
    assert [group.group_id for group in cut.ledger().groups] == ids[2:]
    assert cut.required_rows() == {f"{run.key}/call-1" for run in groups[2]}
    assert cut.dispatched_runs() == {groups[3][0].key}
    assert cut.canonical_rows() == {f"{i}_g{g}" for i in ids[:2] for g in range(GENERATIONS)}
    assert cut.pending_acknowledgements() == 0


def test_what_happens_after_a_cut_does_not_change_it() -> None:
    one, groups = middle()
    cut = cut_of(one)
    before = (cut.ledger(), cut.replay(), cut.state.place)
    finish(one, (groups[3][1],))
    one.adopt(groups[3][0], result(groups[3][0]))
    one.trained([groups[0][0].group_id])
    one.reserve(3)
    assert (cut.ledger(), cut.replay(), cut.state.place) == before


def test_no_cut_while_rows_are_half_written() -> None:
    one, groups = middle()
    one.begin_finalize(groups[2][0].group_id)
    with pytest.raises(CutInconsistent, match=groups[2][0].group_id):
        one.cut()
    one.abort_finalize(groups[2][0].group_id)
    one.cut()


def test_unfinished_rollouts_get_their_next_run_and_sealed_ones_stay() -> None:
    one, groups = middle()
    cut = cut_of(one)
    fresh = state(prompts=6)
    again = fresh.install(cut.ledger().groups, cut.replay().groups, cut.state.place)
    assert {(run.rollout_id, run.attempt_index) for run in again} == {
        (run.rollout_id, 1) for run in groups[3]
    }
    assert {run.key for run in fresh.reserved()} == {f"{run.key}-a1" for run in groups[3]}
    assert [group.group_id for group in fresh.ready()] == [groups[2][0].group_id]
    statuses = [
        [attempt.status for attempt in sibling.attempts]
        for group in fresh.cut().groups[1:]
        for sibling in group.siblings
    ]
    assert statuses == [["abandoned", "reserved"], ["abandoned", "reserved"]]
    # The loader goes on with the fifth prompt.
    fresh.claim(2)
    fresh.trained([runs[0].group_id for runs in groups[:2]])
    assert fresh.reserve(2)[0].prompt_index == 4


def test_a_second_restore_counts_on() -> None:
    one, groups = middle()
    for expected in (1, 2, 3):
        cut = cut_of(one)
        one = state(prompts=6)
        again = one.install(cut.ledger().groups, cut.replay().groups, cut.state.place)
        assert {run.attempt_index for run in again} == {expected}
    assert {run.rollout_id for run in again} == {run.rollout_id for run in groups[3]}


def test_the_stored_records_survive_a_round_trip(tmp_path: Path) -> None:
    cut = cut_of(middle()[0])
    saved = SavedState.read(
        published(tmp_path, cut).snapshot(), generations=GENERATIONS, capacity=CAPACITY
    )
    assert saved.ledger == cut.ledger()
    assert saved.replay == cut.replay()
    assert saved.place == cut.state.place
    assert saved.run == cut.run
    assert saved.reserve.prompts == ()
    assert saved.required_rows() == cut.required_rows()
    assert saved.dispatched_runs() == cut.dispatched_runs()


def published(
    home: Path, cut: CutState, *, keys: frozenset[str] | None = None, **anchor: int
) -> Repository:
    """A snapshot of the controller's part and of canonical rows, by default those it names."""
    repository = Repository.open(home / "repository", create=True)
    place = {"train_step": 2, "trainer_version": 2, "epoch": 0, **anchor}
    named = sorted(cut.canonical_rows() if keys is None else keys)
    with repository.begin() as attempt:
        with attempt.part(PART) as part:
            cut.write(part)
            own = part.seal()
        with attempt.part("rl/tq/unit-0000") as part:
            with part.table("rows/rollout_buffer") as table:
                table.append(named, {"total_reward": [0.5] * len(named)})
            unit = part.seal()
        attempt.publish([own, unit], anchor=TrainerAnchor(**place))
    return repository


@pytest.mark.parametrize("extra", [True, False])
def test_rows_and_replay_must_agree(tmp_path: Path, extra: bool) -> None:
    cut = cut_of(middle()[0])
    names = sorted(cut.canonical_rows())
    keys = frozenset([*names, "stray_g0"] if extra else names[1:])
    repository = published(tmp_path, cut, keys=keys)
    with pytest.raises(FormatError, match="stray_g0" if extra else names[0]):
        SavedState.read(repository.snapshot(), generations=GENERATIONS, capacity=CAPACITY)


@pytest.mark.parametrize(
    ("read", "anchor", "says"),
    [
        ({"generations": 3, "capacity": CAPACITY}, {}, "has not 3 rows"),
        ({"generations": GENERATIONS, "capacity": 3}, {}, "the buffer holds 3"),
        ({"generations": GENERATIONS, "capacity": CAPACITY}, {"train_step": 3}, "anchor"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(
    tmp_path: Path, read: dict[str, int], anchor: dict[str, int], says: str
) -> None:
    repository = published(tmp_path, cut_of(middle()[0]), **anchor)
    with pytest.raises(FormatError, match=says):
        SavedState.read(repository.snapshot(), **read)


def test_a_state_with_acknowledgements_owed_is_refused(tmp_path: Path) -> None:
    one, groups = middle()
    one.adopt(groups[3][0], result(groups[3][0]))
    cut = cut_of(one)
    assert cut.pending_acknowledgements() == 1
    with pytest.raises(FormatError, match="acknowledgements are owed"):
        SavedState.read(
            published(tmp_path, cut).snapshot(), generations=GENERATIONS, capacity=CAPACITY
        )


def control() -> Control:
    return Control(seed=7, prompts=6, generations=GENERATIONS, capacity=CAPACITY)


def test_no_save_while_a_step_is_committed_or_not_durable() -> None:
    one = control()
    assert one.skip_reason() is None
    one.committing = True
    assert one.skip_reason() == "optimizer_commit_in_progress"
    with pytest.raises(CutInconsistent, match="committed"):
        one.cut()
    one.committing, one.train_steps = False, 1
    assert one.skip_reason() == "missing_trainer_anchor"
    one.durable_step = 1
    assert one.skip_reason() is None
    assert one.anchor().train_step == 1


@pytest.mark.parametrize("other", [{"seed": 8}, {"prompts": 5}])
def test_the_place_in_another_data_set_is_refused(tmp_path: Path, other: dict[str, int]) -> None:
    repository = published(tmp_path, cut_of(middle()[0]))
    shape = {"seed": 7, "prompts": 6, "generations": GENERATIONS, "capacity": CAPACITY}
    with pytest.raises(FormatError, match="data set"):
        Control(**{**shape, **other}).read(repository.snapshot())


def test_a_place_beyond_the_end_is_refused() -> None:
    place = PromptLoader(7, 6).place()
    for wrong in (
        place.model_copy(update={"epoch": 1}),
        place.model_copy(update={"batches": 7, "state": {"seed": 7, "prompts": 6, "drawn": 7}}),
    ):
        with pytest.raises(InvalidRecord, match="data set"):
            PromptLoader(7, 6).go_to(wrong)


def test_a_restore_is_all_or_nothing(tmp_path: Path) -> None:
    repository = published(tmp_path, cut_of(middle()[0]))
    one = control()
    saved = one.read(repository.snapshot())
    assert one.state.cut().groups == (), "reading touches nothing"
    asyncio.run(saved.install(frozenset({"x"})))
    assert (one.train_steps, one.durable_step, len(one.restarted)) == (2, 2, 2)
    with pytest.raises(RestoreRefused, match="begun"):
        asyncio.run(saved.install(frozenset()))
    asyncio.run(saved.uninstall())
    assert (one.train_steps, one.restarted, one.continued) == (0, (), frozenset())
    assert one.state.room() == CAPACITY


def test_every_rollout_is_in_one_place_whatever_happens() -> None:
    """All orders in which three groups can go through a training run."""
    for order in itertools.permutations(range(3)):
        one = state(prompts=3)
        groups = [one.reserve(0) for _ in range(3)]
        for index in order:
            finish(one, groups[index])
            finalize(one, groups[index][0].group_id)
            cut = one.cut()
            ledger = {group.group_id for group in cut.groups}
            replay = {group.group_id for group in cut.replay}
            assert not ledger & replay
            assert ledger | replay == {runs[0].group_id for runs in groups}
        chosen = [group.group_id for group in one.claim(3)]
        assert chosen == [groups[index][0].group_id for index in order]
        one.trained(chosen)
        assert one.idle()


def test_the_ledger_of_a_run_is_upstreams_layout() -> None:
    ledger = cut_of(middle()[0]).ledger()
    assert RecoveryLedger.model_validate_json(ledger.model_dump_json()) == ledger
    assert {group.phase for group in ledger.groups} == {"admitted"}
