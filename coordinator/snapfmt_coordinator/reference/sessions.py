"""Sessions of a resources server: one for each run of a rollout that was seeded here."""

import itertools
import json
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from snapfmt.errors import ControlRefused, RestoreRefused
from snapfmt_coordinator.protocol.codes import refused
from snapfmt_coordinator.reference.tools import State, Tool
from snapfmt_schemas.identity import capture_key
from snapfmt_schemas.resources import ResourceSnapshot

REMEMBERED: Final = 16
"""Answers of a session that a retry can get again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One session; a call makes a new one of it, so that an exported one never changes."""

    session_id: str
    seeded_by: str
    """The execution that seeded it: a retry of its seed finds the session, another one's
    seed starts afresh."""
    revision: int = 0
    state: State
    answers: Mapping[str, Any]
    """The latest outputs, by model call id and action."""

    def saved(self) -> dict[str, Any]:
        """What is stored of it."""
        return {
            "session_id": self.session_id,
            "seeded_by": self.seeded_by,
            "state": self.state,
            "answers": self.answers,
        }

    @classmethod
    def loaded(cls, snapshot: ResourceSnapshot) -> "Session":
        """The session that was stored."""
        state = snapshot.state
        return cls(
            session_id=state["session_id"],
            seeded_by=state["seeded_by"],
            revision=snapshot.state_revision,
            state=state["state"],
            answers=state["answers"],
        )


class MutationLog:
    """A file that every mutation is appended to; a line's number is its place in the order."""

    def __init__(self, path: Path) -> None:
        """Open it for appending; creates it."""
        self._handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def append(self, rollout_id: str, attempt_index: int, call_id: str, value: int) -> None:
        """One mutation, in one write."""
        line = {
            "rollout_id": rollout_id,
            "attempt_index": attempt_index,
            "model_call_id": call_id,
            "value": value,
        }
        os.write(self._handle, json.dumps(line).encode() + b"\n")

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._handle)


class Sessions:
    """The sessions of one server, by run; a `SessionStore` of the resources participant.

    Everything here is synchronous: on one event loop, a call is done whole or not at all.
    """

    def __init__(self, tool: Tool, *, log: MutationLog | None = None) -> None:
        self._tool = tool
        self._log = log
        self._sessions: dict[tuple[str, int], Session] = {}
        # Sessions of a restart-only tool are bound to the process by it.
        self._nonce = secrets.token_hex(4) if tool.mode == "restart_only" else ""

    def __len__(self) -> int:
        return len(self._sessions)

    def seed(self, rollout_id: str, attempt_index: int, *, seed: int, seeded_by: str) -> Session:
        """A fresh session, or the one that this execution seeded before."""
        known = self._sessions.get((rollout_id, attempt_index))
        if known is not None and known.seeded_by == seeded_by:
            return known
        session = Session(
            session_id=self._nonce + secrets.token_hex(8),
            seeded_by=seeded_by,
            state=self._tool.start(f"{seed}/{rollout_id}"),
            answers={},
        )
        self._sessions[rollout_id, attempt_index] = session
        return session

    def answer(
        self, rollout_id: str, attempt_index: int, session_id: str, call_id: str, action: int
    ) -> tuple[Session, Any | None]:
        """The session, and what this very call was told before, if it was made.

        Raises:
            ControlRefused: unknown_execution, if there is no such session.
        """
        session = self._session(rollout_id, attempt_index, session_id)
        return session, session.answers.get(f"{call_id}#{action}")

    def act(
        self,
        rollout_id: str,
        attempt_index: int,
        session_id: str,
        call_id: str,
        action: int,
        arguments: Mapping[str, Any],
    ) -> tuple[Session, Any]:
        """Makes a call, unless it was made before.

        Raises:
            ControlRefused: unknown_execution, if there is no such session; invalid_request, if
                the tool does not take the arguments.
        """
        session, known = self.answer(rollout_id, attempt_index, session_id, call_id, action)
        if known is not None:
            return session, known
        try:
            outcome = self._tool.act(session.state, arguments)
        except ValueError as error:
            raise refused("invalid_request", str(error), what="arguments") from error
        if outcome.changed and self._log is not None and outcome.value is not None:
            self._log.append(rollout_id, attempt_index, call_id, outcome.value)
        answers = {**session.answers, f"{call_id}#{action}": outcome.output}
        surplus = len(answers) - REMEMBERED
        if surplus > 0:
            answers = dict(itertools.islice(answers.items(), surplus, None))
        session = replace(
            session,
            state=outcome.state,
            revision=session.revision + outcome.changed,
            answers=answers,
        )
        self._sessions[rollout_id, attempt_index] = session
        return session, outcome.output

    def public(self, rollout_id: str, attempt_index: int, session_id: str) -> tuple[Session, Any]:
        """The session, and what of its state the reward depends on.

        Raises:
            ControlRefused: unknown_execution, if there is no such session.
        """
        session = self._session(rollout_id, attempt_index, session_id)
        return session, self._tool.public(session.state)

    def listing(self) -> Iterator[dict[str, Any]]:
        """Every session as one JSON object, for tests and audits."""
        for (rollout_id, attempt_index), session in sorted(self._sessions.items()):
            yield {
                "rollout_id": rollout_id,
                "attempt_index": attempt_index,
                "revision": session.revision,
                "state": self._tool.public(session.state),
            }

    def export(self) -> Iterable[tuple[str, int, int, dict[str, Any]]]:
        """Every session that can be saved."""
        if self._tool.mode != "export_restore":
            return []
        return [
            (rollout_id, attempt_index, session.revision, session.saved())
            for (rollout_id, attempt_index), session in self._sessions.items()
        ]

    def install(self, sessions: Sequence[ResourceSnapshot]) -> None:
        """Takes saved sessions in; those of other runs stay.

        Raises:
            RestoreRefused: If one of them is not a session of this server; nothing changed.
        """
        installed = {}
        for snapshot in sessions:
            try:
                session = Session.loaded(snapshot)
                self._tool.public(session.state)
            except (KeyError, TypeError, ValueError) as error:
                raise RestoreRefused(
                    "a saved session is not one of this tool",
                    what=capture_key(snapshot.rollout_id, snapshot.attempt_index),
                    hint="restore with the same tools that were saved",
                ) from error
            installed[snapshot.rollout_id, snapshot.attempt_index] = session
        self._sessions |= installed

    def drop(self, rollout_id: str, attempt_index: int) -> bool:
        """Forget a run's session; whether there was one."""
        return self._sessions.pop((rollout_id, attempt_index), None) is not None

    def _session(self, rollout_id: str, attempt_index: int, session_id: str) -> Session:
        session = self._sessions.get((rollout_id, attempt_index))
        if session is None or session.session_id != session_id:
            raise _gone(rollout_id, attempt_index)
        return session


def _gone(rollout_id: str, attempt_index: int) -> ControlRefused:
    return refused(
        "unknown_execution",
        "there is no such session; a session of this server may have ended with its process",
        what=capture_key(rollout_id, attempt_index),
        hint="let the rollout start over",
    )
