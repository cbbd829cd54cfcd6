"""The main job, start to finish: save a busy queue, kill -9 the run, restore it elsewhere.

`run(directory)` needs `snapfmt[transfer-queue]`; it starts and kills a local Ray cluster twice
and takes less than a minute on two cores.
"""

import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snapfmt.demo.processes import Child
from snapfmt.errors import CorruptError, InputError, SnapfmtError

__all__ = ["DemoReport", "run"]

Say = Callable[[str], object]
MIN_ROWS = 48
"""Fewer rows than this do not fill the batches that are fetched before and after."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoReport:
    """What the demo did; it exists only when the restored queue equalled the saved one."""

    repository: Path
    snapshot: int
    rows: int
    cells: int
    logical_bytes: int
    stored_bytes: int
    controller_held_s: float
    longest_wait_s: float
    seconds: float
    steps: tuple[tuple[str, float], ...]


def run(
    directory: str | Path,
    *,
    units: int = 2,
    restore_units: int = 3,
    rows: int = 512,
    seed: int = 0,
    out: Say = print,
) -> DemoReport:
    """Runs the demo in a folder, which keeps the repository and the logs.

    Raises:
        ParticipantFailed: If one of its processes failed; says where its log is.
        CorruptError: If the restored queue differs from the saved one.
        InputError: If there are fewer than 48 rows.
    """
    if rows < MIN_ROWS:
        raise InputError(f"the demo needs at least {MIN_ROWS} rows", what=str(rows))
    started = time.monotonic()
    home = Path(directory).resolve()
    home.mkdir(parents=True, exist_ok=True)
    # Ray's socket paths must stay short, whatever the directory is called.
    scratch = Path(tempfile.mkdtemp(prefix="snapfmt-"))
    config: dict[str, Any] = {
        "repository": str(home / "repository"),
        "expected": str(home / "expected.json"),
        "rows": rows,
        "seed": seed,
    }
    steps: list[tuple[str, float]] = []
    saved: dict[str, Any] = {}
    try:
        out(f"A run with {rows} rollouts in a queue of {units} storage units.")
        saved = _first(config | {"units": units, "scratch": str(scratch / "a")}, home, steps, out)
        config["number"] = saved["number"]
        out(f"A new run, with {restore_units} storage units, from the snapshot alone.")
        compared = _second(
            config | {"units": restore_units, "scratch": str(scratch / "b")}, home, steps, out
        )
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    report = DemoReport(
        repository=home / "repository",
        snapshot=saved["number"],
        rows=saved["rows"],
        cells=saved["cells"],
        logical_bytes=saved["logical_bytes"],
        stored_bytes=saved["stored_bytes"],
        controller_held_s=saved["controller_held_s"],
        longest_wait_s=saved["longest_wait_s"],
        seconds=time.monotonic() - started,
        steps=tuple(steps),
    )
    if compared["problems"]:
        raise CorruptError(f"the restored queue differs: {'; '.join(compared['problems'])}")
    _summary(report, saved, compared, out)
    return report


def _first(
    config: dict[str, Any], home: Path, steps: list[tuple[str, float]], out: Say
) -> dict[str, Any]:
    child = Child("save", config, home / "save.log")
    saved: dict[str, Any] = {}
    try:
        for event in child.events():
            if event["event"] == "ready":
                break
            _step(event, steps, out)
            if "controller_held_s" in event:
                saved = event
                out(
                    f"    {event['rows']} rows, {event['cells']} values;"
                    f" the controller was held {_ms(event['controller_held_s'])},"
                    f" rows {_ms(event['units_held_s'])}"
                )
                out(
                    f"    meanwhile other workers made {event['puts_during']} puts; the longest"
                    f" took {_ms(event['longest_put_s'])}"
                    f" (before the save: {_ms(event['calm_put_s'])})"
                )
        begun = time.monotonic()
        killed = child.kill()
        _step(
            {
                "name": f"kill -9: the run and its {killed - 1} processes are gone",
                "seconds": time.monotonic() - begun,
            },
            steps,
            out,
        )
    finally:
        with suppress(SnapfmtError):
            child.kill()
    return saved


def _second(
    config: dict[str, Any], home: Path, steps: list[tuple[str, float]], out: Say
) -> dict[str, Any]:
    child = Child("restore", config, home / "restore.log")
    compared: dict[str, Any] = {}
    try:
        for event in child.events():
            if event["event"] == "done":
                break
            _step(event, steps, out)
            if "problems" in event:
                compared = event
    finally:
        child.kill()
    return compared


def _step(event: dict[str, Any], steps: list[tuple[str, float]], out: Say) -> None:
    steps.append((event["name"], event["seconds"]))
    out(f"  {event['seconds']:6.2f} s  {event['name']}")


def _summary(report: DemoReport, saved: dict[str, Any], compared: dict[str, Any], out: Say) -> None:
    ratio = report.logical_bytes / max(report.stored_bytes, 1)
    lines = {
        "rows, values": f"{report.rows}, {report.cells}",
        "parked rollouts": f"{saved['continuations']}",
        "logical bytes": _mb(report.logical_bytes),
        "on disk": f"{_mb(report.stored_bytes)} ({ratio:.1f} times smaller)",
        "controller held": _ms(report.controller_held_s),
        "longest wait of a worker": _ms(report.longest_wait_s),
        "written in": f"{saved['write_s']:.2f} s, while the queue went on",
        "whole demo": f"{report.seconds:.1f} s",
    }
    out("")
    out(f"snapshot {report.snapshot} of {report.repository}")
    for name, value in lines.items():
        out(f"  {name:<26}{value}")
    out("")
    out(
        f"Equal: all {compared['cells']} values bit for bit, every key, tag, status and index,"
        " the sampler's cursor and the next batches; rows that were overwritten during the"
        " save are whole."
    )
    out("")
    out("Try next:")
    for command in (
        "ls {}",
        "show {} latest",
        "verify {}",
        "rows {} latest rows/train@step_7 --columns total_reward,input_ids",
        "cat {} latest gym/agent/demo/continuations.jsonl",
    ):
        out(f"  snapfmt {command.format(report.repository)}")


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"


def _mb(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
