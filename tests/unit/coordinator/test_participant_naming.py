"""Names that no snapshot can hold are refused when a run begins, not when everything is saved."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from snapfmt.errors import ControlRefused
from snapfmt_coordinator.participant.agent import AgentParticipant
from snapfmt_coordinator.participant.model import ModelParticipant
from snapfmt_coordinator.participant.resources import ResourcesParticipant
from snapfmt_coordinator.protocol.codes import described, internal
from snapfmt_schemas.resources import ResourceSnapshot


class NoSessions:
    def export(self) -> list[Any]:
        return []

    def install(self, sessions: Any) -> None:
        raise AssertionError

    def drop(self, rollout_id: str, attempt_index: int) -> bool:
        return False


async def agent(rollout_id: str, attempt_index: int) -> None:
    async with await AgentParticipant(server_name="a").begin(rollout_id, attempt_index):
        pass


async def model(rollout_id: str, attempt_index: int) -> None:
    async with ModelParticipant(server_name="m").call(rollout_id, attempt_index, "call-1"):
        pass


async def resources(rollout_id: str, attempt_index: int) -> None:
    participant = ResourcesParticipant(NoSessions(), server_name="r")
    async with participant.operation(rollout_id, attempt_index):
        pass


KINDS: list[Callable[[str, int], Awaitable[None]]] = [agent, model, resources]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize(
    ("rollout_id", "attempt_index"),
    [
        ("日本", 0),
        ("", 0),
        ("x" * 600, 0),
        ("a/b", 0),
        ("r_g0-a1", 0),
        ("r_g0", -1),
        ("r_g0", True),
    ],
)
def test_a_run_that_no_snapshot_can_hold(
    kind: Callable[[str, int], Awaitable[None]], rollout_id: str, attempt_index: int
) -> None:
    async def body() -> None:
        with pytest.raises(ControlRefused) as caught:
            await kind(rollout_id, attempt_index)
        assert caught.value.reason == "invalid_request"
        await kind("r_g0-a0", 0)
        await kind("r_g0", 3)

    asyncio.run(body())


def test_a_foreign_error_is_told_without_the_state_in_it() -> None:
    with pytest.raises(ValueError, match="hunter2") as caught:
        ResourceSnapshot.model_validate({"state": {"cookie": "hunter2", 5: object()}})
    assert "hunter2" not in described(caught.value)
    assert "ResourceSnapshot" in described(caught.value)
    assert "hunter2" not in str(internal(RuntimeError("cookie hunter2")))
    assert "No space" in described(OSError(28, "No space left on device"))
