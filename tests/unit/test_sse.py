"""Server-sent events at their pace: silence, readers that take nothing, and whoever goes away."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import pytest

from realtime.http.sse import (
    HEADERS,
    HEARTBEAT,
    PIECE_BYTES,
    SseTimeouts,
    format_event,
    stream_events,
    watched_for_disconnect,
)
from realtime.hub.observers import DisconnectCause

Message = dict[str, Any]
A = format_event(b"a")


class Script:
    """A source that says what it is given."""

    def __init__(self, *said: bytes) -> None:
        self.said = deque(said)
        self.left: DisconnectCause | None = None
        self.taken = 0
        self.more = asyncio.Event()

    @property
    def over(self) -> bool:
        return self.left is not None or (not self.said and self.more.is_set())

    async def wait_for_news(self) -> None:
        await self.more.wait()

    async def take(self) -> bytes:
        return self.said.popleft() if self.said else b""

    def accepted(self) -> None:
        self.taken += 1

    def leave(self, cause: DisconnectCause = "closed") -> None:
        self.left = self.left or cause
        self.more.set()

    def too_slow_event(self) -> bytes:
        return b"too slow"


class Client:
    """Takes what is sent while it reads; `sent` are the bodies."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.reads = asyncio.Event()
        self.reads.set()
        self.heartbeats = asyncio.Semaphore(0)

    async def send(self, message: Any) -> None:
        await self.reads.wait()
        self.messages.append(dict(message))
        if message.get("body") == HEARTBEAT:
            self.heartbeats.release()

    @property
    def bodies(self) -> list[bytes]:
        return [message["body"] for message in self.messages[1:]]


async def test_an_event_is_its_data_and_perhaps_its_number() -> None:
    assert format_event(b"{}") == b"data: {}\n\n"
    assert format_event(b"{}", 0) == b"id: 0\ndata: {}\n\n"


async def test_what_there_is_is_sent_at_once_and_the_end_ends_the_response() -> None:
    source, client = Script(b"a", b"b"), Client()
    source.more.set()
    await stream_events(source, client.send, {"X-Request-Id": "x"}, SseTimeouts())
    assert client.bodies == [b"a", b"b", b""]
    assert client.messages[-1]["more_body"] is False
    head = {name.decode(): value.decode() for name, value in client.messages[0]["headers"]}
    assert head == {name.lower(): value for name, value in HEADERS.items()} | {"x-request-id": "x"}
    assert source.taken == 2


async def test_silence_has_heartbeats() -> None:
    source, client = Script(b"a"), Client()
    telling = asyncio.create_task(stream_events(source, client.send, {}, SseTimeouts(heartbeat_s=0.001)))
    for _ in range(3):
        await client.heartbeats.acquire()
    source.leave()
    await telling
    assert client.bodies[0] == b"a"
    assert set(client.bodies[1:]) == {HEARTBEAT, b""}


async def test_what_takes_long_to_make_is_not_given_up_for_a_heartbeat() -> None:
    class Dear(Script):
        async def take(self) -> bytes:
            said = await super().take()
            for _ in range(10):
                await asyncio.sleep(0)
            return said

    source, client = Dear(b"a", b"b", b"c"), Client()
    source.more.set()
    await stream_events(source, client.send, {}, SseTimeouts(heartbeat_s=0))
    assert client.bodies == [b"a", b"b", b"c", b""]


async def test_a_reader_that_takes_nothing_is_left_and_told_so_once_it_reads() -> None:
    source, client = Script(A), Client()

    async def send(message: Any) -> None:
        await client.send(message)
        if message.get("body") == A:
            client.reads.clear()  # and from then on it takes nothing

    telling = asyncio.create_task(
        stream_events(source, send, {}, SseTimeouts(heartbeat_s=0.001, stalled_s=0.001))
    )
    await source.more.wait()
    assert source.taken == 1, "what was not accepted does not count"
    client.reads.set()
    await telling
    assert client.bodies == [A, b"too slow"]
    assert source.left == "slow"


class OnceAndNoMore(Client):
    """Takes one piece, and nothing behind it until `reads` is set."""

    async def send(self, message: Any) -> None:
        await super().send(message)
        if message.get("body") and not self.bodies[1:]:
            self.reads.clear()


async def test_much_is_sent_in_pieces_of_whole_events_each_of_which_a_reader_has_time_for() -> None:
    many = [format_event(b"%d" % number * 300) for number in range(1000)]
    source, client = Script(b"".join(many)), Client()
    source.more.set()
    await stream_events(source, client.send, {}, SseTimeouts())
    assert b"".join(client.bodies) == b"".join(many)
    assert all(len(piece) <= PIECE_BYTES and piece.endswith(b"\n\n") for piece in client.bodies[:-1])
    assert source.taken == 1
    assert len(client.bodies) < len(many) / 5


@pytest.mark.parametrize(
    ("said", "before_the_last"),
    [([A] * PIECE_BYTES, b""), ([format_event(b"a" * 3 * PIECE_BYTES)], b"\n\n")],
    ids=["many events", "one that is longer than a piece"],
)
async def test_the_last_that_a_reader_is_told_is_an_event_by_itself(
    said: list[bytes], before_the_last: bytes
) -> None:
    source, client = Script(b"".join(said)), OnceAndNoMore()
    telling = asyncio.create_task(stream_events(source, client.send, {}, SseTimeouts(stalled_s=0.001)))
    await source.more.wait()
    client.reads.set()
    await telling
    told, last = client.bodies
    assert b"".join(said).startswith(told)
    assert last == before_the_last + b"too slow"


async def test_whoever_goes_away_is_noticed_at_once() -> None:
    source, gone = Script(), asyncio.Event()
    parts = deque([{"type": "http.request"}])

    async def receive() -> Message:
        if parts:
            return parts.popleft()
        await gone.wait()
        return {"type": "http.disconnect"}

    async with watched_for_disconnect(receive, source.leave):
        assert not source.left
        gone.set()
        await source.more.wait()
        assert [source.left] == ["closed"]
        await asyncio.gather(asyncio.Event().wait())  # what nobody waits for any more is given up


async def test_whoever_is_cancelled_from_outside_is_cancelled() -> None:
    source, begun = Script(), asyncio.Event()

    async def serve() -> None:
        async with watched_for_disconnect(asyncio.Event().wait, source.leave):  # type: ignore[arg-type]
            begun.set()
            await asyncio.Event().wait()

    serving = asyncio.create_task(serve())
    await begun.wait()
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert source.left


async def test_nobody_is_watched_for_longer_than_needed() -> None:
    source = Script()
    async with watched_for_disconnect(asyncio.Event().wait, source.leave):  # type: ignore[arg-type]
        pass
    assert source.left
    assert len(asyncio.all_tasks()) <= 2
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}
