"""Memory and processor time of a save into a bucket, above the rows; each run in its own process.

Of a run: the peak of the process above what it held with its rows, the processor time of the
client, and that of sending the same bytes alone, by this library and by the plain client of AWS.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
import uuid
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

warnings.filterwarnings("ignore")
os.environ["AWS_EC2_METADATA_DISABLED"] = "true"

import botocore.session
import numpy as np
from botocore.config import Config

from snapfmt import Repository
from snapfmt.format import digest, layout
from snapfmt.storage.urls import open_store
from snapfmt.testing import s3_servers
from snapfmt.testing.s3_servers import ACCESS_KEY, BUCKET, SECRET_KEY, S3Server

MIB = 1024 * 1024
ROWS = 16
SENT_MIB = 128
TARGET_MIB = 256
"""Above the rows."""


def main() -> None:
    """Run the rounds, print a table, and one JSON object as the last line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=600, help="rows of all parts together")
    parser.add_argument("--parts", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--server", choices=("seaweedfs", "ministack"), default="seaweedfs")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        kind, url, parts = options.child
        print(json.dumps(KINDS[kind](url, options.mib, int(parts))))
        return
    with s3_servers.SERVERS[options.server]() as server:
        found = {
            f"save, {parts} parts": rounds(server, options, "save", parts)
            for parts in options.parts
        }
        for kind in ("send", "plain"):
            found[f"{kind}, {SENT_MIB} MiB"] = rounds(server, options, kind, 1)
    result: dict[str, Any] = {"ratios": {}, "spread": {}, "rounds": options.rounds, "raw": found}
    targets = {
        f"{name}: memory of a part / target": [
            run["peak_mib_per_part"] / TARGET_MIB for run in runs
        ]
        for name, runs in found.items()
        if name.startswith("save")
    }
    sent, plain_sent = (
        [run["cpu_s_per_gib"] for run in found[f"{kind}, {SENT_MIB} MiB"]]
        for kind in ("send", "plain")
    )
    targets["processor time of sending / plain client"] = [
        a / b for a, b in zip(sent, plain_sent, strict=True)
    ]
    for name, values in targets.items():
        result["ratios"][name] = statistics.median(values)
        result["spread"][name] = (min(values), max(values))
        print(f"{name:64} {result['ratios'][name]:8.3f}   ({min(values):.3f} to {max(values):.3f})")
    print(json.dumps(result))


def rounds(server: S3Server, options: Any, kind: str, parts: int) -> list[dict[str, float]]:
    """What some runs found."""
    runs = []
    for _ in range(options.rounds):
        url = f"s3://{BUCKET}/{uuid.uuid4().hex}"
        command = [sys.executable, __file__, f"--mib={options.mib}", "--child", kind, url]
        done = subprocess.run(
            [*command, str(parts)],
            stdout=subprocess.PIPE,
            env={**os.environ, **server.environment},
            check=True,
        )
        runs.append(json.loads(done.stdout.splitlines()[-1]))
    return runs


def save(url: str, mib: int, parts: int) -> dict[str, float]:
    """One snapshot of rows that do not get smaller; each part is written by its own thread."""
    random = np.random.default_rng(0)
    batches = [random.random((ROWS, MIB // 8)) for _ in range(mib // ROWS)]
    repository = Repository.open(url, create=True)
    small = [batch[:1] for batch in batches[:1]]
    write(repository, small, 1)
    with Watched() as watched:
        write(repository, batches, parts)
    stored = sum(size for _, size in repository.store.walk(layout.OBJECTS)) / 2**30
    return watched.report(stored, parts)


def write(repository: Repository, batches: list[Any], parts: int) -> None:
    """Publish a snapshot of these rows."""
    with repository.begin() as attempt:

        def one(number: int) -> Any:
            with attempt.part(f"p{number}") as part:
                with part.table("t") as table:
                    for at, batch in enumerate(batches[number::parts]):
                        table.append([f"{at}-{row}" for row in range(len(batch))], {"x": batch})
                return part.seal()

        with ThreadPoolExecutor(parts) as pool:
            attempt.publish(list(pool.map(one, range(parts))))


def send(url: str, mib: int, parts: int) -> dict[str, float]:
    """Objects of the size of a pack, through the sink of a store."""
    del mib, parts
    store = open_store(url)
    store.open_workspace("attempts/a", publishes="snapshots/snapshot_000001/manifest.json")
    pieces = [os.urandom(MIB) for _ in range(SENT_MIB)]
    running = digest.new_hash()
    for piece in pieces:
        running.update(piece)
    key = layout.object_key(digest.TAG + running.hexdigest())

    def one() -> None:
        sink = store.sink("attempts/a", "x")
        for piece in pieces:
            sink.write(piece)
        sink.finish(key)

    return repeated(one)


def plain(url: str, mib: int, parts: int) -> dict[str, float]:
    """The same by the plain client, which hashes what it sends as this library's writer does."""
    del mib, parts
    client = botocore.session.Session().create_client(
        "s3",
        endpoint_url=os.environ["AWS_ENDPOINT_URL"],
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        region_name="us-east-1",
        config=Config(
            s3={"addressing_style": "path", "payload_signing_enabled": False},
            request_checksum_calculation="when_required",
        ),
    )
    blob = os.urandom(SENT_MIB * MIB)
    return repeated(lambda: client.put_object(Bucket=BUCKET, Key=url[-32:], Body=blob))


def repeated(send_one: Any) -> dict[str, float]:
    """The median of several sends; the first one warms up."""
    send_one()
    runs = []
    for _ in range(5):
        with Watched() as watched:
            send_one()
        runs.append(watched.report(SENT_MIB / 1024, 1))
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


KINDS = {"save": save, "send": send, "plain": plain}


class Watched:
    """Peak memory above the start, processor time and wall time while its context lasts."""

    def __enter__(self) -> Self:
        Path("/proc/self/clear_refs").write_text("5")
        self._held = _status("VmRSS")
        self._cpu, self._begin = time.process_time(), time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._begin
        self.cpu_s = time.process_time() - self._cpu
        self.peak_mib = (_status("VmHWM") - self._held) / 1024

    def report(self, stored_gib: float, parts: int) -> dict[str, float]:
        """What is compared."""
        return {
            "peak_mib_per_part": self.peak_mib / parts,
            "seconds": self.seconds,
            "cpu_s_per_gib": self.cpu_s / stored_gib,
            "stored_gib": stored_gib,
        }


def _status(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1])


if __name__ == "__main__":
    main()
