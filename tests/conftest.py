"""What every test gets: calm property tests, and no cluster tests where Ray is missing."""

import importlib.util
import os
import signal
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from snapfmt.testing import s3_servers
from snapfmt.testing.s3_servers import S3Server

# Before anything imports Ray or TransferQueue: workers inherit the environment.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("TQ_LOGGING_LEVEL", "ERROR")

# Machines of CI are slow and uneven: a deadline per example would fail on their noise.
_CALM = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile("default", deadline=None, suppress_health_check=_CALM)
# Under CI a failure must come again when it is run again.
settings.register_profile(
    "ci", deadline=None, suppress_health_check=_CALM, derandomize=True, print_blob=True
)
settings.load_profile("ci" if os.environ.get("CI") else "default")

# The profile of whoever runs the tests must not reach them, nor a request leave the machine.
os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
os.environ["AWS_CONFIG_FILE"] = os.environ["AWS_SHARED_CREDENTIALS_FILE"] = os.devnull

# A shell's background ignores interrupts, and so would the processes that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

CLUSTER_NEEDS = ("ray", "torch", "transfer_queue")


@pytest.fixture(scope="session")
def root() -> Path:
    """Folder of the checkout."""
    return Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def seaweedfs() -> Iterator[S3Server]:
    """A real S3 store."""
    with s3_servers.seaweedfs() as server:
        yield server


@pytest.fixture(scope="session")
def ministack() -> Iterator[S3Server]:
    """A light S3 server in memory."""
    with s3_servers.ministack() as server:
        yield server


@pytest.fixture(params=["seaweedfs", "ministack"])
def s3_server(request: pytest.FixtureRequest) -> S3Server:
    """Each S3 server that honours conditions."""
    server: S3Server = request.getfixturevalue(request.param)
    return server


@pytest.fixture
def bucket_url() -> Callable[[], str]:
    """Makes URLs of prefixes that nothing else uses."""
    return lambda: f"s3://{s3_servers.BUCKET}/{uuid.uuid4().hex}/run"


@pytest.fixture(scope="session")
def kills(root: Path) -> ModuleType:
    """`faults/loop_kills.py`: whole training runs, and their end by SIGKILL."""
    spec = importlib.util.spec_from_file_location("loop_kills", root / "tests/faults/loop_kills.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def run_in_peace(kills: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a training run came to that saved nothing and that nobody killed."""
    done: dict[str, Any] = kills.in_peace(tmp_path_factory.mktemp("in-peace"))
    return done


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips the cluster tests where an extra is missing; under CI nothing is skipped."""
    missing = [name for name in CLUSTER_NEEDS if importlib.util.find_spec(name) is None]
    if not missing or os.environ.get("CI"):
        return
    skip = pytest.mark.skip(reason=f"not installed: {', '.join(missing)}")
    for item in items:
        if item.get_closest_marker("cluster"):
            item.add_marker(skip)
