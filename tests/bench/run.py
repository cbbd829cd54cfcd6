"""Runs the benchmarks one after the other and gathers what they found.

    python tests/bench/run.py            # everything, about three quarters of an hour when idle
    python tests/bench/run.py --quick    # without Ray and servers, under a minute when idle

A table, and as the last line one JSON object with the maps `ratios` and `spread`, by the name of
the benchmark and of the figure.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
QUICK = (
    ("formats", ("--quick", "--ids", "text", "--without", "torch DCP")),
    ("metadata", ("--quick",)),
    ("rows", ("--quick", "--only", "short")),
    ("incremental", ("--quick",)),
)
FULL = (
    ("formats", ()),
    ("metadata", ()),
    ("rows", ()),
    ("incremental", ("--rows", "14000", "--rounds", "5")),
    ("conversations", ()),
    ("transfer_queue", ()),
    ("transfer_queue", ("--ids", "uniform", "--only", "long")),
    ("matrix", ()),
    ("cut", ()),
    ("round_trips", ()),
    ("bucket", ()),
    ("bucket_memory", ()),
    ("coordinator", ()),
)


def main() -> int:
    """The exit code: 1 if one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    result: dict[str, Any] = {"ratios": {}, "spread": {}, "failed": [], "cores": os.cpu_count()}
    started = time.monotonic()
    for name, arguments in QUICK if options.quick else FULL:
        print(f"\n== {name} {' '.join(arguments)} (load {os.getloadavg()[0]:.1f})", flush=True)
        found = run(name, arguments)
        if found is None:
            result["failed"].append(name)
            continue
        label = f"{name}{' uniform' if 'uniform' in arguments else ''}"
        for kind in ("ratios", "spread"):
            result[kind] |= {f"{label}: {figure}": found[kind][figure] for figure in found[kind]}
    result["seconds"] = round(time.monotonic() - started, 1)
    print(json.dumps(result))
    return 1 if result["failed"] else 0


def run(name: str, arguments: tuple[str, ...]) -> dict[str, Any] | None:
    """What one benchmark found, its table printed; None if it failed."""
    script = str(HERE / f"bench_{name}.py")
    child = subprocess.run(
        [sys.executable, script, *arguments], stdout=subprocess.PIPE, text=True, check=False
    )
    *table, last = child.stdout.splitlines() or [""]
    print("\n".join(table), flush=True)
    if child.returncode != 0:
        print(f"failed with exit code {child.returncode}: {last}")
        return None
    found: dict[str, Any] = json.loads(last)
    return found


if __name__ == "__main__":
    sys.exit(main())
