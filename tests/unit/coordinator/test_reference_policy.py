"""The policy says the same again, wherever it is asked, and something else to others."""

import json
import subprocess
import sys
from collections import Counter

import pytest

from snapfmt_coordinator.reference import policy, tokens
from snapfmt_coordinator.reference.policy import Ask


def ask(prompt: bytes = b"hello", **changes: object) -> Ask:
    base = {"seed": 7, "rollout_id": "p_g0", "turn": 1, "max_turns": 64, "tools": policy.TOOLS}
    return Ask(prompt=prompt, **{**base, **changes})  # type: ignore[arg-type]


def test_the_same_question_has_the_same_reply_in_another_process() -> None:
    code = (
        "import json; from snapfmt_coordinator.reference import policy;"
        "from snapfmt_coordinator.reference.policy import Ask;"
        "print(json.dumps(policy.reply(Ask(seed=7, rollout_id='p_g0', turn=1, max_turns=64,"
        " tools=policy.TOOLS, prompt=b'hello'))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert json.loads(done.stdout) == policy.reply(ask())


@pytest.mark.parametrize(
    "changes", [{"seed": 8}, {"rollout_id": "p_g1"}, {"turn": 2}, {"prompt": b"hello "}]
)
def test_everything_that_it_is_told_matters(changes: dict[str, object]) -> None:
    assert policy.reply(ask(**changes)) != policy.reply(ask())


def test_turn_counts_cover_their_range_and_replies_keep_to_them() -> None:
    counts = Counter(policy.turn_count(3, f"p_g{n}", 8) for n in range(800))
    assert set(counts) == set(range(1, 9))
    assert {policy.turn_count(3, f"p_g{n}", 1) for n in range(50)} == {1}
    for number in range(20):
        name = f"p_g{number}"
        last = policy.turn_count(7, name, 12)
        kinds = [
            "tool_calls" in policy.reply(ask(rollout_id=name, turn=turn, max_turns=12))
            for turn in range(1, last + 1)
        ]
        assert kinds == [True] * (last - 1) + [False]


def test_every_tool_is_called_with_arguments_that_it_takes() -> None:
    from snapfmt_coordinator.reference import tools

    seen = set()
    for number in range(200):
        message = policy.reply(ask(turn=1, rollout_id=f"x_g{number}"))
        for call in message.get("tool_calls", ()):
            name = call["function"]["name"]
            tool = tools.tool(name)
            tool.act(tool.start("s"), json.loads(call["function"]["arguments"]))
            seen.add(name)
    assert seen == set(policy.TOOLS)


def test_without_tools_the_first_reply_is_the_last() -> None:
    assert "tool_calls" not in policy.reply(ask(tools=()))


def test_a_rendered_conversation_grows_at_its_end_only() -> None:
    messages: list[dict[str, object]] = [{"role": "user", "content": "a \udc80 ü"}]
    before = tokens.render(messages)
    for turn in range(1, 6):
        message = policy.reply(ask(tokens.render(messages) + tokens.START_OF_REPLY, turn=turn))
        messages.append(message)
        after = tokens.render(messages)
        assert after == before + tokens.START_OF_REPLY + tokens.body(message)
        before = after


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "nobody", "content": "x"}],
        [{"role": "user", "content": [{"type": "text"}]}],
        [{"content": "x"}],
    ],
)
def test_what_is_no_chat_message_is_refused(messages: list[dict[str, object]]) -> None:
    with pytest.raises(ValueError, match="message"):
        tokens.render(messages)
