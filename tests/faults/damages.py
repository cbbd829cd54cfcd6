"""Damages every file of a small repository in every single way, one at a time.

`python tests/faults/damages.py [KIND ...] [--workers N] [--stride N]` prints one JSON object; with
a stride only one in N of the bits and of the shorter lengths. Kinds: every bit flipped, every
shorter length, longer files, files that are gone, swapped in pairs, replaced by each other one
(older ones among them), copied to where they do not belong, and strange files. The audit must
tell of each of them, and what is read must be what was saved, or a typed error. All of it takes
about an hour of one core.

With `--repair` each damaged repository is repaired instead, about 0.1 s of one core each: the new
one must verify clean and hold what was saved, so must the pieces, the report must tell of each
loss and of nothing else, and the damaged repository must stay as it was; one in five is also
repaired with a good copy beside it, and nothing may be lost then. One in 29 of the bits is tried
without a stride, and of the shorter lengths four times as many.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from typing import Any

from snapfmt.testing import damage_matrix, repair_matrix
from snapfmt.testing.damage_matrix import KINDS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--stride", type=int, default=None)
    parser.add_argument("--repair", action="store_true")
    given = parser.parse_args()
    matrix = repair_matrix if given.repair else damage_matrix
    stride = given.stride or (29 if given.repair else 1)
    strides = {"bit": stride, "cut": max(stride // 4, 1) if given.repair else stride}
    began = time.monotonic()
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        tallies: list[Any] = []
        for kind in given.kinds or KINDS:
            some = strides.get(kind, 1)
            tallies += matrix.run_all([kind], folder, workers=given.workers, stride=some)
    found = matrix.summary(tallies)
    seconds = round(time.monotonic() - began, 1)
    print(json.dumps({**found, "stride": stride, "seconds": seconds}))
    return 1 if found["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
