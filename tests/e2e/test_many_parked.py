"""No body of a save grows with the number of rollouts: ten thousand of them on one agent."""

import asyncio
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from snapfmt import Repository
from snapfmt_coordinator.protocol.v1 import MAX_BODY

PARKED, ENDING = 10_000, 1_000
ID_LENGTH = 400
"""Far longer than any rollout's id is; at most 512 is allowed."""
CPU_S = 40.0
SMALL = 2048
NAMING = {
    "reply POST /agent-checkpoint/acknowledge-completed",
    "reply POST /agent-checkpoint/prepare",
    "request POST /agent-checkpoint/acknowledge-completed",
    "request POST /agent-checkpoint/retire",
    "request POST /model-checkpoint/retire",
    "request POST /resources-checkpoint/retire",
}
"""Bodies that list runs, in pages; all others are small."""
ASKED = {
    "GET /capabilities",
    "GET /model-admission/status",
    "POST /agent-checkpoint/acknowledge-completed",
    "POST /agent-checkpoint/commit",
    "POST /agent-checkpoint/prepare",
    "POST /agent-checkpoint/resume",
    "POST /agent-checkpoint/retire",
    "POST /model-admission/pause",
    "POST /model-admission/resume",
    "POST /model-checkpoint/commit",
    "POST /model-checkpoint/retire",
    "POST /resources-checkpoint/commit",
    "POST /resources-checkpoint/prepare",
    "POST /resources-checkpoint/resume",
    "POST /resources-checkpoint/retire",
}


@pytest.fixture
def parked(root: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The scene that the benchmark times."""
    monkeypatch.syspath_prepend(str(root / "tests" / "bench"))
    return import_module("coordinator_parked")


def test_no_body_grows_with_the_parked_rollouts(parked: Any, tmp_path: Path) -> None:
    async def body() -> None:
        crowd = parked.Crowd(PARKED, ENDING, id_length=ID_LENGTH)
        await crowd.start()
        async with crowd.served() as side:
            result = await parked.save(crowd, side, tmp_path / "run")
            assert result.outcome == "completed", result.error
            await parked.end(crowd, side)
        snapshot = Repository.open(tmp_path / "run").snapshot()
        counts = {
            phase.name: phase.counts
            for phase in snapshot.manifest.timeline.phases
            if phase.actor == "gym"
        }
        assert counts["prepare"]["parked_with_boundary"] == PARKED
        assert counts["prepare"]["acknowledged_completed"] == ENDING
        # Sessions end with a run's retirement, not with its acknowledgement.
        saved = {
            "items/agent": PARKED,
            "lineage/policy": PARKED,
            "sessions/tools": PARKED + ENDING,
        }
        assert {name: snapshot.table(name).num_rows for name in saved} == saved
        boundaries = snapshot.part("gym/agent/agent").entry("boundaries.jsonl")
        assert boundaries.records == PARKED
        assert len(crowd.control.over) == PARKED + ENDING
        assert len(crowd.sessions) == 0
        seen = {name.split(" ", 1)[1] for name in crowd.largest}
        assert seen == ASKED
        assert {name: size for name, size in crowd.largest.items() if size > MAX_BODY} == {}
        # All names together would not have fitted into one body, and only these name any.
        assert PARKED * ID_LENGTH > MAX_BODY
        naming = {name for name, size in crowd.largest.items() if size > SMALL}
        assert naming == NAMING

    started = time.process_time()
    asyncio.run(body())
    # Of this process's own time, which the load of the machine does not change.
    assert time.process_time() - started < CPU_S
