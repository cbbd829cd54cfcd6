"""Whatever runs, calls and sessions do between saves: a part on a base is what a full one is."""

import os
import tempfile
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from snapfmt import Repository
from snapfmt.reading.snapshot import Snapshot
from snapfmt.writing import carry
from snapfmt_coordinator.participant import agent_part, model_part, sessions_part
from snapfmt_coordinator.participant.agent_part import AgentCut
from snapfmt_coordinator.participant.ledger import Ledger
from snapfmt_coordinator.participant.on_base import SaveMemory
from snapfmt_coordinator.participant.runs import Run, Runs
from snapfmt_coordinator.participant.sessions_part import SessionCut
from snapfmt_coordinator.participant.touched import Touched
from snapfmt_schemas.agent import AgentBoundaryRecord
from snapfmt_schemas.identity import capture_key
from snapfmt_schemas.lineage import ModelLineageRow

FAST = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
NAMES = ("a", "b", "c")
NUMBER = st.floats(allow_nan=False, allow_infinity=False)
"""JSON has no others; records that hold one are refused."""
VALUE = st.one_of(st.integers(-5, 5), st.text(max_size=3), st.just(2**80), NUMBER)
ITEM = st.dictionaries(st.sampled_from(("x", "y", "password")), VALUE, max_size=2)
DEED = st.fixed_dictionaries(
    {
        "who": st.sampled_from(NAMES),
        "what": st.sampled_from(("go on",) * 4 + ("go back", "end", "next run", "seed anew")),
        "items": st.lists(ITEM, max_size=4),
        "keep": st.integers(0, 6),
    }
)
STEP = st.fixed_dictionaries(
    {
        "deeds": st.lists(DEED, max_size=6),
        "on": st.integers(0, 3),
        "publish": st.sampled_from((True, True, True, False)),
        "retire": st.booleans(),
        "restart": st.sampled_from((False,) * 7 + (True,)),
    }
)


def step(on: int, *deeds: tuple[str, int, int], retire: bool = False) -> dict[str, Any]:
    """A save on the `on`th newest (0: none), after deeds of one run: what, items new and kept."""
    made = [
        {"who": "a", "what": what, "items": [{"x": n} for n in range(count)], "keep": keep}
        for what, count, keep in deeds
    ]
    return {"deeds": made, "on": on, "publish": True, "retire": retire, "restart": False}


# What chance seldom brings together: a session that is seeded anew with the revision that was
# saved, a conversation that goes back behind the base, a run that ends and begins again.
TALE = [
    step(0, ("seed anew", 6, 0)),
    step(1, ("seed anew", 1, 0)),
    step(1, ("go on", 2, 0), ("go back", 2, 1), retire=True),
    step(1, ("end", 0, 0), ("go on", 6, 0)),
    step(2, ("go on", 1, 0)),
]


class World:
    """What three servers hold."""

    def __init__(self) -> None:
        self.runs = Runs(lambda: None)
        self.ledger = Ledger()
        self.touched = Touched()
        self.sessions: dict[str, tuple[int, int, dict[str, Any]]] = {}
        self.numbers: dict[str, int] = {}
        self.forget()

    def forget(self) -> None:
        self.memories = [SaveMemory() for _ in range(3)]

    def act(self, deed: dict[str, Any]) -> None:
        name, what = deed["who"], deed["what"]
        run = self.runs.of(name)
        if what in ("end", "next run"):
            number = self.numbers.get(name, 0)
            if run is not None:
                self.runs.remove(run)
            self.ledger.forget(name, number)
            self.sessions.pop(name, None)
            self.touched.forget(name, number)
            # An ended run that begins anew has the keys that it had.
            self.numbers[name] = number + (what == "next run")
            return
        if run is None:
            run = Run(name, self.numbers.setdefault(name, 0), 1, "running")
            self.runs.add(run)
        self._converse(run, deed)
        self._use(run, anew=what == "seed anew")

    def _converse(self, run: Run, deed: dict[str, Any]) -> None:
        key = (run.rollout_id, run.attempt_index)
        known = self.ledger.of(key)
        calls = list(known.rows) if known else []
        # Going back: the next call continues an older one, and the conversation with it.
        before = run.boundary.output_items if run.boundary else ()
        back = deed["what"] == "go back"
        items = (*(before[: deed["keep"]] if back else before), *deed["items"])
        parent = calls[min(deed["keep"], len(calls) - 1) if back else -1] if calls else None
        call = f"call-{len(calls) + 1}"
        row = ModelLineageRow(
            model_call_id=call,
            parent_call_id=parent.model_call_id if parent else None,
            staging_key=f"{capture_key(*key)}/{call}",
            weight_version=1,
            prev_len=10 if parent else 0,
            delta_len=10,
            cum_len=20 if parent else 10,
            mode="token_in" if parent else "text",
        )
        self.ledger.append(key, row)
        record = AgentBoundaryRecord(
            rollout_id=run.rollout_id,
            attempt_index=run.attempt_index,
            boundary_index=0,
            turn_index=0,
            boundary_kind="turn_complete",
            output_items=items,
            last_committed_model_call_id=call,
            created_at=1.0,
        )
        self.runs.bind(run, record)

    def _use(self, run: Run, *, anew: bool) -> None:
        name, number = run.rollout_id, run.attempt_index
        # Revisions begin again where a session is seeded anew.
        revision, count, _ = self.sessions.get(name, (-1, 0, {}))
        state = {"uses": count, "token_value": 1}
        self.sessions[name] = (0 if anew else revision + 1, count + 1, state)
        self.touched.use(name, number)

    def save(self, attempt: Any) -> list[Any]:
        """Every part twice: on the base, and in full under another name."""
        held = [run for run in self.runs if run.boundary is not None]
        records = [run.boundary for run in held if run.boundary is not None]
        cut = AgentCut(records, [run.marks for run in held])
        agents, models, tools = self.memories
        written = [
            agent_part.write(cut, attempt.ticket("gym/agent/on"), "redact", agents),
            agent_part.write(AgentCut(records), attempt.ticket("gym/agent/full")),
        ]
        roots = [written[0].receipt]
        lineage = self.ledger.cut({})
        sessions = [
            (name, self.numbers[name], revision, state)
            for name, (revision, _, state) in self.sessions.items()
        ]
        marks = [self.touched.mark(*session[:3]) for session in sessions]
        for name, model, tool in (("on", models, tools), ("full", None, None)):
            ticket = attempt.ticket(f"gym/model/{name}")
            written.append(model_part.write(lineage, "policy", roots, ticket, model))  # type: ignore[arg-type]
            own = SessionCut(sessions, 1.0, marks if tool else ())
            ticket = attempt.ticket(f"gym/resources/{name}")
            written.append(
                sessions_part.write(own, "tools", "export_restore", ticket, "redact", tool)
            )
        return [item.receipt for item in written]


def check(snapshot: Snapshot) -> None:
    def both(kind: str) -> Any:
        return (snapshot.part(f"gym/{kind}/{name}") for name in ("on", "full"))

    one, other = (agent_part.read(part) for part in both("agent"))
    # Compared as text: NaN is not itself.
    assert list(map(repr, one.records)) == list(map(repr, other.records))
    assert one.redacted == other.redacted
    calls, expected = (model_part.read(part).runs for part in both("model"))
    assert {key: run.rows for key, run in calls.items()} == {
        key: run.rows for key, run in expected.items()
    }
    sessions, wanted = (
        {item.rollout_id: item for item in sessions_part.read(part)[1]}
        for part in both("resources")
    )
    assert sessions == wanted
    revisions, known = (sessions_part.revisions(part) for part in both("resources"))
    assert revisions == known


@pytest.mark.req("P-1", "P-2", "P-3", "P-4")
@settings(max_examples=int(os.environ.get("SNAPFMT_EXAMPLES", "12")), deadline=None)
@example(TALE)
@given(st.lists(STEP, min_size=2, max_size=6))
def test_a_part_on_a_base_is_what_a_full_one_is(steps: list[dict[str, Any]]) -> None:
    world = World()
    with tempfile.TemporaryDirectory(dir=FAST) as folder, pytest.MonkeyPatch.context() as patch:
        # Few and small rows: segments are joined after two saves already.
        patch.setattr(carry, "TIER_FACTOR", 2)
        repository = Repository.create(f"{folder}/run")
        for item in steps:
            for deed in item["deeds"]:
                world.act(deed)
            if item["restart"]:
                world.forget()
            numbers = repository.numbers()
            base = numbers[-item["on"]] if 0 < item["on"] <= len(numbers) else None
            with repository.begin(base=base) as attempt:
                receipts = world.save(attempt)
                if not item["publish"]:
                    continue
                attempt.publish(receipts)
            check(repository.snapshot(attempt.number))
            if item["retire"] and len(numbers) > 1:
                repository.retire(numbers[0])
        assert repository.verify(deep=True).damage == []
