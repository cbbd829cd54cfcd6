"""Cuts the power at every system call of every operation, and looks at what the disk may hold.

`python tests/faults/power_loss.py [--workers N] [--bound N] [--recoveries N]` prints one JSON
object. `--bound` states are looked at per call, all of them where there are fewer; after the last
call eight times as many. On `--recoveries` of each operation and shape the next save and the next
retirement are tried. The rules are those of `snapfmt.testing.power`: file content, file size and
directory entries are each certain only once they were synced.
"""

import argparse
import json
import os
import sys
import tempfile
import time

from snapfmt.testing.crash_matrix import pairs
from snapfmt.testing.power_states import cut_all, summary


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--bound", type=int, default=64)
    parser.add_argument("--recoveries", type=int, default=4)
    given = parser.parse_args()
    began = time.monotonic()
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        found = summary(
            cut_all(
                pairs(),
                folder,
                bound=given.bound,
                recoveries=given.recoveries,
                workers=given.workers,
            )
        )
    print(json.dumps({**found, "seconds": round(time.monotonic() - began, 1)}))
    return 1 if found["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
