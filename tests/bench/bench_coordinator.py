"""How long a save stops live rollouts, what it costs them, and how large its bodies are."""

import argparse
import asyncio
import os
import tempfile
import time
import warnings
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("TQ_LOGGING_LEVEL", "ERROR")
warnings.filterwarnings("ignore")

import psutil
from coordinator_parked import Crowd, end, save
from coordinator_parts import note, table, times_of
from coordinator_world import Shape, World, clear_ballast, cluster, put_ballast
from results import show

from snapfmt_coordinator.protocol.v1 import MAX_BODY

PAUSE_TARGET_S = 1.0
THROUGHPUT_TARGET = 0.97
MEASURES = ("pause", "throughput", "parked")


def main() -> None:
    """Run the measures, print tables, and one JSON object as the last line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small and short")
    parser.add_argument("--only", choices=MEASURES, default=None)
    parser.add_argument("--rounds", type=int, default=0, help="paired rounds (default 5)")
    parser.add_argument("--rollouts", type=int, default=0, help="in flight at once")
    parser.add_argument("--generation-s", type=float, default=None, help="time of a model's reply")
    parser.add_argument("--tool-s", type=float, default=0.5, help="mean time of a tool call")
    parser.add_argument("--ballast-mib", type=int, default=0, help="default 256")
    parser.add_argument("--units", type=int, default=2, help="storage units of the queue")
    parser.add_argument("--directory", default=None, help="where to write")
    options = parser.parse_args()
    options.rounds = options.rounds or (2 if options.quick else 5)
    options.ballast_mib = options.ballast_mib or (32 if options.quick else 256)
    result: dict[str, Any] = {"rounds": options.rounds, "ratios": {}, "spread": {}, "raw": {}}
    for name in MEASURES:
        if options.only in (None, name):
            result["raw"][name] = {"load_before": os.getloadavg()[0]}
            {"pause": pause, "throughput": throughput, "parked": parked}[name](options, result)
            result["raw"][name]["load_after"] = os.getloadavg()[0]
    print()
    show(result)


def pause(options: argparse.Namespace, result: dict[str, Any]) -> None:
    """Saves of a queue with and without bytes that nobody asks for, in turn."""
    shape = _shape(options, 128 if options.quick else 512, 2.0)
    saves: dict[str, list[dict[str, float]]] = {"empty": [], "ballast": []}

    async def measure(world: World) -> None:
        await world.wait(_warm_up_s(shape))
        for number in range(options.rounds):
            # In turn also which is first.
            for kind in sorted(saves, reverse=number % 2 == 0):
                keys: list[str] = []
                if kind == "ballast":
                    keys = await asyncio.to_thread(put_ballast, options.ballast_mib)
                await world.wait(2 * (shape.generation_s + shape.tool_s))
                saves[kind].append(await _timed_save(world))
                if keys:
                    await asyncio.to_thread(clear_ballast, keys)

    _live(options, shape, "pause", measure)
    for kind, rows in saves.items():
        table(rows, f"pause of {shape.rollouts} rollouts, {kind} queue; seconds")
        worst = max(row["drained_to_resume_sent"] for row in rows)
        print(f"longest from drained to resume sent: {worst:.3f} s, target {PAUSE_TARGET_S} s")
    of = {kind: [row["drained_to_resume_sent"] for row in rows] for kind, rows in saves.items()}
    note(result, "pause/ballast_vs_empty", of["ballast"], of["empty"])
    for kind, found in of.items():
        note(result, f"pause/{kind}_vs_target", found, [PAUSE_TARGET_S] * len(found))
    result["raw"]["pause"] |= {
        "shape": asdict(shape),
        "ballast_mib": options.ballast_mib,
        "saves": saves,
    }


async def _timed_save(world: World) -> dict[str, float]:
    done = await world.saves.save()
    times = times_of(done)
    queue = world.data_plane.times
    if queue is not None:
        times["controller_held"] = queue.controller_held_s
        times["units_held"] = max(queue.units_held_s)
    times["staged_rows"] = done.staging_rows
    times["stored_mib"] = sum(item.stored_bytes for item in done.receipts) / 2**20
    return times


@dataclass
class Window:
    """A stretch of time with or without saves. Times in seconds."""

    wall_s: float = 0.0
    turns: int = 0
    drain_s: float = 0.0
    """From the closed gate to the end of prepare, of all saves."""
    standing_s: float = 0.0
    """Of that: what a rollout stood on average."""
    cpu_s: float = 0.0
    """Processor time of the run's processes, all together."""
    busy: float = 0.0
    """Share of the whole machine that was busy, also with the work of others."""
    saves: list[dict[str, float]] = field(default_factory=list)

    def rate(self, excluded_s: float = 0.0) -> float:
        """Turns per second, of the time that is not excluded."""
        return self.turns / (self.wall_s - excluded_s)


def throughput(options: argparse.Namespace, result: dict[str, Any]) -> None:
    """Turns per second with a save at intervals against none, in turn."""
    shape = _shape(options, 32 if options.quick else 128, 1.5)
    length_s, interval_s = (6.0, 3.0) if options.quick else (20.0, 10.0)
    windows: dict[str, list[Window]] = {"without": [], "with": []}

    async def measure(world: World) -> None:
        world.gym.watching = True
        await world.wait(_warm_up_s(shape))
        for number in range(options.rounds):
            for kind in sorted(windows, reverse=number % 2 == 0):
                interval = interval_s if kind == "with" else None
                windows[kind].append(await _window(world, length_s, interval))

    _live(options, shape, "throughput", measure)
    rates = [window.rate() for window in windows["without"]]
    with_saves = windows["with"]
    everything = [window.rate() for window in with_saves]
    note(result, "turns_per_s/all", everything, rates)
    undrained = [window.rate(window.standing_s) for window in with_saves]
    note(result, "turns_per_s/standing_in_drain_excluded", undrained, rates)
    ungated = [window.rate(window.drain_s) for window in with_saves]
    note(result, "turns_per_s/drain_excluded", ungated, rates)
    rows = [
        {
            "without": rates[number],
            "with": everything[number],
            "standing excl.": undrained[number],
            "drain excl.": ungated[number],
            "saves": len(window.saves),
            "drain s": window.drain_s,
            "standing s": window.standing_s,
            "pause s": sum(one["drained_to_gate_open"] for one in window.saves),
            "write s": sum(one["write"] for one in window.saves),
            "cpu without": windows["without"][number].cpu_s,
            "cpu with": window.cpu_s,
            "busy without": windows["without"][number].busy,
            "busy with": window.busy,
        }
        for number, window in enumerate(with_saves)
    ]
    table(rows, f"turns per second of {shape.rollouts} rollouts, target {THROUGHPUT_TARGET}")
    result["raw"]["throughput"] |= {
        "shape": asdict(shape),
        "windows": {kind: [asdict(one) for one in found] for kind, found in windows.items()},
    }


async def _window(world: World, length_s: float, interval_s: float | None) -> Window:
    window, started, before = Window(), time.monotonic(), world.turns()
    cpu = _cpu_s()
    psutil.cpu_percent()

    async def until(elapsed_s: float) -> None:
        await world.wait(max(0.0, started + elapsed_s - time.monotonic()))

    if interval_s is not None:
        for number in range(round(length_s / interval_s)):
            # Early, so that what follows a save lies inside the window too.
            await until((number + 0.2) * interval_s)
            times = await _timed_save(world)
            window.saves.append(times)
            window.drain_s += times["drain"]
            window.standing_s += world.gym.drain.standing_s(world.shape.rollouts)
    await until(length_s)
    window.wall_s, window.turns = time.monotonic() - started, world.turns() - before
    window.cpu_s, window.busy = _cpu_s() - cpu, psutil.cpu_percent() / 100
    return window


def _cpu_s() -> float:
    """Processor time so far of this process and of all below it that live."""
    own = psutil.Process()
    total = 0.0
    for process in (own, *own.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def parked(options: argparse.Namespace, result: dict[str, Any]) -> None:
    """A whole save of very many parked rollouts on one agent; sizes of all bodies."""
    count = 2_000 if options.quick else 10_000

    async def measure(location: Path) -> None:
        crowd = Crowd(count, count // 10)
        await crowd.start()
        async with crowd.served() as side:
            times = times_of(await save(crowd, side, location))
            await end(crowd, side)
        table([times], f"save of {count} parked rollouts; seconds")
        print("\nlargest bodies, in bytes")
        for name, size in sorted(crowd.largest.items()):
            print(f"{name:60} {size:9}")
        largest = max(crowd.largest.values())
        note(result, "parked/largest_body_vs_limit", [largest], [MAX_BODY])
        result["raw"]["parked"] |= {"rollouts": count, "times": times, "largest": crowd.largest}

    with tempfile.TemporaryDirectory(prefix="snapfmt-bench-", dir=options.directory) as folder:
        asyncio.run(measure(Path(folder) / "run"))


def _shape(options: argparse.Namespace, rollouts: int, generation_s: float) -> Shape:
    return Shape(
        rollouts=options.rollouts or rollouts,
        generation_s=generation_s if options.generation_s is None else options.generation_s,
        tool_s=options.tool_s,
        units=options.units,
    )


def _warm_up_s(shape: Shape) -> float:
    """Until the rollouts are spread over all turns and phases."""
    return 4 * (shape.generation_s + shape.tool_s)


def _live(options: argparse.Namespace, shape: Shape, name: str, measure: Any) -> None:
    async def body(made: Any) -> None:
        async with World(made, shape, name) as world:
            await measure(world)

    with cluster(shape, options.directory) as made:
        asyncio.run(body(made))


if __name__ == "__main__":
    main()
