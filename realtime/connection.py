"""A WebSocket connection as a listener: frames from the peer to the hub, events from streams to the peer.

It knows one peer, one encoding and the hub. What frames mean is the hub's and the streams' business; how
bytes travel is the transport's. Nothing here waits for the peer to read: while it does not, events stay
with their streams, where tokens coalesce and credit bounds them, and control frames are read and acted on
all the same.
"""

from __future__ import annotations

import secrets
from typing import Any, Protocol

from msgspec import Struct
from starlette.websockets import WebSocket

from midstream import protocol
from midstream.protocol import SUBPROTOCOLS, CloseCode, Event
from realtime.fallback import SendingPeer
from realtime.frames import Codec
from realtime.hub import Hub
from realtime.peer import PEER
from realtime.positions import Positions
from realtime.refusal import Refusal
from realtime.stream import Stream

MOST_ANSWERS = 1_000  # errors and pongs that may wait for a peer that sends and does not read


class Limits(Struct, frozen=True):
    """What a connection may ask for; `ready` tells the client."""

    max_message_bytes: int
    streams_per_connection: int
    auto_credit_window: int
    ack_every: int


class Peer(Protocol):
    on_pong: Any
    on_writable: Any

    @property
    def writable(self) -> bool: ...
    def write(self, messages: list[bytes], *, text: bool, ping: bytes | None = None) -> None: ...


async def serve(
    websocket: WebSocket, hub: Hub, tenant: str, limits: Limits, open_now: set[Connection]
) -> None:
    """The whole life of one connection, which is in `open_now` for as long as it lasts."""
    subprotocol = next((known for known in SUBPROTOCOLS if known in websocket.scope["subprotocols"]), None)
    await websocket.accept(subprotocol)
    codec = Codec(subprotocol)
    peer: Peer = websocket.scope.get("extensions", {}).get(PEER) or SendingPeer(websocket, text=codec.text)
    connection = Connection(websocket, peer, hub, codec, tenant, limits)
    open_now.add(connection)
    try:
        connection.greet()
        await connection.read()
    finally:
        open_now.discard(connection)
        connection.leave()
        if isinstance(peer, SendingPeer):
            peer.stop()


class Connection:
    def __init__(
        self, websocket: WebSocket, peer: Peer, hub: Hub, codec: Codec, tenant: str, limits: Limits
    ) -> None:
        self.gone = False
        self._websocket = websocket
        self._peer = peer
        self._hub = hub
        self._codec = codec
        self._tenant = tenant
        self._limits = limits
        self._positions = Positions(limits.ack_every)
        self._live: set[Stream] = set()
        self._woken: dict[Stream, None] = {}
        self._answers: list[Event] = []  # what belongs to no stream's history
        peer.on_pong = self._acknowledge
        peer.on_writable = self.flush

    # -- from the peer ---------------------------------------------------------------------------

    def greet(self) -> None:
        model = self._hub.model
        self._answer(
            protocol.Ready(
                protocol=protocol.VERSION,
                session_id=secrets.token_hex(8),
                models=[] if model is None else [model.name],
                limits={name: getattr(self._limits, name) for name in self._limits.__struct_fields__}
                | ({} if model is None else {"context": model.context}),
            )
        )

    async def read(self) -> None:
        while True:
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                return
            data: str | bytes = message["bytes"] if message.get("text") is None else message["text"]
            self._receive(data)
            if len(self._answers) > MOST_ANSWERS:
                await self._websocket.close(CloseCode.POLICY, "you send, and read none of the answers")
                return

    async def close_for_good(self) -> None:
        """The server goes away: everything has been said."""
        await self._websocket.close(CloseCode.DRAINING, "the server is going away")

    def leave(self) -> None:
        self.gone = True
        self._hub.detach(self)

    def _receive(self, data: bytes | str) -> None:
        try:
            if isinstance(data, str) != self._codec.text:
                kind = "text" if self._codec.text else "binary"
                raise Refusal(
                    "invalid_frame", f"This connection speaks {self._codec.name}: send {kind} messages."
                )
            frame = self._codec.decode(data)
            self._check(frame)
        except Refusal as refusal:
            self._answer(refusal.event(*self._codec.addressed(data)))
            return
        if isinstance(frame, protocol.Ping):
            self._answer(protocol.Pong(ref=frame.ref))
        else:
            self._hub.receive(self._tenant, frame, self)

    def _check(self, frame: protocol.StreamFrame | protocol.Ping) -> None:
        most = self._limits.streams_per_connection
        if isinstance(frame, protocol.Start) and len(self._live) >= most:
            raise Refusal(
                "too_many_streams", f"This connection has its most of {most} streams.", retry_after_ms=1000
            )

    def _acknowledge(self, payload: bytes) -> None:
        for stream, index in self._positions.answered(payload):
            self._hub.taken(stream, index)
        self._hub.settle()

    # -- to the peer -----------------------------------------------------------------------------

    def wake(self, stream: Stream) -> None:
        self._live.add(stream)
        self._woken[stream] = None

    def refuse(self, refusal: Refusal, request_id: str, ref: str | None) -> None:
        self._answer(refusal.event(request_id, ref))

    def say(self, event: Event) -> None:
        """Something that concerns the connection as a whole."""
        self._answer(event)

    def flush(self) -> None:
        """Give the peer all that it is ready for, in one write."""
        if self.gone or not self._peer.writable or not (self._answers or self._woken):
            return
        encode = self._codec.encode
        messages = [encode(answer) for answer in self._answers]
        self._answers.clear()
        for stream in self._woken:
            messages += self._taken_from(stream)
        self._woken.clear()
        ping = self._positions.due()
        if messages:
            self._peer.write(messages, text=self._codec.text, ping=ping)

    def _taken_from(self, stream: Stream) -> list[bytes]:
        before = stream.outbox.sent
        events = stream.outbox.take()
        if stream.automatic and stream.outbox.sent > before:
            self._positions.sent(stream, stream.outbox.sent - before)
        if events and isinstance(events[-1], protocol.Final):
            self._live.discard(stream)
        return [self._codec.encode(event) for event in events]

    def _answer(self, event: Event) -> None:
        self._answers.append(event)
        self.flush()
