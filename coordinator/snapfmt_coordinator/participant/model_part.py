"""The model's part: lineage of the parked runs and what it refers to. Blocks; no live state."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from snapfmt.errors import FormatError
from snapfmt.reading.snapshot import Part
from snapfmt.writing.lines import PreparedLine
from snapfmt_coordinator.participant import parts
from snapfmt_coordinator.participant.agent_part import CONTINUATIONS
from snapfmt_coordinator.participant.ledger import LedgerCut, RunKey, RunLedger
from snapfmt_coordinator.protocol.codes import refused
from snapfmt_coordinator.protocol.v1 import Committed, Execution, ReferenceIndex
from snapfmt_schemas._base import Record
from snapfmt_schemas.attempt import Receipt, Ticket
from snapfmt_schemas.continuation import Continuation
from snapfmt_schemas.identity import Count, ModelCallId, RolloutId, capture_key
from snapfmt_schemas.lineage import (
    ExternalStorageReference,
    ModelFailureRow,
    ModelLineageRow,
)
from snapfmt_schemas.lines import to_line

LINEAGE: Final = "lineage.jsonl"
FAILURES: Final = "failures.jsonl"
REFERENCES: Final = "storage-references.jsonl"
LEDGER: Final = "ledger.json"
DAMAGED: Final = "verify the snapshot, and restore another one"


class SavedRun(Record):
    """One run in `ledger.json`: its rows follow one another in the files, in this order."""

    rollout_id: RolloutId
    attempt_index: Count
    boundary_model_call_id: ModelCallId
    rows: Count
    failures: Count


class SavedLedger(Record):
    """`ledger.json`."""

    schema_version: Literal[1] = 1
    server_name: str
    runs: tuple[SavedRun, ...]
    rows: Count
    excluded_inactive: Count
    excluded_tombstoned: Count
    tombstones: tuple[Execution, ...]


@dataclass(frozen=True, slots=True)
class RestoredLedger:
    """What a part holds: the calls of each run, under the number of the run that was saved."""

    runs: Mapping[RunKey, RunLedger]
    tombstones: tuple[Execution, ...]
    index: ReferenceIndex


def write(cut: LedgerCut, server_name: str, agents: Sequence[Receipt], ticket: Ticket) -> Committed:
    """Write and seal the part, for the continuations of the agents' sealed parts.

    Raises:
        ControlRefused: `ledger_not_checkpointable` if nothing is known of a continuation's run;
            `ledger_mismatch` if its lineage has a gap.
        SnapfmtError: If something cannot be read or written.
    """
    roots = _roots(agents, ticket)
    _check_known(cut, roots)
    chosen = [(root, lineage(cut, root), cut.failures(key)) for key, root in sorted(roots.items())]
    saved = [
        SavedRun(
            rollout_id=root.rollout_id,
            attempt_index=root.attempt_index,
            boundary_model_call_id=root.last_committed_model_call_id,
            rows=len(rows),
            failures=len(failures),
        )
        for root, rows, failures in chosen
    ]
    references = sorted(_reference_lines(chosen), key=lambda item: item.key)
    tombstoned = sum(cut.closed(key) for key in cut.runs)
    ledger = SavedLedger(
        server_name=server_name,
        runs=tuple(saved),
        rows=len(references),
        excluded_inactive=len(cut.runs) - len(chosen) - tombstoned,
        excluded_tombstoned=tombstoned,
        tombstones=tuple(
            Execution(rollout_id=name, attempt_index=number)
            for name, number in sorted(cut.tombstones.items())
        ),
    )
    with parts.open_part(ticket) as part:
        part.records(LINEAGE, _lineage_lines(cut, chosen))
        part.records(FAILURES, (row for _, _, failures in chosen for row in failures))
        part.records(REFERENCES, references)
        part.json(LEDGER, ledger.model_dump(mode="json"))
        receipt = part.seal()
    return Committed(
        state="committed_paused",
        ready=True,
        records=receipt.records,
        receipt=receipt,
        storage_reference_index=parts.reference(parts.sealed_part(ticket, receipt), REFERENCES),
        rollouts=len(saved),
        rows=ledger.rows,
        excluded_tombstoned=ledger.excluded_tombstoned,
        excluded_inactive=ledger.excluded_inactive,
    )


def lineage(cut: LedgerCut, root: Continuation) -> list[ModelLineageRow]:
    """The calls that lead to a continuation, oldest first.

    Raises:
        ControlRefused: `ledger_mismatch` if one of them is not there exactly once.
    """
    rows = cut.rows((root.rollout_id, root.attempt_index))
    by_id = {row.model_call_id: row for row in rows}
    if len(by_id) != len(rows):
        raise _mismatch(root, "a call is there twice")
    found: list[ModelLineageRow] = []
    wanted: str | None = root.last_committed_model_call_id
    while wanted is not None:
        # Taken out, so that a circle ends as a missing call.
        row = by_id.pop(wanted, None)
        if row is None:
            raise _mismatch(root, f"call {wanted!r} is not in the ledger")
        found.append(row)
        wanted = row.parent_call_id
    return found[::-1]


def read(part: Part) -> RestoredLedger:
    """Read and check the part.

    Raises:
        FormatError: If its files do not agree.
        SnapfmtError: If it cannot be read.
    """
    try:
        ledger = SavedLedger.model_validate_json(part.read(LEDGER))
    except ValueError as error:
        raise FormatError(
            f"not a ledger: {error}",
            what=part.name,
            hint=DAMAGED,
        ) from error
    rows = part.records(LINEAGE, ModelLineageRow)
    failures = part.records(FAILURES, ModelFailureRow)
    expected = list(part.records(REFERENCES, ExternalStorageReference))
    runs: dict[RunKey, RunLedger] = {}
    references: list[ExternalStorageReference] = []
    closed = {(item.rollout_id, item.attempt_index) for item in ledger.tombstones}
    for saved in ledger.runs:
        key = (saved.rollout_id, saved.attempt_index)
        run = runs[key] = _read_run(saved, rows, failures)
        references += _run_references(capture_key(*key), saved.boundary_model_call_id, run.rows)
    if len({name for name, _ in runs}) != len(ledger.runs) or runs.keys() & closed:
        raise FormatError(
            "a rollout is there twice, or was given up",
            what=part.name,
            hint=DAMAGED,
        )
    if next(rows, None) is not None or next(failures, None) is not None:
        raise FormatError(
            "there are rows of no run",
            what=part.name,
            hint=DAMAGED,
        )
    if sorted(references, key=lambda item: item.key) != expected:
        raise FormatError(
            "storage references do not agree with the lineage",
            what=part.name,
            hint=DAMAGED,
        )
    return RestoredLedger(runs, ledger.tombstones, parts.reference(part, REFERENCES))


def _read_run(
    saved: SavedRun, rows: Iterator[ModelLineageRow], failures: Iterator[ModelFailureRow]
) -> RunLedger:
    run = RunLedger()
    last = None
    for _ in range(saved.rows):
        row = next(rows, None)
        if row is None or row.parent_call_id != last or row.model_call_id in run.by_id:
            raise FormatError(
                "lineage is not one chain from its root",
                what=saved.rollout_id,
                hint=DAMAGED,
            )
        last = run.append(row, 0).model_call_id
    if last != saved.boundary_model_call_id:
        raise FormatError(
            "lineage does not end at the boundary's call",
            what=saved.rollout_id,
            hint=DAMAGED,
        )
    for _ in range(saved.failures):
        failure = next(failures, None)
        if failure is None:
            raise FormatError(
                "failure rows are missing",
                what=saved.rollout_id,
                hint=DAMAGED,
            )
        run.fail(failure, 0)
    return run


def _roots(agents: Sequence[Receipt], ticket: Ticket) -> dict[RunKey, Continuation]:
    found: dict[RunKey, Continuation] = {}
    rollouts: set[str] = set()
    for receipt in agents:
        part = parts.sealed_part(ticket, receipt)
        for root in part.records(CONTINUATIONS, Continuation):
            if root.rollout_id in rollouts:
                raise _mismatch(root, "two agents have this rollout")
            rollouts.add(root.rollout_id)
            found[root.rollout_id, root.attempt_index] = root
    return found


def _check_known(cut: LedgerCut, roots: Mapping[RunKey, Continuation]) -> None:
    """Refuse "not now" where this process has no call of a run at all.

    It was started after the run began, or the run was retired while the cut was taken. Either
    way the run cannot go on, so it will not be in the way of a later snapshot.
    """
    lost = [key for key in sorted(roots) if cut.closed(key) or not cut.rows(key)]
    if lost:
        raise refused(
            "ledger_not_checkpointable",
            f"the ledger has no call of {len(lost)} parked runs",
            what=f"{lost[0][0]} run {lost[0][1]}",
            hint="the model server was restarted, or they were retired; such a run fails at its"
            " next model call and starts over, then save again",
        )


_Chosen = Sequence[tuple[Continuation, list[ModelLineageRow], list[ModelFailureRow]]]


def _lineage_lines(cut: LedgerCut, chosen: _Chosen) -> Iterator[PreparedLine]:
    for root, rows, _ in chosen:
        run = cut.runs[root.rollout_id, root.attempt_index]
        yield from (run.line(row) for row in rows)


def _reference_lines(chosen: _Chosen) -> Iterator[PreparedLine]:
    """One line for each row; those of a run differ in their key only, which comes last."""
    for root, rows, _ in chosen:
        first = next(_run_references(root.capture_key, root.last_committed_model_call_id, rows))
        head = to_line(first).removesuffix(_ending(first.key))
        yield from (PreparedLine(head + _ending(row.staging_key), row.staging_key) for row in rows)


def _ending(key: str) -> bytes:
    return json.dumps(key).encode("ascii") + b"}"


def _run_references(
    name: str, boundary: str, rows: Sequence[ModelLineageRow]
) -> Iterator[ExternalStorageReference]:
    for row in rows:
        yield ExternalStorageReference(
            capture_key=name,
            boundary_model_call_id=boundary,
            kind="token_capture_staging",
            key=row.staging_key,
        )


def _mismatch(root: Continuation, message: str) -> Exception:
    return refused(
        "ledger_mismatch",
        message,
        what=f"{root.rollout_id} run {root.attempt_index}",
        hint="retire the run, so that its rollout starts over",
    )
