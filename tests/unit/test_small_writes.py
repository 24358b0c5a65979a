"""A long body goes out in pieces, and is the same."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Message, Receive, Scope, Send

from realtime.transport.small_writes import WRITE_BYTES, in_small_writes


@pytest.mark.parametrize("size", [0, 1, WRITE_BYTES, WRITE_BYTES + 1, 2 * WRITE_BYTES, 5 * WRITE_BYTES + 7])
@pytest.mark.parametrize("more", [False, True])
async def test_it_is_cut_and_whole(size: int, more: bool) -> None:
    body = bytes(at % 251 for at in range(size))
    sent: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": body, "more_body": more})

    async def receive() -> Message:
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    await in_small_writes(app)({}, receive, send)
    start, *pieces = sent
    assert start["type"] == "http.response.start"
    assert b"".join(piece["body"] for piece in pieces) == body
    assert max(len(piece["body"]) for piece in pieces) <= WRITE_BYTES
    assert [piece["more_body"] for piece in pieces] == [True] * (len(pieces) - 1) + [more]


async def test_that_the_peer_is_gone_is_heard_of_between_two_pieces() -> None:
    """asyncio tells of a write that failed in the next turn, and logs each that comes before that."""
    gone = asyncio.Event()
    written: list[int] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.body", "body": bytes(9 * WRITE_BYTES)})

    async def receive() -> Message:
        raise AssertionError

    async def send(message: Message) -> None:
        if not gone.is_set():
            written.append(len(message["body"]))
            asyncio.get_running_loop().call_soon(gone.set)

    await in_small_writes(app)({}, receive, send)
    assert written == [WRITE_BYTES]
