"""Feeds hostile bytes to every parser, and judges what they did.

`python tests/faults/fuzz.py [TARGET ...] [--runs N] [--engine atheris|random] [--list]` runs N
inputs through each of the named targets, or of all (a slow one gets fewer), prints a line for
each, and one JSON object at the end. A target may refuse an input with an error of
`snapfmt.errors`, or read it, and then what it read must survive being written and read again.
Anything else is a finding: another error, memory beyond the declared limits, time, a file or a
socket outside of its folder, code that is run. With atheris (`pip install snapfmt[fuzz]`) inputs
are guided by the coverage of the code, each target in a process of its own; without it they are
random changes of the seeds, the same ones for the same `--seed`, in this process. `--add` puts the
figures of several runs together.
"""

import argparse
import importlib.util
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

HERE = Path(__file__).resolve().parent
VECTORS = HERE.parents[1] / "spec" / "vectors" / "v1"
PACKAGES = ["snapfmt", "snapfmt_schemas", "snapfmt_coordinator"]
MODULES = (
    "snapfmt.testing.fuzz_documents",
    "snapfmt.testing.fuzz_binary",
    "snapfmt.testing.fuzz_zarr",
    "snapfmt.testing.fuzz_repository",
    "snapfmt.testing.fuzz_s3",
    "fuzz_control",
    "fuzz_parts",
)
COUNTS = ("runs", "read", "refused", "untyped")
PATIENCE = 60
"""Seconds after which an input that does not come to an end ends its process."""


def targets() -> Iterator[Any]:
    """Every target; one name each."""
    sys.path.insert(0, str(HERE))
    for module in MODULES:
        yield from import_module(module).targets()


def chosen(names: Sequence[str], without: Sequence[str] = ()) -> list[Any]:
    """Those whose names are, or begin with, the given ones; all without any."""
    found = [item for item in targets() if not item.name.startswith(tuple(without))]
    picked = [item for item in found if not names or item.name.startswith(tuple(names))]
    if unknown := [name for name in names if not any(t.name.startswith(name) for t in found)]:
        raise SystemExit(f"no such target: {', '.join(unknown)}")
    return picked


def runs_of(target: Any, runs: int) -> int:
    return max(int(runs / target.cost), 1)


def prepared(target: Any, folder: Path) -> Any:
    from snapfmt.testing.fuzzing import Ground

    place = folder / target.name.replace(":", "-")
    place.mkdir()
    return target.prepare(Ground(place, VECTORS))


def by_random(picked: Sequence[Any], runs: int, seed: int, folder: Path) -> list[dict[str, Any]]:
    """Random changes of the seeds, in this process."""
    from snapfmt.testing.fuzzing import Judge, Watch, bound_addresses, random_inputs

    watch = Watch(folder)
    empty = working_folder(folder)
    bound_addresses()
    found = []
    for target in picked:
        began = time.monotonic()
        ready = prepared(target, folder)
        judge = Judge(target, ready, watch)
        for data in random_inputs(target, ready.seeds, runs_of(target, runs), seed):
            judge.judge(data)
        found.append(told(judge.tally, empty, began))
    return found


def working_folder(folder: Path) -> Path:
    """An empty one, which this process then works in."""
    empty = folder / "empty"
    empty.mkdir()
    os.chdir(empty)
    return empty


def told(tally: Any, empty: Path, began: float) -> dict[str, Any]:
    tally.seconds = round(time.monotonic() - began, 1)
    tally.slowest = round(tally.slowest, 3)
    for name in os.listdir(empty):
        tally.note(f"left {name} in the working folder", b"")
        os.unlink(empty / name)
    return asdict(tally)


def by_atheris(picked: Sequence[Any], runs: int, seed: int, folder: Path) -> list[dict[str, Any]]:
    """Coverage-guided, each target in a process of its own, which this one is forked into."""
    found = []
    for target in picked:
        out, log = folder / "tally.json", folder / "log"
        process = os.fork()
        if process == 0:
            os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
            os.dup2(1, 2)
            guided(target, runs, seed, folder, out)
        _, status = os.waitpid(process, 0)
        tally = json.loads(out.read_bytes()) if out.exists() else {"target": target.name}
        out.unlink(missing_ok=True)
        if status:
            tally["untyped"] = tally.get("untyped", 0) + 1
            words = log.read_bytes().decode("utf-8", "replace")[-2000:]
            tally.setdefault("findings", {})[f"the process ended with status {status}"] = words
        found.append(tally)
        print(line(tally), file=sys.stderr, flush=True)
    return found


def guided(target: Any, runs: int, seed: int, folder: Path, out: Path) -> NoReturn:
    """One target under atheris, which does not return; the tally is written again and again."""
    import atheris

    from snapfmt.testing import fuzzing, hostile

    began = time.monotonic()
    inner = folder / f"in-{target.name.replace(':', '-')}"
    corpus = inner / "corpus"
    corpus.mkdir(parents=True)
    ready = prepared(target, inner)
    for number, data in enumerate(ready.seeds):
        (corpus / f"seed-{number}").write_bytes(data)
    watch = fuzzing.Watch(inner)
    empty = working_folder(inner)
    judge = fuzzing.Judge(target, ready, watch)
    wanted = runs_of(target, runs)
    written = began

    def one(data: bytes) -> None:
        nonlocal written
        judge.judge(data)
        now = time.monotonic()
        over = judge.tally.runs >= wanted
        if over or now - written > 2:
            written = now
            out.write_text(json.dumps(told(judge.tally, empty, began)), "utf-8")
        if over:
            os._exit(0)

    def mutate(data: bytes, most: int, number: int) -> bytes:
        rng = random.Random(number)
        if target.only_json or (target.json and rng.random() < 0.5):
            return hostile.changed_json(data, rng)[:most]
        return bytes(atheris.Mutate(data, most))

    options = [f"-seed={seed or 1}", f"-timeout={PATIENCE}", "-rss_limit_mb=0", "-mutate_depth=2"]
    options += [f"-max_len={target.longest}", f"-artifact_prefix={inner}/"]
    fuzzing.bound_addresses()
    atheris.Setup([sys.argv[0], *options, str(corpus)], one, custom_mutator=mutate)
    atheris.Fuzz()
    os._exit(1)


def memory() -> str | None:
    """A folder in memory, where there is one."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def line(tally: dict[str, Any]) -> str:
    name, runs = tally["target"], tally.get("runs", 0)
    rate = runs / max(tally.get("seconds", 0), 0.1)
    text = f"{name:28} {runs:8} runs {rate:8.0f}/s {tally.get('read', 0):8} read"
    text += f" {tally.get('untyped', 0):4} findings {tally.get('memory', 0) // 1024:7} KiB"
    for what, data in tally.get("findings", {}).items():
        text += f"\n    {what}\n        {data[:2000]}"
    return text


def merged(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One tally for each target: counts are added, of the rest the largest is kept."""
    each: dict[str, dict[str, Any]] = {}
    for item in found:
        tally = each.setdefault(item["target"], {"target": item["target"], "findings": {}})
        for name in (*COUNTS, "guided", "seconds"):
            tally[name] = round(tally.get(name, 0) + item.get(name, 0), 1)
        for name in ("memory", "slowest"):
            tally[name] = max(tally.get(name, 0), item.get(name, 0))
        tally["findings"] |= item.get("findings", {})
    return list(each.values())


def summary(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {
        **{n: sum(item.get(n, 0) for item in found) for n in (*COUNTS, "guided")},
        "memory": max((item.get("memory", 0) for item in found), default=0),
        "slowest": max((item.get("slowest", 0) for item in found), default=0),
        "targets": len(found),
        "seconds": round(sum(item.get("seconds", 0) for item in found), 1),
        "each": list(found),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="TARGET", help="or how its name begins")
    parser.add_argument("--runs", type=int, default=16_000, help="of each small target")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--without", action="append", default=[], metavar="TARGET")
    parser.add_argument("--engine", choices=("atheris", "random"))
    parser.add_argument(
        "--add",
        type=Path,
        action="append",
        default=[],
        metavar="JSON",
        help="figures of an earlier run, to be added to these",
    )
    parser.add_argument("--list", action="store_true", help="print the names only")
    given = parser.parse_args()
    if given.list:
        print("\n".join(item.name for item in targets()))
        return 0
    there = importlib.util.find_spec("atheris") is not None
    engine = given.engine or ("atheris" if there else "random")
    here = os.getcwd()
    with tempfile.TemporaryDirectory(dir=memory()) as folder:
        if engine == "atheris":
            import atheris

            # What is imported before this is not guided.
            with atheris.instrument_imports(include=PACKAGES):
                picked = chosen(given.names, given.without)
            found = by_atheris(picked, given.runs, given.seed, Path(folder))
        else:
            found = by_random(
                chosen(given.names, given.without), given.runs, given.seed, Path(folder)
            )
        os.chdir(here)
    if engine == "random":
        print("\n".join(map(line, found)), file=sys.stderr)
    for item in found:
        item["guided"] = item.get("runs", 0) if engine == "atheris" else 0
    for path in given.add:
        found += json.loads(path.read_bytes())["each"]
    result = summary(merged(found))
    print(json.dumps(result))
    return 1 if result["untyped"] else 0


if __name__ == "__main__":
    sys.exit(main())
