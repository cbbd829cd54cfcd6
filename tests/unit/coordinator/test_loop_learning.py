"""The trainer's arithmetic, canonical rows, and trainer checkpoints."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from snapfmt.errors import CutInconsistent, FormatError, InvalidRecord, MissingObject
from snapfmt_coordinator.loop.assembly import assemble, replay_group, sealed_runs
from snapfmt_coordinator.loop.checkpoints import TrainerCheckpoints
from snapfmt_coordinator.loop.learning import TrainerState, TrainRow, advantages, learn
from snapfmt_schemas.ledger import (
    CallRecord,
    LedgerGroup,
    PromptRef,
    RolloutAttempt,
    RolloutReceipt,
    Sibling,
)


def row(key: str, group: str, seed: int) -> TrainRow:
    rng = np.random.default_rng(seed)
    size = int(rng.integers(5, 20))
    mask = rng.integers(0, 2, size).astype(np.float32)
    return TrainRow(
        key=key,
        group_id=group,
        input_ids=rng.integers(0, 256, size).astype(np.int64),
        token_mask=mask,
        logprobs=-rng.random(size).astype(np.float32),
        advantages=mask * np.float32(rng.integers(-4000, 4000)),
        reward=float(np.float32(rng.random())),
        tag={"turns": 3, "tools": "t"},
    )


def test_the_order_of_the_steps_does_not_matter() -> None:
    groups = [[row(f"g{g}_{i}", f"g{g}", 10 * g + i) for i in range(3)] for g in range(4)]
    found = set()
    for order in itertools.permutations(groups):
        state = TrainerState()
        for step in (order[:2], order[2:]):
            state = learn(state, [one for rows in step for one in rows])
        found.add(state.model_dump_json(exclude={"rollouts"}))
        assert {*state.rollouts} == {one.key for rows in groups for one in rows}
    assert len(found) == 1


def test_what_is_learnt_depends_on_every_token_and_every_advantage() -> None:
    one = row("g_0", "g", 1)
    ids = one.input_ids.copy()
    ids[int(np.flatnonzero(one.token_mask)[0])] += 1
    changed = learn(TrainerState(), [TrainRow(**{**fields(one), "input_ids": ids})])
    assert changed.weights != learn(TrainerState(), [one]).weights
    assert changed.rollouts["g_0"].tokens != learn(TrainerState(), [one]).rollouts["g_0"].tokens
    less = TrainRow(**{**fields(one), "advantages": one.advantages - one.token_mask})
    assert learn(TrainerState(), [less]).weights != learn(TrainerState(), [one]).weights


def fields(one: TrainRow) -> dict[str, Any]:
    return {name: getattr(one, name) for name in TrainRow.__slots__}


def test_a_group_is_never_trained_twice() -> None:
    state = learn(TrainerState(), [row("g_0", "g", 1)])
    with pytest.raises(InvalidRecord, match="twice"):
        learn(state, [row("g_0", "g", 1)])


def test_advantages_are_exact_and_sum_up_to_nothing() -> None:
    masks = [np.array([0, 1, 1], np.float32), np.array([1], np.float32)] * 2
    found = advantages([0.813369, 0.5089, 0.0, 1.0], masks)
    assert [len(one) for one in found] == [3, 1, 3, 1]
    assert sum(float(one.max() or one.min()) for one in found) == 0.0
    assert found[0].tolist() == [0.0, 930.0, 930.0]


def attempt(key: str, calls: int, **changes: Any) -> RolloutAttempt:
    keys = tuple(f"{key}/call-{n}" for n in range(calls))
    receipt = RolloutReceipt(
        rollout_id=key,
        attempt_index=0,
        capture_key=key,
        manifest=tuple(
            CallRecord(model_call_id=f"call-{n}", staging_key=one) for n, one in enumerate(keys)
        ),
        extensions={"turns": 2, "tools": "digest"},
    )
    values: dict[str, Any] = {
        "attempt_index": 0,
        "status": "sealed",
        "receipt": receipt,
        "reward": 0.25,
        "staging_keys": keys,
    }
    return RolloutAttempt(**{**values, **changes})


def call(previous: int, ids: list[int], mask: list[float], version: int = 1) -> dict[str, Any]:
    return {
        "token_ids_delta": np.array(ids),
        "token_mask_delta": np.array(mask, np.float32),
        "generation_logprobs_delta": -np.array(mask, np.float32),
        "prev_len": previous,
        "cum_len": previous + len(ids),
        "weight_version": version,
    }


def test_calls_are_put_end_to_end() -> None:
    calls = [call(0, [1, 2, 3], [0, 0, 1]), call(3, [4, 5], [0, 1], version=2)]
    found = assemble("p_g0", attempt("p_g0", 2), calls)
    assert found.input_ids.tolist() == [1, 2, 3, 4, 5]
    assert found.token_mask.tolist() == [0, 0, 1, 0, 1]
    assert found.logprobs.tolist() == [0, 0, -1, 0, -1]
    assert found.prompt.tolist() == [1, 2]
    assert (found.reward, found.weight_versions) == (0.25, (1, 2))
    assert found.tag == {"turns": 2, "tools": "digest", "attempt_index": 0}


@pytest.mark.parametrize(
    "second", [call(2, [4], [1]), call(4, [4], [1]), {**call(3, [4], [1]), "cum_len": 5}]
)
def test_a_call_that_does_not_continue_the_one_before_is_refused(second: dict[str, Any]) -> None:
    with pytest.raises(FormatError, match="call 1 covers"):
        assemble("p_g0", attempt("p_g0", 2), [call(0, [1, 2, 3], [0, 0, 1]), second])


def group(*attempts: RolloutAttempt) -> LedgerGroup:
    return LedgerGroup(
        group_id="p",
        prompt_ref=PromptRef(sample_id=0),
        expected_generations=len(attempts),
        status="ready_to_finalize",
        phase="admitted",
        siblings=tuple(
            Sibling(generation_index=n, attempts=(one,)) for n, one in enumerate(attempts)
        ),
    )


def test_a_group_is_put_together_only_when_every_run_is_sealed() -> None:
    open_one = RolloutAttempt(attempt_index=0, status="dispatched")
    with pytest.raises(CutInconsistent, match="dispatched"):
        sealed_runs(group(attempt("p_g0", 1), open_one))
    both = group(attempt("p_g0", 1), attempt("p_g1", 1))
    made = [assemble(key, run, [call(0, [7, 8], [0, 1], 3)]) for key, run in sealed_runs(both)]
    found = replay_group(both, made)
    assert found.meta.sample_ids == ("p_g0", "p_g1")
    assert (found.start_weight, found.end_weight) == (3, 3)
    assert found.meta.sequence_lengths == (2, 2)


def test_a_trainer_checkpoint_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    store = TrainerCheckpoints(tmp_path / "trainer")
    assert store.steps() == []
    assert store.load(0) == TrainerState()
    states = [TrainerState()]
    for number in range(1, 4):
        states.append(learn(states[-1], [row(f"g{number}_0", f"g{number}", number)]))
        store.save(states[-1])
    (tmp_path / "trainer" / "tmp_step_9").mkdir()
    assert store.steps() == [1, 2, 3]
    assert [store.load(number) for number in range(4)] == states
    # A run that was restored to an earlier step writes the later ones anew.
    other = learn(states[1], [row("h_0", "h", 99)])
    store.save(other)
    assert store.load(2) == other
    assert store.prune([]) == [1, 3]
    assert store.steps() == [2]
    with pytest.raises(MissingObject, match="step_1"):
        store.load(1)


def test_the_step_that_the_next_snapshot_stands_on_is_never_pruned(tmp_path: Path) -> None:
    for number in range(1, 6):
        TrainerCheckpoints(tmp_path).save(TrainerState(steps=number))
    store = TrainerCheckpoints(tmp_path)
    assert store.prune(range(1, 5)) == []  # Did nothing yet: the highest may be its own.
    # Taken back, a restore has cost nothing.
    store.load(3)
    store.load(0)
    assert store.steps() == [1, 2, 3, 4, 5]
    store.load(3)
    assert store.prune([2]) == [1, 4, 5]  # Those of the life before are stale.
    store.save(TrainerState(steps=4))
    # Step 5 is left over again, as after a crash before that prune.
    TrainerCheckpoints(tmp_path).save(TrainerState(steps=5))
    # A snapshot that was cut at 3 was published meanwhile; an older one stands on 2.
    assert store.prune([2, 3]) == [5]
    assert store.load(4).steps == 4
    # Set aside twice, with a process that died in between.
    (tmp_path / "trash_step_2" / "full").mkdir(parents=True)
    assert store.prune([3]) == [2]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_3", "step_4"]


def test_a_checkpoint_beside_a_prune_is_no_stale_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = TrainerCheckpoints(tmp_path)
    store.save(TrainerState(steps=1))
    rename = Path.rename

    def rename_and_prune(path: Path, target: Path) -> Path:
        found = rename(path, target)
        if path.name == "tmp_step_2":
            assert store.prune([]) == [1]
        return found

    monkeypatch.setattr(Path, "rename", rename_and_prune)
    store.save(TrainerState(steps=2))
    assert store.steps() == [2]


def test_a_damaged_trainer_checkpoint_is_refused(tmp_path: Path) -> None:
    store = TrainerCheckpoints(tmp_path)
    store.save(learn(TrainerState(), [row("g_0", "g", 1)]))
    path = tmp_path / "step_1" / "trainer.json"
    path.write_bytes(path.read_bytes().replace(b'"steps": 1', b'"steps": 2'))
    with pytest.raises(FormatError, match="step 2"):
        store.load(1)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(FormatError, match="not a trainer checkpoint"):
        store.load(1)
