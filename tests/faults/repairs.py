"""Repairs a small repository after every single damage, one at a time.

`python tests/faults/repairs.py [KIND ...] [--workers N] [--stride N]` prints one JSON object; with
a stride (29 without one) only one in N of the bits and one in N / 4 of the shorter lengths. The
kinds are those of `damages.py`. The new repository must verify clean and hold what was saved, so
must the pieces, the report must tell of each loss and of nothing else, and the damaged repository
must stay as it was; one in five is also repaired with a good copy beside it, and nothing may be
lost then. A case takes about 0.1 s of one core.
"""

import argparse
import json
import os
import sys
import tempfile
import time

from snapfmt.testing.damage_matrix import KINDS
from snapfmt.testing.repair_matrix import run_all, summary


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--stride", type=int, default=29)
    given = parser.parse_args()
    strides = {"bit": given.stride, "cut": max(given.stride // 4, 1)}
    began = time.monotonic()
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        tallies = []
        for kind in given.kinds or KINDS:
            stride = strides.get(kind, 1)
            tallies += run_all([kind], folder, workers=given.workers, stride=stride)
    found = summary(tallies)
    seconds = round(time.monotonic() - began, 1)
    print(json.dumps({**found, "stride": given.stride, "seconds": seconds}))
    return 1 if found["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
