"""Writes REPORT.md from what the full commands print.

`python tests/faults/report.py [--run] [NAME ...]` writes the named sections anew, or all of them,
from the JSON file of each command in `build/faults`; with `--run` it runs the commands first, one
after the other. A section without a file stays as it was, and one whose command died makes the
exit code 1. Each says of which commit it is: that which the command ran on.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
REPORT = "tests/faults/REPORT.md"
COMMANDS = {
    "crash_points": ["crash_points.py"],
    "power_loss": ["power_loss.py"],
    "mutants": ["mutants.py"],
    "damages": ["damages.py"],
    "repairs": ["damages.py", "--repair"],
    "bucket_gc": ["bucket_gc.py"],
    "fuzz": ["fuzz.py"],
    "interleavings": [
        "gc_interleavings.py",
        "--reduce",
        "--model",
        "--limit=20000",
        "--seed=1",
        "--processes=2",
    ],
    "soak": ["soak.py", "--saves=1000", "--rounds=5"],
    "soak_s3": ["soak.py", "--saves=100", "--rounds=2", "--store=s3"],
    "crowd": ["crowd.py", "--processes=64", "--seconds=120"],
    "crowd_s3": ["crowd.py", "--processes=64", "--seconds=120", "--store=s3"],
    "crowd_ministack": ["crowd.py", "--processes=64", "--seconds=120", "--store=ministack"],
}
"""Name of the file of figures, and what writes it."""


CODE = ("snapfmt", "schemas", "coordinator", "tests", "spec", "pyproject.toml")
"""What the figures depend on."""


def run(name: str, path: Path) -> bool:
    """Run a command and keep its figures, and of what; they also stand where it found something.

    Returns whether there are any: a command that died has none, and its section stays.
    """
    print(f"{name} ...", file=sys.stderr)
    program, *arguments = COMMANDS[name]
    path.unlink(missing_ok=True)
    began = tree()
    done = subprocess.run(
        [sys.executable, str(HERE / program), *arguments], stdout=subprocess.PIPE, check=False
    )
    try:
        found = json.loads(done.stdout)
    except ValueError:
        print(f"{name}: no figures, exit code {done.returncode}", file=sys.stderr)
        return False
    ended = tree()
    of = began if began == ended else f"{began}, which became {ended} while it ran"
    kept = {"of": of, "on": f"{datetime.now(UTC):%Y-%m-%d}", "found": found}
    path.write_text(json.dumps(kept), "utf-8")
    return True


def tree() -> str:
    """The commit of this tree, as far as git knows, and whether its code is that of the commit."""
    head = git("describe", "--always")
    if head is None:
        return "an unknown commit"
    changed = git("status", "--porcelain", "--", *CODE, f":!{REPORT}")
    return f"commit {head}" if changed == "" else f"commit {head} with changes"


def git(*arguments: str) -> str | None:
    """What git says; None if it fails."""
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else None


def crash_points(found: dict[str, Any]) -> list[str]:
    return [
        "## Crash points",
        "",
        (
            f"{found['cases']} cases, {found['torn_writes']} of them half-way through a write, "
            f"{found['errors']} with an error of the system instead of a crash; "
            f"{found['problems']} problems. After {found['old']} the old state was found, after "
            f"{found['new']} something of the new one, each time whole; the next save and the next "
            f"retirement worked and left nothing over. {found['shapes']} shapes of snapshots; "
            f"{found['seconds']} s."
        ),
        "",
        *table(("operation", "cases"), found["operations"].items()),
    ]


def power_loss(found: dict[str, Any]) -> list[str]:
    return [
        "## Power loss",
        "",
        (
            f"{found['states']} states of the disk at {found['cuts']} cuts, {found['violations']} "
            f"violations. {found['distinct']} of the states differ in some file; {found['opened']} "
            "differ in what a reader of published snapshots can see, and each of these was made a "
            f"folder, opened and read in full. On {found['recovered']} the next save and the next "
            f"retirement were tried. {found['operations']} operations, {found['shapes']} shapes of "
            f"snapshots; {found['seconds']} s."
        ),
    ]


def mutants(found: dict[str, Any]) -> list[str]:
    survivors = ", ".join(found["survivors"]) or "none"
    return [
        "## Mutants",
        "",
        (
            f"{found['killed']} of {found['mutants']} killed, in {found['files']} files; "
            f"survivors: {survivors}. {found['seconds']} s."
        ),
        "",
        *table(
            ("mutant", "file", "outcome"),
            ((item["name"], item["file"], item["outcome"]) for item in found["each"]),
        ),
    ]


def damages(found: dict[str, Any]) -> list[str]:
    share = "every one" if found["stride"] == 1 else f"of bits and lengths one in {found['stride']}"
    kinds = found["kinds"].items()
    return [
        "## Corruption",
        "",
        (
            f"{found['found']} of {found['tried']} damages found ({share}), {found['problems']} "
            "problems: no read gave what was not saved, and every error was a typed one. "
            f"{found['seconds']} s."
        ),
        "",
        *table(
            ("kind", "tried", "found", "with data that could not be read"),
            ((name, kind["tried"], kind["found"], kind["unread"]) for name, kind in kinds),
        ),
    ]


def repairs(found: dict[str, Any]) -> list[str]:
    share = "every one" if found["stride"] == 1 else f"of bits one in {found['stride']}"
    head = ("kind", "tried", "all whole", "a snapshot in pieces", "a snapshot lost")
    kinds = found["kinds"].items()
    return [
        "## Repair",
        "",
        (
            f"{found['tried']} damages repaired ({share}), {found['problems']} problems: the new "
            "repository was clean and held what was saved, the pieces as well, each loss was told "
            f"and nothing else. {found['beside']} were also repaired with a good copy beside them: "
            f"nothing was lost. {found['seconds']} s."
        ),
        "",
        *table(
            head,
            (
                (name, *(kind[key] for key in ("tried", "whole", "partly", "lost")))
                for name, kind in kinds
            ),
        ),
    ]


def bucket_gc(found: dict[str, Any]) -> list[str]:
    share = "every one" if found["stride"] == 1 else f"one in {found['stride']}"
    asked = ", ".join(f"{count} of {name}" for name, count in found["requests"].items())
    names = sorted({end for ends in found["ends"].values() for end in ends})
    return [
        "## Collections and retirements in a bucket",
        "",
        (
            f"{found['cases']} cases ({share}) of a request that fails in some way, once or for "
            f"good ({asked}); {found['problems']} problems: nothing that is published or that a "
            "running save has written was lost, that save published, and the next collection "
            f"finished all of it. {found['seconds']} s."
        ),
        "",
        *table(
            ("action, fault", *names),
            ((name, *(ends.get(end, 0) for end in names)) for name, ends in found["ends"].items()),
        ),
    ]


def fuzz(found: dict[str, Any]) -> list[str]:
    return [
        "## Hostile input",
        "",
        (
            f"{found['runs']} inputs to {found['targets']} parsers, of which {found['guided']} "
            "were guided by coverage and the others were random changes of the seeds; "
            f"{found['untyped']} findings. A finding is an error without a type, a value that is "
            "not what is written, memory beyond the limits, a reach outside of the target, code "
            "that is run. "
            f"{found['read']} were read and {found['refused']} refused. The most memory that one "
            f"took was {found['memory'] / 2**20:.1f} MiB, the most processor time "
            f"{found['slowest']} s; {found['seconds']} s in all."
        ),
        "",
        *table(
            ("parser", "inputs", "read", "refused", "findings"),
            (
                (item["target"], *(item.get(n, 0) for n in ("runs", "read", "refused", "untyped")))
                for item in found["each"]
            ),
        ),
    ]


def interleavings(found: dict[str, Any]) -> list[str]:
    head = ("beside each other", "switches", "schedules", "they stand for", "all", "final states")
    model = found["model"].items()
    return [
        "## Interleavings of savers, pins, retirements and collectors",
        "",
        (
            f"{found['schedules']} schedules of the real code on a bucket in memory, one request "
            f"at a time; they stand for {found['covered']}, that go through the same states with "
            f"the same sights. {found['lost_or_left']} of them lost or left an object, or broke "
            f"the promise of a pin. {found['seconds']} s, {found['each_second']} schedules a "
            "second."
        ),
        "",
        *table(
            head,
            (
                (
                    item["scenario"],
                    item["switches"],
                    item["schedules"],
                    item["covered"],
                    "yes" if item["complete"] else "no",
                    item["final_states"],
                )
                for item in found["scenarios"]
            ),
        ),
        "",
        "All interleavings of the model of the rules, without a bound on switches:",
        "",
        *table(
            ("beside each other", "states", "interleavings", "lost"),
            (
                (name, item["states"], f"{item['interleavings']:.1e}", item["lost"])
                for name, item in model
            ),
        ),
    ]


PLACES = {
    "local": "a local disk",
    "s3": "SeaweedFS, through a proxy that spoils requests",
    "ministack": "MiniStack",
}


def soak(found: dict[str, Any]) -> list[str]:
    return [
        f"## Soak on {PLACES[found['store']]}",
        "",
        (
            "Processes save, read, pin, push, retire, collect and restore beside each other; they "
            f"are killed at random moments, and disks or servers fail. {found['saves']} saves of "
            f"{found['asked']} ({found['saves_on_a_base']} on a base), {found['kills']} kills, "
            f"{found['pauses']} pauses, {found['faults']} faults, {found['restores']} restores, "
            f"{found['pushes']} pushes, {found['reads']} snapshots read meanwhile, "
            f"{found['pins']} pins, each of which held until it was taken away, "
            f"{found['bytes_checked']} bytes "
            f"compared: {found['losses']} losses, {found['leaks']} leaks, "
            f"{len(found['violations'])} other violations. {found['rounds']} repositories; "
            f"{found['seconds']} s."
        ),
        "",
        *table(("killed", "times"), found["each_kill"].items()),
        "",
        *table(("fault", "times"), found["each_fault"].items()),
        "",
        *table(("who was told what", "times"), found["typed_errors"].items()),
    ]


def crowd(found: dict[str, Any]) -> list[str]:
    place = PLACES[found["store"]].partition(",")[0]
    said = ", ".join(f"{count} {name}" for name, count in found["each_conflict"].items())
    return [
        f"## {found['processes']} processes at once on {place}",
        "",
        (
            f"{found['published']} numbers were published, each by exactly one process; "
            f"{found['conflicts']} times a process was told that another had it ({said}). "
            f"{found['reads']} snapshots read, {found['verified']} verified, "
            f"{found['retirements']} retirements, {found['collections']} collections meanwhile; "
            f"{found['bytes_checked']} bytes compared: {found['losses']} losses, "
            f"{found['leaks']} leaks, {len(found['violations'])} other violations. "
            f"{found['seconds']} s."
        ),
    ]


def table(head: tuple[str, ...], rows: Any) -> list[str]:
    lines = [head, tuple("---" for _ in head), *rows]
    return ["| " + " | ".join(str(cell) for cell in line) + " |" for line in lines]


def machine() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()} {platform.machine()}, "
        f"Python {platform.python_version()}"
    )


def sections(text: str) -> dict[str, list[str]]:
    """The sections of a report, by the name in the comment before each."""
    found: dict[str, list[str]] = {}
    for part in text.split("\n<!-- ")[1:]:
        name, _, body = part.partition(" -->\n")
        found[name] = body.rstrip("\n").split("\n")
    return found


def section(name: str, kept: dict[str, Any]) -> list[str]:
    """What one command found, and of which tree."""
    title, *rest = WRITERS[name](kept["found"])
    return [title, "", f"Of {kept['of']}, {kept['on']}.", *rest]


def report(parts: dict[str, list[str]]) -> str:
    """The whole text."""
    lines = [
        "# Faults: what was enumerated",
        "",
        (
            f"From the commands of `make faults` on {machine()}; each section says of which "
            "commit. Times are those of a clock on the wall, on a machine that did other things "
            "as well."
        ),
    ]
    for name in COMMANDS:
        if name in parts:
            lines += ["", f"<!-- {name} -->", *parts[name]]
    return "\n".join(lines) + "\n"


WRITERS = {
    "crash_points": crash_points,
    "power_loss": power_loss,
    "mutants": mutants,
    "damages": damages,
    "repairs": repairs,
    "bucket_gc": bucket_gc,
    "fuzz": fuzz,
    "interleavings": interleavings,
    "soak": soak,
    "soak_s3": soak,
    "crowd": crowd,
    "crowd_s3": crowd,
    "crowd_ministack": crowd,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(COMMANDS))
    parser.add_argument("--run", action="store_true", help="run the commands first")
    parser.add_argument("--figures", type=Path, default=Path("build/faults"))
    given = parser.parse_args()
    if unknown := [name for name in given.names if name not in COMMANDS]:
        parser.error(f"no such section: {', '.join(unknown)}")
    given.figures.mkdir(parents=True, exist_ok=True)
    parts = sections((ROOT / REPORT).read_text("utf-8"))
    failed = False
    for name in given.names or COMMANDS:
        path = given.figures / f"{name}.json"
        if given.run and not run(name, path):
            failed = True
        elif path.exists():
            try:
                parts[name] = section(name, json.loads(path.read_text("utf-8")))
            except (ValueError, LookupError, TypeError) as error:
                print(f"{name}: not the figures of this program: {error!r}", file=sys.stderr)
                failed = True
                continue
            (ROOT / REPORT).write_text(report(parts), "utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
