"""Stops every operation at every system call, half-way through every write, and by an error.

`python tests/faults/crash_points.py [--workers N] [--stride N]` prints one JSON object; with a
stride only one call in N. All of it takes about half an hour of one core. What must hold after
each stop: every published snapshot is whole, the interrupted one is absent or whole, the next
save and the next retirement work, and what was left over is reclaimed.
"""

import argparse
import json
import os
import sys
import tempfile
import time

from snapfmt.testing.crash_matrix import pairs, run_all, summary


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--stride", type=int, default=1)
    given = parser.parse_args()
    began = time.monotonic()
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        found = summary(run_all(pairs(), folder, workers=given.workers, stride=given.stride))
    print(json.dumps({**found, "seconds": round(time.monotonic() - began, 1)}))
    return 1 if found["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
