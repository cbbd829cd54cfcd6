"""What the three servers share: options, the HTTP loop, identity headers, typed answers."""

import argparse
import asyncio
import contextlib
import json
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Final

import uvicorn
import uvloop
from fastapi import FastAPI
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response

from snapfmt.errors import ControlRefused
from snapfmt_coordinator.protocol.codes import internal, refused, to_body
from snapfmt_coordinator.protocol.v1 import CallIdentity
from snapfmt_coordinator.reference.processes import TOKEN_VARIABLE

ROLLOUT_HEADER: Final = "x-nemo-gym-rollout-id"
ATTEMPT_HEADER: Final = "x-nemo-gym-attempt-index"
CALL_HEADER: Final = "x-nemo-gym-model-call-id"
PARENT_HEADER: Final = "x-nemo-gym-parent-model-call-id"
SESSION_HEADER: Final = "x-nemo-gym-session-id"
BACKLOG: Final = 2048
GOODBYE_S: Final = 1
"""How long a stopping server waits for the requests that it is working on, in seconds."""
PARENT_POLL_S: Final = 0.25

Endpoint = Callable[[Request], Awaitable[Response]]
Build = Callable[[argparse.Namespace, str], AbstractAsyncContextManager[FastAPI]]
"""Makes the application, given the options and the control token, inside the event loop."""

_log = logging.getLogger(__name__)


def parser(description: str) -> argparse.ArgumentParser:
    """The options that every server has."""
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--host", default="127.0.0.1")
    options.add_argument("--port", type=int, default=0, help="0: any free one")
    options.add_argument(
        "--port-file", type=Path, required=True, help="says the port, and later that it is ready"
    )
    options.add_argument("--name", required=True, help="name of the server in the topology")
    options.add_argument("--parent-pid", type=int, help="exit when this process is gone")
    options.add_argument("--grace-s", type=float, default=600.0, help="lease beyond a deadline")
    return options


def run(build: Build, options: argparse.Namespace) -> int:
    """Serves until SIGTERM, SIGINT or the end of the parent; the exit code."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    token = os.environ.get(TOKEN_VARIABLE, "")
    if not token:
        sys.stderr.write(f"{TOKEN_VARIABLE} is not set: there is no control without a token\n")
        return 2
    _raise_file_limit()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(build, options, token))
    return 0


class _Server(uvicorn.Server):
    """Leaves signals to the loop, and says when it answers."""

    def __init__(self, config: uvicorn.Config, port_file: Path) -> None:
        super().__init__(config)
        self._port_file = port_file

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # uvicorn would raise them again after a clean end.
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        await asyncio.to_thread(_tell_port, self._port_file, (sockets or [])[0], ready=True)


async def _serve(build: Build, options: argparse.Namespace, token: str) -> None:
    listener = socket.create_server((options.host, options.port), backlog=BACKLOG)
    # Others may be told of it already: what connects from here on waits until it is ready.
    await asyncio.to_thread(_tell_port, options.port_file, listener, ready=False)
    async with build(options, token) as app:
        config = uvicorn.Config(
            app,
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            backlog=BACKLOG,
            timeout_keep_alive=600,
            timeout_graceful_shutdown=GOODBYE_S,
        )
        server = _Server(config, options.port_file)

        def stop() -> None:
            server.should_exit = True

        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
        watching = asyncio.create_task(_watch(options.parent_pid, stop))
        await server.serve(sockets=[listener])
        watching.cancel()


def _tell_port(path: Path, listener: socket.socket, *, ready: bool) -> None:
    told = {"port": listener.getsockname()[1], "pid": os.getpid(), "ready": ready}
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    unfinished.write_text(json.dumps(told), encoding="utf-8")
    unfinished.replace(path)


async def _watch(pid: int | None, stop: Callable[[], None]) -> None:
    if pid is None:
        return
    child = os.getppid() == pid
    # Nothing tells of the end of a process that is not a child.
    while (os.getppid() == pid) if child else _exists(pid):  # noqa: ASYNC110
        await asyncio.sleep(PARENT_POLL_S)
    _log.warning("the parent %d is gone", pid)
    stop()


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _raise_file_limit() -> None:
    # One connection for each rollout in flight, in and out.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def application(title: str) -> FastAPI:
    """An application without documentation routes."""
    return FastAPI(title=title, openapi_url=None, docs_url=None, redoc_url=None)


def post(app: FastAPI, path: str, endpoint: Endpoint) -> None:
    """Mounts a data route; what it raises becomes a typed answer."""
    app.add_route(path, _answered(endpoint), methods=["POST"])


def get(app: FastAPI, path: str, endpoint: Endpoint) -> None:
    """Mounts a route that only looks."""
    app.add_route(path, _answered(endpoint), methods=["GET"])


def _answered(endpoint: Endpoint) -> Endpoint:
    async def answer(request: Request) -> Response:
        try:
            return await endpoint(request)
        except ControlRefused as error:
            return answered(to_body(error), status=error.status)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(step) for step in first["loc"])
            refusal = refused("invalid_request", first["msg"], what=place)
            return answered(to_body(refusal), status=refusal.status)
        except Exception as error:  # noqa: BLE001 - the caller is told, the log has the rest
            _log.exception("%s failed", request.url.path)
            return answered(to_body(internal(error)), status=500)

    return answer


def answered(body: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON answer."""
    return raw_answer(dumps(body), status=status, headers=headers)


def raw_answer(
    body: bytes, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """An answer whose JSON is ready."""
    return Response(body, status, headers, media_type="application/json")


def dumps(value: Any) -> bytes:
    """Compact JSON."""
    return json.dumps(value, separators=(",", ":")).encode("ascii")


async def json_object(request: Request) -> dict[str, Any]:
    """The body of a request.

    Raises:
        ControlRefused: invalid_request, if it is not a JSON object.
    """
    try:
        value = json.loads(await request.body())
    except (ValueError, RecursionError) as error:
        raise refused("invalid_request", f"the body is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise refused("invalid_request", "the body is not a JSON object")
    return value


def identity(request: Request, *, call: bool = False) -> CallIdentity:
    """Which run, and with `call` which model call, a data request belongs to.

    Raises:
        ControlRefused: invalid_request, if a header is missing or not such an identity.
    """
    headers = request.headers
    index = headers.get(ATTEMPT_HEADER, "")
    if not (index.isascii() and index.isdigit()):
        raise refused("invalid_request", "not a run number", what=ATTEMPT_HEADER)
    call_id = headers.get(CALL_HEADER)
    if call and not call_id:
        raise refused("invalid_request", "the header is missing", what=CALL_HEADER)
    try:
        return CallIdentity(
            rollout_id=headers.get(ROLLOUT_HEADER, ""),
            attempt_index=int(index),
            model_call_id=call_id,
        )
    except ValidationError as error:
        message = error.errors()[0]["msg"]
        raise refused("invalid_request", message, what=ROLLOUT_HEADER) from error
