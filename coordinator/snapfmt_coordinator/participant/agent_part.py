"""The agents' part: boundary records and the continuation index. Blocks; no live state."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from snapfmt import PartWriter
from snapfmt.errors import FormatError, InvalidRecord
from snapfmt.reading.snapshot import Part
from snapfmt.writing.lines import prepare
from snapfmt_coordinator.participant import parts, redacting
from snapfmt_coordinator.participant.on_base import UNMARKED, SaveMemory, TableOnBase
from snapfmt_coordinator.participant.redacting import Losses, Secrets
from snapfmt_coordinator.protocol.v1 import Committed, ReferenceIndex
from snapfmt_schemas import lines, redaction
from snapfmt_schemas.agent import AgentBoundaryRecord, BoundaryHead
from snapfmt_schemas.attempt import Ticket
from snapfmt_schemas.continuation import Continuation
from snapfmt_schemas.identity import capture_key

BOUNDARIES: Final = "boundaries.jsonl"
CONTINUATIONS: Final = "continuations.jsonl"
ITEMS: Final = "items"
"""The table of conversations, with the server's name behind it."""
ITEM: Final = "item"
"""Its column: an item as one line of JSON."""


@dataclass(frozen=True, slots=True)
class SavedRuns:
    """What a part holds."""

    records: tuple[AgentBoundaryRecord, ...]
    index: ReferenceIndex
    redacted: frozenset[str] = frozenset()
    """Rollouts whose record is not whole: they start over."""


@dataclass(frozen=True, slots=True)
class AgentCut:
    """The boundaries of the runs at the cut."""

    records: Sequence[AgentBoundaryRecord]
    marks: Sequence[Sequence[int]] = ()
    """Of the items of each record's conversation, see `on_base`; none: all are written."""


def continuations(records: Sequence[AgentBoundaryRecord]) -> list[Continuation]:
    """The continuation index of records, in upstream's order."""
    found = [line for record in records if (line := record.continuation()) is not None]
    return sorted(found, key=lambda line: (line.capture_key, line.last_committed_model_call_id))


def write(
    cut: AgentCut, ticket: Ticket, secrets: Secrets = "redact", memory: SaveMemory | None = None
) -> Committed:
    """Write and seal the part; items that the base holds, by what is remembered, are carried.

    Raises:
        SnapfmtError: If it cannot be written.
    """
    marks = cut.marks or [[UNMARKED] * len(item.output_items) for item in cut.records]
    runs = sorted(
        zip(cut.records, marks, strict=True),
        key=lambda run: capture_key(run[0].rollout_id, run[0].attempt_index),
    )
    records = [record for record, _ in runs]
    if secrets == "redact":
        for record in records:
            _check_names(record)

    def body(part: PartWriter, table: TableOnBase) -> int:
        losses = Losses()
        _write_items(part, table, runs, secrets, losses)
        heads = []
        for record in records:
            key = capture_key(record.rollout_id, record.attempt_index)
            head = BoundaryHead.of(record)
            # A cut has one run of each rollout, so the rollout's id finds its record.
            line = prepare(head, "rollout_id", redact=secrets == "redact", what=key)
            losses.note(key, line.hidden)
            heads.append(line)
        part.records(BOUNDARIES, heads)
        redacted = losses.write(part)
        part.records(CONTINUATIONS, continuations(records), key="capture_key", redact=False)
        return redacted

    redacted, receipt = (memory or SaveMemory()).write(ticket, body)
    index = parts.reference(parts.sealed_part(ticket, receipt), CONTINUATIONS)
    return Committed(
        state="committed_paused",
        ready=True,
        records=len(records),
        rollouts=len(records),
        redacted=redacted,
        receipt=receipt,
        continuation_index=index,
    )


def read(part: Part) -> SavedRuns:
    """Read and check the part.

    Raises:
        FormatError: If index and records differ, a rollout is there twice, or an item is missing.
        SnapfmtError: If it cannot be read.
    """
    heads = tuple(part.records(BOUNDARIES, BoundaryHead))
    if len({head.rollout_id for head in heads}) != len(heads):
        raise FormatError("a rollout has two boundary records", what=part.name)
    items = _read_items(part, heads)
    records = tuple(head.whole(items[head.rollout_id, head.attempt_index]) for head in heads)
    index = list(part.records(CONTINUATIONS, Continuation))
    expected = continuations(records)
    if index != expected:
        known = {line.capture_key: line for line in expected}
        other = [line.capture_key for line in index if known.get(line.capture_key) != line]
        missing = known.keys() - {line.capture_key for line in index}
        raise FormatError(
            "the continuation index does not agree with the boundary records",
            what=f"{part.name}: {(other or sorted(missing) or ['order'])[0]}",
        )
    return SavedRuns(records, parts.reference(part, CONTINUATIONS), redacting.read(part, records))


def runs(part: Part) -> set[tuple[str, int]]:
    """The runs whose boundary is saved; reads no conversation.

    Raises:
        SnapfmtError: If it cannot be read.
    """
    return {
        (head.rollout_id, head.attempt_index) for head in part.records(BOUNDARIES, BoundaryHead)
    }


def item_key(rollout_id: str, attempt_index: int, number: int) -> str:
    """Key of an item's row; numbers of a conversation's items count from 0."""
    return f"{rollout_id}/{attempt_index}/{number}"


def _write_items(
    part: PartWriter,
    table: TableOnBase,
    runs: Sequence[tuple[AgentBoundaryRecord, Sequence[int]]],
    secrets: Secrets,
    losses: Losses,
) -> None:
    places = [(record, number) for record, marks in runs for number in range(len(marks))]
    keys = [item_key(record.rollout_id, record.attempt_index, number) for record, number in places]
    marks = np.array([mark for _, marks in runs for mark in marks], np.int64)

    def columns(rows: list[int]) -> dict[str, list[str]]:
        found = []
        for row in rows:
            record, number = places[row]
            text, hidden = _encoded(record.output_items[number], secrets, keys[row])
            found.append(text)
            key = capture_key(record.rollout_id, record.attempt_index)
            if losses.note(key, (f"output_items[{number}].{path}" for path in hidden)):
                # Written and listed by every save, so that no list of them need be remembered.
                marks[row] = UNMARKED
        return {ITEM: found}

    table.write(parts.table_name(ITEMS, part.name), keys, marks, columns)


def _encoded(item: dict[str, Any], secrets: Secrets, what: str) -> tuple[str, tuple[str, ...]]:
    """An item as one line of JSON, and the paths of what redaction replaced in it."""
    try:
        text = json.dumps(item, allow_nan=False)
        if secrets == "keep":
            return text, ()
        # Through JSON first: what is no JSON value but becomes one is looked at, too.
        value, hidden = redaction.redact(json.loads(text))
        return (json.dumps(value) if hidden else text), hidden
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRecord(f"not a JSON value: {error}", what=what) from error


def _read_items(
    part: Part, heads: Sequence[BoundaryHead]
) -> dict[tuple[str, int], list[dict[str, Any]]]:
    """Every conversation that lies in the table, by rollout and run."""
    name = parts.table_name(ITEMS, part.name)
    counts = {(head.rollout_id, head.attempt_index): head.item_count or 0 for head in heads}
    if name not in part.table_names() and not any(counts.values()):
        # Written before there was such a table.
        return {key: [] for key in counts}
    table = part.table(name)
    if sum(counts.values()) != table.num_rows:
        raise FormatError(
            f"{table.num_rows} items, the boundary records say {sum(counts.values())}",
            what=f"{part.name}/{name}",
        )
    found: dict[str, dict[str, Any]] = {}
    for key, text in parts.texts(table, ITEM):
        try:
            value = lines.parse(text)
        except ValueError as error:
            raise FormatError(f"not a JSON value: {error}", what=f"{name}/{key}") from error
        if not isinstance(value, dict):
            raise FormatError("an item is a JSON object", what=f"{name}/{key}")
        found[key] = value
    try:
        return {
            run: [found[item_key(*run, number)] for number in range(count)]
            for run, count in counts.items()
        }
    except KeyError as error:
        raise FormatError("an item is missing", what=f"{name}/{error.args[0]}") from error


def _check_names(record: AgentBoundaryRecord) -> None:
    """Redaction would replace the revision of a server whose name reads like a secret's."""
    revisions = record.resource_state_revisions or {}
    for name in revisions:
        if redaction.secret_kind(name, revisions) == "all":
            raise InvalidRecord(
                "the resource server's name reads like that of a secret, so its revision"
                " would not be stored",
                what=name,
                hint="rename the server",
            )
