"""What a run is given; JSON, so that it can be handed to a process of its own."""

from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import Field, model_validator

from snapfmt_coordinator.gym.patience import INTERRUPT_AFTER
from snapfmt_coordinator.loop.state import Run
from snapfmt_coordinator.loop.trip import STEPS, is_step
from snapfmt_schemas._base import Record
from snapfmt_schemas.opaque import Items
from snapfmt_schemas.recipe import Recipe

Tool = Literal["counter", "dice", "notes", "sandbox"]
RESTART_ONLY: Final[Tool] = "sandbox"
RESTART_ONLY_EVERY: Final = 3
"""Every so many prompts use the restart-only tool, where there is one; the others do not."""
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[int, Field(ge=1)]


class LoopConfig(Record):
    """One training run. Times in seconds."""

    SCHEMA: ClassVar[str] = "snapfmt.loop-config"

    home: Annotated[str, Field(description="Folder of repository, trainer checkpoints and logs.")]
    seed: int = 7
    prompts: Positive = 8
    generations: Positive = 4
    max_turns: Annotated[int, Field(ge=1, le=64)] = 8
    tools: Items[Tool] = ("counter", "notes")
    units: Annotated[int, Field(ge=1, description="Storage units of TransferQueue.")] = 2
    batch_groups: Annotated[int, Field(ge=1, description="Groups of one train step.")] = 2
    max_buffered_groups: Positive = 8
    finalizers: Positive = 1

    tool_s: Annotated[Seconds, Field(description="Least time of a tool call.")] = 0.02
    generation_s: Annotated[Seconds, Field(description="Time of a batch of replies.")] = 0.02
    finalize_s: Annotated[Seconds, Field(description="Least time to put a group together.")] = 0.0
    step_s: Annotated[Seconds, Field(description="Least time of a train step.")] = 0.2
    refit_s: Seconds = 0.01
    rollout_limit_s: Seconds = 600.0
    stall_timeout_s: Seconds = 600.0

    snapshot_attempt_interval_s: Annotated[
        Seconds | None, Field(description="Null: no snapshots.")
    ] = None
    max_consecutive_failures: Positive = 3
    keep_latest: Positive = 2
    prepare_timeout_s: Seconds = 60.0
    interrupt_after: Annotated[
        float | None,
        Field(
            ge=0,
            lt=1,
            description="Share of the time to prepare after which model calls that still generate "
            "are ended, to be made again after the resume. Null: they are waited for.",
        ),
    ] = INTERRUPT_AFTER
    lease_grace_s: Annotated[Seconds, Field(description="Of the Gym servers.")] = 600.0

    stop_at: Annotated[
        str | None, Field(description="A step of `loop.trip`; the run stays there for good.")
    ] = None
    stop_on: Annotated[int, Field(ge=1, description="On the so many-th time.")] = 1
    holds: Annotated[
        dict[str, Seconds], Field(description="Seconds to stay at a step, by its name.")
    ] = Field(default_factory=dict)
    max_saves: Annotated[int | None, Field(ge=0, description="No more than so many.")] = None

    @model_validator(mode="after")
    def _steps(self) -> Self:
        named = [*self.holds, *([self.stop_at] if self.stop_at else [])]
        if wrong := [name for name in named if not is_step(name)]:
            raise ValueError(f"no such steps: {', '.join(wrong)}; there are {', '.join(STEPS)}")
        return self

    @model_validator(mode="after")
    def _room(self) -> Self:
        if self.max_buffered_groups < self.batch_groups:
            raise ValueError("a train step needs more groups than may be buffered")
        return self

    def recipe(self) -> Recipe:
        """What decides what the rollouts mean; a restore needs the same."""
        return Recipe.of(
            {
                "seed": self.seed,
                "prompts": self.prompts,
                "generations": self.generations,
                "max_turns": self.max_turns,
                "tools": [*self.tools],
                "batch_groups": self.batch_groups,
            }
        )


class ServerUrl(Record):
    """A Gym server: its name in the topology, and where it listens."""

    name: str
    url: str


class GymConfig(Record):
    """What the NemoGym actor is given."""

    servers: Items[ServerUrl]
    agent: ServerUrl
    seed: int
    max_turns: int
    tools: Items[Tool]
    tool_s: Seconds
    rollout_limit_s: Seconds
    interrupt_after: float | None

    def task_of(self, run: Run) -> dict[str, Any]:
        """The task of a rollout; the same for all its runs."""
        uses = run.prompt_index % RESTART_ONLY_EVERY == 0
        tools = [tool for tool in self.tools if uses or tool != RESTART_ONLY]
        return {
            "prompt": f"Task {run.prompt_index} of data set {self.seed}.",
            "max_turns": self.max_turns,
            "tools": tools,
            "seed": self.seed,
            "delay_s": self.tool_s,
        }
