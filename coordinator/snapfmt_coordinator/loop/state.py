"""Which prompt, rollout and run is where; pure, and made of records that are never changed.

A group goes through `generating`, `ready_to_finalize`, the replay buffer, a training claim, and
is gone once it was trained. Every step replaces records and changes none, so that a cut is a
copy of references.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from snapfmt.errors import CutInconsistent, InvalidRecord, ParticipantFailed
from snapfmt_coordinator.loop.prompts import Prompt, PromptLoader
from snapfmt_schemas.completion import CompletionReceipt
from snapfmt_schemas.identity import capture_key
from snapfmt_schemas.ledger import (
    AttemptStatus,
    LedgerGroup,
    PendingAcknowledgement,
    PromptRef,
    RolloutAttempt,
    RolloutReceipt,
    Sibling,
    logical_rollout_id,
)
from snapfmt_schemas.loader import LoaderPlace
from snapfmt_schemas.replay import ReplayGroup

UNFINISHED: frozenset[AttemptStatus] = frozenset({"reserved", "dispatched"})


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one rollout."""

    group_id: str
    prompt_index: int
    generation_index: int
    attempt_index: int
    held: bool = False
    """Whether a restore has set it up in its agent server."""

    @property
    def rollout_id(self) -> str:
        """The rollout, the same for all its runs."""
        return logical_rollout_id(self.group_id, self.generation_index)

    @property
    def key(self) -> str:
        """Gym's key of this run."""
        return capture_key(self.rollout_id, self.attempt_index)


@dataclass(frozen=True, slots=True)
class Finished:
    """What a run came back with."""

    receipt: RolloutReceipt
    completion: CompletionReceipt
    reward: float
    agent_name: str


@dataclass(frozen=True, slots=True)
class StateCut:
    """References to everything that is saved of the state."""

    groups: tuple[LedgerGroup, ...]
    replay: tuple[ReplayGroup, ...]
    rolled_back: tuple[str, ...]
    """Groups that were claimed for training; in the saved replay they are free again."""
    acknowledgements: tuple[PendingAcknowledgement, ...]
    place: LoaderPlace


class RlState:
    """The bookkeeping of one training run."""

    def __init__(
        self, *, seed: int, prompts: int, generations: int, capacity: int, max_attempts: int = 8
    ) -> None:
        self.generations = generations
        self.capacity = capacity
        self.prompts = prompts
        self._max_attempts = max_attempts
        self._loader = PromptLoader(seed, prompts)
        self._groups: dict[str, LedgerGroup] = {}
        self._finalizing: set[str] = set()
        self._replay: dict[str, ReplayGroup] = {}
        self._claimed: dict[str, ReplayGroup] = {}
        self._owed: dict[str, PendingAcknowledgement] = {}

    # --- prompts and runs

    def room(self) -> int:
        """Groups that may still be admitted now."""
        buffered = len(self._groups) + len(self._replay) + len(self._claimed)
        return max(0, min(self.capacity - buffered, self._loader.left))

    def reserve(self, weight_version: int) -> tuple[Run, ...]:
        """Draws the next prompt and reserves run 0 of all its generations; empty at the end."""
        prompt = self._loader.draw() if self.room() else None
        if prompt is None:
            return ()
        group = _new_group(prompt, self.generations, weight_version)
        self._groups[group.group_id] = group
        return tuple(_run(group, sibling) for sibling in group.siblings)

    def reserved(self) -> tuple[Run, ...]:
        """Runs that were not sent yet, in order."""
        return tuple(self._runs("reserved"))

    def dispatch(self, run: Run) -> None:
        """The run is about to be sent."""
        self._newest(run, "reserved")
        self._change(run, RolloutAttempt(attempt_index=run.attempt_index, status="dispatched"))

    def adopt(self, run: Run, finished: Finished) -> bool:
        """Seals a run with its result; False when that run does not count any more.

        Raises:
            InvalidRecord: If the result is another run's.
        """
        group = self._groups.get(run.group_id)
        if group is None or _newest(group, run).attempt_index != run.attempt_index:
            return False
        if _newest(group, run).status != "dispatched":
            return False
        for named in (finished.receipt, finished.completion):
            if capture_key(named.rollout_id, named.attempt_index) != run.key:
                raise InvalidRecord(
                    f"the result is that of run {named.rollout_id!r}, {named.attempt_index}",
                    what=run.key,
                )
        self._change(
            run,
            RolloutAttempt(
                attempt_index=run.attempt_index,
                status="sealed",
                receipt=finished.receipt,
                completion_receipt=finished.completion,
                reward=finished.reward,
                staging_keys=tuple(call.staging_key for call in finished.receipt.manifest),
            ),
        )
        self._owed[run.key] = PendingAcknowledgement(
            receipt=finished.completion, agent_name=finished.agent_name
        )
        if all(sibling.attempts[-1].status == "sealed" for sibling in self._of(run).siblings):
            self._update(self._of(run), status="ready_to_finalize")
        return True

    def fail(self, run: Run) -> Run:
        """The run ended without a result; its rollout gets its next run.

        Raises:
            ParticipantFailed: If the rollout has had too many.
        """
        self._newest(run, "dispatched")
        if run.attempt_index + 1 >= self._max_attempts:
            raise ParticipantFailed(f"{self._max_attempts} runs of a rollout failed", what=run.key)
        return self._again(run, "failed")

    # --- finished groups

    def ready(self) -> tuple[LedgerGroup, ...]:
        """Groups whose rows can be put together, except those where that is under way."""
        return tuple(
            group
            for group in self._groups.values()
            if group.status == "ready_to_finalize" and group.group_id not in self._finalizing
        )

    def begin_finalize(self, group_id: str) -> None:
        """Somebody puts the group's rows together; under one mutation with `finalized`."""
        self._finalizing.add(group_id)

    def abort_finalize(self, group_id: str) -> None:
        """It did not work; the group is ready again."""
        self._finalizing.discard(group_id)

    def finalized(self, done: ReplayGroup) -> None:
        """The group's canonical rows are in the data plane."""
        self._finalizing.discard(done.group_id)
        del self._groups[done.group_id]
        self._replay[done.group_id] = done

    def claimable(self, count: int) -> bool:
        """Whether `claim` would give something."""
        last = not (self._groups or self._loader.left)
        return len(self._replay) >= count or (last and bool(self._replay))

    def claim(self, count: int) -> tuple[ReplayGroup, ...]:
        """The oldest groups for one training step; empty while there are too few.

        The last step takes what is left.
        """
        if not self.claimable(count):
            return ()
        wanted = min(count, len(self._replay))
        chosen = tuple(self._replay[group_id] for group_id in [*self._replay][:wanted])
        for group in chosen:
            self._claimed[group.group_id] = self._replay.pop(group.group_id)
        return chosen

    def trained(self, group_ids: Iterable[str]) -> None:
        """Claimed groups are in the trainer's weights."""
        for group_id in group_ids:
            del self._claimed[group_id]

    def idle(self) -> bool:
        """Whether nothing is left to do."""
        return not (self._groups or self._replay or self._claimed or self._loader.left)

    # --- acknowledgements

    def owed(self) -> tuple[PendingAcknowledgement, ...]:
        """Adopted results that Gym does not know of yet."""
        return tuple(self._owed.values())

    def acknowledged(self, done: Iterable[PendingAcknowledgement]) -> None:
        """Gym knows of these."""
        for item in done:
            key = capture_key(item.receipt.rollout_id, item.receipt.attempt_index)
            if self._owed.get(key) == item:
                del self._owed[key]

    # --- save and restore

    def cut(self) -> StateCut:
        """The state by reference.

        Raises:
            CutInconsistent: If rows of a group are being put together just now.
        """
        if self._finalizing:
            raise CutInconsistent(
                "rows of a group are being written", what=", ".join(sorted(self._finalizing))
            )
        return StateCut(
            groups=tuple(self._groups.values()),
            # Claimed ones first: they were the oldest.
            replay=(*self._claimed.values(), *self._replay.values()),
            rolled_back=tuple(self._claimed),
            acknowledgements=self.owed(),
            place=self._loader.place(),
        )

    def install(
        self, groups: Sequence[LedgerGroup], replay: Sequence[ReplayGroup], place: LoaderPlace
    ) -> tuple[Run, ...]:
        """Takes a saved state over; returns the new runs of all unfinished rollouts.

        Raises:
            InvalidRecord: If the loader's place is none of this data set.
        """
        self._loader.go_to(place)
        self._groups = {group.group_id: group for group in groups}
        self._replay = {group.group_id: group for group in replay}
        return tuple(
            self._again(run, "abandoned")
            for status in ("reserved", "dispatched")
            for run in self._runs(status)
        )

    def _again(self, run: Run, status: AttemptStatus) -> Run:
        group = self._of(run)
        sibling = group.siblings[run.generation_index]
        ended = sibling.attempts[-1].model_copy(update={"status": status})
        fresh = RolloutAttempt(attempt_index=run.attempt_index + 1, status="reserved")
        self._set(
            run,
            Sibling(
                generation_index=run.generation_index,
                attempts=(*sibling.attempts[:-1], ended, fresh),
            ),
        )
        return Run(run.group_id, run.prompt_index, run.generation_index, fresh.attempt_index)

    def _runs(self, status: str) -> list[Run]:
        return [
            _run(group, sibling)
            for group in self._groups.values()
            for sibling in group.siblings
            if sibling.attempts[-1].status == status
        ]

    def _of(self, run: Run) -> LedgerGroup:
        return self._groups[run.group_id]

    def _newest(self, run: Run, status: AttemptStatus) -> None:
        newest = _newest(self._of(run), run)
        if (newest.attempt_index, newest.status) != (run.attempt_index, status):
            raise InvalidRecord(
                f"newest is run {newest.attempt_index}, {newest.status}; expected {status}",
                what=run.key,
            )

    def _change(self, run: Run, attempt: RolloutAttempt) -> None:
        sibling = self._of(run).siblings[run.generation_index]
        self._set(run, sibling.model_copy(update={"attempts": (*sibling.attempts[:-1], attempt)}))

    def _set(self, run: Run, sibling: Sibling) -> None:
        group = self._of(run)
        siblings = list(group.siblings)
        siblings[run.generation_index] = sibling
        admitted = any(item.attempts[-1].status != "reserved" for item in siblings)
        phase = "admitted" if admitted or group.phase == "admitted" else "reserved"
        self._update(group, siblings=tuple(siblings), phase=phase)

    def _update(self, group: LedgerGroup, **changes: Any) -> None:
        self._groups[group.group_id] = group.model_copy(update=changes)


def _new_group(prompt: Prompt, generations: int, weight_version: int) -> LedgerGroup:
    first = RolloutAttempt(attempt_index=0, status="reserved")
    return LedgerGroup(
        group_id=prompt.group_id,
        admission_id=prompt.index,
        prompt_id=prompt.index,
        prompt_ref=PromptRef(sample_id=prompt.index),
        expected_generations=generations,
        start_weight_version=weight_version,
        status="generating",
        phase="reserved",
        siblings=tuple(
            Sibling(generation_index=index, attempts=(first,)) for index in range(generations)
        ),
    )


def _run(group: LedgerGroup, sibling: Sibling) -> Run:
    index = group.prompt_ref.sample_id
    if not isinstance(index, int):
        raise InvalidRecord("the prompt is named by no place in the data set", what=group.group_id)
    return Run(group.group_id, index, sibling.generation_index, sibling.attempts[-1].attempt_index)


def _newest(group: LedgerGroup, run: Run) -> RolloutAttempt:
    return group.siblings[run.generation_index].attempts[-1]
