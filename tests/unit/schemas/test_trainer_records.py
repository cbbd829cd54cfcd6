"""The trainer's records: ledger, replay index, loader, reserve."""

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from snapfmt_schemas._base import Record
from snapfmt_schemas.ledger import RecoveryLedger
from snapfmt_schemas.lines import from_value, to_value
from snapfmt_schemas.loader import LoaderPlace
from snapfmt_schemas.replay import ReplayGroup, ReplayIndex, replay_digest
from snapfmt_schemas.reserve import ReservedPrompt

Change = Callable[[dict[str, Any]], object]


def group(ledger: dict[str, Any]) -> dict[str, Any]:
    return ledger["groups"][0]  # type: ignore[no-any-return]


def sealed(ledger: dict[str, Any]) -> dict[str, Any]:
    return group(ledger)["siblings"][0]["attempts"][1]  # type: ignore[no-any-return]


LEDGER_BREAKS: dict[str, tuple[Change, str]] = {
    "version": (lambda v: v.update(schema_version=3), "schema_version"),
    "unknown field": (lambda v: v.update(x=1), "x"),
    "generation gap": (
        lambda v: group(v)["siblings"][1].update(generation_index=2),
        "generation indexes",
    ),
    "too few siblings": (lambda v: group(v)["siblings"].pop(), "1 siblings"),
    "too many siblings": (lambda v: group(v).update(expected_generations=1), "2 siblings"),
    "attempt gap": (
        lambda v: group(v)["siblings"][0]["attempts"].pop(0),
        "attempt indexes",
    ),
    "receipt of another run": (
        lambda v: sealed(v)["receipt"].update(rollout_id="p8_g0", capture_key="p8_g0-a1"),
        "'p8_g0-a1' is kept for run 'p7_g0-a1'",
    ),
    "receipt key": (lambda v: sealed(v)["receipt"].update(capture_key="p7_g0"), "capture key"),
    "completion of another run": (
        lambda v: sealed(v)["completion_receipt"].update(attempt_index=0),
        "is kept for run",
    ),
    "staging key missing": (lambda v: sealed(v).update(staging_keys=[]), "staging_keys"),
    "staging key added": (lambda v: sealed(v)["staging_keys"].append("k"), "staging_keys"),
    "group twice": (lambda v: v["groups"].append(group(v)), "group ids must be unique"),
    "finalizing": (lambda v: group(v).update(status="finalizing"), "cannot be restored"),
    "unknown outcome": (
        lambda v: group(v).update(status="finalization_unknown"),
        "cannot be restored",
    ),
    "other status": (lambda v: group(v).update(status="other"), "status"),
    "no generations": (
        lambda v: group(v).update(expected_generations=0, siblings=[]),
        "expected_generations",
    ),
    "shortfall key": (lambda v: v.update(batch_shortfall={"01": 1}), "canonical decimal"),
    "shortfall negative": (lambda v: v.update(batch_shortfall={"1": -1}), "batch_shortfall"),
}


@pytest.mark.parametrize("name", LEDGER_BREAKS)
def test_a_broken_ledger_is_refused(name: str, examples: dict[str, Record]) -> None:
    change, message = LEDGER_BREAKS[name]
    value = to_value(examples["snapfmt.recovery-ledger"])
    from_value(RecoveryLedger, value)
    change(value)
    with pytest.raises(ValidationError, match=message):
        from_value(RecoveryLedger, value)


@pytest.mark.parametrize(
    "status",
    [
        "generating",
        "ready_to_finalize",
        "finalized",
        "claimed_for_training",
        "applied_uncheckpointed",
    ],
)
def test_safe_statuses_are_taken(status: str, examples: dict[str, Record]) -> None:
    value = to_value(examples["snapfmt.recovery-ledger"])
    group(value)["status"] = status
    assert from_value(RecoveryLedger, value).groups[0].status == status


def test_shortfall_keys_are_integers_again(examples: dict[str, Record]) -> None:
    value = to_value(examples["snapfmt.recovery-ledger"])
    assert value["batch_shortfall"] == {"12": 3}
    assert from_value(RecoveryLedger, value).batch_shortfall == {12: 3}


def test_a_ledger_knows_its_runs_and_rows(examples: dict[str, Record]) -> None:
    ledger = examples["snapfmt.recovery-ledger"]
    assert isinstance(ledger, RecoveryLedger)
    assert [key for key, _ in ledger.groups[0].runs()] == ["p7_g0", "p7_g0-a1"]
    assert ledger.staging_keys() == {"p7_g0-a1/c1"}


def first(value: dict[str, Any]) -> dict[str, Any]:
    return value["groups"][0]  # type: ignore[no-any-return]


def redigest(value: dict[str, Any]) -> object:
    """Make the digest right again, so that only the rule under test is broken."""
    groups = [from_value(ReplayGroup, item) for item in value["groups"]]
    value["manifest_digest"] = replay_digest(groups)
    return value


REPLAY_BREAKS: dict[str, tuple[Change, str]] = {
    "digest": (lambda v: v.update(manifest_digest="0" * 64), "manifest_digest"),
    "storage": (lambda v: v.update(storage="other"), "storage"),
    "fewer lengths": (lambda v: first(v)["meta"]["sequence_lengths"].pop(), "1 sequence_len"),
    "fewer tags": (lambda v: first(v)["meta"]["tags"].pop(), "1 tags"),
    "no rows": (lambda v: first(v)["meta"].update(sample_ids=[]), "at least one row"),
    "row twice": (
        lambda v: (first(v)["meta"].update(sample_ids=["a", "a"]), redigest(v)),
        "sample ids must be unique",
    ),
    "group twice": (
        lambda v: (v["groups"].append(first(v)), redigest(v)),
        "group ids must be unique",
    ),
    "other partition": (
        lambda v: (first(v)["meta"].update(partition_id="p"), redigest(v)),
        "partition 'p'",
    ),
}


@pytest.mark.parametrize("name", REPLAY_BREAKS)
def test_a_broken_replay_index_is_refused(name: str, examples: dict[str, Record]) -> None:
    change, message = REPLAY_BREAKS[name]
    value = to_value(examples["snapfmt.replay-index"])
    from_value(ReplayIndex, value)
    change(value)
    with pytest.raises(ValidationError, match=message):
        from_value(ReplayIndex, value)


@pytest.mark.parametrize(
    "change",
    [
        lambda g: g.update(group_id="p9"),
        lambda g: g.update(start_weight=2),
        lambda g: g.update(end_weight=9),
        lambda g: g.update(target_step=1),
        lambda g: g["meta"].update(task_name="other"),
        lambda g: g["meta"].update(sample_ids=["p6_g1", "p6_g0"]),
        lambda g: g["meta"].update(fields=None),
        lambda g: g["meta"].update(sequence_lengths=[5, 8]),
        lambda g: g["meta"].update(extra_info={"a": 1}),
        lambda g: g["meta"].update(tags=None),
    ],
)
def test_every_member_is_in_the_replay_digest(change: Change, examples: dict[str, Record]) -> None:
    value = to_value(examples["snapfmt.replay-index"])
    change(first(value))
    with pytest.raises(ValidationError, match="manifest_digest"):
        from_value(ReplayIndex, value)


def test_the_replay_digest_is_fixed(examples: dict[str, Record]) -> None:
    index = examples["snapfmt.replay-index"]
    assert isinstance(index, ReplayIndex)
    assert index.manifest_digest == REPLAY_DIGEST


REPLAY_DIGEST = "91ed719c0a96a5b7d3f3203d7df5abdb8878053e84ad57d2391d321905f537dd"


def test_wrong_group_sizes_are_named(examples: dict[str, Record]) -> None:
    index = examples["snapfmt.replay-index"]
    assert isinstance(index, ReplayIndex)
    assert index.wrong_sizes(2) == ()
    assert index.wrong_sizes(3) == ("p6",)


def test_a_loader_place_keeps_any_json() -> None:
    assert LoaderPlace(epoch=0, batches=0, state=[2**90, None]).state == [2**90, None]
    with pytest.raises(ValidationError):
        LoaderPlace(epoch=-1, batches=0)
    with pytest.raises(ValidationError, match="not JSON"):
        LoaderPlace(epoch=0, batches=0, state={"a": {1}})


def test_a_reserved_prompt_says_which() -> None:
    assert ReservedPrompt(datum={"a": 1}).prompt_ref is None
    with pytest.raises(ValidationError, match="prompt_ref or a datum"):
        ReservedPrompt()
