"""A small HTTP proxy on the loopback that spoils chosen requests on their way to a real server.

It passes bytes on as they are, the Host header too, so that signatures stay valid. A connection
is closed after a fault; other connections live on.
"""

import contextlib
import re
import socket
import socketserver
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, Literal, get_args
from urllib.parse import urlsplit

Way = Literal[
    "reset before it is sent",
    "cut in the request",
    "applied and the reply dropped",
    "cut in the reply",
    "500",
    "503",
    "409",
    "delayed past the timeout",
    "sent twice",
]
WAYS: Final[tuple[Way, ...]] = get_args(Way)
_ANSWERS: Final = {
    "500": ("500 Internal Server Error", "InternalError"),
    "503": ("503 Slow Down", "SlowDown"),
    "409": ("409 Conflict", "ConditionalRequestConflict"),
}
_BLOCK: Final = 65536


@dataclass(slots=True)
class Rule:
    """Which requests are spoiled, and how: those that fit, from the `first` on, `times` of them."""

    way: Way
    method: str = ""
    """Empty: any."""
    path: str = ""
    """What its path and query must contain, as they are or in their `shape`."""
    first: int = 0
    times: int = 1
    delay_s: float = 0.0
    gate: threading.Event | None = None
    """Ends a delay before its time."""
    seen: int = 0
    fired: int = 0


@dataclass(frozen=True, slots=True)
class Seen:
    """A request that came by."""

    method: str
    path: str


@dataclass(slots=True)
class _Message:
    """A request or a reply: its head, and its whole body."""

    head: bytes
    body: bytes

    @property
    def first_line(self) -> str:
        return self.head.split(b"\r\n", 1)[0].decode("latin-1")

    def header(self, name: str) -> str:
        for line in self.head.split(b"\r\n")[1:]:
            key, _, value = line.partition(b":")
            if key.strip().lower() == name.encode():
                return value.strip().decode("latin-1")
        return ""


@dataclass(slots=True)
class FaultProxy:
    """Runs while its context lasts; `endpoint` is its URL."""

    upstream: str
    rules: list[Rule] = field(default_factory=list)
    requests: list[Seen] = field(default_factory=list)
    endpoint: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextlib.contextmanager
    def running(self) -> Iterator["FaultProxy"]:
        """Listen on a free port of the loopback."""
        proxy = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                with contextlib.suppress(OSError):
                    proxy._serve(self.request)

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            block_on_close = False
            request_queue_size = 64

        with Server(("127.0.0.1", 0), Handler) as server:
            self.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
            thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
            thread.start()
            try:
                yield self
            finally:
                server.shutdown()
                thread.join()

    def spoil(self, *rules: Rule) -> None:
        """Use these rules, and no others; forget what came by."""
        with self._lock:
            self.rules = list(rules)
            self.requests.clear()

    def _rule(self, request: _Message) -> Rule | None:
        method, path, _ = (*request.first_line.split(" "), "", "")[:3]
        with self._lock:
            self.requests.append(Seen(method, path))
            for rule in self.rules:
                if rule.method not in ("", method) or rule.path not in path + shape(path):
                    continue
                rule.seen += 1
                if rule.first < rule.seen <= rule.first + rule.times:
                    rule.fired += 1
                    return rule
        return None

    def _serve(self, client: socket.socket) -> None:
        address = urlsplit(self.upstream)
        with socket.create_connection((address.hostname, address.port)) as server:
            while (request := _read(client, None)) is not None:
                rule = self._rule(request)
                if rule is None:
                    server.sendall(request.head + request.body)
                    if not self._reply(client, server, request):
                        return
                else:
                    self._spoil(rule, client, server, request)
                    return

    def _reply(self, client: socket.socket, server: socket.socket, request: _Message) -> bool:
        reply = _read(server, request)
        if reply is None:
            return False
        client.sendall(reply.head + reply.body)
        return reply.header("connection").lower() != "close"

    def _spoil(
        self, rule: Rule, client: socket.socket, server: socket.socket, request: _Message
    ) -> None:
        whole = request.head + request.body
        if rule.way in _ANSWERS:
            status, code = _ANSWERS[rule.way]
            body = b"" if request.first_line.startswith("HEAD") else _error(code)
            client.sendall(_head(status, len(body)) + body)
            return
        if rule.way == "reset before it is sent":
            _reset(client)
            return
        if rule.way == "cut in the request":
            server.sendall(whole[: len(request.head) + len(request.body) // 2])
            _reset(server)
            _reset(client)
            return
        if rule.way == "delayed past the timeout":
            self._delay(rule, client, server, request)
            return
        if rule.way == "sent twice":
            server.sendall(whole)
            _read(server, request)
        server.sendall(whole)
        reply = _read(server, request)
        if reply is None or rule.way == "applied and the reply dropped":
            _reset(client)
            return
        if rule.way == "cut in the reply":
            client.sendall((reply.head + reply.body)[: len(reply.head) + len(reply.body) // 2 - 1])
            _reset(client)
            return
        client.sendall(reply.head + reply.body)

    def _delay(
        self, rule: Rule, client: socket.socket, server: socket.socket, request: _Message
    ) -> None:
        """Its client has given up when it arrives, on time to meet what came after it."""
        (rule.gate or threading.Event()).wait(rule.delay_s)
        server.sendall(request.head + request.body)
        _read(server, request)
        _reset(client)


def shape(path: str) -> str:
    """A path without the ids, digests and numbers in it, from the prefix on."""
    return re.sub(
        r"[0-9a-f]{16,}|(?<=objects/)[0-9a-f]{2}|(?<=snapshot_)[0-9]+",
        "*",
        path.rpartition("/run")[2],
    )


def _read(source: socket.socket, request: _Message | None) -> _Message | None:
    """One message; None at the end. A reply is read by what its `request` was."""
    data = b""
    while b"\r\n\r\n" not in data:
        block = source.recv(_BLOCK)
        if not block:
            return None
        data += block
        if data.startswith(b"HTTP/1.1 100") and b"\r\n\r\n" in data:
            data = data.partition(b"\r\n\r\n")[2]
    head, mark, rest = data.partition(b"\r\n\r\n")
    message = _Message(head + mark, rest)
    if request is None and message.header("expect").lower() == "100-continue":
        source.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        message.head = b"\r\n".join(
            line for line in message.head.split(b"\r\n") if not line.lower().startswith(b"expect:")
        )
    if request is not None and request.first_line.startswith("HEAD"):
        return message
    if "chunked" in message.header("transfer-encoding").lower():
        return _read_until(source, message, lambda body: body.endswith(b"0\r\n\r\n"))
    size = int(message.header("content-length") or 0)
    return _read_until(source, message, lambda body: len(body) >= size)


def _read_until(
    source: socket.socket, message: _Message, whole: Callable[[bytes], bool]
) -> _Message | None:
    pieces = bytearray(message.body)
    while not whole(bytes(pieces)):
        block = source.recv(_BLOCK)
        if not block:
            return None
        pieces += block
    message.body = bytes(pieces)
    return message


def _head(status: str, size: int) -> bytes:
    return (
        f"HTTP/1.1 {status}\r\nContent-Type: application/xml\r\n"
        f"Content-Length: {size}\r\nConnection: close\r\n\r\n"
    ).encode()


def _error(code: str) -> bytes:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>no</Message></Error>".encode()


def _reset(end: socket.socket) -> None:
    """Close it so that the other end sees a reset, not an end."""
    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end.close()
