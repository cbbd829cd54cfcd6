"""Secrets are planted wherever one can enter, and looked for in every stored byte and all output.

Buckets and their credentials: test_bucket_secrets.py. The control token: test_gym_client.py.
"""

import json
import logging
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from snapfmt import Repository
from snapfmt.adapters.zarr_arrays import write_array
from snapfmt.cli import main
from snapfmt.errors import SnapfmtError
from snapfmt.storage.local import LocalStore
from snapfmt.testing.crashes import SystemCalls
from snapfmt.testing.hunting import hunt, stored
from snapfmt.writing.attempt import Attempt
from snapfmt_coordinator.participant import agent_part, sessions_part
from snapfmt_coordinator.protocol.codes import internal
from snapfmt_schemas.agent import AgentBoundaryRecord, PendingModel
from snapfmt_schemas.attempt import Receipt
from snapfmt_schemas.recipe import Recipe
from snapfmt_schemas.timeline import Phase, PhaseTimeline

MARK = "S3cr37-of-nobody-x9Qz-"
"""What every secret begins with, so that all are looked for at once."""
HOME = "home-of-alice"
"""A folder above the repository: its absolute path is nobody's business."""


class Planter:
    """Makes secrets, each of them once, so that what is found says where it came in."""

    def __init__(self) -> None:
        self.made: list[str] = []

    def __call__(self, where: str) -> str:
        self.made.append(f"{MARK}{len(self.made)}-{where}")
        return self.made[-1]

    def everywhere(self, where: str) -> dict[str, Any]:
        """One JSON value with a secret in every clothing that a value has."""
        s = lambda name: self(f"{where}-{name}")  # noqa: E731
        call = {
            "url": "http://tools/",
            "headers": {"Authorization": f"Bearer {s('argument')}"},
            "body": [{"password": s("argument-body")}],
        }
        result = {"set-cookie": s("result-cookie"), "headers": [["X-Api-Key", s("result-key")]]}
        return {
            "headers": {
                "Authorization": f"Bearer {s('authorization')}",
                "Cookie": s("cookie"),
                "accept": "text/plain",
            },
            "sent": [["Proxy-Authorization", s("pair")], ["accept", "x"]],
            "cookies": {"sid": s("cookies"), "more": [{"value": s("cookies-deep")}]},
            "tool_call": {"type": "function_call", "arguments": json.dumps(call)},
            "tool_result": {"type": "function_call_output", "output": json.dumps(result)},
            "environ": {"PATH": s("path"), "UNKNOWN": s("environ")},
            "env": {"OPENAI_API_KEY": s("env"), "HF_TOKEN": s("env-token"), "PGPASSWORD": s("pg")},
            "storage_options": {"key": s("key"), "secret": s("secret"), "token": s("token")},
            "endpoint": f"https://user:{s('url')}@host/bucket",
            "session": {"access_token": s("session"), "credentials": [s("credentials")]},
            "wandb": {"apiKey": s("camel"), "api-key": s("kebab"), "WANDB_KEY": s("vendor")},
            "client": {"private_key": s("private"), "connectionString": s("connection")},
            "plain": "this may be seen",
        }


@pytest.fixture
def plant() -> Planter:
    return Planter()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / HOME / "run"


def agent(attempt: Attempt, plant: Planter) -> Receipt:
    """The part of an agent server: a conversation, its state, a call that waits."""
    pending = PendingModel(
        model_call_id="c2",
        response=plant.everywhere("response"),
        model_server_cookies={"session": plant("model-cookie"), "more": [{"x": plant("more")}]},
        usage=plant.everywhere("usage"),
    )
    record = AgentBoundaryRecord(
        rollout_id="r1",
        attempt_index=0,
        boundary_index=1,
        turn_index=1,
        boundary_kind="pending_model",
        pending_model=pending,
        output_items=(plant.everywhere("item"), {"role": "assistant", "content": "hello"}),
        last_committed_model_call_id="c1",
        resource_state_revisions={"tools": 3},
        agent_state=plant.everywhere("agent-state"),
        created_at=1.5,
    )
    cut = agent_part.AgentCut([record])
    receipt = agent_part.write(cut, attempt.ticket("gym/agent/swe")).receipt
    assert receipt is not None
    return receipt


def resources(attempt: Attempt, plant: Planter) -> Receipt:
    """The part of a resources server: a session."""
    cut = sessions_part.SessionCut([("r1", 0, 3, plant.everywhere("session"))], taken_at=1.5)
    ticket = attempt.ticket("gym/resources/tools")
    receipt = sessions_part.write(cut, "tools", "export_restore", ticket).receipt
    assert receipt is not None
    return receipt


def own(attempt: Attempt, plant: Planter) -> Receipt:
    """A part of every kind of JSON that a caller may write."""
    part = attempt.part("rl/controller")
    part.json("state.json", plant.everywhere("json"))
    lines = [json.dumps({"key": f"r{n}", **plant.everywhere(f"line-{n}")}) for n in range(3)]
    part.records("lines.jsonl", [line.encode() for line in lines], key="key")
    write_array(part, "array", np.zeros(3), attributes=plant.everywhere("attributes"))
    return part.seal()


def save(repository: Repository, plant: Planter) -> None:
    with repository.begin() as attempt:
        receipts = [agent(attempt, plant), resources(attempt, plant), own(attempt, plant)]
        fingerprint = Recipe.of(plant.everywhere("recipe")).to_fingerprint()
        phase = Phase(name="cut", actor="gym", started_at_ns=1, ended_at_ns=2)
        attempt.publish(
            receipts,
            fingerprints=[fingerprint],
            timeline=PhaseTimeline(operation="save", phases=(phase,)),
            user_metadata=plant.everywhere("metadata"),
        )


def test_the_hunter_finds_what_is_not_hidden(place: Path, plant: Planter) -> None:
    """Compressed and not, in a table, a record, an entry, a shard, and coded."""
    repository = Repository.open(place, create=True)
    with repository.begin() as attempt:
        part = attempt.part("p")
        part.stage("bytes", f"before {plant('staged')} after".encode())
        part.stage("coded", bytes.fromhex("00") + plant("hex").encode().hex().encode())
        part.json("kept.json", {"password": plant("json")}, redact=False)
        line = json.dumps({"text": "x" * 2000, "password": plant("record")}).encode()
        part.records("lines.jsonl", [line], redact=False)
        with part.table("t") as table:
            cells = [{"text": "y" * 5000 + plant("cell")}]
            table.append(["k"], {"x": cells, "y": ["z" * 5000 + plant("text") + "z" * 5000]})
        text = np.frombuffer((plant("array") + "0" * 8000).encode()[:8000], np.uint8)
        write_array(part, "array", text)
        attempt.publish([part.seal()], user_metadata={"note": plant("metadata")})
    found = hunt(stored(repository.store), plant.made)
    assert {item.split("'")[1] for item in found} == set(plant.made)


@pytest.mark.req("G-9")
def test_no_secret_is_stored(
    place: Path, plant: Planter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for name in ("AWS_SECRET_ACCESS_KEY", "NEMO_GYM_CHECKPOINT_CONTROL_TOKEN", "UNKNOWN_THING"):
        monkeypatch.setenv(name, plant(f"environment-{name}"))
    repository = Repository.open(place, create=True)
    save(repository, plant)
    repository.pin("night", 1)
    # What a running save shows: its lease, its workspace, its ticket.
    attempt = repository.begin(base=1)
    own(attempt, plant)
    pieces = stored(repository.store)
    pieces["ticket"] = attempt.ticket("p").model_dump_json().encode()
    pieces["log"] = caplog.text.encode()
    pieces["reprs"] = repr((repository, attempt, repository.leases(), repository.pins())).encode()
    assert len(plant.made) > 150
    assert hunt(pieces, [MARK]) == []
    assert hunt({"log": pieces["log"]}, [HOME]) == []
    attempt.abandon()
    repository.unpin("night")
    kept = stored(repository.store)
    assert hunt(kept, [MARK, HOME]) == [], "nor where the repository lies"
    assert hunt(kept, ["this may be seen"]) != [], "and what may be seen is there"


COMMANDS = (
    ["ls"],
    ["show", "1"],
    ["report", "1"],
    ["tree", "1"],
    ["cat", "1", "rl/controller/state.json"],
    ["cat", "1", "rl/controller/lines.jsonl"],
    ["rows", "1", "items/swe"],
    ["rows", "1", "sessions/tools"],
    ["verify"],
    ["attempts"],
    ["gc", "--dry-run"],
    ["pins"],
)


def test_no_secret_is_shown(
    place: Path, plant: Planter, capsys: pytest.CaptureFixture[str]
) -> None:
    save(Repository.open(place, create=True), plant)
    shown, codes = {}, []
    for command in COMMANDS:
        for options in ([], ["--json"]):
            name = [command[0], str(place), *command[1:], *options]
            codes.append(main(name))
            out = capsys.readouterr()
            shown[" ".join([command[0], *command[1:], *options])] = (out.out + out.err).encode()
    assert codes.count(0) >= 2 * (len(COMMANDS) - 2), list(zip(shown, codes, strict=True))
    assert hunt(shown, [MARK]) == []
    assert hunt(shown, ["this may be seen"]) != []


def test_no_secret_is_in_what_an_error_says(
    place: Path, plant: Planter, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also with --debug, and of URLs that a user wrongly puts a secret in."""
    shown = {}
    for number, url in enumerate(
        (
            f"s3://user:{plant('userinfo')}@bucket/run",
            f"s3://bucket/run?secret={plant('query')}",
            f"s3://bucket/run?endpoint_url=https://u:{plant('endpoint')}@host",
            f"https://user:{plant('https')}@host/run",
            f"file://user:{plant('file')}@host/run",
            f"S3://user:{plant('capital')}@bucket/run",
        )
    ):
        for options in ([], ["--json"], ["--debug"], ["--json", "--debug"]):
            assert main(["ls", url, *options]) != 0
            out = capsys.readouterr()
            shown[f"{number} {options}"] = (out.out + out.err).encode()
        try:
            Repository.open(url)
        except SnapfmtError as error:
            text = "".join(traceback.format_exception(error)) + repr(error.__dict__)
            shown[f"{number} raised"] = text.encode()
    assert hunt(shown, [MARK]) == []


def test_no_secret_is_in_the_error_of_a_value(place: Path, plant: Planter) -> None:
    """A value that is refused: its message, its attributes, and what a server tells of it."""
    repository = Repository.open(place, create=True)
    attempt = repository.begin()
    part = attempt.part("p")
    calls: list[Callable[[], object]] = [
        lambda: part.json("a", {"password": plant("json"), "bad": {1, 2}}),
        lambda: part.records("b", [f'{{"password": "{plant("line")}", '.encode()], key="k"),
        lambda: part.records("c", [json.dumps({"token": plant("key")}).encode()], key="k"),
        lambda: attempt.publish([], user_metadata={"password": plant("meta"), "bad": b"x"}),
        lambda: Repository.join(json.dumps({"location": "x", "secret": plant("ticket")})),
        lambda: AgentBoundaryRecord.model_validate({"agent_state": {"token": plant("record")}}),
    ]
    shown = {}
    for number, call in enumerate(calls):
        with pytest.raises((SnapfmtError, ValidationError)) as caught:
            call()
        error = caught.value
        told = internal(error)
        shown[f"told of {number}"] = f"{told} {told.__dict__}".encode()
        if isinstance(error, SnapfmtError):
            shown[f"raised {number}"] = f"{error} {error.__dict__}".encode()
    assert len(shown) > len(calls)
    assert hunt(shown, [MARK]) == []


def test_a_save_that_fails_leaves_no_secret(
    place: Path, plant: Planter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At whatever call the disk fails: not in what stays, nor in the error."""
    repository = Repository.open(place, create=True)
    counted = SystemCalls(place)
    with monkeypatch.context() as patch:
        counted.install(patch)
        save(repository, plant)
    steps = len(counted.calls)
    for first in range(3, steps, max(1, steps // 4)):
        seen = [0]

        def fail(_: object, first: int = first, seen: list[int] = seen) -> OSError | None:
            seen[0] += 1
            return OSError(5, os.strerror(5)) if seen[0] >= first else None

        with monkeypatch.context() as patch:
            SystemCalls(place, fail=fail).install(patch)
            with pytest.raises(SnapfmtError) as caught:
                save(Repository.open(LocalStore(place)), plant)
        shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value.__dict__)
        pieces = stored(repository.store) | {"error": shown.encode()}
        assert hunt(pieces, [MARK]) == []
