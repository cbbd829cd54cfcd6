"""Every benchmark is part of the full run, and the two lists name no other."""

import importlib.util
from pathlib import Path

BENCH = Path(__file__).parents[1] / "bench"


def test_no_benchmark_is_left_out() -> None:
    spec = importlib.util.spec_from_file_location("bench_run", BENCH / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    there = {path.stem.removeprefix("bench_") for path in BENCH.glob("bench_*.py")}
    assert {name for name, _ in module.FULL} == there
    assert {name for name, _ in module.QUICK} <= there
