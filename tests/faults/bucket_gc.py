"""Collections and retirements in a bucket, with every request failing in every way.

`python tests/faults/bucket_gc.py [--stride N] [--first N]` prints one JSON object; with a stride
only one case in N, from the first on. All of it takes about half an hour of one core.
"""

import argparse
import itertools
import json
import sys
import time

from snapfmt.testing.bucket_gc import cases, run_all, world


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stride", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    began, built = time.monotonic(), world()
    found = run_all(built, itertools.islice(cases(built), given.first, None, given.stride))
    print(json.dumps({**found, "stride": given.stride, "seconds": round(time.monotonic() - began)}))
    return 1 if found["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
