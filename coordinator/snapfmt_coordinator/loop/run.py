"""One training run from start to end: Ray, TransferQueue, Gym servers, actors, pumps."""

import secrets
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from snapfmt_coordinator.loop.activity import Interval, from_rows
from snapfmt_coordinator.loop.config import GymConfig, LoopConfig, ServerUrl
from snapfmt_coordinator.loop.learning import RolloutFacts, TrainerState
from snapfmt_coordinator.reference.processes import (
    ServerProcess,
    ServerSpec,
    start_servers,
    stop_servers,
)

NAMESPACE: Final = "snapfmt"
ENGINE: Final = "generation-engine"
AGENT: Final = "agent"
MUTATIONS: Final = "mutations.jsonl"
"""In a run's home: every mutation that the counter's sessions made, in order."""
_OBJECT_STORE_BYTES: Final = 100_000_000
_CALL_S: Final = 60.0
READY_S: Final = 120.0
"""How long the actors may take to start."""

Restore = Literal["latest", "never"]
Tell = Callable[[dict[str, Any]], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What a run came to."""

    rollouts: dict[str, RolloutFacts]
    groups: tuple[str, ...]
    """Ids of the trained groups, sorted; each was trained once, or the trainer had refused."""
    steps: int
    weights: tuple[int, ...]
    saves: tuple[dict[str, Any], ...] = ()
    restored: dict[str, Any] | None = None
    activity: tuple[Interval, ...] = ()
    timings: dict[str, float] = field(default_factory=dict)

    def comparable(self) -> dict[str, Any]:
        """What must be equal in a run that was left in peace and one that crashed."""
        return {
            "rollouts": {key: facts.model_dump() for key, facts in sorted(self.rollouts.items())},
            "groups": list(self.groups),
            "steps": self.steps,
            "weights": list(self.weights),
        }


def start_run(
    config: LoopConfig,
    *,
    restore: Restore = "latest",
    tell: Tell = lambda _: None,
    finished: Callable[[RunResult], object] = lambda _: None,
) -> RunResult:
    """Runs to the end; blocking. `tell` hears of what happens meanwhile, in JSON values.

    `finished` gets the result before the cluster is taken down.

    With `restore="latest"` the run goes on from the newest snapshot of its home, if there is one.

    Raises:
        SnapfmtError: If the run cannot go on.
    """
    started = time.monotonic()
    with ExitStack() as stack:
        running = _Running(config, stack)
        result = running.to_the_end(restore, tell)
        result.timings["all"] = time.monotonic() - started
        finished(result)
    return result


class _Running:
    """The processes of one run; the stack ends them."""

    def __init__(self, config: LoopConfig, stack: ExitStack) -> None:
        self._config = config
        self._timings: dict[str, float] = {}
        self._home = Path(config.home)
        self._home.mkdir(parents=True, exist_ok=True)
        self._token = secrets.token_urlsafe(24)
        with self._timed("cluster"):
            self._start_ray(stack)
        # All at once: what they import takes longer than all that they wait for each other.
        with self._timed("processes"):
            self._start_actors()
            queue = self._controller.start_queue.remote()
            ready = [actor.ready.remote() for actor in (self._trainer, *self._finalizers)]
            servers = self._start_servers(stack, meanwhile=lambda: self._get(queue))
            self._join(servers)
            self._get(ready)

    def to_the_end(self, restore: Restore, tell: Tell) -> RunResult:
        """Restores, trains, and gathers what there is to know."""
        import ray

        restored = None
        if restore == "latest":
            with self._timed("restore"):
                restored = self._wait(self._controller.restore.remote(), tell)
            tell({"event": "restored", "report": restored})
        saves: list[dict[str, Any]] = []

        def hear(event: dict[str, Any]) -> None:
            if event["event"] == "save":
                saves.append(event)
            tell(event)

        with self._timed("train"):
            self._wait(self._controller.train.remote(), hear)
        state: TrainerState = ray.get(self._trainer.state.remote(), timeout=_CALL_S)
        logs = [actor.activity.remote() for actor in (self._controller, self._gym, self._engine)]
        rows = [row for log in ray.get(logs, timeout=_CALL_S) for row in log]
        return RunResult(
            rollouts=dict(state.rollouts),
            groups=state.groups,
            steps=state.steps,
            weights=state.weights,
            saves=tuple(saves),
            restored=restored,
            activity=tuple(from_rows(rows)),
            timings=self._timings,
        )

    def _wait(self, call: Any, tell: Tell) -> Any:
        """The answer of a long call to the controller, while its events are passed on."""
        import ray

        from snapfmt_coordinator.loop.ray_calls import typed

        event = self._controller.next_event.remote()
        while True:
            done, _ = ray.wait([call, event], num_returns=1)
            if event in done:
                tell(ray.get(event))
                event = self._controller.next_event.remote()
            if call in done:
                ray.cancel(event)
                try:
                    return ray.get(call)
                except ray.exceptions.RayError as error:
                    raise typed(error, "controller") from error

    def _start_ray(self, stack: ExitStack) -> None:
        import ray

        # Ray's socket paths must stay short, whatever the home is called.
        scratch = tempfile.mkdtemp(prefix="snapfmt-")
        stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        ray.init(
            # One for the queue's controller. Our own actors ask for none, since more would only
            # have Ray start idle workers, for every process that joins.
            num_cpus=self._config.units + 1,
            namespace=NAMESPACE,
            include_dashboard=False,
            object_store_memory=_OBJECT_STORE_BYTES,
            log_to_driver=False,
            logging_level="ERROR",
            _temp_dir=scratch,
        )
        stack.callback(ray.shutdown)
        self._address = ray.get_runtime_context().gcs_address

    def _start_servers(
        self, stack: ExitStack, meanwhile: Callable[[], object]
    ) -> list[ServerProcess]:
        config = self._config
        grace = ("--grace-s", str(config.lease_grace_s))
        specs = [
            ServerSpec(name="policy", kind="policy", options=grace),
            *(
                ServerSpec(name=tool, kind=tool, options=(*grace, *self._log_of(tool)))
                for tool in config.tools
            ),
            ServerSpec(name=AGENT, kind="agent", options=grace),
        ]
        servers = start_servers(
            self._home / "servers",
            specs,
            self._token,
            ray_address=self._address,
            meanwhile=meanwhile,
        )
        stack.callback(stop_servers, servers)
        return servers

    def _log_of(self, tool: str) -> tuple[str, ...]:
        """Where a tool's effects on the world outside are seen; it outlives the servers."""
        return ("--mutation-log", str(self._home / MUTATIONS)) if tool == "counter" else ()

    def _start_actors(self) -> None:
        from snapfmt_coordinator.loop.ray_controller import SingleController
        from snapfmt_coordinator.loop.ray_engine import GenerationEngine
        from snapfmt_coordinator.loop.ray_finalizer import FinalizerActor
        from snapfmt_coordinator.loop.ray_gym import NemoGymActor
        from snapfmt_coordinator.loop.ray_trainer import TrainerActor

        config = self._config
        # First: it starts the queue, which others wait for.
        self._controller = _remote(SingleController)(config)
        self._engine = _remote(GenerationEngine, name=ENGINE)(config.generation_s, config.refit_s)
        self._trainer = _remote(TrainerActor)(str(self._home / "trainer"), config.step_s)
        self._finalizers = [
            _remote(FinalizerActor)(config.finalize_s) for _ in range(config.finalizers)
        ]
        self._gym = _remote(NemoGymActor)()

    def _join(self, servers: list[ServerProcess]) -> None:
        """Tells the actors of the servers, and of each other."""
        from snapfmt_coordinator.loop.ray_controller import Handles

        config = self._config
        urls = [ServerUrl(name=server.name, url=server.url) for server in servers]
        gym = GymConfig(
            servers=tuple(urls),
            agent=next(url for url in urls if url.name == AGENT),
            seed=config.seed,
            max_turns=config.max_turns,
            tools=config.tools,
            tool_s=config.tool_s,
            rollout_limit_s=config.rollout_limit_s,
            interrupt_after=config.interrupt_after,
        )
        handles = Handles(
            gym=self._gym,
            engine=self._engine,
            trainer=self._trainer,
            finalizers=self._finalizers,
        )
        self._get([self._gym.join.remote(gym, self._token), self._controller.join.remote(handles)])

    def _get(self, calls: Any) -> None:
        """Waits for actors that start."""
        import ray

        from snapfmt_coordinator.loop.ray_calls import typed

        try:
            ray.get(calls, timeout=READY_S)
        except ray.exceptions.RayError as error:
            raise typed(error, "an actor at its start") from error

    def _timed(self, name: str) -> "_Timed":
        return _Timed(self._timings, name)


class _Timed:
    def __init__(self, timings: dict[str, float], name: str) -> None:
        self._timings = timings
        self._name = name

    def __enter__(self) -> None:
        self._began = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._timings[self._name] = time.monotonic() - self._began


def _remote(actor: Any, **options: Any) -> Any:
    """What makes an actor; Ray gives its classes methods that no type checker sees."""
    return actor.options(num_cpus=0, **options).remote
