"""Many processes on one repository: `python crowd.py --processes 64 --seconds 120`.

Each publishes the next number, reads, verifies, retires and collects, one after the other, with a
handle of its own and no lock but the repository itself. Of all that want a number exactly one
gets it, the others are told so; what was published is whole until it is retired. Prints one JSON
document; ends with 1 if anything was lost, left over or untyped.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Whoever forks must have no threads.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from soak import create, ground

from snapfmt import Repository
from snapfmt.errors import ConflictError, NotPublished
from snapfmt.testing import soak_model
from snapfmt.testing.crew import Crew, Member, Place
from snapfmt.testing.soak_check import settle, told
from snapfmt.testing.soak_roles import read
from snapfmt.testing.soak_told import Told

KEPT = 8
"""Snapshots that whoever retires lets stand."""


def publish(member: Member, repository: Repository) -> None:
    """Try for the number after the newest, on the newest or on nothing."""
    newest = max(repository.numbers(), default=0)
    base = newest if newest and member.random.random() < 0.5 else None
    try:
        with repository.begin(number=newest + 1, base=base) as attempt:
            manifest = attempt.publish(soak_model.save(repository, attempt))
    except ConflictError as error:
        member.tell("lost", code=error.code)
    except NotPublished:
        # The base was retired as the save began.
        member.tell("lost", code="base")
    else:
        member.tell("saved", number=manifest.number, write_id=manifest.write_id, base=base)


def turn(member: Member, repository: Repository) -> None:
    choice = member.random.random()
    if choice < 0.65:
        publish(member, repository)
    elif choice < 0.9:
        read(member, repository)
    elif choice < 0.95:
        repository.keep_latest(KEPT)
        member.tell("kept")
    else:
        report = repository.collect()
        member.tell("collected", bytes=report.bytes(removed=True))


def crowd(
    store: str, processes: int, seconds: float, numbers: int, seed: int, folder: Path
) -> dict[str, Any]:
    """Let so many work for so long, or to that number, then look at what is left."""
    crew, heard, began = Crew(seed), Told(), time.monotonic()
    with ground(store, crew, folder, faults=False) as (source, target, _):
        crew.ask("creator", lambda member: create(source, target), seconds=120)
        until = time.monotonic() + seconds
        for place in range(processes):
            crew.start(f"member {place}", one_of_many(source, until, numbers))
        # Each ends the turn that it began, so that no winner is left unheard.
        patience = until + 120 + 4 * seconds
        while heard.counts["finished"] < processes and time.monotonic() < patience:
            heard.hear(crew.heard(1.0))
            heard.violations += [f"{name} ended by itself" for name in crew.ended()]
            if heard.violations:
                break
        hung = processes - heard.counts["finished"]
        crew.kill_all()
        heard.hear(crew.heard(0.0))
        worked = time.monotonic() - began

        def final(member: Member) -> None:
            member.tell("settled", **told(settle(source.open(), heard.saved, {})))

        found = crew.ask("judge", final, seconds=1200)
        heard.violations += [item["text"] for item in found if item["kind"] == "violation"]
        ends = [item for item in found if item["kind"] == "settled"]
    published = sorted(heard.saved)
    return {
        "store": store,
        "processes": processes,
        "published": len(published),
        "conflicts": heard.counts["lost"],
        "each_conflict": dict(sorted(heard.lost.items())),
        "gaps": published[-1] - len(published) if published else 0,
        "retirements": heard.counts["kept"],
        **heard.figures(ends),
        "violations": heard.violations[:20]
        + [f"{hung} did not end"] * (hung > 0)
        + ["it did not settle"] * (not ends),
        "shown": [text for item in ends for text in item["shown"]],
        "seconds": round(worked, 1),
        "settled_in_s": round(time.monotonic() - began - worked, 1),
    }


def one_of_many(source: Place, until: float, numbers: int) -> Any:
    """The turns of one process, to an hour or a number; it opens the repository at the first."""
    opened: list[Repository] = []

    def take(member: Member) -> None:
        if not opened:
            opened.append(source.open())
        if time.monotonic() > until or max(opened[0].numbers(), default=0) >= numbers:
            member.tell("finished")
            time.sleep(3600)
        turn(member, opened[0])

    return take


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument(
        "--numbers", type=int, default=10**9, help="end with this number, if sooner"
    )
    parser.add_argument("--store", choices=["local", "s3", "ministack"], default="local")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="on the disk to be used; default: a new one")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=given.folder, prefix="snapfmt-crowd-") as folder:
        found = crowd(
            given.store,
            given.processes,
            given.seconds,
            given.numbers,
            given.seed,
            Path(folder),
        )
    sys.stdout.write(json.dumps(found, indent=1) + "\n")
    return 1 if found["losses"] or found["leaks"] or found["violations"] or found["gaps"] else 0


if __name__ == "__main__":
    sys.exit(main())
