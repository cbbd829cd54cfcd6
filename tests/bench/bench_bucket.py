"""Save into and restore from a bucket, against plain transfers of the same stored bytes."""

import argparse
import hashlib
import os
import statistics
import subprocess
import sys
import time
import uuid
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

warnings.filterwarnings("ignore")
os.environ["AWS_EC2_METADATA_DISABLED"] = "true"

import botocore.session
import psutil
from botocore.config import Config

sys.path.insert(0, str(Path(__file__).parent))
from results import show
from workloads import Workload

from snapfmt import Repository, Snapshot
from snapfmt.format import layout
from snapfmt.testing import s3_servers
from snapfmt.testing.s3_servers import BUCKET, S3Server

MIB = 1024 * 1024
PIECE = 64 * MIB
THREADS = 4
TOKENS = 4096
OWN_NETWORK = "SNAPFMT_BENCH_OWN_NETWORK"


def main() -> None:
    """Run the rounds, print a table, and one JSON object as the last line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="96 MiB, three rounds")
    parser.add_argument("--mib", type=int, default=1024, help="logical size of the rows")
    parser.add_argument("--rounds", type=int, default=0, help="paired rounds (default 5)")
    parser.add_argument("--parts", type=int, default=2, help="parts written at the same time")
    parser.add_argument("--ids", choices=("text", "uniform"), default="text")
    parser.add_argument("--server", choices=("seaweedfs", "ministack"), default="seaweedfs")
    parser.add_argument(
        "--link-mbit",
        type=int,
        default=0,
        help="in a network of its own, with the server behind a link of so many Mbit/s (root)",
    )
    options = parser.parse_args()
    if options.link_mbit:
        own_network()
    rounds = options.rounds or (3 if options.quick else 5)
    rows = (96 if options.quick else options.mib) * MIB // (TOKENS * 28)
    result: dict[str, Any] = {"rounds": rounds, "server": options.server, "ids": options.ids}
    result["link_mbit"] = options.link_mbit
    result |= {"ratios": {}, "spread": {}, "raw": {}, "load_before": os.getloadavg()[0]}
    batches = list(Workload("long", "train", rows, TOKENS, options.ids).batches())
    with s3_servers.SERVERS[options.server]() as server:
        if options.link_mbit:
            limit_link(server, options.link_mbit)
        measure(server, batches, rounds, options.parts, result)
    result["load_after"] = os.getloadavg()[0]
    show(result)


def own_network() -> None:
    """Start this program again in a network namespace, unless it is in one.

    There the loopback can be made slow without slowing anything else.
    """
    if os.environ.get(OWN_NETWORK) is None:
        os.environ[OWN_NETWORK] = "1"
        os.execvp("unshare", ["unshare", "--net", sys.executable, *sys.argv])
    tool("ip", "link", "set", "lo", "up")


def limit_link(server: S3Server, mbit: int) -> None:
    """Slow down what goes to and comes from the server's port, and not what it says to itself."""
    port = server.endpoint.rpartition(":")[2]
    tool("tc", *["qdisc", "add", "dev", "lo", "root", "handle", "1:", "htb", "default", "20"])
    for name, rate in (("1:10", mbit), ("1:20", 100_000)):
        shape = f"class add dev lo parent 1: classid {name} htb rate {rate}mbit burst 256k"
        tool("tc", *f"{shape} quantum 60000".split())
    for end in ("dport", "sport"):
        match = f"filter add dev lo parent 1: protocol ip u32 match ip {end} {port} 0xffff"
        tool("tc", *f"{match} flowid 1:10".split())


def tool(*command: str) -> None:
    """Run it; its failure is this program's."""
    subprocess.run(command, check=True)


def measure(
    server: S3Server, batches: list[Any], rounds: int, parts: int, result: dict[str, Any]
) -> None:
    """Pairs of a save and a plain upload, then pairs of a restore and a plain download."""
    client = plain_client(server)
    logical = sum(
        value.values().nbytes if value.is_nested else value.nbytes
        for _, fields, _ in batches
        for value in fields.values()
    )
    times: dict[str, list[float]] = {name: [] for name in ("save", "put", "load", "get")}
    cpu: dict[str, list[float]] = {name: [] for name in times}
    processes = Processes(server)
    saved: list[tuple[Repository, Snapshot]] = []
    for number in range(rounds + 1):
        url = f"s3://{BUCKET}/{uuid.uuid4().hex}"
        repository = Repository.open(url, create=True, storage_options=server.options)
        spent = [processes.cpu_s()]
        begin = time.perf_counter()
        save(repository, batches, parts)
        save_s = time.perf_counter() - begin
        spent.append(processes.cpu_s())
        stored = sum(size for key, size in repository.store.walk("objects"))
        blob = os.urandom(stored)
        spent.append(processes.cpu_s())
        put_s = upload(client, f"plain-{number}", blob)
        spent.append(processes.cpu_s())
        begin = time.perf_counter()
        load(repository.snapshot())
        load_s = time.perf_counter() - begin
        spent.append(processes.cpu_s())
        get_s = download(client, f"plain-{number}", stored)
        spent.append(processes.cpu_s())
        if number:
            # The first pair warms both up.
            for name, value in zip(times, (save_s, put_s, load_s, get_s), strict=True):
                times[name].append(value)
            for name, at in zip(cpu, (0, 2, 3, 4), strict=True):
                cpu[name].append(spent[at + 1] - spent[at])
        saved.append((repository, repository.snapshot()))
    # What the save made: the repository's own document was there before it.
    objects = {key for key, _ in saved[-1][0].store.walk("")} - {layout.REPOSITORY_KEY}
    for name, ours, theirs in (("save", "save", "put"), ("restore", "load", "get")):
        pairs = [b / a for a, b in zip(times[ours], times[theirs], strict=True)]
        key = f"{name}_rate/plain_rate"
        result["ratios"][key] = statistics.median(times[theirs]) / statistics.median(times[ours])
        result["spread"][key] = (min(pairs), max(pairs))
    # A plain upload has no rows to encode, and rows that are not encoded are larger.
    scale = logical / stored
    key = "save_rate/plain_rate_of_unencoded_rows"
    pairs = [b * scale / a for a, b in zip(times["save"], times["put"], strict=True)]
    result["ratios"][key] = statistics.median(pairs)
    result["spread"][key] = (min(pairs), max(pairs))
    result["raw"] = {
        "seconds": times,
        "cpu_seconds_of_client_and_server": cpu,
        "logical_mib": logical / MIB,
        "stored_mib": stored / MIB,
        "objects": len(objects),
        "packs_and_indexes": sum(key.startswith("objects/") for key in objects),
        "allowed_objects": 2 + parts + -(-stored // (128 * MIB)),
        "parts": parts,
    }


class Processes:
    """This process and the server's, which share the cores."""

    def __init__(self, server: S3Server) -> None:
        self._all = [psutil.Process(), psutil.Process(server.pid)]

    def cpu_s(self) -> float:
        """Processor time that they have used so far."""
        return sum(sum(item.cpu_times()[:2]) for item in self._all)


def save(repository: Repository, batches: list[Any], parts: int) -> None:
    """One snapshot; each part is written by a thread of its own."""
    with repository.begin() as attempt:

        def write(number: int) -> Any:
            with attempt.part(f"rl/tq/unit-{number}") as part:
                with part.table("rows/train") as table:
                    for keys, fields, _ in batches[number::parts]:
                        columns = {name: fields[name] for name in fields.keys()}  # noqa: SIM118
                        table.append(keys, columns)
                return part.seal()

        with ThreadPoolExecutor(parts) as pool:
            attempt.publish(list(pool.map(write, range(parts))))


def load(snapshot: Snapshot) -> int:
    """Every row of every column, verified and decoded."""
    return sum(len(batch.keys) for batch in snapshot.table("rows/train").batches())


def plain_client(server: S3Server) -> Any:
    """The plain client of AWS, with its own defaults but the address."""
    return botocore.session.Session().create_client(
        "s3",
        endpoint_url=server.endpoint,
        aws_access_key_id=server.options["key"],
        aws_secret_access_key=server.options["secret"],
        region_name="us-east-1",
        config=Config(s3={"addressing_style": "path"}, max_pool_connections=THREADS),
    )


def upload(client: Any, name: str, blob: bytes) -> float:
    """Seconds to put the bytes, in pieces, by some threads; no checksum but the client's own."""
    begin = time.perf_counter()
    pieces = range(0, len(blob), PIECE)
    with ThreadPoolExecutor(THREADS) as pool:
        list(
            pool.map(
                lambda at: client.put_object(
                    Bucket=BUCKET, Key=f"{name}/{at}", Body=blob[at : at + PIECE]
                ),
                pieces,
            )
        )
    return time.perf_counter() - begin


def download(client: Any, name: str, size: int) -> float:
    """Seconds to get them back, by as many threads as a reader uses, and hash them."""
    begin = time.perf_counter()

    def get(at: int) -> None:
        body = client.get_object(Bucket=BUCKET, Key=f"{name}/{at}")["Body"].read()
        hashlib.sha256(body).digest()

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(get, range(0, size, PIECE)))
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
