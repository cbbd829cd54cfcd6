"""The four tools: what a session of each holds, and what a call does to it.

A state is a JSON object that is never changed in place: a call makes a new one. So a cut can take
the states of all sessions by reference.
"""

import hashlib
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Protocol

from snapfmt_coordinator.protocol.v1 import Mode

State = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a call gives."""

    state: State
    output: dict[str, Any]
    """What the model is told."""
    changed: bool = True
    """Whether the state is another one now: its revision goes up."""
    value: int | None = None
    """What the mutation log is told; None: nothing."""


class Tool(Protocol):
    """One kind of tool. `act` and `start` are pure."""

    @property
    def mode(self) -> Mode:
        """Whether its sessions can be saved."""
        ...

    def start(self, seed: str) -> State:
        """The state of a new session."""
        ...

    def act(self, state: State, arguments: Mapping[str, Any]) -> Outcome:
        """One call.

        Raises:
            ValueError: If the arguments are not such as the tool takes.
        """
        ...

    def public(self, state: State) -> Any:
        """What of the state the reward depends on: the same in every run of a rollout."""
        ...


class Counter:
    """Adds numbers; every addition leaves the server, so that a repeated one shows."""

    mode: Mode = "export_restore"

    def start(self, seed: str) -> State:
        """Zero."""
        return {"total": 0, "additions": 0}

    def act(self, state: State, arguments: Mapping[str, Any]) -> Outcome:
        """Adds `add`."""
        number = _integer(arguments, "add")
        after = {"total": state["total"] + number, "additions": state["additions"] + 1}
        return Outcome(after, {"total": after["total"]}, value=number)

    def public(self, state: State) -> Any:
        """Total and number of additions."""
        return {"total": state["total"], "additions": state["additions"]}


class Dice:
    """Rolls dice; the place of its random numbers is part of the session."""

    mode: Mode = "export_restore"

    def start(self, seed: str) -> State:
        """A generator that is seeded by the rollout."""
        return {"rng": _saved(random.Random(seed)), "rolls": 0, "sum": 0}  # noqa: S311

    def act(self, state: State, arguments: Mapping[str, Any]) -> Outcome:
        """One roll of a die with `sides` sides."""
        sides = _integer(arguments, "sides")
        if not 2 <= sides <= 1000:
            raise ValueError("sides is from 2 to 1000")
        rng = random.Random()  # noqa: S311
        version, numbers, gauss = state["rng"]
        rng.setstate((version, tuple(numbers), gauss))
        rolled = rng.randint(1, sides)
        after = {"rng": _saved(rng), "rolls": state["rolls"] + 1, "sum": state["sum"] + rolled}
        return Outcome(after, {"rolled": rolled}, value=rolled)

    def public(self, state: State) -> Any:
        """Number and sum of the rolls, and the place of the generator."""
        place = hashlib.sha256(_canonical(state["rng"])).hexdigest()[:16]
        return {"rolls": state["rolls"], "sum": state["sum"], "place": place}


class Notes:
    """Keeps short texts under titles."""

    mode: Mode = "export_restore"

    def start(self, seed: str) -> State:
        """No notes."""
        return {"notes": {}}

    def act(self, state: State, arguments: Mapping[str, Any]) -> Outcome:
        """`read` or `write` of a `title`; a write has a `text`."""
        title, notes = _text(arguments, "title"), state["notes"]
        if arguments.get("op") == "read":
            return Outcome(state, {"text": notes.get(title)}, changed=False)
        if arguments.get("op") != "write":
            raise ValueError("op is read or write")
        written = {**notes, title: _text(arguments, "text")}
        return Outcome({"notes": written}, {"notes": len(written)}, value=len(written))

    def public(self, state: State) -> Any:
        """All notes."""
        return dict(state["notes"])


class Sandbox:
    """Runs commands in a world that lives and dies with this process."""

    mode: Mode = "restart_only"

    def start(self, seed: str) -> State:
        """A fresh world."""
        return {"commands": 0}

    def act(self, state: State, arguments: Mapping[str, Any]) -> Outcome:
        """Runs `command`, which does nothing but count."""
        _text(arguments, "command")
        done = state["commands"] + 1
        return Outcome({"commands": done}, {"exit_code": 0, "commands": done}, value=done)

    def public(self, state: State) -> Any:
        """How many commands ran."""
        return {"commands": state["commands"]}


_KINDS: Final[Mapping[str, Callable[[], Tool]]] = MappingProxyType(
    {"counter": Counter, "dice": Dice, "notes": Notes, "sandbox": Sandbox}
)


def tool(kind: str) -> Tool:
    """The tool of a kind: counter, dice, notes or sandbox."""
    return _KINDS[kind]()


def reward(kind: str, public: Any, answer: str) -> float:
    """A number from 0 up to 1 that depends on every bit of state and answer."""
    digest = hashlib.sha256(f"{kind}/{answer}/".encode() + _canonical(public)).digest()
    return int.from_bytes(digest[:4], "big") / 2**32


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _saved(rng: random.Random) -> list[Any]:
    version, numbers, gauss = rng.getstate()
    return [version, list(numbers), gauss]


def _integer(arguments: Mapping[str, Any], name: str) -> int:
    value = arguments.get(name)
    if type(value) is not int:
        raise ValueError(f"{name} is a whole number")
    return value


def _text(arguments: Mapping[str, Any], name: str) -> str:
    value = arguments.get(name)
    if not isinstance(value, str):
        raise ValueError(f"{name} is text")
    return value
