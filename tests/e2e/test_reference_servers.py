"""The reference servers as real processes: whole runs, a checkpoint in the middle, a crash."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from snapfmt import Repository
from snapfmt_coordinator.participant import agent_part
from snapfmt_coordinator.protocol import v1
from snapfmt_coordinator.reference.processes import (
    ServerProcess,
    ServerSpec,
    kill_servers,
    restart_servers,
    start_servers,
    stop_servers,
)
from snapfmt_schemas.agent import BoundaryHead
from snapfmt_schemas.attempt import Receipt

TOKEN = "of-this-test-only"
ROLLOUTS = 64
TOOLS = ("counter", "dice", "notes", "sandbox")
OF_RUN = ("reward", "turns", "answer", "conversation_digest", "verify")
"""What of a result must be the same however often its rollout was interrupted."""
Result = dict[str, Any]


def task(number: int) -> dict[str, Any]:
    """Every fourth rollout uses the sandbox."""
    tools = ["counter", "sandbox"] if number % 4 == 3 else ["counter", "dice", "notes"]
    return {"prompt": f"task {number // 4}", "max_turns": 16, "tools": tools, "seed": 11}


TASKS = {f"p{number // 4}_g{number % 4}": task(number) for number in range(ROLLOUTS)}
SANDBOXED = {name for name, made in TASKS.items() if "sandbox" in made["tools"]}


class Gym:
    """The servers, and what a coordinator would ask them."""

    def __init__(self, servers: Sequence[ServerProcess], session: aiohttp.ClientSession) -> None:
        self.of = {server.kind: server for server in servers}
        self.resources = [server for server in servers if server.kind in TOOLS]
        self._session = session

    async def ask(
        self, server: ServerProcess, method: str, path: str, **body: Any
    ) -> dict[str, Any]:
        """A control request that must succeed."""
        headers = {"Authorization": f"Bearer {TOKEN}"}
        options = {"params": {k: str(v) for k, v in body.items()}} if method == "GET" else {}
        if method == "POST":
            options = {"data": json.dumps({"schema_version": 1, **body})}
        url = server.url + v1.PREFIX + path
        async with self._session.request(method, url, headers=headers, **options) as response:
            answer: dict[str, Any] = await response.json()
            assert response.status == 200, (server.name, path, answer)
            return answer

    async def run(self, name: str, attempt: int = 0, made: Any = None) -> tuple[int, Result, Any]:
        """One `/run`: status, body, headers."""
        body = {
            "_ng_rollout_id": name,
            "_ng_attempt_index": attempt,
            "task": made or TASKS[name],
        }
        url = self.of["agent"].url + "/run"
        async with self._session.post(url, json=body) as response:
            return response.status, await response.json(), response.headers

    async def finish(self, attempts: Mapping[str, int]) -> dict[str, Result]:
        """Runs to their end and acknowledges their results."""
        answers = await asyncio.gather(*(self.run(name, n) for name, n in attempts.items()))
        assert {status for status, _, _ in answers} == {200}
        results = {body["rollout_id"]: body for _, body, _ in answers}
        await self.acknowledge(results.values())
        return results

    async def acknowledge(self, results: Any) -> None:
        receipts = [result["completion_receipt"] for result in results]
        path = f"{v1.AGENT}/acknowledge-completed"
        await self.ask(self.of["agent"], "POST", path, executions=receipts)

    async def get(self, kind: str, path: str) -> dict[str, Any]:
        async with self._session.get(self.of[kind].url + path) as response:
            assert response.status == 200
            answer: dict[str, Any] = await response.json()
            return answer

    async def wait_calls(self, least: int) -> None:
        """Until so many rows were captured."""
        while await self.calls() < least:  # noqa: ASYNC110 - it is another process that counts
            await asyncio.sleep(0.01)

    async def calls(self) -> int:
        """Rows that were captured since the policy server began."""
        return int((await self.get("policy", "/captured"))["puts"])


class Checkpoint:
    """One checkpoint, driven by plain requests."""

    def __init__(self, gym: Gym, name: str) -> None:
        self._gym = gym
        self.identity = {"checkpoint_id": name, "deadline_ts": time.time() + 600}

    async def ask(
        self, server: ServerProcess, path: str, method: str = "POST", **body: Any
    ) -> dict[str, Any]:
        return await self._gym.ask(server, method, path, **self.identity, **body)

    async def prepare(self, running: Mapping[str, asyncio.Task[Any]]) -> dict[str, Any]:
        """Until all stands still; results that come meanwhile are acknowledged."""
        gym, acknowledged = self._gym, set()
        agent, policy = gym.of["agent"], gym.of["policy"]
        await self.ask(policy, f"{v1.MODEL_ADMISSION}/pause")
        while True:
            done = {name for name, one in running.items() if one.done()} - acknowledged
            await gym.acknowledge([running[name].result()[1] for name in done])
            acknowledged |= done
            answer = await self.ask(agent, f"{v1.AGENT}/prepare", wait_s=0.2)
            if answer["ready_to_commit"]:
                break
        for server in gym.resources:
            await self.ask(server, f"{v1.RESOURCES}/prepare")
        status = {"method": "GET", "wait_state": "paused", "timeout_s": 10}
        admission = await self.ask(policy, f"{v1.MODEL_ADMISSION}/status", **status)
        assert (admission["admission"], admission["inflight_total"]) == ("paused", 0)
        return answer

    async def commit(self, attempt: Any, *, wait: bool) -> list[Receipt]:
        """Takes the cut; with `wait`, writes it."""
        gym, receipts = self._gym, []
        parts = [(gym.of["agent"], "agent", v1.AGENT), (gym.of["policy"], "model", v1.MODEL)]
        parts += [(server, "resources", v1.RESOURCES) for server in gym.resources]
        for server, kind, path in parts:
            ticket = attempt.ticket(f"gym/{kind}/{server.name}").model_dump(mode="json")
            body = {"ticket": ticket, "wait": wait}
            if kind == "model" and wait:
                body["agents"] = [item.model_dump(mode="json") for item in receipts[:1]]
            answer = await self.ask(server, f"{path}/commit", **body)
            if wait:
                receipts.append(Receipt.model_validate_json(json.dumps(answer["receipt"])))
        return receipts

    async def resume(self) -> None:
        gym = self._gym
        for server in gym.resources:
            await self.ask(server, f"{v1.RESOURCES}/resume")
        await self.ask(gym.of["policy"], f"{v1.MODEL_ADMISSION}/resume")
        await self.ask(gym.of["agent"], f"{v1.AGENT}/resume")

    async def restore(self, repository: Repository, source: str) -> None:
        """Installs the newest snapshot; sandbox users start over. All stay paused."""
        snapshot, gym = repository.snapshot(), self._gym
        parts = [(gym.of["policy"], "model", v1.MODEL), (gym.of["agent"], "agent", v1.AGENT)]
        parts += [(server, "resources", v1.RESOURCES) for server in gym.resources]
        restored = set()
        for server, kind, path in parts:
            part = snapshot.part(f"gym/{kind}/{server.name}")
            place = {
                "location": snapshot.location,
                "number": snapshot.number,
                "part": part.name,
                "index_digest": part.receipt.index_digest,
            }
            await self.ask(server, f"{path}/restore", source_checkpoint_id=source, snapshot=place)
            if kind == "agent":
                records = part.records("boundaries.jsonl", BoundaryHead)
                restored = {record.rollout_id for record in records}
        over = [{"rollout_id": name, "attempt_index": 1} for name in restored & SANDBOXED]
        for server, _, path in parts:
            await self.ask(server, f"{path}/discard-restored-continuation", executions=over)


@asynccontextmanager
async def connected(servers: Sequence[ServerProcess]) -> Any:
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        yield Gym(servers, session)


def segments(repository: Repository, number: int, table: str) -> Any:
    """The segments of a table."""
    snapshot = repository.snapshot(number)
    (part,) = (part for part in snapshot.parts() if table in part.table_names())
    return part.segments(table)


def pack_of(segment: Any) -> str:
    """Where its rows lie."""
    return str(segment.document.data.pack)


def drive(servers: Sequence[ServerProcess], body: Any) -> Any:
    """Runs `body(gym)` to its end."""

    async def main() -> Any:
        async with connected(servers) as gym:
            coroutine: Coroutine[Any, Any, Any] = body(gym)
            return await coroutine

    return asyncio.run(main())


def start(directory: Path) -> list[ServerProcess]:
    specs = [ServerSpec(name=f"the-{kind}", kind=kind) for kind in TOOLS[1:]]  # type: ignore[arg-type]
    log = ("--mutation-log", str(directory / "mutations.jsonl"))
    directory.mkdir(exist_ok=True)
    return start_servers(
        directory,
        [
            # A reply takes a while, so that a checkpoint meets runs at every turn.
            ServerSpec(name="policy", kind="policy", options=("--generation-s", "0.1")),
            ServerSpec(name="agent", kind="agent"),
            ServerSpec(name="the-counter", kind="counter", options=log),
            *specs,
        ],
        TOKEN,
    )


def mutations(directory: Path) -> Counter[tuple[str, int, str]]:
    lines = (directory / "mutations.jsonl").read_text().splitlines()
    values = [json.loads(line) for line in lines]
    return Counter((v["rollout_id"], v["attempt_index"], v["model_call_id"]) for v in values)


def comparable(results: Mapping[str, Result]) -> dict[str, dict[str, Any]]:
    return {name: {k: result[k] for k in OF_RUN} for name, result in results.items()}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ServerProcess]]:
    started = start(tmp_path_factory.mktemp("servers") / "first")
    yield started
    stop_servers(started)


@pytest.fixture(scope="module")
def expected(servers: list[ServerProcess]) -> dict[str, Result]:
    """Results of runs that nothing interrupted."""

    async def body(gym: Gym) -> dict[str, Result]:
        return await gym.finish(dict.fromkeys(TASKS, 0))

    found: dict[str, Result] = drive(servers, body)
    return found


def test_whole_runs_keep_their_books(
    servers: list[ServerProcess], expected: dict[str, Result]
) -> None:
    assert set(expected) == set(TASKS)
    assert len({result["turns"] for result in expected.values()}) > 8
    assert len({result["reward"] for result in expected.values()}) == ROLLOUTS
    for name, result in expected.items():
        calls = result["manifest"]
        assert result["turns"] == result["model_calls"] == len(calls)
        assert [call["model_call_id"] for call in calls] == [
            f"call-{turn}" for turn in range(1, len(calls) + 1)
        ]
        total = 0
        for call in calls:
            assert call["staging_key"] == f"{name}/{call['model_call_id']}"
            assert (call["prev_len"], call["cum_len"]) == (total, total + call["delta_len"])
            total = call["cum_len"]
        receipt = result["completion_receipt"]
        assert receipt["terminal_model_call_id"] == calls[-1]["model_call_id"]
        changes = result["resource_state_revisions"]["the-counter"]
        assert changes == result["verify"]["the-counter"]["state"]["additions"]

    async def body(gym: Gym) -> None:
        captured = await gym.get("policy", "/captured?check=1")
        assert captured["problems"] == []
        keys = {call["staging_key"] for result in expected.values() for call in result["manifest"]}
        assert keys <= set(captured["keys"])

    drive(servers, body)


def test_the_same_rollouts_give_the_same_again(
    servers: list[ServerProcess], expected: dict[str, Result]
) -> None:
    async def body(gym: Gym) -> dict[str, Result]:
        return await gym.finish(dict.fromkeys(TASKS, 1))

    again = drive(servers, body)
    assert comparable(again) == comparable(expected)
    assert all(key["staging_key"].startswith("p0_g0-a1/") for key in again["p0_g0"]["manifest"])


def test_the_same_run_again(servers: list[ServerProcess]) -> None:
    made = {"prompt": "x", "max_turns": 16, "tools": ["counter"], "seed": 1, "delay_s": 0.15}

    async def body(gym: Gym) -> None:
        before = await gym.calls()
        first = asyncio.create_task(gym.run("twice_g0", 0, made))
        await gym.wait_calls(before + 1)
        status, answer, _ = await gym.run("twice_g0", 0, made)
        assert (status, answer["error"]["code"]) == (409, "duplicate_execution")
        status, result, headers = await first
        assert (status, headers[v1.GENERATION_HEADER]) == (200, "1")
        status, retained, headers = await gym.run("twice_g0", 0, made)
        assert (status, retained, headers[v1.GENERATION_HEADER]) == (200, result, "1")
        await gym.acknowledge([result])
        status, answer, _ = await gym.run("twice_g0", 0, made)
        assert (status, answer["error"]["code"]) == (409, "stale_attempt")
        status, answer, _ = await gym.run("twice_g1", 0, {**made, "tools": ["hammer"]})
        assert (status, answer["error"]["code"]) == (422, "invalid_request")

    drive(servers, body)


def test_a_call_again_gives_the_same_answer_and_no_second_row(
    servers: list[ServerProcess],
) -> None:
    body = {
        "messages": [{"role": "user", "content": "x"}],
        "tools": [],
        "metadata": {"seed": "3", "max_turns": "4"},
    }
    headers = {
        "x-nemo-gym-rollout-id": "call_g0",
        "x-nemo-gym-attempt-index": "0",
        "x-nemo-gym-model-call-id": "call-1",
    }

    async def chat(gym: Gym, request: Any, **more: str) -> tuple[int, Any]:
        url = gym.of["policy"].url + "/v1/chat/completions"
        sent = {k: v for k, v in {**headers, **more}.items() if v}
        async with gym._session.post(url, json=request, headers=sent) as response:
            return response.status, await response.json()

    async def check(gym: Gym) -> None:
        before = await gym.calls()
        together = await asyncio.gather(*(chat(gym, body) for _ in range(4)))
        later = await chat(gym, body)
        assert {status for status, _ in together} == {200}
        assert all(answer == later[1] for _, answer in together)
        assert await gym.calls() == before + 1
        other = {**body, "metadata": {"seed": "4", "max_turns": "4"}}
        status, answer = await chat(gym, other)
        assert (status, answer["error"]["code"]) == (409, "ledger_mismatch")
        second = {"x-nemo-gym-model-call-id": "call-2"}
        parent = {"x-nemo-gym-parent-model-call-id": "call-1"}
        status, answer = await chat(gym, body, **second, **parent)
        assert (status, answer["error"]["code"]) == (409, "ledger_mismatch")
        status, answer = await chat(gym, body, **{"x-nemo-gym-rollout-id": "-"})
        assert (status, answer["error"]["code"]) == (422, "invalid_request")
        assert await gym.calls() == before + 1

    drive(servers, check)


def test_a_checkpoint_in_the_middle_changes_no_result(
    servers: list[ServerProcess], expected: dict[str, Result], tmp_path: Path
) -> None:
    repository = Repository.create(tmp_path / "repository")

    async def body(gym: Gym) -> dict[str, Result]:
        running = {name: asyncio.create_task(gym.run(name, 2)) for name in TASKS}
        before = await gym.calls()
        await gym.wait_calls(before + 2 * ROLLOUTS)
        early = Checkpoint(gym, "early")
        await early.prepare(running)
        with repository.begin() as attempt:
            attempt.publish(await early.commit(attempt, wait=True))
        await early.resume()
        await gym.wait_calls(before + 3 * ROLLOUTS)
        checkpoint = Checkpoint(gym, "in-the-middle")
        prepared = await checkpoint.prepare(running)
        assert prepared["parked"] > ROLLOUTS / 4
        assert prepared["parked"] + sum(one.done() for one in running.values()) == ROLLOUTS
        assert prepared["parked_without_boundary"] == 0
        with repository.begin(base=1) as attempt:
            standing = await gym.calls()
            await checkpoint.commit(attempt, wait=False)
            await asyncio.sleep(0.2)
            assert await gym.calls() == standing
            await checkpoint.resume()
            answers = dict(zip(running, await asyncio.gather(*running.values()), strict=True))
            assert await gym.calls() > standing
            # Written after all has moved on; it is the cut all the same.
            attempt.publish(await checkpoint.commit(attempt, wait=True))
        assert {status for status, _, _ in answers.values()} == {200}
        results = {name: answer for name, (_, answer, _) in answers.items()}
        await gym.acknowledge(results.values())
        records = [
            *repository.snapshot().part("gym/agent/agent").records("boundaries.jsonl", BoundaryHead)
        ]
        assert len(records) == prepared["parked"]
        assert {record.boundary_kind for record in records} <= {"turn_complete", "pending_model"}
        lines = repository.snapshot().table("lineage/policy").num_rows
        assert lines == sum(
            int(str(record.last_committed_model_call_id).removeprefix("call-"))
            for record in records
        )
        return results

    results = drive(servers, body)
    assert comparable(results) == comparable(expected)
    assert repository.verify().damage == []
    first, second = (
        {record.rollout_id: record for record in agent_part.read(part).records}
        for part in (repository.snapshot(n).part("gym/agent/agent") for n in (1, 2))
    )
    both = first.keys() & second.keys()
    assert len(both) > ROLLOUTS / 2
    for name in both:
        before, after = first[name].output_items, second[name].output_items
        assert after[: len(before)] == before
    # What the first save holds of them was not written again.
    packs = {pack_of(segment) for segment in segments(repository, 1, "items/agent")}
    carried = [s.rows for s in segments(repository, 2, "items/agent") if pack_of(s) in packs]
    assert sum(carried) == sum(len(first[name].output_items) for name in both)
    packs = {pack_of(segment) for segment in segments(repository, 1, "lineage/policy")}
    assert packs & {pack_of(segment) for segment in segments(repository, 2, "lineage/policy")}


def test_a_crash_after_a_snapshot_loses_only_what_came_after_it(
    expected: dict[str, Result], tmp_path: Path
) -> None:
    repository = Repository.create(tmp_path / "repository")
    directory = tmp_path / "servers"
    servers = start(directory)

    async def until_the_crash(gym: Gym) -> dict[str, Result]:
        running = {name: asyncio.create_task(gym.run(name)) for name in TASKS}
        await gym.wait_calls(4 * ROLLOUTS)
        checkpoint = Checkpoint(gym, "before-the-crash")
        # Agents first: then every reply that is on its way parks its run before the tool.
        await gym.ask(gym.of["agent"], "POST", f"{v1.AGENT}/prepare", **checkpoint.identity)
        await checkpoint.prepare(running)
        finished = {n: one.result()[1] for n, one in running.items() if one.done()}
        with repository.begin() as attempt:
            await checkpoint.commit(attempt, wait=False)
            standing = await gym.calls()
            await checkpoint.resume()
            attempt.publish(await checkpoint.commit(attempt, wait=True))
        await gym.wait_calls(standing + 40)
        kill_servers(servers)
        await asyncio.gather(*running.values(), return_exceptions=True)
        return finished

    async def after_the_crash(gym: Gym, finished: dict[str, Result]) -> dict[str, Result]:
        restore = Checkpoint(gym, "after-the-crash")
        await restore.restore(repository, "before-the-crash")
        late = next(name for name in TASKS if name not in finished)
        status, answer, _ = await gym.run(late, 1)
        assert (status, answer["error"]["code"]) == (409, "agent_admission_closed")
        await restore.resume()
        status, answer, _ = await gym.run(late, 0)
        assert (status, answer["error"]["code"]) == (409, "stale_attempt")
        again = await gym.finish(dict.fromkeys(TASKS.keys() - finished.keys(), 1))
        assert (await gym.get("policy", "/captured?check=1"))["problems"] == []
        return again

    try:
        finished = drive(servers, until_the_crash)
        restart_servers(servers)
        again = drive(servers, lambda gym: after_the_crash(gym, finished))
    finally:
        kill_servers(servers)

    assert comparable({**finished, **again}) == comparable(expected)
    agent = repository.snapshot().part("gym/agent/agent")
    records = {r.rollout_id: r for r in agent.records("boundaries.jsonl", BoundaryHead)}
    assert set(records) == set(again)
    assert len(records) > ROLLOUTS / 4
    made, continued, kinds = mutations(directory), 0, set()
    assert max(made.values()) == 1
    for name, result in again.items():
        record = records[name]
        if name in SANDBOXED:
            assert result["continued_after"] is None
            assert result["manifest"][0]["staging_key"] == f"{name}-a1/call-1"
            continue
        assert result["continued_after"] == record.last_committed_model_call_id
        cut = int(str(record.last_committed_model_call_id).removeprefix("call-"))
        # Calls up to the cut are the old run's, and their tools were not called again.
        for turn, call in enumerate(result["manifest"], 1):
            run = name if turn <= cut else f"{name}-a1"
            assert call["staging_key"] == f"{run}/call-{turn}"
        repeated = [f"call-{t}" for t in range(1, record.turn_index + 1)]
        assert not any((name, 1, call_id) in made for call_id in repeated)
        continued += bool(repeated)
        kinds.add(record.boundary_kind)
    assert continued > ROLLOUTS / 8
    assert "pending_model" in kinds
    assert any(name in SANDBOXED for name in again)


@pytest.mark.cluster
def test_rows_go_into_the_queue_and_replies_come_from_an_actor(lab: Any, tmp_path: Path) -> None:
    import ray
    import transfer_queue as tq

    from snapfmt_coordinator.reference import policy
    from snapfmt_coordinator.reference.capture import PARTITION, check_digests
    from snapfmt_schemas.rows import check_capture_row

    lab.start(2)

    class Engine:
        def __init__(self) -> None:
            self.sizes: list[int] = []

        def generate(self, asks: list[Any]) -> list[Any]:
            self.sizes.append(len(asks))
            return policy.replies(asks, weight_version=5)

        def asked(self) -> list[int]:
            return self.sizes

    named = {"name": "generation-engine", "namespace": "snapfmt", "num_cpus": 0}
    engine = ray.remote(Engine).options(**named).remote()
    specs = [
        ServerSpec(name="policy", kind="policy"),
        ServerSpec(name="counter", kind="counter"),
        ServerSpec(name="agent", kind="agent"),
    ]
    made = {"prompt": "x", "max_turns": 6, "tools": ["counter"], "seed": 2}
    address = ray.get_runtime_context().gcs_address
    started = start_servers(tmp_path, specs, TOKEN, ray_address=address)

    async def body(gym: Gym) -> dict[str, Result]:
        runs = (gym.run(f"queue_g{number}", 0, made) for number in range(12))
        answers = await asyncio.gather(*runs)
        assert {status for status, _, _ in answers} == {200}
        return {answer["rollout_id"]: answer for _, answer, _ in answers}

    try:
        results = drive(started, body)
        calls = [call for result in results.values() for call in result["manifest"]]
        tags = tq.kv_list(PARTITION)[PARTITION]
        assert set(tags) == {call["staging_key"] for call in calls}
        sizes = ray.get(engine.asked.remote())
        assert sum(sizes) == len(calls)
        assert max(sizes) > 1
        keys = sorted(tags)
        found = tq.kv_batch_get(keys, PARTITION)
        for place, key in enumerate(keys):
            row = {name: found[name][place] for name in found.keys()}  # noqa: SIM118
            assert check_capture_row(row) == []
            assert check_digests({name: value.numpy() for name, value in row.items()}) == []
            assert tags[key]["digest"] == bytes(row["digest_bytes"].tolist()).hex()
            assert int(row["weight_version"]) == tags[key]["weight_version"] == 5
    finally:
        stop_servers(started)
        ray.kill(engine)
        lab.clear(PARTITION, sorted(tq.kv_list(PARTITION).get(PARTITION, ())))
    assert [server.stop() for server in started] == [0, 0, 0]


def test_a_server_ends_when_told_to_and_with_its_parent(
    servers: list[ServerProcess], tmp_path: Path, eventually: Any
) -> None:
    spec = ServerSpec(name="brief", kind="dice")
    (brief,) = start_servers(tmp_path, [spec], TOKEN)
    assert brief.stop(120.0) == 0
    assert not brief.running
    code = (
        "import os, pathlib, sys\n"
        "from snapfmt_coordinator.reference.processes import ServerSpec, start_servers\n"
        "found = start_servers(pathlib.Path(sys.argv[1]),"
        " [ServerSpec(name='orphan', kind='dice')], 't')\n"
        "print(found[0].pid, flush=True)\n"
        "os._exit(0)\n"
    )
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, check=True, text=True
    )
    pid = int(done.stdout)
    eventually(lambda: _is_over(pid))


def _is_over(pid: int) -> bool:
    try:
        return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        # It went between the two looks.
        return True
