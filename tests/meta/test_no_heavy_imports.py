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
