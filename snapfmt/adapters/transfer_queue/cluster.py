"""The live queue as the driver sees it: actors, calls into them, typed errors."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Self

from snapfmt.errors import (
    DeadlineExceeded,
    NoMatch,
    ParticipantFailed,
    SnapfmtError,
    UnsupportedFeature,
    UnsupportedVersion,
)

NAMESPACE = "transfer_queue"
CONTROLLER = "TransferQueueController"
SUPPORTED = ("0.1.11",)
"""Versions of TransferQueue whose internals these adapters were tested with."""


@dataclass(frozen=True, slots=True)
class Call:
    """One function to run inside one actor: `function(actor, *arguments)`."""

    actor: Any
    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Cluster:
    """Handles of one queue's actors; `units` in the order that places rows."""

    controller: Any
    units: tuple[Any, ...]
    unit_names: tuple[str, ...]
    version: str

    @classmethod
    def connect(cls, controller: Any = None, *, timeout_s: float = 60.0) -> Self:
        """Finds the actors of the running queue.

        Raises:
            NoMatch: If there is no queue, or one of its units is not there.
            UnsupportedFeature: If the queue stores its rows elsewhere than in its own units.
        """
        import ray

        version = check_version()
        if controller is None:
            try:
                controller = ray.get_actor(CONTROLLER, namespace=NAMESPACE)
            except ValueError as error:
                raise NoMatch(
                    "no TransferQueue controller in this Ray cluster", hint="call tq.init() first"
                ) from error
        names, ids = run(
            [Call(controller, "controller", describe_controller)], timeout_s=timeout_s
        )[0]
        return cls(controller, _units(names, ids, timeout_s), tuple(names), version)

    def unit_calls(
        self, function: Callable[..., Any], *arguments: Any, each: Sequence[Any] | None = None
    ) -> list[Call]:
        """One call per unit; `each` adds one argument of its own per unit."""
        return [
            Call(
                unit,
                self.unit_names[position],
                function,
                (*arguments, *(() if each is None else (each[position],))),
            )
            for position, unit in enumerate(self.units)
        ]

    def controller_call(self, function: Callable[..., Any], *arguments: Any) -> Call:
        """A call to the controller."""
        return Call(self.controller, "controller", function, arguments)


def check_version() -> str:
    """Version of TransferQueue in this process.

    Raises:
        UnsupportedVersion: If these adapters do not know its internals.
    """
    try:
        version = metadata.version("TransferQueue")
    except metadata.PackageNotFoundError as error:
        raise UnsupportedFeature(
            "TransferQueue is not installed", hint="pip install 'snapfmt[transfer-queue]'"
        ) from error
    if version not in SUPPORTED:
        raise UnsupportedVersion(
            f"TransferQueue {version} was never tested with these adapters",
            hint=f"use one of {', '.join(SUPPORTED)}",
        )
    return version


def describe_controller(controller: Any) -> tuple[list[str], list[str]]:
    """Runs in the controller: names and ids of the storage units, in the order of placement.

    Raises:
        UnsupportedFeature: If the backend is not SimpleStorage.
    """
    config = controller.tq_config
    if config is None:
        raise ParticipantFailed("the queue is still starting", hint="wait for tq.init()")
    backend = config.backend.storage_backend
    if backend != "SimpleStorage":
        raise UnsupportedFeature(
            "rows of this backend cannot be saved", what=str(backend), hint="use SimpleStorage"
        )
    infos = dict(config.backend.SimpleStorage.zmq_info)
    return list(infos), [info.id for info in infos.values()]


def identify_unit(unit: Any) -> str:
    """Runs in a unit: its id."""
    return str(unit.storage_unit_id)


def _units(names: Sequence[str], ids: Sequence[str], timeout_s: float) -> tuple[Any, ...]:
    """Handles by name. Unit actors live in the namespace of whoever started the queue."""
    import ray

    listed = ray.util.list_named_actors(all_namespaces=True)
    found = []
    for name, unit_id in zip(names, ids, strict=True):
        handles = [
            ray.get_actor(name, namespace=entry["namespace"])
            for entry in listed
            if entry["name"] == name
        ]
        if len(handles) > 1:
            calls = [Call(handle, name, identify_unit) for handle in handles]
            answers = run(calls, timeout_s=timeout_s)
            handles = [h for h, answer in zip(handles, answers, strict=True) if answer == unit_id]
        if not handles:
            raise ParticipantFailed("a storage unit of the queue is gone", what=name)
        found.append(handles[0])
    return tuple(found)


def run(calls: Sequence[Call], *, timeout_s: float) -> list[Any]:
    """Runs calls in their actors at the same time; all answers, or the first error.

    Raises:
        ParticipantFailed: If an actor died.
        DeadlineExceeded: If an answer is not there in time.
        SnapfmtError: Whatever typed error a function raised.
    """
    return answers(ask(calls), timeout_s=timeout_s)


def ask(calls: Sequence[Call]) -> list[tuple[Call, Any]]:
    """Sends calls to their actors, to be waited for with `answers`."""
    return [
        (call, call.actor.__ray_call__.remote(call.function, *call.arguments)) for call in calls
    ]


def answers(asked: Sequence[tuple[Call, Any]], *, timeout_s: float) -> list[Any]:
    """Waits for calls; raises as `run`."""
    import ray

    found: list[Any] = []
    first: SnapfmtError | None = None
    for call, reference in asked:
        try:
            found.append(ray.get(reference, timeout=timeout_s))
        except Exception as error:  # noqa: BLE001 - everything becomes a typed error
            first = first or _typed(call, error)
    if first is not None:
        raise first
    return found


def _typed(call: Call, error: Exception) -> SnapfmtError:
    from ray import exceptions

    cause = getattr(error, "cause", None)
    if isinstance(cause, SnapfmtError):
        return cause
    if isinstance(error, SnapfmtError):
        return error
    if isinstance(error, exceptions.GetTimeoutError):
        return DeadlineExceeded("an actor did not answer in time", what=call.name)
    if isinstance(error, exceptions.RayActorError):
        return ParticipantFailed("an actor of the queue died", what=call.name)
    if isinstance(cause, ModuleNotFoundError):
        hint = "install snapfmt where the queue's actors run"
        return ParticipantFailed(f"{cause}", what=call.name, hint=hint)
    text = str(cause or error).strip().splitlines()
    return ParticipantFailed(
        f"{type(cause or error).__name__}: {text[-1] if text else ''}", what=call.name
    )
