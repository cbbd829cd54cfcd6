"""The policy model's ledger: committed calls of every run, appended to and never changed."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from snapfmt_coordinator.protocol.codes import refused
from snapfmt_schemas.lineage import ModelFailureRow, ModelLineageRow

RunKey = tuple[str, int]
"""A rollout's id and its run."""


@dataclass(slots=True, eq=False)
class RunLedger:
    """The calls of one run, in the order in which they were committed."""

    rows: list[ModelLineageRow] = field(default_factory=list)
    by_id: dict[str, ModelLineageRow] = field(default_factory=dict)
    failures: list[ModelFailureRow] = field(default_factory=list)
    row_marks: list[int] = field(default_factory=list)
    """When each row was added, by the ledger's own count: so a cut is one number, and a save
    knows a row by it."""
    failure_marks: list[int] = field(default_factory=list)

    def append(self, row: ModelLineageRow, mark: int) -> ModelLineageRow:
        """Add a call; the row that counts, which is the known one for a retry.

        Raises:
            ControlRefused: `ledger_mismatch` if the call is known with another fingerprint, or
                its parent is not known.
        """
        known = self.by_id.get(row.model_call_id)
        if known is not None:
            check_fingerprint(known, row.fingerprint)
            return known
        if row.parent_call_id is not None and row.parent_call_id not in self.by_id:
            raise refused(
                "ledger_mismatch",
                f"the parent {row.parent_call_id!r} is not a committed call of this run",
                what=row.model_call_id,
                hint="let the run fail, so that its rollout starts over; a server that was"
                " restarted has no call of it",
            )
        # The mark first: a row is never seen without one by the thread that writes a cut.
        self.row_marks.append(mark)
        self.rows.append(row)
        self.by_id[row.model_call_id] = row
        return row

    def fail(self, row: ModelFailureRow, mark: int) -> None:
        """Add a failure."""
        self.failure_marks.append(mark)
        self.failures.append(row)

    def rows_until(self, mark: int) -> list[ModelLineageRow]:
        """The calls up to a cut."""
        return self.rows[: bisect_right(self.row_marks, mark)]

    def failures_until(self, mark: int) -> list[ModelFailureRow]:
        """The failures up to a cut."""
        return self.failures[: bisect_right(self.failure_marks, mark)]


@dataclass(frozen=True, slots=True)
class LedgerCut:
    """The ledger at the cut: the live runs, and up to where they count. Nothing is copied."""

    runs: Mapping[RunKey, RunLedger]
    mark: int
    tombstones: Mapping[str, int]

    def rows(self, key: RunKey) -> list[ModelLineageRow]:
        """The calls of a run; none when it is not there."""
        run = self.runs.get(key)
        return run.rows_until(self.mark) if run else []

    def marked_rows(self, key: RunKey) -> list[tuple[ModelLineageRow, int]]:
        """The calls of a run, each with its mark."""
        rows = self.rows(key)
        return list(zip(rows, self.runs[key].row_marks, strict=False)) if rows else []

    def failures(self, key: RunKey) -> list[ModelFailureRow]:
        """The failures of a run; none when it is not there."""
        run = self.runs.get(key)
        return run.failures_until(self.mark) if run else []

    def closed(self, key: RunKey) -> bool:
        """Whether a run was given up."""
        return self.tombstones.get(key[0], -1) >= key[1]


class Ledger:
    """All runs."""

    def __init__(self) -> None:
        self._runs: dict[RunKey, RunLedger] = {}
        self._rollouts: dict[str, set[int]] = {}
        self._mark = 0

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[RunKey]:
        return iter(self._runs)

    def of(self, key: RunKey) -> RunLedger | None:
        """One run's calls."""
        return self._runs.get(key)

    def append(self, key: RunKey, row: ModelLineageRow) -> ModelLineageRow:
        """Add a call to a run; see `RunLedger.append`."""
        run = self._runs.get(key) or RunLedger()
        self._mark += 1
        row = run.append(row, self._mark)
        self._put(key, run)
        return row

    def fail(self, key: RunKey, row: ModelFailureRow) -> None:
        """Add a failure to a run."""
        run = self._runs.get(key) or RunLedger()
        self._mark += 1
        run.fail(row, self._mark)
        self._put(key, run)

    def adopt(self, key: RunKey, run: RunLedger) -> None:
        """Take a run in that was not made here, as if its rows were added now."""
        first = self._mark + 1
        self._mark += len(run.rows)
        run.row_marks = list(range(first, self._mark + 1))
        self._put(key, run)

    def _put(self, key: RunKey, run: RunLedger) -> None:
        self._runs[key] = run
        self._rollouts.setdefault(key[0], set()).add(key[1])

    def has_rollout(self, rollout_id: str) -> bool:
        """Whether any run of a rollout has calls."""
        return rollout_id in self._rollouts

    def newest(self, rollout_id: str) -> int:
        """The rollout's newest run that has calls; -1: none has."""
        return max(self._rollouts.get(rollout_id, ()), default=-1)

    def forget(self, rollout_id: str, attempt_index: int) -> int:
        """Forget a run and those before it; how many there were."""
        numbers = self._rollouts.get(rollout_id, set())
        gone = [number for number in numbers if number <= attempt_index]
        for number in gone:
            numbers.discard(number)
            del self._runs[rollout_id, number]
        if not numbers:
            self._rollouts.pop(rollout_id, None)
        return len(gone)

    def cut(self, tombstones: Mapping[str, int]) -> LedgerCut:
        """Everything as it is now: one reference per run, whatever the number of calls."""
        return LedgerCut(dict(self._runs), self._mark, tombstones)


def check_fingerprint(known: ModelLineageRow, fingerprint: str | None) -> None:
    """Refuse a retry that asks for something else than the call did.

    Raises:
        ControlRefused: `ledger_mismatch`.
    """
    if known.fingerprint != fingerprint:
        raise refused(
            "ledger_mismatch",
            "this model call was committed with another fingerprint",
            what=known.model_call_id,
            hint="give another request another model call id",
        )
