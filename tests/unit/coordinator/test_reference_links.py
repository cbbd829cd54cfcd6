"""How the agent asks its servers again, and when it does not."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest

from snapfmt.errors import ControlRefused, ParticipantFailed
from snapfmt_coordinator.protocol.codes import refused, to_body
from snapfmt_coordinator.reference.links import Link, is_closed

Replies = list[bytes | None]
"""What a server says to one request after another; None: it hangs up."""


def http(status: int, body: Any, headers: str = "") -> bytes:
    data = json.dumps(body).encode()
    head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(data)}\r\n{headers}\r\n"
    return head.encode() + data


def talk(replies: Replies, use: Callable[[Link], Awaitable[None]], retry_s: float = 5.0) -> int:
    """Runs `use` with a link to a server that gives the replies; how many requests came."""
    asked = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
                await reader.readexactly(length)
                reply = replies[min(asked, len(replies) - 1)]
                asked += 1
                if reply is None:
                    break
                writer.write(reply)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with aiohttp.ClientSession() as session:
            await use(Link(session, "tools", url, retry_s=retry_s))
        server.close()

    asyncio.run(main())
    return asked


def test_a_lost_answer_and_a_failing_server_are_asked_again() -> None:
    async def use(link: Link) -> None:
        reply = await link.post("/tool", b"{}", {})
        assert (reply.body, reply.revision) == ({"a": 1}, 4)

    good = http(200, {"a": 1}, "x-nemo-gym-resource-state-revision: 4\r\n")
    assert talk([None, http(503, {}), None, good], use) == 4


def test_a_refusal_is_not_asked_again() -> None:
    error = refused("resources_admission_closed", "closed", what="x")

    async def use(link: Link) -> None:
        with pytest.raises(ControlRefused) as caught:
            await link.post("/tool", b"{}", {})
        assert (caught.value.reason, caught.value.status) == ("resources_admission_closed", 409)
        assert is_closed(caught.value)

    assert talk([http(409, to_body(error))], use) == 1
    assert not is_closed(refused("stale_attempt", "over"))


@pytest.mark.parametrize("reply", [None, http(500, to_body(refused("internal_error", "boom")))])
def test_patience_ends(reply: bytes | None) -> None:
    async def use(link: Link) -> None:
        with pytest.raises(ParticipantFailed, match="tools /tool"):
            await link.post("/tool", b"{}", {})

    assert talk([reply], use, retry_s=0.2) > 2


def test_an_answer_that_is_none_is_an_error() -> None:
    async def use(link: Link) -> None:
        with pytest.raises(ParticipantFailed, match="no JSON object"):
            await link.post("/tool", b"{}", {})

    assert talk([http(200, [1])], use, retry_s=0.0) == 1
