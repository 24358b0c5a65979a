"""An independent client, written from docs/protocol.md alone, with a WebSocket library and two encodings.

It checks on the way what holds of every connection: a stream's events are numbered from 0 without a gap, the
first is `started`, token events follow one another by index, no token comes while paused, and nothing comes
behind `final`.

A server remembers streams that have ended by their ids, so each client marks its own: tests say plain names.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import secrets
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

from tests.server.server_process import PATIENCE_S

Event = dict[str, Any]


class Client:
    def __init__(self, websocket: ClientConnection) -> None:
        self.websocket = websocket
        self.binary = websocket.subprotocol == "midstream.v1.msgpack"
        self.mark = f" of {secrets.token_hex(4)}"
        self.session_id = ""
        self.limits: dict[str, int] = {}
        self.streams: dict[str, Stream] = {}
        self._waiting: defaultdict[str | None, deque[Event]] = defaultdict(deque)
        self._refs = itertools.count()

    # -- to the server ---------------------------------------------------------------------------

    async def send(self, kind: str, **fields: Any) -> None:
        await self.send_frame({"type": kind, **fields})

    async def send_frame(self, frame: dict[str, Any]) -> None:
        if "request_id" in frame:
            frame = frame | {"request_id": frame["request_id"] + self.mark}
        await self.websocket.send(msgspec.msgpack.encode(frame) if self.binary else json.dumps(frame))

    async def start(self, request_id: str, **fields: Any) -> Stream:
        """Start a stream, and see that it has started. Without a prompt it has some prompt."""
        stream = await self.start_blindly(request_id, **fields)
        await stream.next("started")
        return stream

    async def start_blindly(self, request_id: str, **fields: Any) -> Stream:
        """Send the start, and wait for nothing."""
        stream = self.streams[request_id] = Stream(self, request_id)
        prompt = {} if "messages" in fields or "prompt" in fields else {"prompt": "Once upon a time"}
        await self.send("start", request_id=request_id, **prompt, **fields)
        return stream

    def adopt(self, lost: Stream) -> Stream:
        """Another client's, whose server is gone: what comes of it here is told by a snapshot first."""
        self.mark = lost.mark
        stream = self.streams[lost.request_id] = Stream(self, lost.request_id)
        stream.expect_snapshot(behind=lost.events[-1]["seq"])
        return stream

    # -- from the server -------------------------------------------------------------------------

    async def next(self, request_id: str | None = None) -> Event:
        """The next event of a stream, or of none; what comes meanwhile for others waits for them."""
        while not self._waiting[request_id]:
            event = await self._receive()
            self._waiting[event.get("request_id")].append(event)
        return self._waiting[request_id].popleft()

    async def roundtrip(self) -> None:
        """When this returns, the server has read all that was sent before, and its answers are here."""
        ref = f"roundtrip {next(self._refs)}"
        await self.send("ping", ref=ref)
        assert await self.next() == {"type": "pong", "ref": ref}

    def heard(self, request_id: str | None = None) -> list[Event]:
        """Events that are here already, and that nobody took yet."""
        return list(self._waiting[request_id])

    async def _receive(self) -> Event:
        async with asyncio.timeout(PATIENCE_S):
            message = await self.websocket.recv()
        assert isinstance(message, bytes) == self.binary
        event: Event = msgspec.msgpack.decode(message) if isinstance(message, bytes) else json.loads(message)
        if "request_id" in event:
            event["request_id"] = event["request_id"].removesuffix(self.mark)
        stream = self.streams.get(event.get("request_id", ""))
        if stream is not None and event["type"] != "error":
            stream.check(event)
        return event


class Stream:
    """One stream as its client sees it: what has come of it, and what of that still stands."""

    def __init__(self, client: Client, request_id: str) -> None:
        self.request_id = request_id
        self.events: list[Event] = []
        self.text = ""
        self.index = 0
        self.paused = False
        self._client = client
        self._arrived: int | None = 0
        self._behind = -1
        self._ended = False

    def check(self, event: Event) -> None:
        """As it arrives: the rules of every stream."""
        if self._arrived is None and event["type"] == "snapshot":
            assert event["seq"] > self._behind, event
            self._arrived = event["seq"]
        if event["type"] == "attached":
            return
        assert self._arrived is not None, f"{event} came instead of a snapshot"
        assert event["seq"] == self._arrived, event
        assert not self._ended, f"{event} behind the final"
        assert (event["type"] == "started") == (self._arrived == 0), event
        self._arrived += 1
        self._ended = event["type"] == "final"

    def expect_snapshot(self, *, behind: int) -> None:
        self._arrived, self._behind = None, behind

    @property
    def mark(self) -> str:
        return self._client.mark

    async def send(self, kind: str, **fields: Any) -> None:
        await self._client.send(kind, request_id=self.request_id, **fields)

    async def next(self, kind: str | None = None) -> Event:
        event = await self._client.next(self.request_id)
        self._take(event)
        assert kind in (None, event["type"]), f"{event} came instead of {kind}"
        return event

    async def until(self, kind: str) -> Event:
        """The next event of this kind, behind whatever comes before it."""
        while (event := await self.next())["type"] != kind:
            assert event["type"] not in ("final", "error"), f"{event} came instead of {kind}"
        return event

    async def until_index(self, index: int) -> None:
        while self.index < index:
            await self.next("token")

    async def ask(self, kind: str, answer: str, **fields: Any) -> Event:
        """Steer, and wait for the answer behind the tokens that were under way."""
        await self.send(kind, **fields)
        return await self.until(answer)

    async def rest(self) -> Event:
        """To its end: the final."""
        return await self.until("final")

    @property
    def tokens(self) -> list[int]:
        """Of a stream that returns them: those that stand."""
        tokens: list[int] = []
        for event in self.events:
            if event["type"] == "rewound":
                del tokens[event["index"] :]
            tokens += event.get("tokens", [])
        return tokens

    def _take(self, event: Event) -> None:
        self.events.append(event)
        match event["type"]:
            case "token":
                assert not (self.paused and event["count"]), event
                assert event["index"] == self.index, event
                self.index += event["count"]
                self.text += event["delta"]
            case "snapshot":
                self.index, self.text, self.paused = event["index"], event["text"], "paused" in event
            case "rewound":
                assert event["index"] <= self.index
                self.index, self.text = event["index"], self.text[: event["text_length"]]
            case "paused" | "resumed":
                assert event["index"] == self.index, event
                self.paused = event["type"] == "paused"
            case "adjusted" | "injected" | "final":
                assert event["index"] == self.index, event


@asynccontextmanager
async def connected(url: str, encodings: Sequence[str] = (), **options: Any) -> AsyncIterator[Client]:
    """A client whose connection stands; `ready` is still to be read."""
    offered = [Subprotocol(encoding) for encoding in encodings] or None
    async with connect(url, subprotocols=offered, max_size=None, max_queue=None, **options) as websocket:
        yield Client(websocket)


@asynccontextmanager
async def client_of(url: str, *encodings: str, **options: Any) -> AsyncIterator[Client]:
    """A client that has received `ready`."""
    async with connected(url, encodings, **options) as client:
        ready = await client.next()
        assert ready["type"] == "ready"
        client.session_id, client.limits = ready["session_id"], ready["limits"]
        yield client
