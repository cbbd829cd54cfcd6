"""A live run: TransferQueue, the three reference servers as processes, and rollouts in flight."""

import asyncio
import itertools
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
import ray
import torch
import transfer_queue as tq
from coordinator_parts import AGENT, TOKEN, Control
from omegaconf import OmegaConf
from tensordict import TensorDict

from snapfmt import Repository
from snapfmt.adapters.transfer_queue import CutTimes
from snapfmt_coordinator.gym.client import ServerAddress
from snapfmt_coordinator.gym.observing import PAUSE, Observe
from snapfmt_coordinator.gym.preparing import PrepareCounts
from snapfmt_coordinator.gym.side import GymSide
from snapfmt_coordinator.loop.ray_data_plane import QueueCut, QueueDataPlane
from snapfmt_coordinator.protocol import v1
from snapfmt_coordinator.protocol.codes import from_body
from snapfmt_coordinator.reference.capture import PARTITION
from snapfmt_coordinator.reference.processes import (
    ServerProcess,
    ServerSpec,
    start_servers,
    stop_servers,
)
from snapfmt_coordinator.reference.ray_session import NAMESPACE
from snapfmt_coordinator.sequence.gates import CheckpointLock, DataPlaneBarrier, DispatchGate
from snapfmt_coordinator.sequence.save import SaveSequence
from snapfmt_schemas.completion import CompletionReceipt
from snapfmt_schemas.lines import from_value

MIB = 1024 * 1024
BALLAST = "ballast"
BALLAST_ROW = 64 * 1024
TOOL = "counter"
PASSING = ("agent_admission_closed", "duplicate_execution")
DEADLINE_S = 120.0


@dataclass(frozen=True, kw_only=True)
class Shape:
    """How much runs at once. Times in seconds."""

    rollouts: int
    generation_s: float
    tool_s: float
    """Mean time of a tool call; each rollout in flight has its own, from 0 to twice that."""
    max_turns: int = 64
    units: int = 2


@dataclass(frozen=True)
class Cluster:
    """The processes, without anything in flight."""

    servers: list[ServerProcess]
    home: Path
    mutations: Path
    """One line for each tool call."""


@contextmanager
def cluster(shape: Shape, directory: str | None) -> Iterator[Cluster]:
    """Starts Ray, the queue and the servers; ends all of them."""
    with ExitStack() as stack:
        home = Path(tempfile.mkdtemp(prefix="snapfmt-bench-", dir=directory))
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        # Ray's socket paths must stay short.
        scratch = tempfile.mkdtemp(prefix="snapfmt-")
        stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        ray.init(
            num_cpus=shape.units + 1,
            namespace=NAMESPACE,
            include_dashboard=False,
            object_store_memory=100_000_000,
            log_to_driver=False,
            logging_level="ERROR",
            _temp_dir=scratch,
        )
        stack.callback(ray.shutdown)
        storage = {"num_data_storage_units": shape.units}
        tq.init(OmegaConf.create({"backend": {"SimpleStorage": storage}}))
        stack.callback(tq.close)
        mutations = home / "mutations.jsonl"
        local = ("--engine", "local", "--sink", "transfer-queue")
        servers = start_servers(
            home / "servers",
            [
                ServerSpec(
                    name="policy",
                    kind="policy",
                    options=(*local, "--generation-s", str(shape.generation_s)),
                ),
                ServerSpec(name=TOOL, kind=TOOL, options=("--mutation-log", str(mutations))),
                ServerSpec(name=AGENT, kind="agent"),
            ],
            TOKEN,
            ray_address=ray.get_runtime_context().gcs_address,
        )
        stack.callback(stop_servers, servers)
        yield Cluster(servers, home, mutations)


@dataclass
class Drain:
    """How the rollouts came to rest in one prepare, looked at while they did.

    Times are readings of the monotonic clock.
    """

    started: float = field(default_factory=time.monotonic)
    ended: float = 0.0
    samples: list[tuple[float, int]] = field(default_factory=list)
    """Time, and rollouts that still ran."""

    def standing_s(self, rollouts: int) -> float:
        """Seconds that a rollout stood on average until all stood."""
        known = [(self.started, rollouts), *self.samples, (self.ended, 0)]
        stood = sum(
            (rollouts - min(running, rollouts)) * (after - at)
            for (at, running), (after, _) in itertools.pairwise(known)
        )
        return stood / rollouts


class WatchedGym(GymSide):
    """Also looks, while it prepares, how many rollouts still run."""

    agent_url = ""
    watching = False
    drain: Drain
    """Of the newest prepare."""

    async def prepare(
        self, checkpoint_id: str, *, deadline_ts: float, observe: Observe | None = None
    ) -> PrepareCounts:
        """Brings all to rest."""
        paused = asyncio.Event()

        def hear(step: str, actor: str, start: int, end: int, counts: dict[str, int]) -> None:
            if step == PAUSE:
                paused.set()
            if observe is not None:
                observe(step, actor, start, end, counts)

        self.drain = Drain()
        body = v1.PrepareAgents(checkpoint_id=checkpoint_id, deadline_ts=deadline_ts)
        watch = self._watch(paused, body.model_dump_json().encode())
        task = asyncio.create_task(watch) if self.watching else None
        try:
            return await super().prepare(checkpoint_id, deadline_ts=deadline_ts, observe=hear)
        finally:
            self.drain.ended = time.monotonic()
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def _watch(self, paused: asyncio.Event, body: bytes) -> None:
        await paused.wait()
        url = f"{self.agent_url}{v1.PREFIX}{v1.AGENT}/prepare"
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with aiohttp.ClientSession(headers=headers) as session:
            while True:
                async with session.post(url, data=body) as response:
                    found = v1.AgentsPrepared.model_validate_json(await response.read())
                self.drain.samples.append((time.monotonic(), found.running))
                await asyncio.sleep(0.05)


class TimedDataPlane(QueueDataPlane):
    """Keeps how long the newest cut held the queue."""

    times: CutTimes | None = None

    async def take_cut(self) -> QueueCut:
        """References to all rows."""
        cut = await super().take_cut()
        self.times = cut._held.times
        return cut


class World:
    """Keeps so many rollouts in flight, and can be saved. Belongs to one event loop."""

    def __init__(self, made: Cluster, shape: Shape, name: str) -> None:
        """`name`: of the repository, and in the rollouts' ids."""
        self.shape = shape
        self.control = Control()
        self.gate, self.barrier = DispatchGate(), DataPlaneBarrier()
        self.data_plane = TimedDataPlane()
        urls = {server.name: server.url for server in made.servers}
        addresses = [ServerAddress(server, url) for server, url in urls.items()]
        self.gym = WatchedGym(addresses, token=TOKEN)
        self.gym.agent_url = urls[AGENT]
        repository = Repository.create(made.home / name)
        self.saves = SaveSequence(
            repository,
            self.gym,
            self.control,
            self.data_plane,
            self.gate,
            self.barrier,
            CheckpointLock(),
            prepare_timeout_s=DEADLINE_S,
            keep_latest=1,
            retire=repository.retire,
        )
        self._name = name
        self._numbers = itertools.count()
        self._run_url = f"{urls[AGENT]}/run"
        self._mutations = made.mutations
        self._read = made.mutations.stat().st_size if made.mutations.exists() else 0
        self._turns = 0
        self._staged: list[str] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        await self.gym.discover()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None)
        )
        rng = random.Random(7)
        for _ in range(self.shape.rollouts):
            first = rng.randint(1, self.shape.max_turns)
            work = self._one_after_another(rng.uniform(0, 2 * self.shape.tool_s), first)
            self._tasks.append(asyncio.create_task(work))
        self._tasks.append(asyncio.create_task(self._keep_tidy()))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    async def wait(self, seconds: float) -> None:
        """Lets the rollouts run; raises what one of them met."""
        await asyncio.sleep(seconds)
        for task in self._tasks:
            if task.done():
                task.result()

    def turns(self) -> int:
        """Tool calls so far: one for each turn but a rollout's last."""
        with self._mutations.open("rb") as file:
            file.seek(self._read)
            new = file.read()
        self._read += len(new)
        self._turns += new.count(b"\n")
        return self._turns

    async def _one_after_another(self, delay_s: float, first_turns: int) -> None:
        # The first ones differ in length, so that from the start some are old and some young.
        turns = first_turns
        while True:
            await self._play(turns, delay_s)
            turns = self.shape.max_turns

    async def _play(self, max_turns: int, delay_s: float) -> None:
        rollout_id = f"{self._name}-{next(self._numbers)}_g0"
        task = {
            "prompt": f"Task {rollout_id}.",
            "max_turns": max_turns,
            "tools": [TOOL],
            "seed": 7,
            "delay_s": delay_s,
        }
        body = {"_ng_rollout_id": rollout_id, "_ng_attempt_index": 0, "task": task}
        await self.gate.wait()
        self.control.sent.add(rollout_id)
        answer = await self._answer(body)
        self.control.adopt(from_value(CompletionReceipt, answer["completion_receipt"]))
        self._staged += [call["staging_key"] for call in answer["manifest"]]

    async def _answer(self, body: dict[str, Any]) -> Any:
        assert self._session is not None
        while True:
            async with self._session.post(self._run_url, json=body) as response:
                answer = await response.json()
                if response.status == 200:
                    return answer
                refusal = from_body(response.status, answer)
                if refusal is None or refusal.reason not in PASSING:
                    raise RuntimeError(f"HTTP {response.status}: {answer}")
            await asyncio.sleep(0.1)
            await self.gate.wait()

    async def _keep_tidy(self) -> None:
        """Acknowledges, retires and clears what is over, as a trainer would."""
        while True:
            await asyncio.sleep(0.5)
            await self.gate.wait()
            owed = self.control.acknowledgements()
            if owed:
                await self.gym.acknowledge(
                    [(item.agent_name, item.receipt) for item in owed],
                    deadline_ts=time.time() + DEADLINE_S,
                )
                self.control.acknowledged(owed)
            over, self.control.over = self.control.over, []
            if over:
                await self.gym.retire(over)
            keys, self._staged = self._staged, []
            if keys:
                async with self.barrier.mutation("sample_clears"):
                    await asyncio.to_thread(tq.kv_clear, keys, PARTITION)


def put_ballast(mib: int) -> list[str]:
    """Rows of random bytes that nobody asks for; their keys. Blocks."""
    generator = torch.Generator().manual_seed(0)
    per_batch = 16 * MIB // BALLAST_ROW
    keys = [f"ballast-{number}" for number in range(mib * MIB // BALLAST_ROW)]
    for start in range(0, len(keys), per_batch):
        batch = keys[start : start + per_batch]
        data = torch.randint(256, (len(batch), BALLAST_ROW), dtype=torch.uint8, generator=generator)
        fields = TensorDict({"data": data}, batch_size=len(batch))
        tq.kv_batch_put(keys=batch, partition_id=BALLAST, fields=fields, tags=[{}] * len(batch))
    return keys


def clear_ballast(keys: list[str]) -> None:
    """Takes the rows out again. Blocks."""
    tq.kv_clear(keys, BALLAST)
