"""`snapfmt demo`: the whole story on this machine, with real servers and a real queue."""

import argparse
import tempfile
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from snapfmt.cli.command import Command
from snapfmt.cli.output import Console, Outcome, Result
from snapfmt.errors import UnsupportedFeature

NEEDS = ("ray", "torch", "transfer_queue", "fastapi", "uvicorn", "aiohttp")
"""Modules that the demonstration imports beyond what snapfmt needs itself."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of `snapfmt demo`."""

    directory: str | None
    prompts: int
    generations: int
    turns: int
    kills: int
    seed: int


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument(
        "--directory", metavar="D", help="where the repository goes (default: a new folder)"
    )
    parser.add_argument("--prompts", type=_count, default=6, metavar="N", help="prompts")
    parser.add_argument(
        "--generations", type=_count, default=4, metavar="N", help="rollouts of each prompt"
    )
    parser.add_argument(
        "--turns", type=_count, default=10, metavar="N", help="most turns of a rollout (up to 64)"
    )
    parser.add_argument("--kills", type=_count, default=1, metavar="N", help="how often kill -9")
    parser.add_argument("--seed", type=int, default=7, metavar="N", help="of data and moments")


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def run(options: Options, console: Console) -> Outcome:
    """Tell the story line by line while it happens."""
    lacking = [name for name in NEEDS if find_spec(name) is None]
    if lacking:
        raise UnsupportedFeature(
            "the demonstration needs packages that are not installed",
            what=", ".join(lacking),
            hint="pip install 'snapfmt[coordinator,torch]'",
        )
    directory = options.directory or tempfile.mkdtemp(prefix="snapfmt-demo-")
    story = import_module("snapfmt_coordinator.demo.story")
    report = story.run(
        directory,
        story.StoryOptions(
            prompts=options.prompts,
            generations=options.generations,
            max_turns=options.turns,
            kills=options.kills,
            seed=options.seed,
        ),
        out=console.line,
    )
    found: dict[str, Any] = asdict(report) | {"repository": str(report.repository)}
    document = {"ok": True, "directory": directory, "result": found}
    return Result(document, messages=[f"the repository is kept in {directory}"])


COMMAND = Command("demo", "the whole story on this machine", Options, configure, run)
