"""Saves, kills, faults, collections and restores beside each other: `python soak.py --saves 1000`.

Real processes save, read, pin, push, retire, collect and restore; this one kills them at random
moments and stops them for a while. Disks and servers fail now and then. In the end nothing that
was published is lost but what was retired, every row is what its save was given, and nothing is
left over. Prints one JSON document; ends with 1 if anything was lost, left or untyped.
"""

import argparse
import contextlib
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

# Whoever forks must have no threads.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from snapfmt.errors import SnapfmtError
from snapfmt.testing import s3_servers
from snapfmt.testing.crew import Crew, Member, Place
from snapfmt.testing.fault_proxy import FaultProxy, Rule, Way
from snapfmt.testing.soak_check import settle, told
from snapfmt.testing.soak_roles import restore, roles
from snapfmt.testing.soak_told import Told

CAST = {
    "saver": 2,
    "reader": 1,
    "pinner": 1,
    "restorer": 1,
    "collector": 1,
    "pusher": 1,
    "keeper": 1,
}
"""How many of each."""
FEW = {"saver": 2, "pinner": 1, "restorer": 1, "collector": 1}
"""Those of a sample."""
KILL_S = 0.1
"""Between two kills, on average, as long as enough is saved between them."""
KILLS = {"saver": 0.6, "others": 0.4}
"""Kills that each save allows, whatever the machine's speed."""
HUNG_S = 180.0
"""Without a save, after which it counts as hung."""
TIMEOUT_S = 4.0
"""Of a saver's requests."""


def spoil(member: Member, upstream: str) -> None:
    """A way to the server on which some request or other fails; takes turns for ever."""
    ways = get_args(Way)
    with FaultProxy(upstream).running() as proxy:
        member.tell("proxy", endpoint=proxy.endpoint)
        while True:
            way = member.random.choice(ways)
            if way == "delayed past the timeout" and member.random.random() < 0.7:
                continue
            rule = Rule(
                way,
                member.random.choice(["", "GET", "HEAD", "PUT", "PUT", "DELETE"]),
                first=member.random.randrange(8),
                delay_s=TIMEOUT_S + 0.5,
            )
            proxy.spoil(rule)
            time.sleep(member.random.uniform(0.1, 0.5))
            if rule.fired:
                member.tell("fault", name=way)


@contextlib.contextmanager
def ground(
    store: str, crew: Crew, folder: Path, *, faults: bool = True
) -> Iterator[tuple[Place, Place, Place]]:
    """The source, the second repository, and the way that savers go, with `faults` on it."""
    if store == "local":
        source = Place(str(folder / "run"))
        yield source, Place(str(folder / "copies")), source
        return
    import s3fs  # noqa: F401 - before anything is forked

    with getattr(s3_servers, "seaweedfs" if store == "s3" else store)() as server:
        url = f"s3://{s3_servers.BUCKET}/soak"
        endpoint = server.endpoint
        if faults:
            crew.start("proxy", lambda member: spoil(member, server.endpoint))
            told_by = crew.heard(60.0)
            endpoint = next(item["endpoint"] for item in told_by if item["kind"] == "proxy")
        config = {"read_timeout": TIMEOUT_S, "connect_timeout": TIMEOUT_S}
        through = {**server.options, "endpoint_url": endpoint, "config_kwargs": config}
        yield (
            Place(f"{url}/run", server.options),
            Place(f"{url}/copies/run", server.options),
            Place(f"{url}/run", through),
        )


def soak(
    store: str, saves: int, seed: int, folder: Path, *, cast: dict[str, int], seconds: float
) -> dict[str, Any]:
    """Run until so many saves were published, then look at what is left."""
    crew, chance, heard = Crew(seed), random.Random(seed), Told()
    kills: Counter[str] = Counter()
    began = time.monotonic()
    with ground(store, crew, folder) as (source, target, through):
        crew.ask("creator", lambda member: create(source, target), seconds=120)
        turns = roles(source, target, through)
        for role, count in cast.items():
            for place in range(count):
                crew.start(f"{role} {place}", turns[role])
        try:
            pauses = _run(crew, turns, heard, chance, kills, saves, began + seconds)
        finally:
            killed = crew.kill_all()
            heard.hear(crew.heard(0.0))
        kills["at the end"] = killed

        def final(member: Member) -> None:
            try:
                found = settle(source.open(), heard.saved, heard.pinned)
                member.tell("source", **told(found))
                member.tell("target", **told(settle(target.open(), {}, {})))
                restore(member, source.open())
            except SnapfmtError as error:
                raise AssertionError(f"it did not settle: {error}") from error

        ends = {}
        for event in crew.ask("judge", final, seconds=1200):
            heard.hear([event] if event["kind"] in ("violation", "restored") else [])
            ends[event["kind"]] = {
                name: value for name, value in event.items() if name not in ("kind", "who")
            }
    places = [ends[name] for name in ("source", "target") if name in ends]
    return {
        "store": store,
        "seed": seed,
        "saves": len(heard.saved),
        "asked": saves,
        "kills": kills.total(),
        "pauses": pauses,
        "faults": heard.faults.total(),
        "restores": heard.counts["restored"],
        "pins": heard.counts["pinned"],
        "pushes": heard.counts["pushed"],
        **heard.figures(places),
        "violations": heard.violations[:20] + ["it did not settle"] * (len(places) < 2),
        "each_fault": dict(sorted(heard.faults.items())),
        "each_kill": dict(sorted(kills.items())),
        "ends": ends,
        "seconds": round(time.monotonic() - began, 1),
    }


def create(source: Place, target: Place) -> None:
    """Both repositories, of one id."""
    made = source.open(create=True)
    from snapfmt.transfer import open_target

    open_target(target.location, made, storage_options=target.options)


def _run(
    crew: Crew,
    turns: dict[str, Any],
    heard: Told,
    chance: random.Random,
    kills: Counter[str],
    saves: int,
    until: float,
) -> int:
    """Kill and replace until enough was saved; returns how often one was stopped for a while."""
    pauses, shown, stopped = 0, 0, {}
    last = time.monotonic()
    while len(heard.saved) < saves and not heard.violations:
        now = time.monotonic()
        before = len(heard.saved)
        if before >= shown + 100:
            shown = before
            print(f"{before} saves, {kills.total()} kills", file=sys.stderr, flush=True)
        heard.hear(crew.heard(chance.expovariate(1 / KILL_S)))
        last = now if len(heard.saved) > before else last
        if now > until:
            break
        if now - last > HUNG_S:
            heard.violations.append(f"no save in {HUNG_S} s, after {len(heard.saved)}")
        heard.violations += [f"{name} ended by itself" for name in crew.ended()]
        for pid in [pid for pid, end in stopped.items() if end < now]:
            del stopped[pid]
            os.kill(pid, signal.SIGCONT)
        kind = chance.choice(sorted(KILLS))
        pid = chance.choice(
            [
                pid
                for pid, name in crew.running.items()
                if name.startswith("saver") == (kind == "saver") and name != "proxy"
            ]
        )
        done = sum(n for name, n in kills.items() if (name == "saver") == (kind == "saver"))
        if done > 3 + KILLS[kind] * len(heard.saved):
            continue
        if chance.random() < 0.15 and pid not in stopped:
            os.kill(pid, signal.SIGSTOP)
            stopped[pid] = now + chance.uniform(0.05, 1.0)
            pauses += 1
        elif pid not in stopped:
            name = crew.kill(pid)
            role = name.split()[0]
            kills[role] += 1
            crew.start(name, turns[role])
    return pauses


def summed(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Figures of all rounds together; what is no figure, of each."""
    found: dict[str, Any] = {"store": rounds[0]["store"], "rounds": len(rounds)}
    for name, value in rounds[0].items():
        values = [item[name] for item in rounds]
        if name in ("seed", "ends"):
            found[name] = values
        elif isinstance(value, dict):
            found[name] = dict(sorted(sum(map(Counter, values), Counter()).items()))
        elif isinstance(value, list):
            found[name] = [item for items in values for item in items]
        elif name != "store":
            found[name] = round(sum(values), 1)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--saves", type=int, default=1000)
    parser.add_argument("--store", choices=["local", "s3", "ministack"], default="local")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=1, help="repositories, one after the other")
    parser.add_argument("--few", action="store_true", help="fewer kinds of processes")
    parser.add_argument("--seconds", type=float, default=7200.0, help="of a round, at most")
    parser.add_argument("--folder", type=Path, help="on the disk to be used; default: a new one")
    given = parser.parse_args(arguments)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    rounds = []
    for turn in range(given.rounds):
        with tempfile.TemporaryDirectory(dir=given.folder, prefix="snapfmt-soak-") as folder:
            rounds.append(
                soak(
                    given.store,
                    -(-given.saves // given.rounds),
                    given.seed + turn,
                    Path(folder),
                    cast=FEW if given.few else CAST,
                    seconds=given.seconds,
                )
            )
        print(f"round {turn + 1}: {rounds[-1]['saves']} saves", file=sys.stderr, flush=True)
    found = summed(rounds)
    sys.stdout.write(json.dumps(found, indent=1) + "\n")
    wrong = found["losses"] or found["leaks"] or found["violations"]
    return 1 if wrong or found["saves"] < found["asked"] else 0


if __name__ == "__main__":
    sys.exit(main())
