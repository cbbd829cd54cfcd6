"""The model's part: lineage of the parked runs and what it refers to. Blocks; no live state."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any, Final, Literal

import numpy as np

from snapfmt import PartWriter
from snapfmt.errors import FormatError
from snapfmt.reading.snapshot import Part
from snapfmt.reading.table import TableReader
from snapfmt.writing.lines import PreparedLine
from snapfmt_coordinator.participant import parts
from snapfmt_coordinator.participant.agent_part import CONTINUATIONS
from snapfmt_coordinator.participant.ledger import LedgerCut, RunKey, RunLedger
from snapfmt_coordinator.participant.on_base import SaveMemory, TableOnBase
from snapfmt_coordinator.participant.parts import DAMAGED
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
from snapfmt_schemas.lines import from_line, to_line

LINEAGE: Final = "lineage"
"""The table of calls, with the server's name behind it."""
ROLLOUT, ROW = "rollout_id", "row"
"""Its columns: whose call it is, and the call as one line of JSON."""
OLD_LINEAGE: Final = "lineage.jsonl"
"""The calls of a part that was written before there was such a table."""
FAILURES: Final = "failures.jsonl"
REFERENCES: Final = "storage-references.jsonl"
LEDGER: Final = "ledger.json"
_BARE: Final[Mapping[str, Any]] = {"staging_chain": None}


class SavedRun(Record):
    """One run in `ledger.json`: its rows lead from the boundary's call to a root; its failures
    follow those of the runs before it."""

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


MarkedRow = tuple[ModelLineageRow, int]
"""A call, and its mark in the ledger."""


@dataclass(frozen=True, slots=True)
class RestoredLedger:
    """What a part holds: the calls of each run, under the number of the run that was saved."""

    runs: Mapping[RunKey, RunLedger]
    tombstones: tuple[Execution, ...]
    index: ReferenceIndex


def write(
    cut: LedgerCut,
    server_name: str,
    agents: Sequence[Receipt],
    ticket: Ticket,
    memory: SaveMemory | None = None,
) -> Committed:
    """Write and seal the part, for the continuations of the agents' sealed parts.

    Calls that the attempt's base holds, by what is remembered, are carried.

    Raises:
        ControlRefused: `ledger_not_checkpointable` if nothing is known of a continuation's run,
            or two agents have a run of one rollout;
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

    def body(part: PartWriter, table: TableOnBase) -> None:
        _write_lineage(part, table, chosen)
        part.records(FAILURES, (row for _, _, failures in chosen for row in failures))
        part.records(REFERENCES, references)
        part.json(LEDGER, ledger.model_dump(mode="json"))

    _, receipt = (memory or SaveMemory()).write(ticket, body)
    return Committed(
        state="committed_paused",
        ready=True,
        records=receipt.records + ledger.rows,
        receipt=receipt,
        storage_reference_index=parts.reference(parts.sealed_part(ticket, receipt), REFERENCES),
        rollouts=len(saved),
        rows=ledger.rows,
        excluded_tombstoned=ledger.excluded_tombstoned,
        excluded_inactive=ledger.excluded_inactive,
    )


def lineage(cut: LedgerCut, root: Continuation) -> list[MarkedRow]:
    """The calls that lead to a continuation, oldest first, each with its mark.

    Raises:
        ControlRefused: `ledger_mismatch` if one of them is not there exactly once.
    """
    rows = cut.marked_rows((root.rollout_id, root.attempt_index))
    by_id = {item[0].model_call_id: item for item in rows}
    if len(by_id) != len(rows):
        raise _mismatch(root, "a call is there twice")
    found: list[MarkedRow] = []
    wanted: str | None = root.last_committed_model_call_id
    while wanted is not None:
        # Taken out, so that a circle ends as a missing call.
        item = by_id.pop(wanted, None)
        if item is None:
            raise _mismatch(root, f"call {wanted!r} is not in the ledger")
        found.append(item)
        wanted = item[0].parent_call_id
    return found[::-1]


def runs(part: Part) -> set[RunKey]:
    """The runs whose lineage is saved; reads no call.

    Raises:
        FormatError: If the ledger is none.
        SnapfmtError: If it cannot be read.
    """
    return {(run.rollout_id, run.attempt_index) for run in _read_ledger(part).runs}


def read(part: Part) -> RestoredLedger:
    """Read and check the part.

    Raises:
        FormatError: If its files do not agree.
        SnapfmtError: If it cannot be read.
    """
    ledger = _read_ledger(part)
    rows = _read_lineage(part, ledger)
    failures = part.records(FAILURES, ModelFailureRow)
    expected = list(part.records(REFERENCES, ExternalStorageReference))
    runs: dict[RunKey, RunLedger] = {}
    references: list[ExternalStorageReference] = []
    closed = {(item.rollout_id, item.attempt_index) for item in ledger.tombstones}
    for saved in ledger.runs:
        key = (saved.rollout_id, saved.attempt_index)
        run = runs[key] = _read_run(saved, rows.pop(saved.rollout_id, {}), failures)
        references += _run_references(capture_key(*key), saved.boundary_model_call_id, run.rows)
    if len({name for name, _ in runs}) != len(ledger.runs) or runs.keys() & closed:
        raise FormatError(
            "a rollout is there twice, or was given up",
            what=part.name,
            hint=DAMAGED,
        )
    if rows or next(failures, None) is not None:
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


def _read_lineage(part: Part, ledger: SavedLedger) -> dict[str, dict[str, ModelLineageRow]]:
    """Every call, by rollout and call id."""
    if any(entry.path == OLD_LINEAGE for entry in part.entries()):
        owners = chain.from_iterable(repeat(run.rollout_id, run.rows) for run in ledger.runs)
        # A row too many is one of no rollout.
        records = part.records(OLD_LINEAGE, ModelLineageRow)
        stored: Iterator[tuple[str, ModelLineageRow]]
        stored = zip(chain(owners, repeat("")), records, strict=False)
    else:
        stored = _read_table(part.table(parts.table_name(LINEAGE, part.name)))
    found: dict[str, dict[str, ModelLineageRow]] = {}
    for rollout_id, row in stored:
        calls = found.setdefault(rollout_id, {})
        if calls.setdefault(row.model_call_id, row) is not row:
            raise FormatError("a call is there twice", what=rollout_id, hint=DAMAGED)
    return found


def _read_table(table: TableReader) -> Iterator[tuple[str, ModelLineageRow]]:
    for key, owner, line in parts.texts(table, ROLLOUT, ROW):
        try:
            row = from_line(ModelLineageRow, line.encode())
        except (ValueError, RecursionError) as error:
            raise FormatError(f"not a ModelLineageRow: {error}", what=key, hint=DAMAGED) from error
        if row.staging_key != key:
            raise FormatError("the row is of another staging key", what=key, hint=DAMAGED)
        yield owner, row


def _read_ledger(part: Part) -> SavedLedger:
    try:
        return SavedLedger.model_validate_json(part.read(LEDGER))
    except ValueError as error:
        raise FormatError(f"not a ledger: {error}", what=part.name, hint=DAMAGED) from error


def _read_run(
    saved: SavedRun, rows: dict[str, ModelLineageRow], failures: Iterator[ModelFailureRow]
) -> RunLedger:
    line: list[ModelLineageRow] = []
    wanted: str | None = saved.boundary_model_call_id
    while wanted is not None:
        # Taken out, so that a circle ends as a missing call.
        row = rows.pop(wanted, None)
        if row is None:
            raise FormatError(
                "lineage is not one chain from its root to the boundary's call",
                what=saved.rollout_id,
                hint=DAMAGED,
            )
        line.append(row)
        wanted = row.parent_call_id
    if rows or len(line) != saved.rows:
        raise FormatError(
            f"{saved.rows} calls expected, {len(line)} lead to the boundary's",
            what=saved.rollout_id,
            hint=DAMAGED,
        )
    run = RunLedger()
    for row in reversed(line):
        run.append(row, 0)
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
            if (root.rollout_id, root.attempt_index) in found:
                raise _mismatch(root, "two agents have this run")
            if root.rollout_id in rollouts:
                # A run that is over and could not be retired on its agent yet.
                raise refused(
                    "ledger_not_checkpointable",
                    "two agents have a run of this rollout",
                    what=f"{root.rollout_id} run {root.attempt_index}",
                    hint="retire the older one on its agent, then save again",
                )
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


_Chosen = Sequence[tuple[Continuation, list[MarkedRow], list[ModelFailureRow]]]


def _write_lineage(part: PartWriter, table: TableOnBase, chosen: _Chosen) -> None:
    rows = [(root.rollout_id, row) for root, marked, _ in chosen for row, _ in marked]
    marks = np.array([mark for _, marked, _ in chosen for _, mark in marked], np.int64)

    def columns(places: list[int]) -> dict[str, list[str]]:
        some = [rows[place] for place in places]
        return {
            ROLLOUT: [rollout_id for rollout_id, _ in some],
            ROW: [_line(row).decode("ascii") for _, row in some],
        }

    keys = [row.staging_key for _, row in rows]
    table.write(parts.table_name(LINEAGE, part.name), keys, marks, columns)


def _line(row: ModelLineageRow) -> bytes:
    """What is stored of a call: all but its ancestors' keys, which the parents give."""
    return to_line(row if row.staging_chain is None else row.model_copy(update=_BARE))


def _reference_lines(chosen: _Chosen) -> Iterator[PreparedLine]:
    """One line for each row; those of a run differ in their key only, which comes last."""
    for root, marked, _ in chosen:
        rows = [row for row, _ in marked]
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
