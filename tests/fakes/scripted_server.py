"""A scripted server for testing clients: real WebSockets on loopback, and a test says what the server sends.

The sessions of its connections are "s1", "s2" and so on.

`FakeServer.peer` hands the test the server's side of the next connection. A `Responder` takes the test's
place: it answers every frame by the protocol's rules, with a model that is infinitely fast and writes its
token numbers.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from ssl import SSLContext
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from midstream.protocol import (
    JSON_SUBPROTOCOL,
    MAX_INDEX,
    MSGPACK_SUBPROTOCOL,
    VERSION,
    Adjust,
    Adjusted,
    AnyFinishReason,
    Cancel,
    ClientFrame,
    Error,
    Event,
    Final,
    Frame,
    Grant,
    Inject,
    Injected,
    Pause,
    Paused,
    Ping,
    Pong,
    Ready,
    Replace,
    Resume,
    Resumed,
    Rewind,
    Rewound,
    Start,
    Started,
    StreamEvent,
    Timing,
    Token,
    Usage,
)

F = TypeVar("F", bound=Frame)

READY = Ready(protocol=VERSION, session_id="s1", models=["toy"], limits={})
USAGE = Usage(
    prompt_tokens=3,
    completion_tokens=0,
    total_tokens=3,
    cached_tokens=0,
    injected_tokens=0,
    discarded_tokens=0,
)
TIMING = Timing(queue_ms=0, ttft_ms=None, total_ms=0, paused_ms=0, tokens_per_s=None)


def started(start: Start) -> Started:
    return Started(
        request_id=start.request_id, ref=start.ref, model="toy", prompt_tokens=3, params=start.params
    )


def final(
    request_id: str,
    index: int,
    reason: AnyFinishReason,
    *,
    stop_reason: str | None = None,
    ref: str | None = None,
) -> Final:
    return Final(
        request_id=request_id,
        index=index,
        finish_reason=reason,
        stop_reason=stop_reason,
        usage=USAGE,
        timing=TIMING,
        ref=ref,
    )


class Peer:
    """The server's side of one connection. It counts each stream's `seq`: `seqs` says which comes next."""

    def __init__(self, socket: ServerConnection) -> None:
        self.socket = socket
        self._binary = socket.subprotocol == MSGPACK_SUBPROTOCOL
        self._codec: Any = msgspec.msgpack if self._binary else msgspec.json
        self.seqs: Counter[str] = Counter()

    async def receive_frame(self) -> ClientFrame:
        data = await self.socket.recv(decode=False)
        return self._codec.decode(data, type=ClientFrame)  # type: ignore[no-any-return]

    async def receive(self, kind: type[F]) -> F:
        """The next frame, which is of this kind. Grants come when they come: they are passed over."""
        frame = await self.receive_frame()
        while isinstance(frame, Grant) and kind is not Grant:
            frame = await self.receive_frame()
        assert isinstance(frame, kind), frame
        return frame

    async def send(self, event: Event) -> None:
        if isinstance(event, StreamEvent):
            event.seq = self.seqs[event.request_id]
            self.seqs[event.request_id] += 1
        await self.socket.send(self._codec.encode(event), text=not self._binary)

    async def accept_start(self) -> Start:
        """Receive a `start`, and accept it."""
        frame = await self.receive(Start)
        await self.send(started(frame))
        return frame

    async def send_tokens(self, start: Start, index: int, *deltas: str) -> None:
        for place, delta in enumerate(deltas, index):
            await self.send(Token(request_id=start.request_id, index=place, count=1, delta=delta))


@dataclass
class ResponderStream:
    """A stream of the Responder: the numbers that say whether it may go on."""

    limit: int
    length: int
    index: int = 0
    paused: bool = False

    def next(self) -> int | None:
        may = not self.paused and self.index < min(self.limit, self.length)
        return self.index if may else None


class Responder:
    """Answers every frame as the protocol says. `decoded` counts the tokens it was made to decode."""

    def __init__(self) -> None:
        self.decoded: Counter[str] = Counter()
        self.finals: dict[str, Final] = {}
        self._streams: dict[str, ResponderStream] = {}

    async def __call__(self, peer: Peer) -> None:
        while True:
            frame = await peer.receive_frame()
            if isinstance(frame, Ping):
                await peer.send(Pong(ref=frame.ref))
            elif isinstance(frame, Start):
                await self._receive_start(peer, frame)
            elif isinstance(frame, Replace):
                pass  # it has no other connection
            elif stream := self._streams.get(frame.request_id):
                await self._receive_steering(peer, frame, stream)
            elif not isinstance(frame, Grant | Cancel):
                await peer.send(_finished(frame.request_id, frame.ref))

    async def _receive_start(self, peer: Peer, start: Start) -> None:
        length = start.params.max_tokens
        stream = ResponderStream(
            limit=start.credit.limit if start.credit else MAX_INDEX,
            length=1000 if isinstance(length, msgspec.UnsetType) else length,
        )
        self._streams[start.request_id] = stream
        await peer.send(started(start))
        await self._send_tokens(peer, start.request_id, stream)

    async def _receive_steering(self, peer: Peer, frame: ClientFrame, stream: ResponderStream) -> None:
        assert not isinstance(frame, Ping | Replace)
        name, ref = frame.request_id, frame.ref
        at = frame.at if isinstance(frame, Adjust | Inject) else None
        if at is not None:
            await self._rewind(peer, name, ref, stream, at)
        index = stream.index
        match frame:
            case Grant():
                stream.limit = max(stream.limit, frame.limit)
            case Pause():
                stream.paused = True
                await peer.send(Paused(request_id=name, ref=ref, index=index, reason="client"))
            case Resume():
                stream.paused = False
                await peer.send(Resumed(request_id=name, ref=ref, index=index, recomputed_tokens=0))
            case Adjust():
                await peer.send(Adjusted(request_id=name, ref=ref, index=index, params=frame.params))
            case Inject():
                await peer.send(Injected(request_id=name, ref=ref, index=index, count=2))
            case Rewind():
                await self._rewind(peer, name, ref, stream, frame.to)
            case Cancel():
                await self._end(peer, final(name, index, "cancelled", ref=ref))
        if name in self._streams:
            await self._send_tokens(peer, name, stream)

    async def _rewind(self, peer: Peer, name: str, ref: str | None, stream: ResponderStream, to: int) -> None:
        stream.index = to
        await peer.send(Rewound(request_id=name, ref=ref, index=to, text_length=len(responder_text(to))))

    async def _send_tokens(self, peer: Peer, name: str, stream: ResponderStream) -> None:
        while (index := stream.next()) is not None:
            stream.index += 1
            self.decoded[name] += 1
            await peer.send(Token(request_id=name, index=index, count=1, delta=f"{index} ", tokens=[index]))
        if stream.index == stream.length:
            await self._end(peer, final(name, stream.index, "length"))

    async def _end(self, peer: Peer, end: Final) -> None:
        del self._streams[end.request_id]
        self.finals[end.request_id] = end
        await peer.send(end)


def responder_text(count: int) -> str:
    """The text of the Responder's first tokens."""
    return "".join(f"{index} " for index in range(count))


def _finished(request_id: str, ref: str | None) -> Error:
    return Error(
        status=409, code="request_finished", message="over", retryable=False, request_id=request_id, ref=ref
    )


class FakeServer:
    """`async with FakeServer() as server`, then `midstream.connect(server.url)` and `await server.peer()`."""

    def __init__(
        self,
        responder: Responder | None = None,
        *,
        first_event: Event | None = READY,
        status: int = 101,
        ssl: SSLContext | None = None,
    ) -> None:
        self.requests: list[Request] = []
        self.status = status  # which connections are answered with; any but 101 refuses them
        self.headers: dict[str, str] = {}  # of a refusal
        self.session = "s"  # what the names of its sessions begin with
        self._responder = responder
        self._first_event = first_event
        self._ssl = ssl
        self._sessions = 0
        self._peers: asyncio.Queue[Peer] = asyncio.Queue()
        self._refused: asyncio.Queue[None] = asyncio.Queue()
        self._server: Server

    @property
    def url(self) -> str:
        port = next(iter(self._server.sockets)).getsockname()[1]
        return f"http://127.0.0.1:{port}"

    async def peer(self) -> Peer:
        """The next connection, from the server's side."""
        return await self._peers.get()

    async def refused(self) -> None:
        """Wait for the next connection that is refused."""
        await self._refused.get()

    async def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        self.requests.append(request)
        if self.status == 101:
            return None
        refusal = connection.respond(self.status, "refused\n")
        refusal.headers.update(self.headers)
        self._refused.put_nowait(None)
        return refusal

    async def _serve(self, socket: ServerConnection) -> None:
        peer = Peer(socket)
        if isinstance(self._first_event, Ready):
            self._sessions += 1
            await peer.send(
                msgspec.structs.replace(self._first_event, session_id=f"{self.session}{self._sessions}")
            )
        elif self._first_event is not None:
            await peer.send(self._first_event)
        self._peers.put_nowait(peer)
        if self._responder is not None:
            try:
                await self._responder(peer)
            except ConnectionClosed:
                return
        await socket.wait_closed()

    async def __aenter__(self) -> Self:
        protocols = [Subprotocol(JSON_SUBPROTOCOL), Subprotocol(MSGPACK_SUBPROTOCOL)]
        self._server = await serve(
            self._serve,
            "127.0.0.1",
            0,
            subprotocols=protocols,
            process_request=self._admit,
            ssl=self._ssl,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        await self._server.wait_closed()
