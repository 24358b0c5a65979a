"""The WebSocket connection, as a listener of the hub: frames from the peer to the hub, events from streams to
the peer.

It knows one peer, one encoding and the hub. What frames mean is the hub's and the streams' business; how
bytes travel is the transport's. Nothing here waits for the peer to read: while it does not, events stay with
their streams, where tokens coalesce and credit bounds them, and control frames are read and acted on all the
same.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, MutableMapping
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from msgspec import Struct
from starlette.websockets import WebSocket, WebSocketDisconnect

from midstream import protocol
from midstream.protocol import MAX_MILLISECONDS, MAX_TRACEPARENT, SUBPROTOCOLS, CloseCode, Event
from realtime.codec import Codec
from realtime.hub.frame_tokenizing import text_length
from realtime.hub.hub import Hub
from realtime.hub.long_texts import told
from realtime.hub.observers import Caller, DisconnectCause, Observer
from realtime.hub.slices import Slices
from realtime.refusal import Refusal
from realtime.stream.pending_commands import Reply
from realtime.stream.stream import Stream
from realtime.transport.asgi_websocket_extension import PEER
from realtime.transport.plain_asgi_peer import PlainAsgiPeer
from realtime.websocket.cause_by_close_code import cause_of, refusal_code
from realtime.websocket.read_acks import ReadAcks, ReadPosition
from realtime.work_budget import TURN_S, steering_s
from realtime.work_ledger import PayerWork

log = logging.getLogger(__name__)

# Errors and pongs may wait, so many or so many bytes of them, for a peer that sends and does not read.
UNREAD_REPLY_LIMIT, UNREAD_REPLY_BYTES = 1_000, 1 << 20
TAKEN_AT_ONCE = 256  # messages; others have their turn before more
# Bytes, behind which it is seen whether the peer takes them: nobody counts what is written and has not left.
WRITTEN_AT_ONCE = 64 << 10
READ_A_TURN = 128  # streams that a peer is known to have read on: of a thousand, 30 ms
STEERS_ENGINE = (
    protocol.Start
    | protocol.Pause
    | protocol.Resume
    | protocol.Adjust
    | protocol.Inject
    | protocol.ToolResult
    | protocol.Approve
    | protocol.Amend
    | protocol.Rewind
)
COMES = protocol.Start | protocol.Attach  # what a stream comes to its connection by


class ConnectionLimits(Struct, frozen=True):
    """What a connection may ask for; `ready` tells the client."""

    max_message_bytes: int
    streams_per_connection: int
    auto_credit_window: int
    ack_every: int
    max_grace_ms: int = MAX_MILLISECONDS
    max_timeout_ms: int = MAX_MILLISECONDS


class Peer(Protocol):
    on_pong: Any
    on_writable: Any
    gives_utf8: bool

    @property
    def writable(self) -> bool: ...
    def write(self, messages: list[bytes], *, text: bool, ping: bytes | None = None) -> None: ...
    def hold_nothing(self) -> None: ...
    def paid_by(self, work: PayerWork) -> None: ...


async def serve(
    websocket: WebSocket,
    hub: Hub,
    caller: Caller,
    work: PayerWork,
    limits: ConnectionLimits,
    open_connections: dict[str, Connection],
    observer: Observer,
) -> None:
    """The whole life of one connection, which is in `open_connections` for as long as it lasts."""
    subprotocol = next((known for known in SUBPROTOCOLS if known in websocket.scope["subprotocols"]), None)
    await websocket.accept(subprotocol)
    codec = Codec(subprotocol)
    peer: Peer = websocket.scope.get("extensions", {}).get(PEER) or PlainAsgiPeer(websocket, text=codec.text)
    connection = Connection(websocket, peer, hub, codec, caller, work, limits, open_connections, observer)
    open_connections[connection.session_id] = connection
    try:
        connection.greet()
        await connection.read()
    finally:
        del open_connections[connection.session_id]
        connection.leave()
        if isinstance(peer, PlainAsgiPeer):
            peer.stop()


class Connection:
    def __init__(
        self,
        websocket: WebSocket,
        peer: Peer,
        hub: Hub,
        codec: Codec,
        caller: Caller,
        work: PayerWork,
        limits: ConnectionLimits,
        open_connections: dict[str, Connection],
        observer: Observer,
    ) -> None:
        self.gone = False
        self.memory = hub.accounts.of_listener(caller.tenant)
        self.takes_over = True
        self.caller = caller
        self._cause: DisconnectCause = "lost"  # of its end, if nobody says another
        self.session_id = secrets.token_hex(16)
        trace = websocket.headers.get("traceparent", "")
        self._traceparent = trace if 0 < len(trace) <= MAX_TRACEPARENT else None
        self._websocket = websocket
        self._peer = peer
        self._hub = hub
        self._codec = codec
        self._limits = limits
        self._open_connections = open_connections
        self._observer = observer
        self._read_acks = ReadAcks(limits.ack_every)
        next_turn = self._in_a_turn_of_its_own
        self._read = Slices[ReadPosition](self._acknowledge, most=READ_A_TURN, next_turn=next_turn)
        self._live: set[Stream] = set()
        # By request_id, how often asked for, while their text is tokenized, or they are looked for.
        self._coming = Counter[str]()
        self._handed_over = set[str]()  # request_ids: nothing about these is answered here any more
        self._woken: dict[Stream, None] = {}
        self._replies = deque[bytes]()  # what belongs to no stream's history
        self._reply_bytes = 0
        self._taken: list[bytes] = []  # from streams, and written as soon as all that come together are
        self._taken_bytes = 0
        self._next_piece: asyncio.Handle | None = None  # of what waits, when others had their turn
        self._all_said: asyncio.Event | None = None  # where somebody waits for that
        self._work = work
        self.pay = work.pay
        self.owe = work.owe
        self.payer = work
        peer.paid_by(work)
        peer.gives_utf8 = True
        peer.on_pong = self._receive_pong
        peer.on_writable = self._write_more

    # -- from the peer ---------------------------------------------------------------------------

    def greet(self) -> None:
        catalog, model = self._hub.serving.catalog, self._hub.models.default
        self._send(
            protocol.Ready(
                protocol=protocol.VERSION,
                session_id=self.session_id,
                models=[known.name for known in catalog],
                catalog=catalog,
                limits={name: getattr(self._limits, name) for name in self._limits.__struct_fields__}
                | ({} if model is None else {"context": model.context}),
                fingerprint=None if model is None else model.fingerprint,
                exact=model is not None and model.exact,
                weights=None if model is None else model.weights,
            )
        )

    async def read(self) -> None:
        while True:
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                by_peer = message.get("by_peer", False)
                self._cause = cause_of(message.get("code"), message.get("reason"), by_peer=by_peer)
                if self._cause == "refused":
                    self._observer.refused(refusal_code(message.get("code")), self.caller)
                return
            await self._work.do(partial(self._take, message))  # one that left reads on until it is closed
            if len(self._replies) > UNREAD_REPLY_LIMIT or self._reply_bytes > UNREAD_REPLY_BYTES:
                self._cause = "refused"
                self._observer.refused(refusal_code(CloseCode.POLICY), self.caller)
                await self._close(CloseCode.POLICY, "you send, and read none of the answers")
                return

    def _take(self, message: MutableMapping[str, Any]) -> None:
        """What it says is taken out, since it may be large, and is not to wait while it is paid for. Until
        now it has waited as it came: as characters it may take four times as much."""
        text, data = message.pop("text", None), message.pop("bytes", None)
        if (utf8 := message.pop("utf8", None)) is not None:
            text = utf8.decode()
        if self.gone:
            return  # another stands in for it: what it says now has been said there
        frame = self._receive(data if text is None else text)
        if isinstance(frame, STEERS_ENGINE):
            self.owe(steering_s(text_length(frame)))

    async def until_all_is_said(self) -> None:
        """And has left: a peer may be slower than the streams that ended for it. To one that is gone nothing
        is said."""
        self._peer.hold_nothing()
        self._all_said = asyncio.Event()
        self._note_if_all_is_said()
        await self._all_said.wait()

    async def close_for_good(self) -> None:
        """The server goes away: everything has been said."""
        await self._close(CloseCode.DRAINING, "the server is going away")

    def leave(self) -> None:
        if not self.gone:
            self.gone = True
            self._hub.detach(self, self._cause)
            # It and its peer know each other until garbage is looked for: nothing large must wait for that.
            self._live.clear()
            self._coming.clear()
            self._handed_over.clear()
            self._woken.clear()
            self._replies.clear()
            self._taken.clear()
            self._read_acks.forget_all()
            self._read.clear()
            del self._read  # it knows this connection, as do the peer's callbacks
            self._peer.on_pong = self._peer.on_writable = None
            self._note_if_all_is_said()

    def _replace(self, session_id: str) -> None:
        """What this client said on its old connection, and was not read yet, must not be heard any more."""
        other = self._open_connections.get(session_id)
        if other is not None and other is not self and other.caller.tenant == self.caller.tenant:
            other._cause = "replaced"
            other.leave()
            other.end(CloseCode.TAKEN_OVER, "another connection stands in for this one")

    def end(self, code: int, reason: str) -> None:
        """Close it, and do not wait until that is done."""
        self._ending = asyncio.get_running_loop().create_task(self._close(code, reason))

    async def _close(self, code: int, reason: str) -> None:
        while self._next_piece is not None and not self.gone:  # noqa: ASYNC110 - each turn writes a piece
            await asyncio.sleep(0)
        # It is closed already: starlette makes its own exception of the transport's.
        with suppress(RuntimeError, ConnectionError, WebSocketDisconnect):
            await self._websocket.close(code, reason)

    def _receive(self, data: bytes | str) -> protocol.ClientFrame | None:
        try:
            if isinstance(data, str) != self._codec.text:
                kind = "text" if self._codec.text else "binary"
                raise Refusal(
                    "invalid_frame", f"This connection speaks {self._codec.name}: send {kind} messages."
                )
            frame = self._codec.decode(data)
            self._check_stream_limit(frame)
        except Refusal as refusal:
            self._observer.refused(refusal.code, self.caller)
            self._send(refusal.event(*self._codec.ids_of(data)))
            return None
        match frame:
            case protocol.Ping():
                self._send(protocol.Pong(ref=frame.ref))
            case protocol.Replace(session_id=session_id):
                self._replace(session_id)
            case _:
                if isinstance(frame, protocol.Start):
                    frame.traceparent = frame.traceparent or self._traceparent
                if isinstance(frame, COMES):
                    self._coming[frame.request_id] += 1
                self._hub.receive_frame(self.caller.tenant, frame, self)
        return frame

    def _check_stream_limit(self, frame: protocol.ClientFrame) -> None:
        most = self._limits.streams_per_connection
        if not isinstance(frame, COMES):
            return
        if len(self._live) + len(self._coming.keys() - {frame.request_id}) < most:
            return
        if all(stream.request_id != frame.request_id for stream in self._live):
            raise Refusal(
                "too_many_streams",
                f"This connection's limit of {most} streams is reached.",
                retry_after_ms=1000,
            )

    def _receive_pong(self, payload: bytes) -> None:
        if self.gone:
            return
        self._read.add(self._read_acks.receive_pong(payload))

    def _acknowledge(self, some: Iterable[ReadPosition]) -> None:
        """Of streams that are still read here."""
        for read in some:
            if self._hub.listener_of(read.stream) is self:
                self._hub.acknowledge(read.stream, read.index, read.seq)
        self._hub.flush()

    def _in_a_turn_of_its_own(self, work: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(self._do, work)

    def _do(self, work: Callable[[], None]) -> None:
        began_s = time.thread_time()
        work()
        self.owe(time.thread_time() - began_s)

    # -- to the peer -----------------------------------------------------------------------------

    def wake(self, stream: Stream) -> None:
        """Whoever keeps up has a token an event, of however many steps that come in one write."""
        self._live.add(stream)
        if self._coming:  # also what is there already is asked for again
            del self._coming[stream.request_id]
        if self._takes_more() if self._taken else self._takes():
            try:
                self._take_events(stream)
            except Exception as error:  # noqa: BLE001 - as in `flush`
                self._fail(error)
        else:
            self._woken[stream] = None

    @property
    def may_go(self) -> bool:
        """Whether each of its streams goes on at another gateway, if its client does."""
        return all(stream.may_be_left for stream in self._live)

    def forget(self, stream: Stream) -> None:
        self._leave_out(stream)
        self._handed_over.add(stream.request_id)

    def _leave_out(self, stream: Stream) -> None:
        self._live.discard(stream)
        self._woken.pop(stream, None)
        self._read_acks.forget(stream)

    def lose(self, stream: Stream) -> None:
        self._leave_out(stream)
        taken = Refusal("request_taken", f'Request "{stream.request_id}" is another connection\'s now.')
        self._send(taken.event(stream.request_id))

    def send_reply(self, event: Reply) -> None:
        self._send(event)

    def send_refusal(self, refusal: Refusal, frame: protocol.StreamFrame) -> None:
        if isinstance(frame, COMES):
            self._coming[frame.request_id] -= 1
            if self._coming[frame.request_id] <= 0:
                del self._coming[frame.request_id]
        if frame.request_id not in self._handed_over:  # else it is said again where that goes on
            self._send(refusal.event(frame.request_id, frame.ref))

    def send_event(self, event: Event) -> None:
        """Something that concerns the connection as a whole."""
        self._send(event)

    def flush(self) -> None:
        """A mistake of ours ends the connection that it shows in: others are told theirs in the same turn."""
        try:
            self._flush()
        except Exception as error:  # noqa: BLE001 - what it says may quote the text: only its kind is logged
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        log.error("a connection failed in the gateway: %s in %s", *told(error))
        self._cause = "failed"
        self.leave()
        self.end(CloseCode.INTERNAL, "the server failed to say what is next")

    def _takes(self) -> bool:
        """Whether the peer is ready for more, where nothing was taken: it was ready for that."""
        return self._next_piece is None and not self.gone and self._peer.writable

    def _takes_more(self) -> bool:
        """In one write, where something was taken."""
        return len(self._taken) < TAKEN_AT_ONCE and self._taken_bytes < WRITTEN_AT_ONCE

    def _flush(self) -> None:
        """Give the peer all that it is ready for, in one write; where that is much, in several, and others
        have their turn in between."""
        if not (self._taken or self._takes()):
            return
        replies = self._next_replies()
        until_s = 0.0
        while self._woken and not self._replies and self._taken_bytes < WRITTEN_AT_ONCE:
            stream = next(iter(self._woken))
            del self._woken[stream]
            self._take_events(stream)
            if self._woken:
                now_s = time.monotonic()
                until_s = until_s or now_s + TURN_S
                if now_s >= until_s:
                    break
        messages, self._taken, self._taken_bytes = replies + self._taken, [], 0
        if messages:
            self._peer.write(messages, text=self._codec.text, ping=self._read_acks.due())
        if self._woken or self._replies:
            self._next_piece = asyncio.get_running_loop().call_soon(self._write_next_piece)

    def _next_replies(self) -> list[bytes]:
        """As many as are written at once."""
        replies, size = list[bytes](), 0
        while self._replies and size < WRITTEN_AT_ONCE:
            replies.append(self._replies.popleft())
            size += len(replies[-1])
        self._reply_bytes -= size
        return replies

    def _write_next_piece(self) -> None:
        self._next_piece = None
        self._write_more()

    def _write_more(self) -> None:
        """It is ready for more, and no news are being told that engines would hear of anyway."""
        self.flush()
        self._hub.flush()
        self._note_if_all_is_said()

    def _note_if_all_is_said(self) -> None:
        waits = bool(self._woken or self._replies)
        if self._all_said is not None and (self.gone or (self._peer.writable and not waits)):
            self._all_said.set()

    def _take_events(self, stream: Stream) -> None:
        tokens, encode, taken = 0, self._codec.encode, self._taken
        for event in self._hub.take_events(stream):
            if isinstance(event, protocol.Token):
                tokens += event.count
            elif isinstance(event, protocol.Attached):
                self._read_acks.ask(stream)
            taken.append(encode(event))
            self._taken_bytes += len(taken[-1])
        if tokens:
            self._read_acks.sent(stream, tokens)
        if stream.final is not None:
            self._live.discard(stream)
            if stream.all_delivered:
                self._read_acks.forget(stream)

    def _send(self, event: Event) -> None:
        if self.gone:
            return
        self._replies.append(self._codec.encode(event))
        self._reply_bytes += len(self._replies[-1])
        self.flush()
