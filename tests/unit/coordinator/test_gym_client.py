"""One server and all that can go wrong on the way to it and back, over real HTTP."""

import asyncio
import gzip
import json
import pickle  # noqa: TID251 - errors cross process borders
import socket
import struct
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from typing import Any, Self, get_args

import pytest
import uvicorn
from fastapi import FastAPI, Request, Response

from snapfmt.errors import (
    ControlRefused,
    DeadlineExceeded,
    InputError,
    LimitExceeded,
    ParticipantFailed,
    SnapfmtError,
    UnsupportedFeature,
)
from snapfmt_coordinator.gym.client import (
    ControlClient,
    Retries,
    ServerAddress,
    control_token,
    open_session,
)
from snapfmt_coordinator.protocol import v1
from snapfmt_coordinator.protocol.codes import STATUS, Reason, refused, to_body
from snapfmt_schemas.completion import CompletionReceipt

TOKEN = "t0p-s3cret.~+/AB=="
QUICK = Retries(first_s=0.01, longest_s=0.05, patience_s=0.3)
PATIENT = Retries(first_s=0.01, longest_s=0.05, patience_s=60.0)
RESUMED = v1.Resumed(state="idle", released=3)
ROUTE = f"{v1.AGENT}/resume"
Script = Callable[[Request], Awaitable[Response]]


@contextmanager
def silent() -> Iterator[socket.socket]:
    """A port where nobody listens, and that nobody else gets meanwhile."""
    with closing(socket.socket()) as held:
        held.bind(("127.0.0.1", 0))
        yield held


def port_of(held: socket.socket) -> int:
    return int(held.getsockname()[1])


class Live:
    """A real HTTP server in a thread; every request goes to `script`."""

    def __init__(self, script: Script | None = None, held: socket.socket | None = None) -> None:
        self.script: Script = script or answer()
        self.seen: list[tuple[str, str, str]] = []
        self.bodies: list[bytes] = []
        app = FastAPI()

        @app.api_route("/{path:path}", methods=["GET", "POST"])
        async def everything(request: Request) -> Response:
            self.seen.append(
                (request.method, request.url.path, request.headers.get("authorization", ""))
            )
            self.bodies.append(await request.body())
            return await self.script(request)

        if held is None:
            held = socket.socket()
            held.bind(("127.0.0.1", 0))
        self.port = port_of(held)
        config = uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([held],), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        while not self._server.started:
            assert self._thread.is_alive()
            time.sleep(0.005)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join()


@pytest.fixture(scope="module")
def shared() -> Iterator[Live]:
    with Live() as live:
        yield live


@pytest.fixture
def server(shared: Live) -> Live:
    shared.script = answer()
    shared.seen.clear()
    shared.bodies.clear()
    return shared


def answer(
    body: bytes | None = None,
    *,
    status: int = 200,
    kind: str = "application/json",
    after_s: float = 0,
    **headers: str,
) -> Script:
    data = RESUMED.model_dump_json().encode() if body is None else body

    async def run(_: Request) -> Response:
        await asyncio.sleep(after_s)
        return Response(data, status, media_type=kind, headers=headers)

    return run


def held_back(body: bytes, gate: threading.Event) -> Script:
    """An answer that is not given before the gate is open."""

    async def run(_: Request) -> Response:
        while not gate.is_set():  # noqa: ASYNC110 - it is opened in another thread
            await asyncio.sleep(0.005)
        return Response(body, media_type="application/json")

    return run


def in_turn(*scripts: Script) -> Script:
    """The scripts one after the other; the last one for ever."""
    left = list(scripts)

    async def run(request: Request) -> Response:
        return await (left.pop(0) if len(left) > 1 else left[0])(request)

    return run


@asynccontextmanager
async def client_of(
    port: int, *, grace_s: float = 0.2, name: str = "agent-1", retries: Retries = PATIENT
) -> Any:
    async with open_session() as session:
        yield ControlClient(
            session,
            ServerAddress(name, f"http://127.0.0.1:{port}"),
            token=control_token(TOKEN),
            grace_s=grace_s,
            retries=retries,
        )


def ask(
    port: int,
    *,
    within_s: float = 60.0,
    grace_s: float = 0.2,
    route: str = ROUTE,
    retries: Retries = PATIENT,
) -> v1.Resumed:
    async def body() -> v1.Resumed:
        async with client_of(port, grace_s=grace_s, retries=retries) as client:
            return await resume(client, within_s, route)

    return asyncio.run(body())


async def resume(client: ControlClient, within_s: float = 60.0, route: str = ROUTE) -> v1.Resumed:
    deadline = time.time() + within_s
    request = v1.Resume(checkpoint_id="c1", deadline_ts=deadline)
    return await client.request(route, request, v1.Resumed, deadline_ts=deadline)


def failure(port: int, **how: Any) -> SnapfmtError:
    """The error of a request, once it is sure that it names the server and hides the token."""
    with pytest.raises(SnapfmtError) as caught:
        ask(port, retries=QUICK, **how)
    error = caught.value
    check_no_token(error)
    assert "agent-1" in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    return error


def check_no_token(error: BaseException) -> None:
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None:
        chain.append(current)
        current = current.__cause__ or current.__context__
    text = "".join(traceback.format_exception(error)) + "".join(
        repr(one) + str(one) + repr(one.args) + repr(vars(one)) for one in chain
    )
    for secret in (TOKEN, json.dumps(TOKEN)[1:-1], TOKEN[:8]):
        assert secret not in text, text


# --- answers that count


def test_a_reply_is_a_record_and_the_request_is_authorised(server: Live) -> None:
    assert ask(server.port) == RESUMED
    assert server.seen == [("POST", f"{v1.PREFIX}{ROUTE}", f"Bearer {TOKEN}")]
    assert json.loads(server.bodies[0])["checkpoint_id"] == "c1"


def test_without_a_body_it_is_a_get_with_its_query(server: Live) -> None:
    async def body() -> None:
        async with client_of(server.port) as client:
            reply = await client.request(
                "/x", None, v1.Resumed, deadline_ts=time.time() + 60, query={"a": "1 2"}
            )
            assert reply == RESUMED

    asyncio.run(body())
    assert server.seen[0][:2] == ("GET", f"{v1.PREFIX}/x")


def test_a_slow_answer_is_waited_for(server: Live) -> None:
    server.script = answer(after_s=0.4)
    assert ask(server.port) == RESUMED
    assert len(server.seen) == 1


def test_an_answer_within_the_grace_counts(server: Live) -> None:
    server.script = answer(after_s=1.2)
    assert ask(server.port, within_s=1.0, grace_s=5.0) == RESUMED


def test_the_grace_is_never_more_than_five_seconds() -> None:
    async def body() -> None:
        async with client_of(1, grace_s=60.0) as client:
            assert client._grace_s == 5.0

    asyncio.run(body())


def test_an_answer_after_the_grace_is_too_late_and_disturbs_nobody(server: Live) -> None:
    gate = threading.Event()
    late = v1.Resumed(state="idle", released=99).model_dump_json().encode()
    server.script = in_turn(held_back(late, gate), answer())

    async def body() -> None:
        async with client_of(server.port) as client:
            started = time.monotonic()
            with pytest.raises(DeadlineExceeded, match="agent-1") as caught:
                await resume(client, 1.0)
            check_no_token(caught.value)
            assert time.monotonic() - started > 1.15
            # The late answer arrives while the next ones are asked for.
            for number in range(8):
                assert (await resume(client)).released == 3
                if number == 3:
                    gate.set()
                await asyncio.sleep(0.01)
        assert len(server.seen) == 9

    asyncio.run(body())


def test_nothing_is_sent_after_the_deadline(server: Live) -> None:
    assert isinstance(failure(server.port, within_s=-1.0), DeadlineExceeded)
    assert server.seen == []


@pytest.mark.parametrize("deadline", [float("nan"), float("inf")])
def test_a_deadline_is_a_time(server: Live, deadline: float) -> None:
    async def body() -> None:
        async with client_of(server.port) as client:
            with pytest.raises(InputError):
                await client.request("/x", None, v1.Resumed, deadline_ts=deadline)

    asyncio.run(body())
    assert server.seen == []


# --- refusals


@pytest.mark.parametrize("reason", [r for r in get_args(Reason) if r != "deadline_passed"])
def test_each_refusal_is_typed(server: Live, reason: Any) -> None:
    body = json.dumps(to_body(refused(reason, f"because {TOKEN}", what="r1", hint="wait"))).encode()
    server.script = answer(body, status=STATUS[reason])
    error = failure(server.port)
    assert isinstance(error, ControlRefused)
    assert (error.reason, error.status, error.what) == (reason, STATUS[reason], "r1")
    assert error.hint == "wait"
    assert "because [redacted]" in str(error)
    # Only what broke is asked again.
    assert (len(server.seen) > 1) == (STATUS[reason] >= 500)


def test_a_refusal_that_names_nothing_names_the_server(server: Live) -> None:
    server.script = answer(
        json.dumps(to_body(refused("ledger_mismatch", "x"))).encode(), status=409
    )
    assert failure(server.port).what == "agent-1"


def test_the_servers_own_deadline_is_a_deadline(server: Live) -> None:
    body = json.dumps(to_body(refused("deadline_passed", "3 s ago"))).encode()
    server.script = answer(body, status=STATUS["deadline_passed"])
    error = failure(server.port)
    assert isinstance(error, DeadlineExceeded)
    assert "3 s ago" in str(error)
    assert "clocks" in str(error)


def test_a_long_refusal_is_cut_and_made_printable(server: Live) -> None:
    body = json.dumps(to_body(refused("ledger_mismatch", "a\x1b[31m\n" * 10_000))).encode()
    server.script = answer(body, status=409)
    text = str(failure(server.port))
    assert len(text) < 1000
    assert text.isprintable()


def test_a_reason_of_a_later_protocol_is_garbage(server: Live) -> None:
    server.script = answer(b'{"error": {"code": "new_reason", "message": "m"}}', status=409)
    error = failure(server.port)
    assert isinstance(error, ParticipantFailed)
    assert "HTTP 409" in str(error)


@pytest.mark.parametrize("status", [404, 405])
def test_a_missing_route_is_a_missing_feature(server: Live, status: int) -> None:
    server.script = answer(b'{"detail": "Not Found"}', status=status)
    assert isinstance(failure(server.port), UnsupportedFeature)
    assert len(server.seen) == 1


# --- garbage


HTML = b"<html><body>login</body></html>"
HUGE = b"[" + b" " * v1.MAX_BODY + b"]"
GARBAGE = {
    "html": answer(HTML, kind="text/html"),
    "html refusal": answer(HTML, status=403, kind="text/html"),
    "empty": answer(b""),
    "no content": answer(b"", status=204),
    "huge": answer(HUGE),
    "huge refusal": answer(HUGE, status=409),
    "array": answer(b"[]"),
    "another record": answer(v1.Discarded(discarded=1).model_dump_json().encode()),
    "unknown field": answer(json.dumps({"state": "idle", TOKEN: TOKEN}).encode()),
    "wrong type": answer(b'{"state": "idle", "released": "3"}'),
    "unknown state": answer(json.dumps({"state": TOKEN}).encode()),
    "negative": answer(b'{"state": "idle", "released": -1}'),
    "deep": answer(b'{"state":' + b"[" * 100_000),
    "deep refusal": answer(b"[" * 100_000, status=409),
    "endless number": answer(b'{"error":' + b"1" * 10_000 + b"}", status=409),
    "not utf-8": answer(b'{"state": "\xff"}'),
    "compressed": answer(gzip.compress(b'{"state": "idle"}'), **{"content-encoding": "gzip"}),
    "token as a type": answer(HTML, kind=TOKEN),
}


@pytest.mark.parametrize("kind", GARBAGE)
def test_garbage_is_a_failed_participant_and_not_asked_again(server: Live, kind: str) -> None:
    server.script = GARBAGE[kind]
    error = failure(server.port)
    assert isinstance(error, ParticipantFailed), error
    assert "garbage" in str(error)
    assert len(server.seen) == 1


def test_an_endless_answer_is_not_read_to_its_end() -> None:
    sent = 0

    async def flood(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while not writer.is_closing():
            writer.write(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
            await writer.drain()
            sent += 1

    error = asyncio.run(failed_raw(flood))
    assert isinstance(error, ParticipantFailed)
    assert "more than" in str(error)
    assert sent < 1000


def test_a_redirect_is_not_followed(server: Live) -> None:
    with Live() as elsewhere:
        for status in (301, 302, 307, 308):
            target = f"http://127.0.0.1:{elsewhere.port}/x"
            server.script = answer(b"", status=status, location=target)
            assert isinstance(failure(server.port), ParticipantFailed)
        assert elsewhere.seen == []


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 banana\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + TOKEN.encode() + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: " + TOKEN.encode() + b"\r\n\r\n",
    ],
)
def test_what_is_not_http_is_a_failed_participant(data: bytes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(data)
        await writer.drain()

    error = asyncio.run(failed_raw(talk))
    assert isinstance(error, ParticipantFailed)


# --- connections


RawHandler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def raw_server(handler: RawHandler) -> Any:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handler(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    listener = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with listener:
        yield listener.sockets[0].getsockname()[1]


async def failed_raw(handler: RawHandler) -> SnapfmtError:
    async with raw_server(handler) as port, client_of(port, retries=QUICK) as client:
        with pytest.raises(SnapfmtError) as caught:
            await resume(client)
    check_no_token(caught.value)
    assert "agent-1" in str(caught.value)
    return caught.value


def reset(writer: asyncio.StreamWriter) -> None:
    linger = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()


def http(body: bytes) -> bytes:
    return (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: "
        + str(len(body)).encode()
        + b"\r\n\r\n"
        + body
    )


GOOD = http(RESUMED.model_dump_json().encode())


@pytest.mark.parametrize(
    "sent", [b"", b"HTTP/1.1 200 OK\r\n", GOOD[:-5]], ids=["nothing", "half a head", "half a body"]
)
@pytest.mark.parametrize("how", ["reset", "closed"])
def test_a_lost_connection_is_tried_again(sent: bytes, how: str) -> None:
    tries = 0

    async def lose(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal tries
        await reader.readuntil(b"\r\n\r\n")
        tries += 1
        if tries == 3:
            writer.write(GOOD)
            return
        writer.write(sent)
        await writer.drain()
        if how == "reset":
            reset(writer)

    async def body() -> None:
        async with raw_server(lose) as port, client_of(port) as client:
            assert await resume(client) == RESUMED

    asyncio.run(body())
    assert tries == 3


def test_a_server_that_always_resets_has_failed() -> None:
    tries = 0

    async def lose(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal tries
        tries += 1
        await reader.readuntil(b"\r\n\r\n")
        reset(writer)

    started = time.monotonic()
    error = asyncio.run(failed_raw(lose))
    assert isinstance(error, ParticipantFailed)
    assert f"tried {tries} times" in str(error)
    # On a machine that stands still the patience may be over after two.
    assert 2 <= tries <= 40
    # It gave up after its patience of 0.3 s, long before the deadline.
    assert time.monotonic() - started < 30


def test_a_server_that_is_down_has_failed() -> None:
    started = time.monotonic()
    with silent() as held:
        error = failure(port_of(held))
    assert isinstance(error, ParticipantFailed)
    assert "look whether the server runs" in str(error)
    assert time.monotonic() - started < 30


def test_the_deadline_ends_the_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    tries, real = 0, time.time

    async def lose(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal tries
        tries += 1
        await reader.readuntil(b"\r\n\r\n")
        if tries == 3:
            monkeypatch.setattr(time, "time", lambda: real() + 600)
        reset(writer)

    async def body() -> None:
        async with raw_server(lose) as port, client_of(port, retries=QUICK) as client:
            deadline = time.time() + 600
            request = v1.Resume(checkpoint_id="c1", deadline_ts=deadline)
            with pytest.raises(ParticipantFailed, match="cannot be asked"):
                await client.request(
                    ROUTE, request, v1.Resumed, deadline_ts=deadline, patience_s=3600.0
                )

    asyncio.run(body())
    assert tries == 3


def test_more_patience_outlasts_a_restart() -> None:
    async def body() -> None:
        with silent() as held:
            async with client_of(port_of(held), retries=QUICK) as client:
                deadline = time.time() + 60
                request = v1.Resume(checkpoint_id="c1", deadline_ts=deadline)
                more = {"deadline_ts": deadline, "patience_s": 60.0}
                asking = asyncio.create_task(client.request(ROUTE, request, v1.Resumed, **more))
                await asyncio.sleep(0.5)
                assert not asking.done()
                with Live(held=held):
                    assert await asking == RESUMED

    asyncio.run(body())


def test_a_proxy_that_breaks_is_asked_again(server: Live) -> None:
    server.script = in_turn(answer(HTML, status=502), answer(HTML, status=503), answer())
    assert ask(server.port) == RESUMED
    assert len(server.seen) == 3
    server.script = answer(HTML, status=502)
    error = failure(server.port)
    assert isinstance(error, ParticipantFailed)
    assert "HTTP 502" in str(error)


def test_two_answers_to_one_request_are_never_mixed_up() -> None:
    """A proxy sends each request twice, and both answers come back on the one connection."""
    arrived: list[bytes] = []

    async def twice(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            request = json.loads(await reader.readexactly(size))
            for _ in range(2):
                arrived.append(request["checkpoint_id"])
                number = int(request["checkpoint_id"])
                body = v1.Resumed(state="idle", released=number).model_dump_json().encode()
                writer.write(http(body))
                await writer.drain()
                await asyncio.sleep(0.005)

    async def body() -> None:
        async with raw_server(twice) as port, client_of(port) as client:
            for number in range(20):
                deadline = time.time() + 60
                request = v1.Resume(checkpoint_id=str(number), deadline_ts=deadline)
                reply = await client.request(ROUTE, request, v1.Resumed, deadline_ts=deadline)
                assert reply.released == number
                await asyncio.sleep(0.01)

    asyncio.run(body())
    assert len(arrived) >= 39


def test_a_cancelled_request_leaves_nothing_behind(server: Live) -> None:
    gate = threading.Event()
    server.script = held_back(b"", gate)

    async def body() -> None:
        async with client_of(server.port) as client:
            asking = asyncio.create_task(resume(client))
            while not server.seen:  # noqa: ASYNC110 - it is seen in another thread
                await asyncio.sleep(0.005)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            server.script = answer()
            assert await resume(client) == RESUMED

    try:
        asyncio.run(body())
    finally:
        gate.set()


# --- what is not sent


def test_a_request_that_is_too_large_is_not_sent(server: Live) -> None:
    receipt = CompletionReceipt(
        rollout_id="r" * 512,
        attempt_index=0,
        execution_generation=1,
        result_identity="\U0001f600" * 512,
        result_digest="0" * 64,
    )

    async def body() -> None:
        async with client_of(server.port) as client:
            with pytest.raises(LimitExceeded, match="agent-1"):
                await client.request(
                    "/x",
                    v1.AcknowledgeCompleted(executions=(receipt,) * 512),
                    v1.Acknowledged,
                    deadline_ts=time.time() + 60,
                )

    asyncio.run(body())
    assert server.seen == []


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:80",
        "ftp://host/",
        "http://",
        "http://host:port",
        f"http://user:{'hunter2'}@host",
        "http://host?x=hunter2",
        "http://host#hunter2",
    ],
)
def test_an_address_is_a_plain_url(url: str) -> None:
    with pytest.raises(InputError, match="agent-1") as caught:
        ServerAddress("agent-1", url)
    assert "hunter2" not in str(caught.value)


def test_an_address_may_have_a_path() -> None:
    address = ServerAddress("a", "http://host:8000/gym/a/")
    assert str(address.at("/x")) == f"http://host:8000/gym/a{v1.PREFIX}/x"


@pytest.mark.parametrize("token", ["", "qq zz", "qqq\r\nX: y", "é", "qq\x00", "qq'zz", "qq\n"])
def test_a_token_fits_into_a_header(token: str) -> None:
    with pytest.raises(InputError) as caught:
        control_token(token)
    assert not token or token not in str(caught.value)


def test_no_object_shows_the_token() -> None:
    async def body() -> None:
        async with client_of(1) as client:
            assert TOKEN not in repr(vars(client))

    asyncio.run(body())
