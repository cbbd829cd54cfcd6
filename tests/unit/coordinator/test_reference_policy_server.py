"""The order in which a model call becomes real: row, ledger, answer; and calls made again."""

import asyncio
import time
from collections.abc import Callable

import pytest

from snapfmt.errors import ControlRefused
from snapfmt_coordinator.participant.model import ModelParticipant
from snapfmt_coordinator.protocol.v1 import AbortInflight, CallIdentity, PauseModel, Resume
from snapfmt_coordinator.reference.capture import CaptureRow, MemorySink
from snapfmt_coordinator.reference.chat import ChatRequest
from snapfmt_coordinator.reference.engine import LocalEngine
from snapfmt_coordinator.reference.policy_server import PolicyServer


class Watched(MemorySink):
    """A sink that is looked at, and may fail, at every row."""

    def __init__(self, look: Callable[[], None]) -> None:
        super().__init__()
        self._look = look

    async def put(self, row: CaptureRow) -> None:
        self._look()
        await super().put(row)


def asked(seed: str = "3", call: str = "call-1", attempt: int = 0) -> ChatRequest:
    who = CallIdentity(rollout_id="p_g0", attempt_index=attempt, model_call_id=call)
    body = {
        "messages": [{"role": "user", "content": "x"}],
        "metadata": {"seed": seed, "max_turns": "4"},
    }
    return ChatRequest.read(who, None, body)


def test_the_row_is_stored_before_the_call_is_in_the_ledger() -> None:
    async def body() -> None:
        participant = ModelParticipant(server_name="policy")
        seen: list[int] = []
        sink = Watched(lambda: seen.append(len(participant.rows("p_g0", 0))))
        server = PolicyServer("policy", participant, LocalEngine(), sink)
        await server.answer(asked())
        assert seen == [0]
        assert [row.staging_key for row in participant.rows("p_g0", 0)] == [*sink.rows]

    asyncio.run(body())


def test_a_row_that_is_not_stored_leaves_no_call() -> None:
    async def body() -> None:
        participant = ModelParticipant(server_name="policy")
        full = True

        def look() -> None:
            if full:
                raise OSError("no room")

        sink = Watched(look)
        server = PolicyServer("policy", participant, LocalEngine(), sink)
        with pytest.raises(OSError, match="no room"):
            await server.answer(asked())
        assert participant.rows("p_g0", 0) == ()
        full = False
        await server.answer(asked())
        assert len(participant.rows("p_g0", 0)) == sink.puts == 1

    asyncio.run(body())


def test_a_generation_that_a_checkpoint_ends_stores_nothing() -> None:
    async def body() -> None:
        participant, sink = ModelParticipant(server_name="policy"), MemorySink()
        slow = PolicyServer("policy", participant, LocalEngine(delay_s=60), sink)
        work = asyncio.create_task(slow.answer(asked()))
        await asyncio.sleep(0.01)
        deadline = {"checkpoint_id": "c1", "deadline_ts": time.time() + 30}
        await participant.pause(PauseModel(**deadline))
        run = {"rollout_id": "p_g0", "attempt_index": 0}
        await participant.abort_inflight(AbortInflight(**deadline, **run, keep_run=True))
        with pytest.raises(ControlRefused, match="model_admission_closed"):
            await work
        assert (sink.puts, participant.rows("p_g0", 0)) == (0, ())
        await participant.resume(Resume(**deadline))
        await PolicyServer("policy", participant, LocalEngine(), sink).answer(asked())
        assert len(participant.rows("p_g0", 0)) == sink.puts == 1

    asyncio.run(body())


def test_a_server_that_has_only_the_ledger_gives_the_same_answer() -> None:
    async def body() -> None:
        participant, sink = ModelParticipant(server_name="policy"), MemorySink()
        first = PolicyServer("policy", participant, LocalEngine(weight_version=1), sink)
        answer = await first.answer(asked())
        later = PolicyServer("policy", participant, LocalEngine(weight_version=2), sink)
        assert await later.answer(asked()) == answer
        assert sink.puts == 1
        with pytest.raises(ControlRefused) as caught:
            await later.answer(asked(seed="4"))
        assert caught.value.reason == "ledger_mismatch"

    asyncio.run(body())
