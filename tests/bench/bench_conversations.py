"""Conversations with a save at every turn, against a rewrite of all of them as upstream does it.

    python tests/bench/bench_conversations.py [--quick] [--conversations 4] [--turns 200]

One agent and one policy model server, without HTTP and without a queue: prepare, commit, write
on the base, publish, resume. At every turn each conversation grows by a model's answer, which
calls a tool, and by the tool's output (text of this Python's sources), and its lineage by one
call, whose `staging_chain` names all calls before it, as upstream's rows do.

The other side writes, at every turn as well, the files of upstream's protocol generation 1: a tar
of boundary records (indent 2) and one of lineage files, with their indexes and manifests' line
lists, and syncs them. The last line of the output is one JSON object.
"""

import argparse
import asyncio
import hashlib
import json
import os
import statistics
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from snapfmt import Repository
from snapfmt_coordinator.participant.agent import AgentExecution, AgentParticipant
from snapfmt_coordinator.participant.model import ModelParticipant
from snapfmt_coordinator.protocol import v1
from snapfmt_schemas.agent import AgentBoundaryRecord
from snapfmt_schemas.lineage import ModelLineageRow
from snapfmt_schemas.lines import to_line

TAR_BLOCK = 512
AROUND = 5
"""Saves on either side that a time is the median of."""
EARLY = 10
"""The turn that the last one's time is compared with."""


class Text:
    """Pieces of real text."""

    def __init__(self) -> None:
        folder = Path(sysconfig.get_paths()["stdlib"])
        files = sorted(folder.glob("*.py"))[:120]
        self._text = "".join(file.read_text(errors="ignore") for file in files)

    def take(self, number: int, least: int, most: int) -> str:
        """A piece that `number` picks."""
        size = least + number * 7919 % (most - least)
        at = number * 104_729 % (len(self._text) - size)
        return self._text[at : at + size]


class Conversation:
    """One rollout that goes on and on."""

    def __init__(self, number: int, text: Text) -> None:
        self.rollout_id = f"{hashlib.md5(b'%d' % (number // 4)).hexdigest()}_g{number % 4}"
        self._number = number
        self._text = text
        self.items: list[dict[str, Any]] = [
            {"role": "user", "content": text.take(number, 2000, 4000)}
        ]
        self.calls: list[ModelLineageRow] = []
        self.lines: list[bytes] = []
        """The calls as upstream's ledger has them on disk, from where it copies them."""
        self.chains = 0
        """Bytes of the chains in them."""

    def turn(self) -> tuple[AgentBoundaryRecord, ModelLineageRow]:
        """What a turn adds."""
        turn = len(self.calls) + 1
        seed = self._number * 1009 + turn
        call = {
            "name": "shell",
            "arguments": json.dumps({"command": self._text.take(seed, 40, 200)}),
        }
        self.items.append(
            {
                "role": "assistant",
                "content": self._text.take(seed + 1, 200, 900),
                "tool_calls": [{"id": f"tool-{turn}", "type": "function", "function": call}],
            }
        )
        output = self._text.take(seed + 2, 300, 2500)
        self.items.append({"role": "tool", "tool_call_id": f"tool-{turn}", "content": output})
        row = self._row(turn)
        self.calls.append(row)
        self.lines.append(to_line(row) + b"\n")
        self.chains += len(json.dumps(row.staging_chain))
        record = AgentBoundaryRecord(
            rollout_id=self.rollout_id,
            attempt_index=0,
            boundary_index=turn,
            turn_index=turn,
            boundary_kind="turn_complete",
            output_items=tuple(self.items),
            last_committed_model_call_id=row.model_call_id,
            resource_state_revisions={"tools": turn},
            created_at=time.time(),
        )
        return record, row

    def _row(self, turn: int) -> ModelLineageRow:
        def digest(what: str) -> str:
            return hashlib.sha256(f"{self.rollout_id}/{turn}/{what}".encode()).hexdigest()

        before = 700 * (turn - 1)
        return ModelLineageRow(
            model_call_id=f"call-{turn}",
            fingerprint=digest("fingerprint"),
            context_len=before,
            context_digest=digest("context"),
            digest=digest("digest"),
            parent_call_id=self.calls[-1].model_call_id if self.calls else None,
            staging_key=f"{self.rollout_id}/call-{turn}",
            weight_version=turn // 50,
            prev_len=before,
            delta_len=700,
            cum_len=before + 700,
            staging_digest=digest("staging"),
            extras_digest=digest("extras"),
            mode="token_in" if self.calls else "text",
            admitted_at=time.time(),
            staging_chain=tuple(call.staging_key for call in self.calls),
            chain_hash=digest("chain"),
            cumulative_hash=digest("cumulative"),
            response_id=f"response-{digest('response')[:24]}",
            fingerprint_version=1,
        )


class Gym:
    """The two servers, and the runs inside."""

    def __init__(self) -> None:
        self.agent = AgentParticipant(server_name="agent")
        self.model = ModelParticipant(server_name="policy")
        self.runs: dict[str, AgentExecution] = {}

    async def turn(self, conversations: Sequence[Conversation]) -> None:
        """Every run makes a turn; nothing is saved."""
        for one in conversations:
            if one.rollout_id not in self.runs:
                self.runs[one.rollout_id] = await self.agent.begin(one.rollout_id, 0)
            record, row = one.turn()
            async with self.model.call(one.rollout_id, 0, row.model_call_id) as call:
                call.commit(row)
            await self.runs[one.rollout_id].boundary(record)

    async def save(self, repository: Repository, number: int) -> float:
        """A save on the one before; its seconds."""
        started = time.perf_counter()
        base = number - 1 or None
        same: dict[str, Any] = {"checkpoint_id": f"save-{number}", "deadline_ts": time.time() + 60}
        with repository.begin(base=base) as attempt:
            await self.model.pause(v1.PauseModel(**same))
            waiting = [
                asyncio.ensure_future(execution.wait_admission())
                for execution in await self._closing(same)
            ]
            prepared = await self.agent.prepare(v1.PrepareAgents(**same, wait_s=10))
            assert prepared.ready_to_commit, prepared
            agents = await self.agent.commit(
                v1.Commit(**same, ticket=attempt.ticket(self.agent.part))
            )
            assert agents.receipt is not None
            request = v1.CommitModel(
                **same, ticket=attempt.ticket(self.model.part), agents=(agents.receipt,)
            )
            model = await self.model.commit(request)
            assert model.receipt is not None
            attempt.publish([agents.receipt, model.receipt])
        await self.model.resume(v1.Resume(**same))
        await self.agent.resume(v1.Resume(**same))
        await asyncio.gather(*waiting)
        return time.perf_counter() - started

    async def _closing(self, same: dict[str, Any]) -> list[AgentExecution]:
        await self.agent.prepare(v1.PrepareAgents(**same))
        return list(self.runs.values())


def rewrite(folder: Path, conversations: Sequence[Conversation]) -> tuple[float, dict[str, int]]:
    """All of it as upstream writes it: seconds, and bytes of conversations and of lineage."""
    started = time.perf_counter()
    folder.mkdir()
    sizes = {"conversations": 0, "lineage": 0, "lineage without chains": 0}
    members, lineage, index, roots, references = [], [], [], [], []
    for one in conversations:
        last = one.calls[-1]
        record = {
            "schema_version": 2,
            "rollout_id": one.rollout_id,
            "attempt_index": 0,
            "boundary_index": len(one.calls),
            "turn_index": len(one.calls),
            "boundary_kind": "turn_complete",
            "pending_model": None,
            "output_items": one.items,
            "usage": None,
            "last_committed_model_call_id": last.model_call_id,
            "resource_state_revisions": {"tools": len(one.calls)},
            "agent_state": {},
            "created_at": time.time(),
        }
        data = json.dumps(record, indent=2).encode()
        name = f"{one.rollout_id}.a0.json"
        line = {
            "rollout_id": one.rollout_id,
            "attempt_index": 0,
            "archive": "agent-part-000000.tar",
        }
        digest = hashlib.sha256(data).hexdigest()
        index.append({**line, "member": name, "sha256": digest, "bytes": len(data)})
        members.append(member(name, data))
        roots.append(
            {
                "schema_version": 1,
                "rollout_id": one.rollout_id,
                "attempt_index": 0,
                "capture_key": one.rollout_id,
                "last_committed_model_call_id": last.model_call_id,
                "resource_state_revisions": {"tools": len(one.calls)},
            }
        )
        lineage.append(member(f"{one.rollout_id}.lineage.jsonl", b"".join(one.lines)))
        sizes["lineage without chains"] -= one.chains
        references += [
            {
                "schema_version": 1,
                "capture_key": one.rollout_id,
                "boundary_model_call_id": last.model_call_id,
                "kind": "token_capture_staging",
                "key": row.staging_key,
            }
            for row in one.calls
        ]
    sizes["conversations"] = write(folder / "agent-part-000000.tar", b"".join(members))
    sizes["conversations"] += write(folder / "agent-index.jsonl", jsonl(index))
    sizes["conversations"] += write(folder / "continuations.jsonl", jsonl(roots))
    sizes["lineage"] = write(folder / "lineage-part-000000.tar", b"".join(lineage))
    sizes["lineage"] += write(folder / "storage-references.jsonl", jsonl(references))
    sizes["lineage without chains"] += sizes["lineage"]
    handle = os.open(folder, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)
    return time.perf_counter() - started, sizes


def member(name: str, data: bytes) -> bytes:
    """A member of a tar: its header is not looked at here, and so is zeros."""
    return name.encode().ljust(TAR_BLOCK, b"\0") + data + bytes(-len(data) % TAR_BLOCK)


def jsonl(lines: Sequence[Any]) -> bytes:
    """JSON lines."""
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def write(path: Path, data: bytes) -> int:
    """Write and sync a file; its size."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return len(data)


def stored(repository: Path) -> Iterator[int]:
    """Sizes of all files of a repository."""
    return (path.stat().st_size for path in repository.rglob("*") if path.is_file())


async def measured(folder: Path, count: int, turns: int) -> dict[str, Any]:
    """Bytes and seconds of both sides over all turns."""
    text = Text()
    conversations = [Conversation(number, text) for number in range(count)]
    repository = Repository.create(folder / "run")
    gym = Gym()
    ours: list[float] = []
    busy: list[float] = []
    theirs: list[float] = []
    sums: dict[str, int] = {}
    for turn in range(1, turns + 1):
        await gym.turn(conversations)
        before = time.process_time()
        ours.append(await gym.save(repository, turn))
        busy.append(time.process_time() - before)
        seconds, sizes = rewrite(folder / f"theirs-{turn}", conversations)
        theirs.append(seconds)
        for name, size in sizes.items():
            sums[name] = sums.get(name, 0) + size
        for path in (folder / f"theirs-{turn}").iterdir():
            path.unlink()
    parts = {"agent": 0, "model": 0}
    newest: dict[str, int] = {}
    for number in range(1, turns + 1):
        for part in repository.snapshot(number).parts():
            kind = part.name.split("/")[1]
            parts[kind] += part.receipt.stored_bytes
            newest[kind] = part.receipt.stored_bytes
    total = sum(stored(folder / "run"))

    early = min(EARLY, turns)

    def around(times: Sequence[float], turn: int) -> Sequence[float]:
        return times[max(turn - AROUND, 0) : turn + AROUND]

    agent, model = parts["agent"], parts["model"]
    rewritten = sums["conversations"] + sums["lineage"]
    exact = {
        "bytes/rewrite_vs_all_files": rewritten / total,
        "bytes/conversations_vs_agent_part": sums["conversations"] / agent,
        "bytes/lineage_vs_model_part": sums["lineage"] / model,
        "bytes/lineage_without_chains_vs_model_part": sums["lineage without chains"] / model,
    }
    timed = {
        "seconds/last_vs_turn_10": (around(ours, turns), around(ours, early)),
        "processor_seconds/last_vs_turn_10": (around(busy, turns), around(busy, early)),
        "seconds/rewrite_last_vs_turn_10": (around(theirs, turns), around(theirs, early)),
        "seconds/rewrite_vs_save_at_the_last_turn": (around(theirs, turns), around(ours, turns)),
    }
    median = statistics.median
    return {
        "ratios": exact | {name: median(a) / median(b) for name, (a, b) in timed.items()},
        "spread": {name: (value, value) for name, value in exact.items()}
        | {name: (min(a) / max(b), max(a) / min(b)) for name, (a, b) in timed.items()},
        "figures": {
            "conversations": count,
            "turns": turns,
            "bytes of all files": total,
            "bytes of agent parts": agent,
            "bytes of model parts": model,
            "bytes rewritten": rewritten,
            "bytes of the newest agent part": newest["agent"],
            "bytes of the newest model part": newest["model"],
            "processor seconds at turn 10": median(around(busy, early)),
            "processor seconds at the last turn": median(around(busy, turns)),
            "seconds at turn 10": median(around(ours, early)),
            "seconds at the last turn": median(around(ours, turns)),
        },
    }


def main() -> None:
    """Runs it and prints the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--conversations", type=int, default=4)
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--folder", default=None)
    options = parser.parse_args()
    count, turns = (2, 60) if options.quick else (options.conversations, options.turns)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        found = asyncio.run(measured(Path(folder), count, turns))
    for name, value in {**found["ratios"], **found["figures"]}.items():
        print(f"{name:48} {value:14.4f}")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
