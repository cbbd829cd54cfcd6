"""Fuzz targets: parts as a hostile writer leaves them, read as a restore reads them.

An input says in JSON what lies in a part: record files line by line, documents, tables row by
row. It is saved as it is, and read by the participant, or the controller, that restores from it.
"""

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from snapfmt.reading.snapshot import Part
from snapfmt.repository import Repository
from snapfmt.storage.memory import MemoryClient
from snapfmt.storage.objects import ObjectStore
from snapfmt.testing.fuzz_documents import example, records
from snapfmt.testing.fuzzing import LIMITS, Ground, Prepared, Target, Wrong
from snapfmt.writing.lines import PreparedLine
from snapfmt_coordinator.loop.saved import SavedState
from snapfmt_coordinator.participant import agent_part, model_part, redacting, sessions_part
from snapfmt_schemas.agent import AgentBoundaryRecord, BoundaryHead
from snapfmt_schemas.identity import capture_key
from snapfmt_schemas.lineage import ExternalStorageReference, ModelLineageRow
from snapfmt_schemas.lines import to_value
from snapfmt_schemas.loader import LoaderPlace
from snapfmt_schemas.manifest import TrainerAnchor
from snapfmt_schemas.replay import ReplayIndex
from snapfmt_schemas.resources import ResourceSnapshot

Value = dict[str, Any]
NAMES = {
    "agent": "gym/agent/swe",
    "model": "gym/model/policy",
    "resources": "gym/resources/shell",
    "controller": "rl/controller",
}


def targets() -> Iterator[Target]:
    examples: dict[str, Callable[[], Iterator[Value]]] = {
        "agent": _agent,
        "model": _model,
        "resources": _resources,
        "controller": _controller,
    }
    for kind, values in examples.items():
        prepare = partial(_prepare, kind, values)
        yield Target(name=f"part:{kind}", prepare=prepare, only_json=True, cost=20)


def _prepare(kind: str, values: Callable[[], Iterator[Value]], ground: Ground) -> Prepared:
    def run(data: bytes) -> None:
        try:
            value = json.loads(data.decode("utf-8"))
        except (ValueError, RecursionError):
            return
        if isinstance(value, dict):
            read(kind, save(NAMES[kind], value))

    return Prepared(run, [json.dumps(value).encode() for value in values()])


def save(name: str, value: Value) -> Repository:
    """A published snapshot with one part that holds what the value says."""
    repository = Repository.open(ObjectStore(MemoryClient()), create=True, limits=LIMITS)
    with repository.begin() as attempt:
        part = attempt.part(name, workers=1)
        for path, found in _members(value, "lines"):
            lines = [_text(item) for item in found] if isinstance(found, list) else []
            keys = _keys(value, path, lines)
            part.records(
                path,
                [PreparedLine(line, key) for line, key in zip(lines, keys, strict=True)],
                key="",
                redact=False,
            )
        for path, found in _members(value, "documents"):
            part.stage(path, _text(found))
        for table_name, found in _members(value, "tables"):
            rows = found if isinstance(found, dict) else {}
            with part.table(table_name) as table:
                for key, columns in rows.items():
                    if isinstance(columns, dict):
                        table.append([key], {column: [item] for column, item in columns.items()})
        anchor = TrainerAnchor(train_step=1, trainer_version=1, epoch=0)
        attempt.publish([part.seal()], anchor=anchor)
    return repository


def read(kind: str, repository: Repository) -> None:
    """What a restore reads first."""
    snapshot = repository.snapshot(1)
    part = snapshot.part(NAMES[kind])
    if kind == "agent":
        runs = agent_part.read(part)
        _unique((run.rollout_id for run in runs.records), "a rollout is there twice")
    elif kind == "model":
        ledger = model_part.read(part)
        _unique((name for name, _ in ledger.runs), "a rollout is there twice")
    elif kind == "resources":
        _read_sessions(part)
    else:
        SavedState.read(snapshot, generations=2, capacity=4).dispatched_runs()


def _read_sessions(part: Part) -> None:
    _, sessions = sessions_part.read(part)
    revisions = sessions_part.revisions(part)
    redacting.read(part, sessions)
    for item in sessions:
        key = capture_key(item.rollout_id, item.attempt_index)
        if revisions.get(key) != item.state_revision:
            raise Wrong(f"the revision of {key} is {revisions.get(key)} and {item.state_revision}")


def _unique(names: Iterator[str], wrong: str) -> None:
    found = list(names)
    if len(set(found)) != len(found):
        raise Wrong(wrong)


def _members(value: Value, name: str) -> list[tuple[str, Any]]:
    found = value.get(name)
    return [*found.items()] if isinstance(found, dict) else []


def _text(item: Any) -> bytes:
    """Text as it is, so that a line need not be JSON; of any other value its JSON."""
    text = item if isinstance(item, str) else json.dumps(item)
    return text.encode("utf-8", "surrogatepass")


def _keys(value: Value, path: str, lines: list[bytes]) -> list[str]:
    """Those of an index that lies, else what the lines have as their first text."""
    given = value.get("keys")
    found = given.get(path) if isinstance(given, dict) else None
    if isinstance(found, list) and len(found) == len(lines):
        return [item if isinstance(item, str) else str(item) for item in found]
    return [str(number) for number in range(len(lines))]


def _agent() -> Iterator[Value]:
    (boundary,) = (item for item in records() if type(item) is AgentBoundaryRecord)
    head = to_value(BoundaryHead.of(boundary))
    line = boundary.continuation()
    assert line is not None
    key = agent_part.item_key(boundary.rollout_id, boundary.attempt_index, 0)
    lines = {agent_part.BOUNDARIES: [head], agent_part.CONTINUATIONS: [to_value(line)]}
    items = {key: {agent_part.ITEM: json.dumps(boundary.output_items[0])}}
    yield {"lines": lines, "tables": {"items/swe": items}}
    redacted = {"capture_key": line.capture_key, "replaced": 1, "paths": ["agent_state.token"]}
    yield {
        "lines": lines | {redacting.REDACTED: [redacted]},
        "tables": {"items/swe": items},
    }
    yield {"lines": lines | {agent_part.BOUNDARIES: [to_value(boundary)]}}


def _model() -> Iterator[Value]:
    (row,) = (item for item in records() if type(item) is ModelLineageRow)
    first = row.model_copy(
        update={
            "model_call_id": "c0",
            "parent_call_id": None,
            "staging_key": "p7_g0-a1/c0",
            "mode": "text",
            "prev_len": 0,
            "delta_len": 3,
            "cum_len": 3,
            "staging_chain": (),
        }
    )
    rows = [first, row]
    saved = {
        "rollout_id": "p7_g0",
        "attempt_index": 1,
        "boundary_model_call_id": "c1",
        "rows": 2,
        "failures": 0,
    }
    ledger = {
        "schema_version": 1,
        "server_name": "policy",
        "runs": [saved],
        "rows": 2,
        "excluded_inactive": 0,
        "excluded_tombstoned": 0,
        "tombstones": [{"rollout_id": "q", "attempt_index": 0}],
    }
    references: list[ExternalStorageReference] = [
        *model_part._run_references("p7_g0-a1", "c1", rows)
    ]
    ordered = sorted(references, key=lambda item: item.key)
    lines = {
        model_part.FAILURES: [],
        model_part.REFERENCES: [to_value(item) for item in ordered],
    }
    table = {
        item.staging_key: {
            model_part.ROLLOUT: "p7_g0",
            model_part.ROW: json.dumps(to_value(item)),
        }
        for item in rows
    }
    documents = {model_part.LEDGER: ledger}
    yield {"lines": lines, "documents": documents, "tables": {"lineage/policy": table}}
    old = lines | {model_part.OLD_LINEAGE: [to_value(item) for item in rows]}
    yield {"lines": old, "documents": documents, "tables": {}}


def _resources() -> Iterator[Value]:
    session = ResourceSnapshot(
        rollout_id="a", attempt_index=1, state_revision=3, state={"n": [1]}, created_at=1.5
    )
    server = {"schema_version": 1, "server_name": "shell", "mode": "export_restore", "sessions": 1}
    documents = {sessions_part.SERVER: server}
    row = {sessions_part.SESSION: json.dumps(to_value(session)), sessions_part.REVISION: 3}
    yield {"documents": documents, "tables": {"sessions/shell": {"a/1": row}}}
    lines = {sessions_part.OLD_SESSIONS: [to_value(session)]}
    yield {"documents": documents, "lines": lines, "tables": {}}
    yield {"documents": documents, "lines": {sessions_part.OLD_SESSIONS: ["[1]"]}, "tables": {}}


def _controller() -> Iterator[Value]:
    (replay,) = (item for item in records() if type(item) is ReplayIndex)
    own = ReplayIndex.of([], partition_id="rollout_buffer", saved_capacity=4)
    run = {
        "schema_version": 1,
        "train_steps": 1,
        "trainer_version": 1,
        "generations": 2,
        "rolled_back": [],
    }
    place = example(LoaderPlace.model_json_schema())
    common = {"loader.json": place, "reserve.json": {}, "run.json": run, "ledger.json": {}}
    for index in (own, replay):
        yield {"documents": common | {"replay.json": to_value(index)}}
