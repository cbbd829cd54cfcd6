"""Real S3 servers as processes on the loopback, for tests.

Their programs lie in `.venv/s3-servers/bin` of the checkout (`.ci/setup.sh` puts them there), or
in the folder that `SNAPFMT_S3_SERVERS` names.
"""

import contextlib
import functools
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ACCESS_KEY: Final = "citest"
SECRET_KEY: Final = "citestsecret"  # noqa: S105 - of servers that live as long as a test
BUCKET: Final = "snapfmt-test"
_READY_S: Final = 180.0
_STOP_S: Final = 20.0
_STARTS: Final = 3
_PORTS: Final = range(10_240, 22_000)
"""Below what the kernel gives to connections, also with 10000 more, which some servers take too."""


@dataclass(frozen=True, slots=True)
class S3Server:
    """A server that runs, with one empty bucket."""

    name: str
    endpoint: str
    pid: int

    @property
    def options(self) -> dict[str, Any]:
        """`storage_options` for it."""
        return {"key": ACCESS_KEY, "secret": SECRET_KEY, "endpoint_url": self.endpoint}

    @property
    def environment(self) -> dict[str, str]:
        """The same as environment variables, for a process that is given a URL only."""
        return {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }


def _again(
    start: Callable[[], AbstractContextManager[S3Server]],
) -> Callable[[], AbstractContextManager[S3Server]]:
    """Starts it anew with other ports: between choice and use another process may take one."""

    @contextlib.contextmanager
    @functools.wraps(start)
    def run() -> Iterator[S3Server]:
        with contextlib.ExitStack() as stack:
            for left in reversed(range(_STARTS)):
                try:
                    server = stack.enter_context(start())
                    break
                except RuntimeError:
                    if not left:
                        raise
            yield server

    return run


@_again
@contextlib.contextmanager
def seaweedfs() -> Iterator[S3Server]:
    """A real store on disk that honours conditional writes."""
    with _folder() as folder:
        identity = {
            "name": "ci",
            "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
            "actions": ["Admin", "Read", "List", "Tagging", "Write"],
        }
        config = folder / "s3.json"
        config.write_text(json.dumps({"identities": [identity]}))
        (folder / "data").mkdir()
        ports = {
            name: _free_port()
            for name in ("s3.port", "master.port", "volume.port", "filer.port", "admin.port")
        }
        command = [
            *("weed", "mini", f"-dir={folder / 'data'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"),
            *("-master.telemetry=false", "-admin.ui=false", "-webdav=false"),
            *("-s3.port.iceberg=0", "-s3.port.lance=0", f"-s3.config={config}"),
            *(f"-{name}={port}" for name, port in ports.items()),
        ]
        port = ports["s3.port"]
        with _process(command, folder, {}) as process:
            yield _ready("seaweedfs", process, port, folder)
        # It leaves its socket behind.
        Path(tempfile.gettempdir(), f"seaweedfs-s3-{port}.sock").unlink(missing_ok=True)


@_again
@contextlib.contextmanager
def ministack() -> Iterator[S3Server]:
    """A light emulator in memory that honours conditional writes."""
    with _folder() as folder:
        port = _free_port()
        environment = {
            "BIND_HOST": "127.0.0.1",
            "GATEWAY_PORT": str(port),
            "MINISTACK_HOST": "127.0.0.1",
            "SERVICES": "s3",
        }
        with _process(["ministack"], folder, environment) as process:
            yield _ready("ministack", process, port, folder)


@_again
@contextlib.contextmanager
def rclone() -> Iterator[S3Server]:
    """A gateway that ignores conditions: it overwrites what must stay."""
    with _folder() as folder:
        port = _free_port()
        (folder / "data").mkdir()
        command = [
            *("rclone", "serve", "s3", "--addr", f"127.0.0.1:{port}", "--vfs-cache-mode", "off"),
            *("--auth-key", f"{ACCESS_KEY},{SECRET_KEY}", "--config", os.devnull),
            str(folder / "data"),
        ]
        with _process(command, folder, {}) as process:
            yield _ready("rclone", process, port, folder)


SERVERS: Final = {"seaweedfs": seaweedfs, "ministack": ministack, "rclone": rclone}


def programs() -> Path:
    """The folder of the servers' programs."""
    named = os.environ.get("SNAPFMT_S3_SERVERS")
    return Path(named) if named else Path(__file__).parents[2] / ".venv" / "s3-servers" / "bin"


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="snapfmt-s3-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _free_port() -> int:
    """A port that is free, and whose number plus 10000 is one."""
    for _ in range(200):
        port = random.SystemRandom().choice(_PORTS)
        with socket.socket() as first, socket.socket() as second, contextlib.suppress(OSError):
            first.bind(("127.0.0.1", port))
            second.bind(("127.0.0.1", port + 10000))
            return port
    raise RuntimeError("no free port on the loopback")


@contextlib.contextmanager
def _process(
    command: Sequence[str], folder: Path, environment: Mapping[str, str]
) -> Iterator["subprocess.Popen[bytes]"]:
    program = programs() / command[0]
    if not program.exists():
        raise FileNotFoundError(f"{program} is missing: run `make setup`")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(  # noqa: S603 - a fixed command
            [str(program), *command[1:]],
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _ready(name: str, process: "subprocess.Popen[bytes]", port: int, folder: Path) -> S3Server:
    """Waits until the bucket could be made."""
    import botocore.session
    from botocore.config import Config

    endpoint = f"http://127.0.0.1:{port}"
    client = botocore.session.Session().create_client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        region_name="us-east-1",
        config=Config(
            retries={"total_max_attempts": 1},
            connect_timeout=2,
            read_timeout=20,
            s3={"addressing_style": "path"},
        ),
    )
    until = time.monotonic() + _READY_S
    while True:
        try:
            client.create_bucket(Bucket=BUCKET)
            # The first write may have to make room first.
            client.put_object(Bucket=BUCKET, Key="warm", Body=b"x")
            client.delete_object(Bucket=BUCKET, Key="warm")
            break
        except Exception as error:
            if "BucketAlready" in str(error):
                break
            if process.poll() is not None or time.monotonic() > until:
                said = (folder / "log").read_bytes()[-2000:].decode(errors="replace")
                raise RuntimeError(f"{name} did not start: {_plain(said)}") from error
            time.sleep(0.1)
    client.close()
    return S3Server(name, endpoint, process.pid)


def _plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)
