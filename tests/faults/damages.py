"""Damages every file of a small repository in every single way, one at a time.

`python tests/faults/damages.py [KIND ...] [--workers N] [--stride N]` prints one JSON object; with
a stride only one in N of the bits and of the shorter lengths. Kinds: every bit flipped, every
shorter length, longer files, files that are gone, swapped in pairs, replaced by each other one
(older ones among them), copied to where they do not belong, and strange files. The audit must
tell of each of them, and what is read must be what was saved, or a typed error. All of it takes
about an hour of one core.
"""

import argparse
import json
import os
import sys
import tempfile
import time

from snapfmt.testing.damage_matrix import KINDS, run_all, summary


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--stride", type=int, default=1)
    given = parser.parse_args()
    began = time.monotonic()
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        tallies = []
        for kind in given.kinds or KINDS:
            stride = given.stride if kind in ("bit", "cut") else 1
            tallies += run_all([kind], folder, workers=given.workers, stride=stride)
    found = summary(tallies)
    seconds = round(time.monotonic() - began, 1)
    print(json.dumps({**found, "stride": given.stride, "seconds": seconds}))
    return 1 if found["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
