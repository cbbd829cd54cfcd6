"""A deterministic policy: what it says is a function of the task and the conversation alone.

No weights, no clock, no process and no run number enter, so that a rollout says the same in
whichever run and on whichever server it is continued.
"""

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

MAX_TURNS: Final = 64
"""Most turns that a rollout may take."""
TOOLS: Final = ("counter", "dice", "notes", "sandbox")
"""Tools that the policy knows how to call."""
_TEXT: Final = (
    "first then next add check look count roll write read note total value result so that"
    " because before after again once more less keep drop try see know think plan step goal"
)
_WORDS: Final = tuple(_TEXT.split())


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request for a reply."""

    seed: int
    rollout_id: str
    turn: int
    """1 for the first reply of the conversation."""
    max_turns: int
    tools: tuple[str, ...]
    prompt: bytes
    """The conversation so far, rendered."""


def turn_count(seed: int, rollout_id: str, max_turns: int) -> int:
    """How many replies a rollout takes, the final one included: 1 to `max_turns`."""
    return 1 + _number(f"turns/{seed}/{rollout_id}".encode()) % max(1, min(max_turns, MAX_TURNS))


def reply(ask: Ask) -> dict[str, Any]:
    """The assistant's message: one tool call, or the final text."""
    identity = f"reply/{ask.seed}/{ask.rollout_id}/{ask.turn}/".encode()
    number = _number(identity + ask.prompt)
    # Not for secrets: the same numbers must come again.
    rng = random.Random(number)  # noqa: S311
    text = " ".join(rng.choices(_WORDS, k=rng.randrange(6, 28)))
    if not ask.tools or ask.turn >= turn_count(ask.seed, ask.rollout_id, ask.max_turns):
        return {"role": "assistant", "content": f"{text}. Answer: {number:016x}"}
    tool = rng.choice(ask.tools)
    arguments = json.dumps(_arguments(tool, ask.turn, rng), separators=(",", ":"))
    call = {
        "id": f"tool-{ask.turn}",
        "type": "function",
        "function": {"name": tool, "arguments": arguments},
    }
    return {"role": "assistant", "content": text, "tool_calls": [call]}


def replies(asks: Sequence[Ask], weight_version: int) -> list[tuple[dict[str, Any], int]]:
    """Replies of a batch, each with the version of the weights that it is booked on."""
    return [(reply(ask), weight_version) for ask in asks]


def definition(tool: str) -> dict[str, Any]:
    """The tool as a request to the model names it."""
    return {
        "type": "function",
        "function": {"name": tool, "parameters": {"type": "object", "additionalProperties": True}},
    }


def _arguments(tool: str, turn: int, rng: random.Random) -> dict[str, Any]:
    if tool == "counter":
        return {"add": rng.randrange(1, 100)}
    if tool == "dice":
        return {"sides": rng.choice((6, 8, 20))}
    if tool == "notes":
        title = f"note {rng.randrange(8)}"
        if rng.random() < 0.3:
            return {"op": "read", "title": title}
        return {"op": "write", "title": title, "text": " ".join(rng.choices(_WORDS, k=6))}
    return {"command": f"step {turn}"}


def _number(data: bytes) -> int:
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "big")
