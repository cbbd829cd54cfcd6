"""Writers on several Ray nodes share a bucket, or a folder, and nothing else."""

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from snapfmt import Repository
from snapfmt.testing.s3_servers import BUCKET, SECRET_KEY, S3Server

pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("ignore")]
SCRIPT = Path(__file__).with_name("nodes_script.py")


EXPECTED = {"writers": 3, "readers": 3, "same": True, "rows": 600, "damage": 0}


@pytest.fixture(scope="module")
def on_nodes(seaweedfs: S3Server, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the script found in a bucket, and in a folder; on the same nodes."""
    url = f"s3://{BUCKET}/{uuid.uuid4().hex}/run"
    folder = str(tmp_path_factory.mktemp("nodes") / "shared")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), url, folder],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, **seaweedfs.environment, "RAY_USAGE_STATS_ENABLED": "0"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    bucket, shared = json.loads(done.stdout.strip().splitlines()[-1])
    return {"url": url, "bucket": bucket, "folder": shared}


def test_writers_on_three_nodes_share_a_bucket(
    on_nodes: dict[str, Any], seaweedfs: S3Server
) -> None:
    assert on_nodes["bucket"] | EXPECTED == on_nodes["bucket"]
    repository = Repository.open(on_nodes["url"], storage_options=seaweedfs.options)
    for key, size in repository.store.walk(""):
        assert SECRET_KEY.encode() not in repository.store.get(key, limit=size)


def test_writers_on_three_nodes_share_a_folder(on_nodes: dict[str, Any]) -> None:
    assert on_nodes["folder"] | EXPECTED == on_nodes["folder"]


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
