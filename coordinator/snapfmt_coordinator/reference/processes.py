"""Starts, stops and kills reference servers as processes of their own."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from snapfmt.errors import DeadlineExceeded, ParticipantFailed

TOKEN_VARIABLE: Final = "NEMO_GYM_CHECKPOINT_CONTROL_TOKEN"  # noqa: S105 - its name only
"""Of the environment; a server finds its control token there."""
Kind = Literal["policy", "agent", "counter", "dice", "notes", "sandbox"]
READY_S: Final = 120.0
"""How long a server may take to be ready; one that joins a Ray cluster takes longest."""
STOP_S: Final = 15.0
"""How long a server may take to end after SIGTERM."""
_POLL_S: Final = 0.02
_LOG_END: Final = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSpec:
    """One server to start; a resources server is named by its tool."""

    name: str
    kind: Kind
    options: tuple[str, ...] = ()
    """Further options of its command line."""


class ServerProcess:
    """One server's process. It ends by itself when the process that started it is gone."""

    def __init__(self, spec: ServerSpec, directory: Path, token: str) -> None:
        """`directory` gets the server's log and port file; nothing is started yet."""
        self.spec = spec
        self.log = directory / f"{spec.name}.log"
        self._port_file = directory / f"{spec.name}.port.json"
        self._token = token
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0
        self._links: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The server's name in the topology."""
        return self.spec.name

    @property
    def kind(self) -> Kind:
        """What kind of server it is."""
        return self.spec.kind

    @property
    def url(self) -> str:
        """Its address; a server that is started again keeps it."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int | None:
        """Its process, if it runs."""
        return self._process.pid if self._process and self.running else None

    @property
    def running(self) -> bool:
        """Whether its process lives."""
        return self._process is not None and self._process.poll() is None

    def start(self, *links: str) -> None:
        """Starts the process; `links` are options that tell it of other servers.

        Without `links` those of the last start are used again.
        """
        self._links = links or self._links
        self._port_file.unlink(missing_ok=True)
        module = {"policy": "policy_server", "agent": "agent_server"}.get(
            self.kind, "resources_server"
        )
        tool = ("--tool", self.kind) if module == "resources_server" else ()
        command = [
            *(sys.executable, "-m", f"snapfmt_coordinator.reference.{module}"),
            *("--port", str(self._port), "--port-file", str(self._port_file)),
            *("--name", self.name, "--parent-pid", str(os.getpid())),
            *tool,
            *self._links,
            *self.spec.options,
        ]
        with self.log.open("ab") as log:
            # No shell; the command is made of our own words.
            self._process = subprocess.Popen(  # noqa: S603
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, TOKEN_VARIABLE: self._token},
                start_new_session=True,
            )

    def wait_listening(self, timeout_s: float = READY_S) -> None:
        """Returns once the server has a port; it may have to do more before it answers.

        Raises:
            ParticipantFailed: If its process ended.
            DeadlineExceeded: If it takes longer.
        """
        self._wait(timeout_s, ready=False)

    def wait_ready(self, timeout_s: float = READY_S) -> None:
        """Returns once the server answers; raises as `wait_listening`."""
        self._wait(timeout_s, ready=True)

    def _wait(self, timeout_s: float, *, ready: bool) -> None:
        until = time.monotonic() + timeout_s
        while not self._told(ready=ready):
            if not self.running:
                code = self._process.returncode if self._process else None
                raise ParticipantFailed(
                    f"the server ended with {code}: {self._log_end()}", what=self.name
                )
            if time.monotonic() > until:
                raise DeadlineExceeded(
                    f"the server is not ready after {timeout_s} s: {self._log_end()}",
                    what=self.name,
                )
            time.sleep(_POLL_S)

    def _told(self, *, ready: bool) -> bool:
        try:
            told = json.loads(self._port_file.read_text("utf-8"))
        except FileNotFoundError:
            return False
        self._port = int(told["port"])
        return bool(told["ready"]) or not ready

    def stop(self, timeout_s: float = STOP_S) -> int | None:
        """Ends it with SIGTERM, with SIGKILL when it takes longer; its exit code."""
        self.ask_to_stop()
        return self.wait_stopped(timeout_s)

    def ask_to_stop(self) -> None:
        """Sends SIGTERM and does not wait."""
        if self._process is not None and self.running:
            self._process.terminate()

    def wait_stopped(self, timeout_s: float = STOP_S) -> int | None:
        """Waits for its end, and kills it when that takes longer; its exit code."""
        if self._process is None:
            return None
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return self.kill()

    def kill(self) -> int | None:
        """Ends it with SIGKILL, as a crash would; its exit code."""
        if self._process is None:
            return None
        if self.running:
            self._process.send_signal(signal.SIGKILL)
        return self._process.wait()

    def _log_end(self) -> str:
        if not self.log.exists():
            return "no log"
        return self.log.read_bytes()[-_LOG_END:].decode("utf-8", "replace").strip()


def start_servers(
    directory: Path,
    specs: Sequence[ServerSpec],
    token: str,
    *,
    ray_address: str | None = None,
    timeout_s: float = READY_S,
    meanwhile: Callable[[], object] = lambda: None,
) -> list[ServerProcess]:
    """Starts servers, agents last, and tells each agent of all the others.

    With `ray_address` policy servers use the engine and the queue of that cluster. Blocks until
    all are ready; when one fails, none is left. `meanwhile` is called while they get ready, and
    may fail too.

    Raises:
        ParticipantFailed: If one of them ended.
        DeadlineExceeded: If one of them is not ready in time.
    """
    directory.mkdir(parents=True, exist_ok=True)
    servers = [ServerProcess(spec, directory, token) for spec in specs]
    try:
        _start(servers, ray_address, timeout_s)
        meanwhile()
        for server in servers:
            server.wait_ready(timeout_s)
    except BaseException:
        kill_servers(servers)
        raise
    return servers


def restart_servers(servers: Sequence[ServerProcess], *, timeout_s: float = READY_S) -> None:
    """Starts servers that ended again, with the addresses and options that they had."""
    for server in servers:
        server.start()
    for server in servers:
        server.wait_ready(timeout_s)


def stop_servers(servers: Iterable[ServerProcess]) -> None:
    """Ends servers with SIGTERM, all at once."""
    known = [*servers]
    for server in known:
        server.ask_to_stop()
    for server in known:
        server.wait_stopped()


def kill_servers(servers: Iterable[ServerProcess]) -> None:
    """Ends servers with SIGKILL, all at once."""
    for server in servers:
        server.kill()


def _start(servers: Sequence[ServerProcess], ray_address: str | None, timeout_s: float) -> None:
    first = [server for server in servers if server.kind != "agent"]
    for server in first:
        remote = ray_address is not None and server.kind == "policy"
        server.start(*(("--ray-address", str(ray_address)) if remote else ()))
    for server in first:
        server.wait_listening(timeout_s)
    links: list[str] = []
    for server in first:
        if server.kind == "policy":
            links += ["--model-url", server.url]
        else:
            links += ["--resources", f"{server.kind}={server.name}@{server.url}"]
    for server in servers:
        if server.kind == "agent":
            server.start(*links)
