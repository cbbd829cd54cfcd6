"""All schedules of savers, readers, retirements and collectors: `python gc_interleavings.py`.

The real code runs on a bucket in memory, one request at a time, in every order with few switches.
Prints one JSON document; ends with 1 if anything was lost or left behind. `--reduce` leaves out
switches that nobody could notice. `schedules` were carried out; `covered` are those and all that
go through the same states with the same sights.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

from snapfmt.testing import gc_model
from snapfmt.testing.gc_model import Rules, scenarios
from snapfmt.testing.gc_world import SCENARIOS, World, explore


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenario", action="append", choices=list(SCENARIOS))
    parser.add_argument("--switches", type=int, help="default: what each scenario says")
    parser.add_argument("--limit", type=int, help="schedules of each scenario")
    parser.add_argument("--seconds", type=float, help="for each scenario")
    parser.add_argument("--seed", type=int, help="in a random order; with --limit")
    parser.add_argument("--reduce", action="store_true")
    parser.add_argument("--model", action="store_true", help="also all of the model")
    parser.add_argument("--processes", type=int, default=1, help="scenarios at the same time")
    options = parser.parse_args(arguments)
    names, began = options.scenario or list(SCENARIOS), time.perf_counter()
    work = partial(carry_out, options=options)
    if options.processes > 1:
        with ProcessPoolExecutor(options.processes) as pool:
            found = list(pool.map(work, names))
    else:
        found = list(map(work, names))
    seconds = time.perf_counter() - began
    model = {}
    if options.model:
        for name, processes in scenarios(Rules()).items():
            whole = gc_model.explore(processes)
            model[name] = {
                "states": whole.states,
                "interleavings": whole.interleavings,
                "lost": len(whole.lost),
            }
    total = {
        "reduced": options.reduce,
        "complete": all(item["complete"] for item in found),
        "schedules": sum(item["schedules"] for item in found),
        "seconds": round(seconds, 1),
        "each_second": round(sum(item["schedules"] for item in found) / seconds, 1),
        "covered": sum(item["covered"] for item in found),
        "lost_or_left": sum(item["lost_or_left"] for item in found),
        "scenarios": found,
        "model": model,
    }
    sys.stdout.write(json.dumps(total, indent=1) + "\n")
    return 1 if total["lost_or_left"] or any(item["lost"] for item in model.values()) else 0


def carry_out(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """The schedules of one scenario."""
    began = time.perf_counter()
    seen = explore(
        World(),
        SCENARIOS[name],
        limit=options.limit,
        seconds=options.seconds,
        switches=options.switches,
        reduce=options.reduce,
        seed=options.seed,
    )
    return {
        "scenario": name,
        "tasks": len(SCENARIOS[name].tasks),
        "switches": SCENARIOS[name].switches if options.switches is None else options.switches,
        "schedules": seen.schedules,
        "covered": seen.covered,
        "longest": seen.longest,
        "typed_errors": seen.refused,
        "violations": seen.violations[:10],
        "lost_or_left": len(seen.violations),
        "complete": seen.complete,
        "final_states": seen.ends,
        "seconds": round(time.perf_counter() - began, 1),
    }


if __name__ == "__main__":
    sys.exit(main())
