"""Writes REPORT.md from what the full commands print.

`python tests/faults/report.py [--run] [FOLDER]` reads `crash_points.json`, `power_loss.json`,
`mutants.json` and so on in the folder (`build/faults` without one), a file for each of `COMMANDS`;
with `--run` it runs the commands first, one after the other. A command without a file is left
out of the report.
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
COMMANDS = ("crash_points", "power_loss", "mutants", "damages", "repairs", "fuzz")


def run(folder: Path) -> None:
    """Run every command; its figures also stand where it found something."""
    for name in COMMANDS:
        print(f"{name} ...", file=sys.stderr)
        done = subprocess.run(
            [sys.executable, str(HERE / f"{name}.py")], stdout=subprocess.PIPE, check=False
        )
        if done.stdout:
            (folder / f"{name}.json").write_bytes(done.stdout)


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


def table(head: tuple[str, ...], rows: Any) -> list[str]:
    lines = [head, tuple("---" for _ in head), *rows]
    return ["| " + " | ".join(str(cell) for cell in line) + " |" for line in lines]


def machine() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()} {platform.machine()}, "
        f"Python {platform.python_version()}"
    )


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


def report(folder: Path) -> str:
    """The text, of the files that are there."""
    lines = [
        "# Faults: what was enumerated",
        "",
        (
            f"From the commands of `make faults`, {datetime.now(UTC):%Y-%m-%d}; {machine()}. Times "
            "are those of a clock on the wall, on a machine that did other things as well."
        ),
    ]
    writers = (crash_points, power_loss, mutants, damages, repairs, fuzz)
    for name, writer in zip(COMMANDS, writers, strict=True):
        path = folder / f"{name}.json"
        if path.exists():
            lines += ["", *writer(json.loads(path.read_text("utf-8")))]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path("build/faults"))
    parser.add_argument("--run", action="store_true")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    if given.run:
        run(given.folder)
    (HERE / "REPORT.md").write_text(report(given.folder), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
