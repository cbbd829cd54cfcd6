"""One restore over small ports and real snapshots: the choice, the steps, and taking them back."""

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from snapfmt import Repository, Snapshot
from snapfmt.errors import (
    CorruptObject,
    DeadlineExceeded,
    FingerprintMismatch,
    NoMatch,
    ParticipantFailed,
    RestoreRefused,
    SnapfmtError,
    StorageDenied,
    StorageError,
)
from snapfmt.reading.snapshot import Part
from snapfmt.reading.source import Source
from snapfmt_coordinator.gym.parts import GymParts
from snapfmt_coordinator.gym.upkeep import NO_AGENT
from snapfmt_coordinator.loop.saving import SteppedLoader
from snapfmt_coordinator.loop.trip import Trip
from snapfmt_coordinator.participant import agent_part, sessions_part
from snapfmt_coordinator.protocol.v1 import Capabilities, Execution, ReferenceIndex
from snapfmt_coordinator.sequence import records, waiting
from snapfmt_coordinator.sequence.restore import RestoreResult, restore
from snapfmt_schemas.agent import AgentBoundaryRecord
from snapfmt_schemas.attempt import Receipt
from snapfmt_schemas.fingerprint import Fingerprint
from snapfmt_schemas.identity import capture_key
from snapfmt_schemas.lineage import ExternalStorageReference
from snapfmt_schemas.manifest import TrainerAnchor
from snapfmt_schemas.topology import ParticipantName, Topology

AGENT, MODEL, TOOLS = "gym/agent/simple", "gym/model/policy", "gym/resources/tools"
RECIPE = Fingerprint.of("recipe", {"lr": 1})
Revisions = Mapping[str, int] | None
RUNS: Mapping[tuple[str, int], Revisions] = {
    ("p1_g0", 0): {},
    ("p1_g1", 2): {"tools": 3},
    ("p2_g0", 0): {"sandbox": 1, "tools": 1},
    ("p2_g1", 1): None,
}
"""Continuations of a snapshot: run -> revisions of the resource servers that it used."""


class Maker:
    """Publishes small snapshots, whole or with a flaw."""

    def __init__(self, path: Path) -> None:
        self.repository = Repository.create(path)
        self.uncalled: set[tuple[str, int]] = set()
        """Runs whose boundary has no committed model call."""
        self.states: dict[tuple[str, int], dict[str, Any]] = {}
        self.sessions: list[sessions_part.Session] | None = None
        """Those of server `tools`; None: it has no part."""

    def publish(
        self,
        runs: Mapping[tuple[str, int], Revisions] = RUNS,
        *,
        gym: bool = True,
        topology: bool | None = None,
        recipe: Fingerprint = RECIPE,
        flaw: str = "",
        step: int = 5,
    ) -> int:
        """One snapshot; returns its number."""
        repository = self.repository
        checkpoint_id = f"checkpoint-{len(repository.numbers()) + 1}"
        with repository.begin() as attempt:
            parts = None
            receipts: list[Receipt] = []
            keys = [f"{capture_key(*run)}/call-1" for run in runs if run not in self.uncalled]
            if gym:
                parts = self._gym(attempt, runs, keys, checkpoint_id, flaw)
                receipts += parts.receipts
            with attempt.part("rl/controller") as part:
                dispatched = sorted(capture_key(*run) for run in runs)
                part.json("runs.json", dispatched[1:] if flaw == "ledger" else dispatched)
                receipts.append(part.seal())
            with attempt.part("rl/tq/unit-0000") as part:
                rows = keys[1:] if flaw == "rows" else keys
                if rows:
                    with part.table("rows/rollout_staging") as table:
                        table.append(rows, {"x": list(range(len(rows)))})
                receipts.append(part.seal())
            record = records.SaveRecord(
                checkpoint_id=checkpoint_id,
                gym=gym,
                mutation_version=1,
                capture_partition="rollout_staging",
            )
            metadata = {} if flaw == "record" else records.to_metadata(record, parts, {"a": 1})
            attempt.publish(
                receipts,
                fingerprints=[recipe, Topology().to_fingerprint()]
                if (gym if topology is None else topology)
                else [recipe],
                anchor=TrainerAnchor(train_step=step, trainer_version=step, epoch=0),
                user_metadata=metadata,
            )
            return attempt.number

    def _gym(
        self,
        attempt: Any,
        runs: Mapping[tuple[str, int], Revisions],
        keys: Sequence[str],
        checkpoint_id: str,
        flaw: str,
    ) -> GymParts:
        written = agent_part.write(
            agent_part.AgentCut(
                [
                    AgentBoundaryRecord(
                        rollout_id=rollout,
                        attempt_index=number,
                        boundary_index=1,
                        turn_index=1,
                        boundary_kind="turn_complete",
                        last_committed_model_call_id=(
                            None if (rollout, number) in self.uncalled else "call-1"
                        ),
                        resource_state_revisions=None if used is None else dict(used),
                        agent_state=self.states.get((rollout, number), {}),
                        created_at=1.0,
                    )
                    for (rollout, number), used in runs.items()
                ]
            ),
            attempt.ticket(AGENT),
        )
        agent, continuations = written.receipt, written.continuation_index
        assert agent is not None
        assert continuations is not None
        with attempt.part(MODEL) as part:
            references = [
                ExternalStorageReference(
                    capture_key=capture_key(*run),
                    boundary_model_call_id="call-1",
                    kind="token_capture_staging",
                    key=key,
                )
                for run, key in zip(
                    [run for run in runs if run not in self.uncalled], keys, strict=True
                )
            ]
            part.records("storage-references.jsonl", references, key="key")
            model = part.seal()
        receipts = [agent, model]
        if self.sessions is not None:
            cut = sessions_part.SessionCut(self.sessions, 1.0)
            reply = sessions_part.write(cut, "tools", "export_restore", attempt.ticket(TOOLS))
            assert reply.receipt is not None
            receipts.append(reply.receipt)
        if flaw == "index":
            continuations = continuations.model_copy(update={"digest": "sha256:" + "0" * 64})
        return GymParts(
            checkpoint_id="another" if flaw == "checkpoint" else checkpoint_id,
            receipts=tuple(receipts),
            participants={
                part: ParticipantName(
                    server_name=server, component=component, participant_name=component
                )
                for part, server, component in (
                    (AGENT, "simple", "agent"),
                    (MODEL, "policy", "model"),
                    (TOOLS, "tools", "resources"),
                )
                if part in {receipt.part for receipt in receipts}
            },
            continuation_indexes={AGENT: continuations},
            storage_reference_indexes={MODEL: self._index(model, "storage-references.jsonl")},
        )

    def _index(self, receipt: Receipt, path: str) -> ReferenceIndex:
        source = Source(self.repository.store, self.repository.limits)
        entry = Part(source, receipt, snapshot="attempt").entry(path)
        return ReferenceIndex(
            part=receipt.part, path=path, digest=entry.digest, records=entry.records or 0
        )


class Live:
    """Everything that a restore touches; `state` says what is restored in each place."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.state: dict[str, Any] = {}
        self.faults: dict[str, Callable[[], None]] = {}
        self.restart_only: tuple[str, ...] = ("sandbox",)

    async def step(self, name: str) -> None:
        """A step of some port; it may be planned to fail or to cancel."""
        self.steps.append(name)
        if (fault := self.faults.pop(name, None)) is not None:
            fault()
        await asyncio.sleep(0)

    async def call(self, name: str, changes: Mapping[str, Any]) -> None:
        """A step whose effect goes on when its caller is cancelled, like any call that is out."""
        self.steps.append(name)
        if (fault := self.faults.pop(name, None)) is not None:
            fault()

        def change() -> None:
            time.sleep(0.005)
            self.state.update(changes)

        await asyncio.to_thread(change)

    def fail(self, name: str, error: BaseException) -> None:
        """Plans an error."""

        def fault() -> None:
            raise error

        self.faults[name] = fault


class FakeGym:
    """Installs with restore; what is retired is gone."""

    def __init__(self, live: Live) -> None:
        self.live = live
        self.discarded: dict[str, list[Execution]] = {}
        self.retired: list[Execution] = []

    async def discover(self) -> tuple[Capabilities, ...]:
        await self.live.step("gym.discover")
        return tuple(
            Capabilities(
                component="resources",
                name="resources",
                server_name=name,
                checkpoint_mode="restart_only" if name in self.live.restart_only else "stateless",
                concurrency_contract="stateless",
            )
            for name in ("tools", "sandbox")
        )

    def topology(self) -> Topology:
        return Topology()

    async def restore(
        self,
        restore_id: str,
        *,
        deadline_ts: float,
        snapshot: Snapshot,
        source_checkpoint_id: str,
        observe: Any = None,
    ) -> int:
        assert source_checkpoint_id.startswith("checkpoint-")
        self.live.state["gym"] = "closed"
        try:
            await self.live.step("gym.restore")
        except BaseException:
            # As the port says: on an error it has let go of everything.
            self.live.state["gym"] = "closed, empty"
            raise
        now = time.time_ns()
        observe("load", AGENT, now, now, {"restored": 4})
        return 4

    async def discard(
        self,
        restore_id: str,
        executions: Mapping[str, Sequence[Execution]],
        *,
        deadline_ts: float,
        observe: Any = None,
    ) -> int:
        await self.live.step("gym.discard")
        self.discarded = {name: list(items) for name, items in executions.items()}
        return 0

    async def resume(self, restore_id: str, *, deadline_ts: float, observe: Any = None) -> None:
        await self.live.step("gym.resume")
        if self.live.state.get("gym") == "closed":
            self.live.state["gym"] = "open"

    async def retire(self, executions: Sequence[Execution]) -> None:
        await self.live.step("gym.retire")
        self.retired = list(executions)
        self.live.state["gym"] = "closed, empty"

    async def acknowledge(self, *_: Any, **__: Any) -> None:
        raise AssertionError

    prepare = commit = collect = acknowledge


class FakeRows:
    """An empty queue."""

    def __init__(self, live: Live) -> None:
        self.live = live

    async def load(self, snapshot: Snapshot) -> None:
        await self.live.call("rows.load", {"rows": snapshot.number})

    async def unload(self) -> None:
        await self.live.step("rows.unload")
        del self.live.state["rows"]


class FakeLoader:
    """The controller: what a snapshot says of its runs."""

    def __init__(self, live: Live) -> None:
        self.live = live
        self.owed = 0
        self.error: SnapfmtError | None = None
        self.broken: dict[int, SnapfmtError] = {}

    def read(self, snapshot: Snapshot) -> "FakeSaved":
        assert threading.current_thread() is not threading.main_thread()
        if (error := self.broken.get(snapshot.number, self.error)) is not None:
            raise error
        text = snapshot.part("rl/controller").read("runs.json").decode()
        return FakeSaved(self, frozenset(text.strip('[]"').replace('"', "").split(",")) - {""})


class FakeSaved:
    """The controller's state in a snapshot."""

    def __init__(self, loader: FakeLoader, runs: frozenset[str]) -> None:
        self.loader = loader
        self.runs = runs

    def required_rows(self) -> frozenset[str]:
        return frozenset()

    def dispatched_runs(self) -> frozenset[str]:
        return self.runs

    def given_up_runs(self) -> frozenset[str]:
        return frozenset()

    def pending_acknowledgements(self) -> int:
        return self.loader.owed

    async def install(self, continued: frozenset[str]) -> None:
        await self.loader.live.call("controller.install", {"controller": continued})

    async def uninstall(self) -> None:
        await self.loader.live.step("controller.uninstall")
        del self.loader.live.state["controller"]


class Stage:
    """A repository and everything live."""

    def __init__(self, path: Path) -> None:
        self.maker = Maker(path)
        self.live = Live()
        self.gym: Any = FakeGym(self.live)
        self.rows = FakeRows(self.live)
        self.loader = FakeLoader(self.live)

    async def restore(self, *, gym: bool = True, **options: Any) -> RestoreResult:
        """One restore of everything."""
        options = {"fingerprints": [RECIPE], **options}
        return await restore(
            self.maker.repository, self.gym if gym else None, self.loader, self.rows, **options
        )

    def run(self, **options: Any) -> RestoreResult:
        """The same, from outside of a loop."""
        return asyncio.run(self.restore(**options))

    def refused(self, error: type[BaseException], match: str, **options: Any) -> BaseException:
        """A restore that fails before anything live was touched."""
        with pytest.raises(error, match=match) as caught:
            self.run(**options)
        assert set(self.live.steps) <= {"gym.discover"}
        assert self.live.state == {}
        return caught.value


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path / "run")


STEPS = [
    "gym.discover",
    "rows.load",
    "gym.restore",
    "controller.install",
    "gym.discard",
    "gym.resume",
]


def test_a_restore_goes_through_these_steps(stage: Stage) -> None:
    number = stage.maker.publish()
    result = stage.run()
    assert stage.live.steps == STEPS
    assert stage.live.state == {
        "rows": number,
        "gym": "open",
        "controller": frozenset({"p1_g0", "p1_g1-a2"}),
    }
    # Run 1 had used the sandbox, and of run 2 it is not known: both start over.
    over = (
        Execution(rollout_id="p2_g0", attempt_index=1),
        Execution(rollout_id="p2_g1", attempt_index=2),
    )
    assert stage.gym.discarded == {"simple": list(over)}
    assert result.started_over == over
    assert result.reasons == ("restart_only_resource",) * 2
    assert result.continued == (
        Execution(rollout_id="p1_g0", attempt_index=1),
        Execution(rollout_id="p1_g1", attempt_index=3),
    )
    assert (result.number, result.checkpoint_id) == (number, "checkpoint-1")
    assert result.manifest.user_metadata["a"] == 1
    names = [phase.name for phase in result.timeline.phases]
    wanted = ["discover", "select", "load", "assign", "discard", "resume"]
    assert [name for name in dict.fromkeys(names) if name in wanted] == wanted
    assert result.timeline.operation == "restore"


def test_a_snapshot_whose_trainer_checkpoint_is_gone_is_passed_over(stage: Stage) -> None:
    older, newer = stage.maker.publish(step=3), stage.maker.publish(step=4)
    trip = Trip(lambda _: None)
    stage.loader = SteppedLoader(stage.loader, trip, [3, 5])  # type: ignore[assignment]
    result = stage.run()
    assert result.number == older
    ((number, why),) = result.passed_over
    assert number == newer
    assert "step 4, whose trainer checkpoint is gone" in why


def test_without_any_trainer_checkpoint_nothing_is_touched(stage: Stage) -> None:
    stage.maker.publish(step=3)
    trip = Trip(lambda _: None)
    stage.loader = SteppedLoader(stage.loader, trip, ())  # type: ignore[assignment]
    stage.refused(NoMatch, "step 3, whose trainer checkpoint is gone")
    # Step 0 needs none.
    number = stage.maker.publish(step=0)
    assert stage.run().number == number


def test_a_run_before_its_first_model_call_is_split_like_the_others(stage: Stage) -> None:
    runs: dict[tuple[str, int], Revisions] = {
        ("p1_g0", 0): {"tools": 0},
        ("p1_g1", 2): {"sandbox": 0},
        ("p1_g2", 0): None,
        ("p1_g3", 0): {"tools": 1},
    }
    stage.maker.uncalled = {("p1_g0", 0), ("p1_g1", 2), ("p1_g2", 0)}
    stage.maker.publish(runs)
    result = stage.run()
    over = [
        Execution(rollout_id="p1_g1", attempt_index=3),
        Execution(rollout_id="p1_g2", attempt_index=1),
    ]
    assert set(result.started_over) == set(over)
    assert set(stage.gym.discarded["simple"]) == set(over)
    assert {item.rollout_id for item in result.continued} == {"p1_g0", "p1_g3"}
    assert stage.live.state["controller"] == frozenset({"p1_g0", "p1_g3"})


def test_a_run_whose_state_is_not_whole_starts_over(stage: Stage) -> None:
    stage.live.restart_only = ("sandbox",)
    stage.maker.states = {("p1_g0", 0): {"secret_word": "hunter2"}}
    stage.maker.sessions = [
        ("p1_g1", 2, 3, {"token": "hunter2"}),
        ("p2_g0", 0, 1, {"fine": 1}),
    ]
    stage.maker.publish()
    result = stage.run()
    assert dict(zip(result.started_over, result.reasons, strict=True)) == {
        Execution(rollout_id="p1_g0", attempt_index=1): "redacted_state",
        Execution(rollout_id="p1_g1", attempt_index=3): "redacted_state",
        Execution(rollout_id="p2_g0", attempt_index=1): "restart_only_resource",
        Execution(rollout_id="p2_g1", attempt_index=2): "restart_only_resource",
    }
    assert stage.gym.discarded == {"simple": list(result.started_over)}
    assert (result.continued, stage.live.state["controller"]) == ((), frozenset())
    (phase,) = [item for item in result.timeline.phases if item.name == "discard"]
    assert phase.counts == {
        "started_over": 4,
        "loose_sessions": 0,
        "redacted_state": 2,
        "restart_only_resource": 2,
    }


def test_sessions_of_runs_that_nobody_continues_are_discarded(stage: Stage) -> None:
    # One parked before its first boundary, one ended and was never retired.
    stage.live.restart_only = ()
    stage.maker.sessions = [("p1_g0", 0, 1, {}), ("p8_g0", 0, 4, {}), ("p9_g0", 2, 4, {})]
    stage.maker.publish({("p1_g0", 0): None})
    result = stage.run()
    assert stage.gym.discarded == {
        NO_AGENT: [
            Execution(rollout_id="p8_g0", attempt_index=1),
            Execution(rollout_id="p9_g0", attempt_index=3),
        ]
    }
    (phase,) = [item for item in result.timeline.phases if item.name == "discard"]
    assert phase.counts == {"started_over": 0, "loose_sessions": 2}
    assert result.started_over == ()
    assert [item.rollout_id for item in result.continued] == ["p1_g0"]
    assert stage.live.state["controller"] == frozenset({"p1_g0"})


def test_sessions_of_runs_that_nobody_continues_are_retired_too(stage: Stage) -> None:
    stage.maker.sessions = [("p1_g0", 0, 1, {}), ("p8_g0", 0, 4, {})]
    stage.maker.publish({("p1_g0", 0): {"tools": 1}})
    stage.live.fail("controller.install", ParticipantFailed("planned"))
    with pytest.raises(ParticipantFailed):
        stage.run()
    retired = [(item.rollout_id, item.attempt_index) for item in stage.gym.retired]
    assert retired == [("p1_g0", 1), ("p8_g0", 1)]


def test_a_snapshot_without_a_session_that_a_run_needs_is_passed_over(stage: Stage) -> None:
    stage.maker.publish()
    stage.maker.sessions = [("p1_g1", 2, 3, {})]
    stage.maker.publish()
    result = stage.run()
    assert result.number == 1
    assert "'tools' has lost sessions of runs that used it" in dict(result.passed_over)[2]


def test_without_restart_only_resources_everything_continues(stage: Stage) -> None:
    stage.live.restart_only = ()
    stage.maker.publish()
    result = stage.run()
    assert len(result.continued) == 4
    assert "gym.discard" not in stage.live.steps


def test_a_snapshot_without_gym_is_restored_without_gym(stage: Stage) -> None:
    stage.maker.publish({}, gym=False)
    result = stage.run(gym=False)
    assert stage.live.steps == ["rows.load", "controller.install"]
    assert result.continued == ()


def test_the_newest_that_fits_is_chosen_and_the_others_are_explained(stage: Stage) -> None:
    stage.maker.publish()
    wanted = stage.maker.publish()
    stage.maker.publish(recipe=Fingerprint.of("recipe", {"lr": 2}))
    stage.maker.publish(flaw="rows")
    result = stage.run()
    assert result.number == wanted
    reasons = dict(result.passed_over)
    assert list(reasons) == [4, 3]
    assert "recipe.lr: 2 != 1" in reasons[3]
    assert "token-capture rows that the cut has not: p1_g0/call-1" in reasons[4]


def test_fingerprints_that_differ_refuse_field_by_field(stage: Stage) -> None:
    stage.maker.publish()
    other = Fingerprint.of("recipe", {"lr": 3, "seed": 1})
    error = stage.refused(FingerprintMismatch, "fits this run", fingerprints=[other])
    assert isinstance(error, FingerprintMismatch)
    assert error.differences == ("recipe.lr: 1 != 3", "recipe.seed: absent != 1")
    stage.maker.publish(recipe=other, flaw="rows")
    stage.refused(NoMatch, r"snapshot 2: .*rows.*; snapshot 1: .*recipe.lr", fingerprints=[other])


def test_an_empty_repository_says_so(stage: Stage) -> None:
    stage.refused(NoMatch, "none was published")


@pytest.mark.parametrize(
    ("flaw", "said"),
    [
        ("rows", "rows that the cut has not"),
        ("ledger", "not dispatched: p1_g0"),
        ("index", "not the one that its server announced"),
        ("record", "not saved by a coordinator"),
        ("checkpoint", "of another checkpoint"),
    ],
)
def test_parts_that_do_not_fit_together_are_not_restored(
    stage: Stage, flaw: str, said: str
) -> None:
    stage.maker.publish(flaw=flaw)
    stage.refused(NoMatch, said)
    good = stage.maker.publish()
    assert stage.run().number == good


def test_owed_acknowledgements_and_a_damaged_controller_are_not_restored(stage: Stage) -> None:
    stage.maker.publish()
    stage.loader.owed = 1
    stage.refused(NoMatch, "1 acknowledgements are owed")
    stage.loader.owed, stage.loader.error = 0, CorruptObject("planned", what="ledger.json")
    stage.refused(NoMatch, "CorruptObject: planned")


@pytest.mark.parametrize("deep", [False, True])
def test_damage_is_found_before_anything_is_touched(stage: Stage, deep: bool) -> None:
    stage.maker.publish()
    part = stage.maker.repository.snapshot().part("rl/tq/unit-0000")
    pack = part.index.tables[0].segments[0].data
    digest = pack.pack.removeprefix("sha256:")
    path = Path(stage.maker.repository.location) / "objects" / digest[:2] / digest
    data = bytearray(path.read_bytes())
    path.chmod(0o644)
    if deep:
        data[pack.offset + pack.size - 1] ^= 1
        path.write_bytes(data)
    else:
        path.write_bytes(data[:-1])
    stage.refused(NoMatch, "damaged", deep=deep)


def test_gym_takes_part_on_both_sides_or_on_none(stage: Stage) -> None:
    stage.maker.publish()
    stage.refused(RestoreRefused, "this run restores none", gym=False)
    # Not passed over, although an older one would do: half of the state would be lost unnoticed.
    stage.maker.publish({}, gym=False, topology=True)
    stage.refused(RestoreRefused, "saved without Gym")
    # Nor is it passed over for its missing topology while an older one has everything.
    stage.maker.publish()
    stage.maker.publish({}, gym=False)
    stage.refused(RestoreRefused, "saved without Gym")


def test_a_storage_that_fails_for_all_is_an_error_and_no_beginning_afresh(stage: Stage) -> None:
    stage.maker.publish()
    stage.maker.publish()
    stage.loader.error = StorageDenied("planned")
    stage.refused(StorageDenied, "snapshot 2: StorageDenied: planned; snapshot 1: .*planned")
    stage.refused(StorageDenied, "snapshot 1: StorageDenied: planned", number=1)


def test_a_snapshot_that_cannot_be_read_is_passed_over_and_explained(stage: Stage) -> None:
    stage.maker.publish()
    stage.maker.publish()
    stage.loader.broken = {2: StorageError("planned")}
    result = stage.run()
    assert (result.number, result.passed_over) == (1, ((2, "Storage: planned"),))


def test_what_cannot_be_read_may_have_fitted(stage: Stage) -> None:
    stage.maker.publish(recipe=Fingerprint.of("recipe", {"lr": 2}))
    stage.maker.publish()
    stage.loader.broken = {2: StorageError("planned")}
    stage.refused(StorageError, "snapshot 2: Storage: planned; snapshot 1: .*recipe.lr")


def test_one_number_can_be_asked_for(stage: Stage) -> None:
    stage.maker.publish()
    stage.maker.publish()
    assert stage.run(number=1).number == 1
    other = Stage.__new__(Stage)
    other.maker, other.live = stage.maker, Live()
    other.gym, other.rows = FakeGym(other.live), FakeRows(other.live)
    other.loader = FakeLoader(other.live)
    other.refused(NoMatch, "snapshot 7: NotPublished", number=7)


def test_the_trainers_place_is_compared_when_it_is_given(stage: Stage) -> None:
    stage.maker.publish(step=5)
    stage.maker.publish(step=6)
    place = TrainerAnchor(train_step=5, trainer_version=5, epoch=0)
    result = stage.run(anchor=place)
    assert result.number == 1
    assert "train_step=6" in dict(result.passed_over)[2]


@pytest.mark.parametrize(
    "make",
    [
        lambda: ParticipantFailed("planned"),
        lambda: DeadlineExceeded("planned"),
        lambda: ValueError("planned"),
        lambda: RestoreRefused("planned"),
    ],
    ids=["dead", "time", "bug", "refused"],
)
@pytest.mark.parametrize("step", STEPS[1:])
def test_a_step_that_fails_leaves_nothing_restored(
    stage: Stage, step: str, make: Callable[[], Exception]
) -> None:
    stage.maker.publish()
    error = make()
    stage.live.fail(step, error)
    with pytest.raises((ParticipantFailed, RestoreRefused), match="planned") as caught:
        stage.run()
    assert isinstance(caught.value, RestoreRefused) == isinstance(error, RestoreRefused)
    assert caught.value is error or caught.value.__cause__ is not None
    assert "controller" not in stage.live.state
    assert "rows" not in stage.live.state
    assert stage.live.state.get("gym") in (None, "closed, empty")
    asked = STEPS.index(step) >= STEPS.index("gym.restore")
    assert ("gym.resume" in stage.live.steps) == asked
    # A server that refused may run something live: only what was installed is retired.
    installed = STEPS.index(step) > STEPS.index("gym.restore")
    assert (stage.live.steps[-3:-1] == ["gym.retire", "gym.resume"]) == installed
    assert bool(stage.gym.retired) == installed
    if installed:
        expected = {(rollout, number + 1) for rollout, number in RUNS}
        assert {(item.rollout_id, item.attempt_index) for item in stage.gym.retired} == expected


@pytest.mark.parametrize("step", STEPS)
def test_a_restore_that_is_cancelled_leaves_nothing_restored(stage: Stage, step: str) -> None:
    stage.maker.publish()

    async def body() -> None:
        task = asyncio.create_task(stage.restore())
        stage.live.faults[step] = task.cancel  # type: ignore[assignment]
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(body())
    assert set(stage.live.state) <= {"gym"}
    assert stage.live.state.get("gym") in (None, "closed, empty")


def test_a_restore_of_gym_that_is_cut_off_is_retired(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.maker.publish()
    monkeypatch.setattr(waiting, "GRACE_S", 0.05)

    async def hang(*_: Any, **__: Any) -> None:
        stage.live.state["gym"] = "closed"
        await asyncio.sleep(60)

    stage.gym.restore = hang
    with pytest.raises(ParticipantFailed, match="not done before the deadline"):
        stage.run(prepare_timeout_s=2.0)
    assert stage.live.state == {"gym": "closed, empty"}
    assert stage.live.steps[-3:] == ["gym.retire", "gym.resume", "rows.unload"]
    expected = {(rollout, number + 1) for rollout, number in RUNS}
    assert {(item.rollout_id, item.attempt_index) for item in stage.gym.retired} == expected


def test_what_fails_while_it_is_taken_back_is_told(stage: Stage) -> None:
    stage.maker.publish()
    stage.live.fail("gym.discard", ParticipantFailed("first"))
    stage.live.fail("gym.retire", ParticipantFailed("second"))
    stage.live.fail("rows.unload", ValueError("third"))
    with pytest.raises(ParticipantFailed, match=r"first.*second.*third") as caught:
        stage.run()
    assert isinstance(caught.value.__cause__, BaseExceptionGroup)
    assert len(caught.value.__cause__.exceptions) == 3
    # The others are taken back all the same, and the servers are opened.
    assert stage.live.steps[-2:] == ["gym.resume", "rows.unload"]
    assert "controller" not in stage.live.state


def test_runs_without_a_continuation_are_retired_too(stage: Stage) -> None:
    stage.maker.publish({("p1_g0", 0): {}})
    real = FakeLoader.read

    def read(snapshot: Snapshot) -> FakeSaved:
        saved = real(stage.loader, snapshot)
        return FakeSaved(stage.loader, saved.runs | {"p9_g0-a3", "p9_g1"})

    stage.loader.read = read  # type: ignore[method-assign]
    stage.live.fail("controller.install", ParticipantFailed("planned"))
    with pytest.raises(ParticipantFailed):
        stage.run()
    assert [(item.rollout_id, item.attempt_index) for item in stage.gym.retired] == [
        ("p1_g0", 1),
        ("p9_g0", 4),
        ("p9_g1", 1),
    ]
