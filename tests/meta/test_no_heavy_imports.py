"""`import snapfmt` is cheap: every process of a large run pays for it."""

import subprocess
import sys
from collections.abc import Callable

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]

HEAVY = ("ray", "torch", "transfer_queue", "tensordict", "zarr", "s3fs", "pyarrow")
BUDGET_S = 0.3


def printed(run: Run, code: str) -> str:
    """What a fresh interpreter prints for `code`."""
    done = run([sys.executable, "-c", code])
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("module", ["snapfmt", "snapfmt_schemas", "snapfmt_coordinator"])
def test_importing_a_package_loads_nothing_heavy(run: Run, module: str) -> None:
    loaded = printed(run, f"import sys, {module}; print(*sys.modules)").split()
    assert module in loaded
    assert not set(HEAVY) & set(loaded)


def test_importing_every_module_loads_no_extra(run: Run) -> None:
    """Adapters and the demonstration import Ray, torch and TransferQueue when they are used."""
    # The one module that is itself imported only once a tensor is seen.
    loaded = printed(
        run,
        "import sys, importlib, pkgutil, snapfmt\n"
        "def broken(name): raise ImportError(name)\n"
        "for m in pkgutil.walk_packages(snapfmt.__path__, 'snapfmt.', onerror=broken):\n"
        "    if '.testing' not in m.name and not m.name.endswith(('.__main__', '.torch_values')):\n"
        "        importlib.import_module(m.name)\n"
        "print(*sys.modules)",
    ).split()
    assert "snapfmt.reading.table" in loaded
    assert "snapfmt.adapters.torch_values" not in loaded
    assert not {"ray", "torch", "transfer_queue", "tensordict", "zarr", "s3fs"} & set(loaded)


def test_import_stays_under_its_budget(run: Run) -> None:
    # Measured inside the interpreter, so that its own start does not count.
    code = "import time; t = time.perf_counter(); import snapfmt; print(time.perf_counter()-t)"
    times = [float(printed(run, code)) for _ in range(5)]
    assert min(times) < BUDGET_S, times


@pytest.mark.parametrize(
    ("module", "needless"),
    [
        # Starts everything else, and waits for it.
        ("snapfmt_coordinator.loop.worker", {*HEAVY, "fastapi", "uvicorn", "aiohttp"}),
        # What it makes actors of: they import the rest in their own processes.
        ("snapfmt_coordinator.loop.ray_controller", {"torch", "transfer_queue", "fastapi"}),
        ("snapfmt_coordinator.loop.ray_finalizer", {"torch", "transfer_queue", "fastapi"}),
        ("snapfmt_coordinator.loop.ray_trainer", {"torch", "transfer_queue", "fastapi"}),
        ("snapfmt_coordinator.loop.ray_gym", {"torch", "transfer_queue", "fastapi"}),
        ("snapfmt_coordinator.loop.ray_engine", {"torch", "transfer_queue", "pyarrow", "aiohttp"}),
        ("snapfmt_coordinator.reference.resources_server", {"ray", "torch", "aiohttp"}),
        ("snapfmt_coordinator.reference.agent_server", {"ray", "torch"}),
        ("snapfmt_coordinator.reference.policy_server", {"ray", "torch", "aiohttp"}),
    ],
)
def test_a_process_of_a_run_loads_only_what_it_needs(
    run: Run, module: str, needless: set[str]
) -> None:
    """A run has twenty processes, and each of these imports costs seconds of a processor."""
    loaded = printed(run, f"import sys, {module}; print(*sys.modules)").split()
    assert module in loaded
    assert not needless & set(loaded)
