"""Copies between a folder and real S3 servers, with processes that are killed in the middle."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from snapfmt import Repository
from snapfmt.format import layout
from snapfmt.storage.base import Store
from snapfmt.storage.objects import ObjectStore
from snapfmt.storage.retry import RetryPolicy
from snapfmt.storage.s3 import S3Client
from snapfmt.testing.s3_servers import ACCESS_KEY, BUCKET, SECRET_KEY, S3Server
from snapfmt.testing.samples import everything, save, save_on
from snapfmt.transfer import BackgroundPush, copy_snapshot, open_target
from snapfmt.transfer.moving import SMALL


@pytest.fixture
def source(tmp_path: Path) -> Repository:
    """Two snapshots; the second uses the packs of the first."""
    repository = Repository.create(tmp_path / "run")
    save(repository, value=1)
    save_on(repository, 1, value=2)
    return repository


@pytest.fixture
def wide(tmp_path: Path) -> tuple[Repository, int]:
    """One snapshot, and the number of its objects: as many small ones as large ones."""
    repository = Repository.create(tmp_path / "wide")
    with repository.begin() as attempt:
        receipts = []
        for number in range(8):
            part = attempt.part(f"p/{number}")
            part.stage("data", os.urandom(SMALL + 1))
            receipts.append(part.seal())
        attempt.publish(receipts)
    return repository, 16


def stored(store: Store) -> dict[str, bytes]:
    return {
        key: store.get(key, limit=1 << 30)
        for folder in ("objects", "snapshots")
        for key, _ in store.walk(folder)
    }


def assert_clean(repository: Repository) -> None:
    assert repository.verify().findings == []
    assert repository.store.names(layout.ATTEMPTS) == []


def client(server: S3Server) -> Any:
    """A plain S3 client, which knows nothing of snapfmt."""
    import botocore.session

    return botocore.session.Session().create_client(
        "s3",
        endpoint_url=server.endpoint,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        region_name="us-east-1",
    )


def command(server: S3Server, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "snapfmt", *arguments],
        env={**os.environ, **server.environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_there_and_back(
    source: Repository, s3_server: S3Server, bucket_url: Callable[[], str], tmp_path: Path
) -> None:
    there = open_target(bucket_url(), source, storage_options=s3_server.options)
    reports = [copy_snapshot(source, there, number) for number in (1, 2)]
    assert [(item.objects_sent, item.objects_skipped) for item in reports] == [(4, 0), (4, 2)]
    assert stored(there.store) == stored(source.store)
    assert_clean(there)
    back = open_target(tmp_path / "back", there)
    for number in (2, 1):
        copy_snapshot(there, back, number)
    assert stored(back.store) == stored(source.store)
    assert everything(back) == everything(source)
    assert_clean(back)
    other = open_target(bucket_url(), there, storage_options=s3_server.options)
    assert copy_snapshot(there, other, 2, deep=True).objects_sent == 6
    assert_clean(other)


def test_the_commands(
    source: Repository, s3_server: S3Server, bucket_url: Callable[[], str], tmp_path: Path
) -> None:
    url = bucket_url()
    ran = command(s3_server, "push", source.location, url, "--all", "--json")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert [item["objects_sent"] for item in json.loads(ran.stdout)["snapshots"]] == [4, 4]
    again = command(s3_server, "push", source.location, url)
    assert again.returncode == 0
    assert "was there" in again.stdout
    assert SECRET_KEY not in ran.stdout + again.stdout
    ran = command(s3_server, "pull", url, str(tmp_path / "back"), "--snapshot", "2")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert Repository.open(tmp_path / "back").numbers() == [2]
    assert command(s3_server, "verify", str(tmp_path / "back")).returncode == 0
    assert command(s3_server, "cp", url, bucket_url()).returncode == 0
    assert command(s3_server, "push", source.location, url, "--snapshot", "9").returncode == 4


COPY = """
import os, signal, sys
from snapfmt import Repository
from snapfmt.transfer import copy_snapshot, open_target
source = Repository.open(sys.argv[1])
target = open_target(sys.argv[2], source)
seen = []
def progress(count, key):
    seen.append(key)
    if len(seen) == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
print(copy_snapshot(source, target, 1, workers=int(sys.argv[4]), progress=progress).published)
"""


def start(server: S3Server, source: Repository, url: str, at: int, workers: int) -> Any:
    return subprocess.Popen(
        [sys.executable, "-c", COPY, source.location, url, str(at), str(workers)],
        env={**os.environ, **server.environment},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.req("C-5", "C-6")
@pytest.mark.parametrize("cleaned", [False, True])
def test_a_killed_push_goes_on(
    wide: tuple[Repository, int],
    s3_server: S3Server,
    bucket_url: Callable[[], str],
    cleaned: bool,
) -> None:
    source, total = wide
    url = bucket_url()
    # When all small objects are there, and three large ones.
    with start(s3_server, source, url, 12, 1) as process:
        process.communicate(timeout=300)
    assert process.returncode == -signal.SIGKILL
    target = Repository.open(url, storage_options=s3_server.options)
    there = {key for key, _ in target.store.walk("objects")}
    assert (len(there), target.numbers()) == (11, [])
    if cleaned:
        # A clean-up of saves takes the dead copier's lease; it neither deletes nor closes.
        assert len(target.clean_up()) == 1
        assert {key for key, _ in target.store.walk("objects")} == there
        assert target.leases() == []
    report = copy_snapshot(source, target, 1)
    assert (report.published, report.objects_sent, report.objects_skipped) == (True, total - 11, 11)
    assert stored(target.store) == stored(source.store)
    assert_clean(target)


def test_two_pushers_at_once(
    wide: tuple[Repository, int], s3_server: S3Server, bucket_url: Callable[[], str]
) -> None:
    source, _ = wide
    url = bucket_url()
    processes = [start(s3_server, source, url, 0, 3) for _ in range(2)]
    said = [process.communicate(timeout=120)[0].strip() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert sorted(said) in (["False", "True"], ["True", "True"])
    target = Repository.open(url, storage_options=s3_server.options)
    assert stored(target.store) == stored(source.store)
    assert_clean(target)


@pytest.mark.req("L-6")
def test_a_bucket_that_a_plain_tool_brought_down(
    source: Repository, s3_server: S3Server, bucket_url: Callable[[], str], tmp_path: Path
) -> None:
    url = bucket_url()
    there = open_target(url, source, storage_options=s3_server.options)
    copy_snapshot(source, there, 1)
    copy_snapshot(source, there, 2)
    prefix = url.removeprefix(f"s3://{BUCKET}/") + "/"
    plain = client(s3_server)
    for item in plain.list_objects_v2(Bucket=BUCKET, Prefix=prefix)["Contents"]:
        path = tmp_path / "copy" / item["Key"].removeprefix(prefix)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(plain.get_object(Bucket=BUCKET, Key=item["Key"])["Body"].read())
    copy = Repository.open(tmp_path / "copy")
    assert everything(copy) == everything(source)
    assert_clean(copy)
    # And the other way: files that a plain tool put into a bucket.
    other = bucket_url()
    for path in Path(source.location).rglob("*"):
        if path.is_file():
            key = f"{other.removeprefix(f's3://{BUCKET}/')}/{path.relative_to(source.location)}"
            plain.put_object(Bucket=BUCKET, Key=key, Body=path.read_bytes())
    plain.close()
    uploaded = Repository.open(other, storage_options=s3_server.options)
    assert everything(uploaded) == everything(source)
    assert_clean(uploaded)
    assert not copy_snapshot(source, uploaded, 2).published


def test_a_second_tier_in_a_bucket(
    source: Repository, s3_server: S3Server, bucket_url: Callable[[], str]
) -> None:
    url = bucket_url()
    with BackgroundPush(
        source, lambda: open_target(url, source, storage_options=s3_server.options), poll_s=60
    ) as push:
        save(source, value=3)
        push.notify(3)
        source.keep_latest(2)
        save_on(source, 3, value=4)
        push.notify(4)
        assert push.wait(60), push.state()
        assert not push.state().last_error
    target = Repository.open(url, storage_options=s3_server.options)
    assert set(source.numbers()) <= set(target.numbers())
    assert_clean(target)
    target.keep_latest(1)
    assert everything(target) == {
        key: value for key, value in everything(source).items() if key.startswith("4/")
    }
    assert_clean(target)


def test_a_second_tier_that_nobody_answers(source: Repository, tmp_path: Path) -> None:
    """Nothing of it reaches the run, and it says what is wrong."""
    options = {"key": ACCESS_KEY, "secret": SECRET_KEY, "endpoint_url": "http://127.0.0.1:9"}
    store = ObjectStore(S3Client(f"s3://{BUCKET}/run", options), retry=RetryPolicy(2, 0.01))
    tried = threading.Event()

    def open_it() -> Repository:
        try:
            return open_target(store, source)
        finally:
            tried.set()

    with BackgroundPush(source, open_it, first_pause_s=0.05, drain_s=0.5) as push:
        assert tried.wait(120)
        assert not push.wait(0.3)
        state = push.state()
        assert (state.running, state.behind) == (True, (2, 1))
        assert state.last_error.startswith("StorageUnavailable: ")
        assert SECRET_KEY not in state.last_error
        assert state.lag_seconds > 0
        save(source, value=3)
        source.keep_latest(1)
    assert 3 in push.state().behind


def test_what_is_saved_last_gets_there(
    source: Repository, s3_server: S3Server, bucket_url: Callable[[], str]
) -> None:
    target = open_target(bucket_url(), source, storage_options=s3_server.options)
    with BackgroundPush(source, target) as push:
        save(source, value=3)
        push.notify()
    assert push.state().behind == ()
    assert target.numbers() == [1, 2, 3]
    assert_clean(target)


PATIENT_PUSH = """
import sys
from snapfmt.cli import main
from snapfmt.transfer import parallel
# What an error has; an interrupt must not wait for it.
parallel._PATIENCE_S = 3600.0
sys.exit(main(["push", *sys.argv[1:]]))
"""


def test_an_interrupt_while_a_server_is_silent(source: Repository) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        process = subprocess.Popen(
            [sys.executable, "-c", PATIENT_PUSH, source.location, f"s3://{BUCKET}/run"],
            env={
                **os.environ,
                "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
                "AWS_ACCESS_KEY_ID": ACCESS_KEY,
                "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
                "AWS_REGION": "us-east-1",
            },
            stderr=subprocess.PIPE,
        )
        try:
            listener.settimeout(30)
            near, _ = listener.accept()
            with near:
                assert near.recv(1)
                process.send_signal(signal.SIGINT)
                # Sooner than the client gives its request up, which is after a minute.
                assert process.wait(45) == 130
                said = process.communicate()[1]
        finally:
            process.kill()
            process.wait()
    assert said == b"snapfmt: interrupted\n"
