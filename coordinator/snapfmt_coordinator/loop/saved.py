"""The controller's part of a snapshot: the state at a cut, written and read back."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, Literal, TypeVar

from pydantic import Field

from snapfmt import PartWriter, Snapshot
from snapfmt.errors import FormatError
from snapfmt_coordinator.loop.state import StateCut
from snapfmt_schemas._base import Record
from snapfmt_schemas.identity import Count, capture_key
from snapfmt_schemas.ledger import LedgerGroup, RecoveryLedger, Sibling, logical_rollout_id
from snapfmt_schemas.lines import from_line, to_value
from snapfmt_schemas.loader import LoaderPlace
from snapfmt_schemas.opaque import Items
from snapfmt_schemas.replay import ReplayGroup, ReplayIndex
from snapfmt_schemas.reserve import ReplacementReserve

PART: Final = "rl/controller"
CANONICAL_PARTITION: Final = "rollout_buffer"
STAGING_PARTITION: Final = "rollout_staging"
LEDGER, REPLAY, LOADER = "ledger.json", "replay.json", "loader.json"
RESERVE, RUN = "reserve.json", "run.json"
_SHOWN: Final = 5
R = TypeVar("R", bound=Record)


class RunPlace(Record):
    """What the controller knows of the trainer, and what a cut gave back to the replay."""

    SCHEMA: ClassVar[str] = "snapfmt.loop-run"

    schema_version: Literal[1] = 1
    train_steps: Count
    trainer_version: Count
    generations: Annotated[int, Field(ge=1)]
    rolled_back: Annotated[
        Items[str], Field(description="Groups that were claimed when the cut was taken.")
    ] = ()


@dataclass(frozen=True, slots=True)
class CutState:
    """The controller's own state at a cut; implements `sequence.ports.ControllerState`."""

    state: StateCut
    run: RunPlace
    capacity: int

    def ledger(self) -> RecoveryLedger:
        """What is not finished; groups with canonical rows are in the replay alone."""
        return RecoveryLedger(
            groups=self.state.groups,
            pending_completed_execution_acknowledgements=self.state.acknowledgements,
        )

    def replay(self) -> ReplayIndex:
        """The groups that may be trained on."""
        return ReplayIndex.of(
            self.state.replay, partition_id=CANONICAL_PARTITION, saved_capacity=self.capacity
        )

    def write(self, part: PartWriter) -> None:
        """Stages the five documents; blocking."""
        documents: dict[str, Record] = {
            LEDGER: self.ledger(),
            REPLAY: self.replay(),
            LOADER: self.state.place,
            RESERVE: ReplacementReserve(),
            RUN: self.run,
        }
        for path, record in documents.items():
            part.json(path, to_value(record))

    def required_rows(self) -> frozenset[str]:
        """Token-capture rows of runs whose canonical rows do not exist yet."""
        return required_rows(self.state.groups)

    def canonical_rows(self) -> frozenset[str]:
        """Rows that the replay names; the data plane must have exactly these."""
        return canonical_rows(self.state.replay)

    def dispatched_runs(self) -> frozenset[str]:
        """Runs that Gym may go on with."""
        return dispatched_runs(self.state.groups)

    def given_up_runs(self) -> frozenset[str]:
        """Runs whose rollouts started over."""
        return given_up_runs(self.state.groups)

    def pending_acknowledgements(self) -> int:
        """Adopted results that Gym does not know of."""
        return len(self.state.acknowledgements)


@dataclass(frozen=True, slots=True)
class SavedState:
    """The same, as a snapshot has it."""

    ledger: RecoveryLedger
    replay: ReplayIndex
    place: LoaderPlace
    reserve: ReplacementReserve
    run: RunPlace

    @classmethod
    def read(cls, snapshot: Snapshot, *, generations: int, capacity: int) -> "SavedState":
        """Reads the part and checks that its documents agree; blocking.

        Raises:
            CorruptError: If they do not, or do not fit this run.
        """
        saved = cls(
            ledger=_document(snapshot, LEDGER, RecoveryLedger),
            replay=_document(snapshot, REPLAY, ReplayIndex),
            place=_document(snapshot, LOADER, LoaderPlace),
            reserve=_document(snapshot, RESERVE, ReplacementReserve),
            run=_document(snapshot, RUN, RunPlace),
        )
        if problems := saved.problems(snapshot, generations=generations, capacity=capacity):
            raise FormatError(f"{'; '.join(problems)}", what=f"{snapshot.name}/{PART}")
        return saved

    def problems(self, snapshot: Snapshot, *, generations: int, capacity: int) -> list[str]:
        """Where the documents contradict one another, the manifest, or this run."""
        found = [
            f"group {group_id} has not {generations} rows"
            for group_id in self.replay.wrong_sizes(generations)
        ]
        found += [
            f"group {group.group_id} expects {group.expected_generations} generations"
            for group in self.ledger.groups
            if group.expected_generations != generations
        ]
        unfinished = {group.group_id for group in self.ledger.groups}
        twice = unfinished & {group.group_id for group in self.replay.groups}
        found += [f"group {group_id} is in ledger and replay" for group_id in sorted(twice)]
        if self.ledger.pending_completed_execution_acknowledgements:
            found.append("acknowledgements are owed")
        if (total := len(unfinished) + len(self.replay.groups)) > capacity:
            found.append(f"{total} groups, the buffer holds {capacity}")
        if self.replay.partition_id != CANONICAL_PARTITION:
            found.append(f"the replay is of partition {self.replay.partition_id!r}")
        anchor = snapshot.manifest.anchor
        here = (self.run.train_steps, self.run.trainer_version)
        if anchor is None or (anchor.train_step, anchor.trainer_version) != here:
            found.append(f"the anchor is {anchor}, the controller was at {here}")
        rows = stored_rows(snapshot, CANONICAL_PARTITION)
        for what, keys in (
            ("the replay names rows that are not there", self.canonical_rows() - rows),
            ("rows that the replay does not name", rows - self.canonical_rows()),
        ):
            if keys:
                found.append(f"{what}: {', '.join(sorted(keys)[:_SHOWN])}")
        if self.run.generations != generations:
            found.append(f"saved with {self.run.generations} generations per prompt")
        return found

    def required_rows(self) -> frozenset[str]:
        """Token-capture rows that the ledger names."""
        return required_rows(self.ledger.groups)

    def canonical_rows(self) -> frozenset[str]:
        """Rows that the replay names."""
        return canonical_rows(self.replay.groups)

    def dispatched_runs(self) -> frozenset[str]:
        """Runs that Gym might go on with."""
        return dispatched_runs(self.ledger.groups)

    def given_up_runs(self) -> frozenset[str]:
        """Runs whose rollouts started over."""
        return given_up_runs(self.ledger.groups)

    def pending_acknowledgements(self) -> int:
        """None in a readable one."""
        return len(self.ledger.pending_completed_execution_acknowledgements)


def stored_rows(snapshot: Snapshot, partition: str) -> frozenset[str]:
    """Keys of the rows that a snapshot has of a partition of the data plane."""
    name = f"rows/{partition}"
    if name not in snapshot.table_names():
        return frozenset()
    return frozenset(snapshot.table(name).keys())


def required_rows(groups: Sequence[LedgerGroup]) -> frozenset[str]:
    """Token-capture rows that sealed runs name."""
    return frozenset(key for group in groups for _, run in group.runs() for key in run.staging_keys)


def canonical_rows(groups: Sequence[ReplayGroup]) -> frozenset[str]:
    """Keys of the groups' rows."""
    return frozenset(key for group in groups for key in group.meta.sample_ids)


def dispatched_runs(groups: Sequence[LedgerGroup]) -> frozenset[str]:
    """Capture keys of runs that Gym may go on with.

    Those that were sent and have no adopted result, and those that a restore has set up in Gym
    and that were not sent yet: they come after a run that the restore gave up.
    """
    return frozenset(
        key for group in groups for sibling in group.siblings for key in _open_run(group, sibling)
    )


def given_up_runs(groups: Sequence[LedgerGroup]) -> frozenset[str]:
    """Capture keys of runs that failed or were abandoned."""
    return frozenset(
        key
        for group in groups
        for key, run in group.runs()
        if run.status in ("failed", "abandoned")
    )


def _open_run(group: LedgerGroup, sibling: Sibling) -> Iterator[str]:
    *earlier, newest = sibling.attempts
    set_up = newest.status == "reserved" and earlier and earlier[-1].status == "abandoned"
    if newest.status == "dispatched" or set_up:
        rollout_id = logical_rollout_id(group.group_id, sibling.generation_index)
        yield capture_key(rollout_id, newest.attempt_index)


def _document(snapshot: Snapshot, path: str, model: type[R]) -> R:
    try:
        return from_line(model, snapshot.part(PART).read(path))
    except ValueError as error:
        raise FormatError(f"not a {model.__name__}: {error}", what=f"{PART}/{path}") from error
