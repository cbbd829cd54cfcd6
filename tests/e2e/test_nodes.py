"""Writers on several Ray nodes share a bucket, or a folder, and nothing else."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from snapfmt import Repository
from snapfmt.testing.s3_servers import SECRET_KEY, S3Server

pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("ignore")]
SCRIPT = Path(__file__).with_name("nodes_script.py")


def on_nodes(location: str, environment: dict[str, str]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), location],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, **environment, "RAY_USAGE_STATS_ENABLED": "0"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


EXPECTED = {"writers": 3, "readers": 3, "same": True, "rows": 600, "damage": 0}


def test_writers_on_three_nodes_share_a_bucket(
    seaweedfs: S3Server, bucket_url: Callable[[], str]
) -> None:
    url = bucket_url()
    found = on_nodes(url, seaweedfs.environment)
    assert found | EXPECTED == found
    repository = Repository.open(url, storage_options=seaweedfs.options)
    for key, size in repository.store.walk(""):
        assert SECRET_KEY.encode() not in repository.store.get(key, limit=size)


def test_writers_on_three_nodes_share_a_folder(tmp_path: Path) -> None:
    found = on_nodes(str(tmp_path / "shared"), {})
    assert found | EXPECTED == found


def test_a_live_queue_is_saved_into_a_bucket(
    lab: Any, seaweedfs: S3Server, bucket_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    import transfer_queue as tq
    from tensordict import TensorDict

    from snapfmt.adapters.transfer_queue import load, save

    # The storage units get a URL in their tickets, and their credentials from where they run.
    lab.start(2)
    for unit in range(2):
        lab.on_unit(unit, _set_environment, seaweedfs.environment)
    lab.on_controller(_set_environment, seaweedfs.environment)
    for name, value in seaweedfs.environment.items():
        monkeypatch.setenv(name, value)
    keys = [f"k{i}" for i in range(40)]
    ids = torch.arange(40 * 30).reshape(40, 30)
    tq.kv_batch_put(keys=keys, partition_id="train", fields=TensorDict({"ids": ids}, batch_size=40))
    repository = Repository.open(bucket_url(), create=True)
    save(repository)
    assert not repository.verify().damage
    lab.empty()
    load(repository.snapshot())
    back = tq.kv_batch_get(keys, "train", select_fields=["ids"])["ids"]
    assert torch.equal(torch.stack(list(back.unbind())), ids)


def _set_environment(_: Any, variables: dict[str, str]) -> None:
    os.environ.update(variables)
