"""One WebSocket connection: a protocol class for uvicorn that runs an ASGI app, and hands it a
`WebSocketPeer`.

It knows sockets, timers and the WebSocket protocol, the rules of which are those of the sans-IO core of
`websockets`. It knows nothing of what the messages say. Reading never waits for writing, writing never for
reading, and nothing that a client sent is logged: requests carry keys.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from uvicorn.config import Config
from uvicorn.protocols.utils import get_local_addr, is_ssl
from uvicorn.server import ServerState
from websockets.exceptions import InvalidMessage
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.server import ServerProtocol

from realtime.token_bucket import TokenBucket
from realtime.transport.asgi_websocket_extension import (
    KEEPALIVE,
    PEER,
    TOOK_NOTHING,
    UNANSWERED,
    PeerGone,
    WebSocketPeer,
)
from realtime.transport.awaited_connections import AwaitedConnections, network_of, peer_of
from realtime.transport.flow_control import ReceiveQueue, SendBuffer, cut_off, end_output
from realtime.transport.held_messages import HeldMessages
from realtime.transport.keepalive import Keepalive
from realtime.transport.small_reads import SmallReads, new_buffer
from realtime.transport.websocket_framing import (
    DataMessage,
    MessageAssembly,
    ProtocolViolation,
    data_frames,
    is_pong,
    ping_frame,
)
from realtime.transport.websocket_handshake import (
    Denial,
    Message,
    complete_acceptance,
    plain_response,
    request_scope,
)
from realtime.work_ledger import PayerWork, WorkLedger

OPEN = State.OPEN  # looked up with every write, which an enumeration makes dear

logger = logging.getLogger("uvicorn.error")

# The core tells of every connection at INFO, and at DEBUG of every header and frame.
_core_logger = logging.getLogger("midstream.transport")
_core_logger.setLevel(logging.WARNING)


@dataclass(frozen=True)
class WebSocketLimits:
    """What one connection may take of the server, beside uvicorn's own `ws_*` settings."""

    send_timeout_s: float = 20.0  # how long a peer may take nothing of what waits for it
    close_timeout_s: float = 10.0  # how long a closing handshake, or the flushing of the last bytes, may take
    max_fragments: int = 1024
    max_unread_bytes: int = 1 << 20
    high_water_bytes: int = 64 * 1024
    pings_per_s: float = 100.0  # beyond this and a burst, no reason to ping is left but to do harm
    pings_burst: float = 1000.0
    most_held: int = 32  # messages of the largest size that a payer has us hold, on whatever connections
    most_ignored: float = 16 * 1024.0  # frames behind a close, and KiB
    closing_limit: int = 2048  # connections that have yet to end, refused upgrades among them
    closing_limit_per_address: int = 1536


def _ignore(status: int, address: str) -> None:
    pass


def protocol_class(
    limits: WebSocketLimits,
    refused: Callable[[int, str], None] = _ignore,
    ledger: WorkLedger | None = None,
) -> type[asyncio.Protocol]:
    """What to give to `uvicorn.Config(ws=...)`: uvicorn makes the connections itself, and knows no limits.

    The connections of one class share a buffer, so they belong to one event loop, and those that are closing
    count together. `refused` is told the status and the peer's address of whatever is no opening handshake,
    of which the app hears nothing. An address pays into the `ledger` for what it sends, until the app says
    who else does.
    """
    closing = AwaitedConnections(
        timeout_s=limits.close_timeout_s,
        limit=limits.closing_limit,
        limit_per_address=limits.closing_limit_per_address,
    )
    own = {
        "limits": limits,
        "closing": closing,
        "held": HeldMessages(),
        "ledger": WorkLedger() if ledger is None else ledger,
        "refused": staticmethod(refused),
        "buffer": new_buffer(),
    }
    made = type(WebSocketProtocol.__name__, (WebSocketProtocol,), own)
    return cast(type[asyncio.Protocol], made)  # uvicorn's word for either kind of asyncio's protocols


class WebSocketProtocol(SmallReads):
    limits: ClassVar[WebSocketLimits]
    closing: ClassVar[AwaitedConnections]
    held: ClassVar[HeldMessages]
    ledger: ClassVar[WorkLedger]
    refused: Callable[[int, str], None]

    received_messages: ReceiveQueue
    send_buffer: SendBuffer

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._config = config
        self._server_state = server_state
        self._app_state = app_state
        self._core = ServerProtocol(max_size=config.ws_max_size, logger=_core_logger)
        self._assembly = MessageAssembly(self.limits.max_fragments)
        self._peer: WebSocketPeer | None = None  # as long as the app runs: it knows this connection
        self._keepalive = Keepalive(
            interval_s=config.ws_ping_interval,
            timeout_s=config.ws_ping_timeout,
            ping=self._send_keepalive,
            dead=lambda: self._fail(CloseCode.INTERNAL_ERROR, UNANSWERED),
            listening=lambda: self.received_messages.reading,
        )
        self._acceptance: Response | None = None
        self._denial: Denial | None = None
        self._late_pong: bytes | None = None
        self._ignored = 0.0
        self._held_bytes = 0  # as they are counted

    # -- what the transport tells ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        client = peer_of(self.transport)
        self._host = client[0] if client else ""
        self.address = network_of(self._host)
        self.work = self.ledger.of(self.address)
        self.received_messages = self.reading = ReceiveQueue(
            self.transport,
            max_messages=self._config.ws_max_queue,
            max_bytes=self.limits.max_unread_bytes,
        )
        self.send_buffer = SendBuffer(
            self.transport,
            high_water_bytes=self.limits.high_water_bytes,
            timeout_s=self.limits.send_timeout_s,
        )
        now = asyncio.get_running_loop().time()
        self._ping_rate = TokenBucket(rate=self.limits.pings_per_s, burst=self.limits.pings_burst, now=now)
        # uvicorn keeps a set of its own protocol classes, and asks of them no more than `shutdown`.
        self._server_state.connections.add(self)  # type: ignore[arg-type]

    def data_received(self, data: bytes) -> None:
        if self._acceptance is not None and self._connecting:
            # RFC 6455, 4.1: a client must wait for the answer before it sends anything.
            self.transport.abort()
            return
        self._keepalive.heard()
        ended = self._core.eof_sent
        self._core.receive_data(data)
        if isinstance(self._core.handshake_exc, InvalidMessage) and not ended:
            # The core just hangs up on a request that it cannot read, such as one with a body.
            self.send_buffer.write(plain_response(400, "not a websocket request\n").serialize())
        if self._core.handshake_exc is not None and not ended:
            self.refused(400, self._host)
        self._send_pending()
        events = self._core.events_received()
        if self.received_messages.ended:
            self._ignore(len(events) + len(data) / 1024)
        for event in events:
            self._receive_event(event)
        if self._core.parser_exc is not None:
            self._end_received_as_failed()
        self._count_held()
        if self._held_bytes and self.held.of(self.work) > self.limits.most_held * self._max_message_bytes:
            self._fail(CloseCode.TRY_AGAIN_LATER, "too much of what you send is under way")
            self._count_held()

    def eof_received(self) -> None:
        self._core.receive_eof()
        self._end_received_as_failed()
        self._begin_closing()  # the transport closes itself, once what waits in it has left

    def connection_lost(self, exc: Exception | None) -> None:
        self._server_state.connections.discard(self)
        self.forget_reads()
        self._core.receive_eof()  # which has nothing left then of what was not whole
        self._end_received(CloseCode.ABNORMAL_CLOSURE, TOOK_NOTHING if self.send_buffer.gave_up else "")
        self._stop_timers()
        self.closing.remove(self)
        self._count_held()

    def pause_writing(self) -> None:
        self.send_buffer.pause()

    def resume_writing(self) -> None:
        self.send_buffer.resume()
        if self._late_pong is not None:
            late, self._late_pong = self._late_pong, None
            self.write(late)
        if self._peer is not None and self._peer.on_writable is not None and self.send_buffer.writable:
            self._peer.on_writable()

    def shutdown(self) -> None:
        """uvicorn is stopping: say so, and let the closing handshake take its course."""
        if self._connecting:
            self._send_response(plain_response(503, "the server is shutting down\n"))
            self._end_received(CloseCode.ABNORMAL_CLOSURE)
        else:
            self._close(CloseCode.SERVICE_RESTART)

    # -- what the peer sends -----------------------------------------------------------------------

    def _ignore(self, amount: float) -> None:
        self._ignored += amount
        if self._ignored > self.limits.most_ignored:
            self.abort()

    def _receive_event(self, event: Request | Response | Frame) -> None:
        if isinstance(event, Request):
            self._receive_request(event)
        elif isinstance(event, Frame):
            if not self.received_messages.ended:
                self._receive_frame(event)
            event.data = b""  # it is taken; and the core knows its last frame until the next has come

    def _receive_request(self, request: Request) -> None:
        response = self._core.accept(request)
        if not request.path.startswith("/"):  # of which the app could say nothing
            response = plain_response(400, "a websocket is asked for by a path\n")
        if response.status_code != 101:
            self.refused(response.status_code, self._host)
            self._send_response(response)
            return
        self._acceptance = response
        self.received_messages.put({"type": "websocket.connect"}, 0)
        task = asyncio.get_running_loop().create_task(self._run_app(self._scope(request)))
        self._server_state.tasks.add(task)
        task.add_done_callback(self._server_state.tasks.discard)

    def _receive_frame(self, frame: Frame) -> None:
        if frame.opcode is Opcode.PONG:
            self._receive_pong(bytes(frame.data))
        elif frame.opcode is Opcode.CLOSE:
            assert self._core.close_rcvd is not None
            self._end_received(self._core.close_rcvd.code, self._core.close_rcvd.reason, by_peer=True)
        elif frame.opcode is Opcode.PING:
            self._receive_ping()
        else:
            self._receive_data(frame)

    def _receive_ping(self) -> None:
        """The core has answered it already."""
        if self._ping_rate.spend(1, asyncio.get_running_loop().time()):
            self._fail(CloseCode.POLICY_VIOLATION, "too many pings")

    def _receive_data(self, frame: Frame) -> None:
        try:
            message = self._assembly.add(frame)
        except ProtocolViolation as violation:
            self._fail(violation.code, violation.reason)
            return
        if message is not None:
            self.received_messages.put(message, len(message.data))

    def _receive_pong(self, payload: bytes) -> None:
        if self._peer is not None and self._peer.on_pong is not None and not payload.startswith(KEEPALIVE):
            self._peer.on_pong(payload)

    # -- what the app does -------------------------------------------------------------------------

    def _scope(self, request: Request) -> dict[str, Any]:
        self._peer = WebSocketPeer(self)
        return request_scope(request, root_path=self._config.root_path) | {
            "asgi": {"version": self._config.asgi_version, "spec_version": "2.4"},
            "scheme": "wss" if is_ssl(self.transport) else "ws",
            "server": get_local_addr(self.transport),
            "client": peer_of(self.transport),
            "state": self._app_state.copy(),
            "extensions": {"websocket.http.response": {}, PEER: self._peer},
        }

    async def _run_app(self, scope: dict[str, Any]) -> None:
        code = CloseCode.INTERNAL_ERROR
        try:
            await cast(Any, self._config.loaded_app)(scope, self._give_to_app, self._receive_from_app)
            code = CloseCode.NORMAL_CLOSURE
        except PeerGone:
            pass  # the app had more to say to nobody, and need not guard against that
        except Exception:
            logger.exception("Exception in ASGI application")
        finally:
            self._app_done(code)

    def _app_done(self, code: CloseCode) -> None:
        if self._connecting:
            self._send_response(plain_response(500, "Internal Server Error\n"))
        self._close(code)
        self._peer = None
        self.received_messages.forget()
        self._count_held()

    @property
    def _max_message_bytes(self) -> int:
        return self._config.ws_max_size

    def _count_held(self) -> None:
        size = len(self._core.reader.buffer) + self._assembly.bytes + self.received_messages.waiting_bytes
        self._held_bytes = self.held.count(self.work, self._held_bytes, size)

    async def _give_to_app(self) -> Message:
        message = await self.received_messages.get()
        if self._held_bytes:
            self._count_held()
        match message:
            case DataMessage(data, text=True) if self._peer is not None and self._peer.gives_utf8:
                return {"type": "websocket.receive", "utf8": data}
            case DataMessage(data, text=True):
                return {"type": "websocket.receive", "text": data.decode()}
            case DataMessage(data):
                return {"type": "websocket.receive", "bytes": data}
            case message:
                return message

    async def _receive_from_app(self, message: Message) -> None:
        if self._connecting:
            self._receive_handshake_answer(message)
        elif message["type"] == "websocket.send":
            await self.drain()
            self._send_message(message)
        elif message["type"] == "websocket.close":
            self._require_open()
            self._close(message.get("code", CloseCode.NORMAL_CLOSURE), message.get("reason") or "")
        else:
            self._require_open()
            raise RuntimeError(f"an accepted websocket does not take {message['type']!r}")

    def _send_message(self, message: Message) -> None:
        data = message.get("bytes")
        text = data is None
        self.write(data_frames([message["text"].encode() if data is None else data], text=text))

    def _receive_handshake_answer(self, message: Message) -> None:
        match message["type"]:
            case "websocket.accept" if self._denial is None:
                self._accept(message)
            case "websocket.close" if self._denial is None:
                self._deny(plain_response(403, ""))
            case "websocket.http.response.start" if self._denial is None:
                self._denial = Denial(message, self._server_state.default_headers)
            case "websocket.http.response.body" if self._denial is not None:
                if (response := self._denial.add(message)) is not None:
                    self._deny(response)
            case unexpected:
                raise RuntimeError(f"a websocket that is not accepted yet does not take {unexpected!r} here")

    def _accept(self, message: Message) -> None:
        assert self._acceptance is not None
        complete_acceptance(self._acceptance, message, self._server_state.default_headers)
        self._send_response(self._acceptance)
        self._keepalive.start()

    def _deny(self, response: Response) -> None:
        self._send_response(response)
        self._end_received(CloseCode.ABNORMAL_CLOSURE)

    # -- writing -----------------------------------------------------------------------------------

    def write(self, frames: bytes) -> None:
        if self._core.state is OPEN:
            self.send_buffer.write(frames)
        elif self._connecting:
            raise RuntimeError("nothing can be sent before the websocket is accepted")

    def abort(self) -> None:
        cut_off(self.transport)

    def paid_by(self, work: PayerWork) -> None:
        self._held_bytes = self.held.count(self.work, self._held_bytes, 0)
        self.work = work
        self._count_held()

    async def drain(self) -> None:
        await self.send_buffer.released()
        self._require_open()

    def _require_open(self) -> None:
        if self._core.state is not State.OPEN:
            raise PeerGone("the websocket is closed")

    @property
    def _connecting(self) -> bool:
        return self._core.state is State.CONNECTING and not self._core.eof_sent

    def _send_response(self, response: Response) -> None:
        self._core.send_response(response)
        self._send_pending()

    def _send_keepalive(self) -> None:
        self.write(ping_frame(KEEPALIVE + os.urandom(4)))

    def _send_pending(self) -> None:
        """Send what the core wants sent: answers to pings and to the peer's close, our own close, the end."""
        waiting: list[bytes] = []
        for data in self._core.data_to_send():
            if not data:
                self._send_all(waiting)
                self._end_output()
            elif is_pong(data) and not self.send_buffer.writable:
                # A peer that pings and takes no answer would fill our memory with answers. RFC 6455, 5.5.3:
                # only the latest ping needs one.
                self._late_pong = data
            else:
                waiting.append(data)
        self._send_all(waiting)

    def _send_all(self, waiting: list[bytes]) -> None:
        if waiting:
            self.send_buffer.write(b"".join(waiting))
            waiting.clear()

    # -- the end -----------------------------------------------------------------------------------

    def _close(self, code: int, reason: str = "") -> None:
        """Begin the closing handshake, if it has not begun yet."""
        if self._core.state is State.OPEN:
            self._core.send_close(code, reason)
            self._send_pending()
            self._end_received(code, reason)
            self._begin_closing()

    def _fail(self, code: int, reason: str) -> None:
        """RFC 6455, 7.1.7: tell the peer why, and take no more from it."""
        self._core.fail(code, reason)
        self._send_pending()
        self._end_received(code, reason)

    def _end_received(self, code: int, reason: str = "", *, by_peer: bool = False) -> None:
        """What is not whole never will be, and this connection may be known for minutes yet, until garbage is
        looked for."""
        self.received_messages.end(code, reason, by_peer=by_peer)
        self._assembly.forget()
        for error in (self._core.parser_exc, self._core.handshake_exc):
            _forget_where(error)

    def _end_received_as_failed(self) -> None:
        failure = self._core.close_sent
        if failure is None:
            self._end_received(CloseCode.ABNORMAL_CLOSURE)
        else:
            self._end_received(failure.code, failure.reason)

    def _end_output(self) -> None:
        self._begin_closing()
        if self._core.close_rcvd is not None or not self.transport.can_write_eof():
            self.transport.close()
        else:
            # Closing with the peer's bytes unread would reset the connection, and our last words might be
            # lost with it: so end our half only, and throw away what comes until the peer ends its own.
            end_output(self.transport)

    def _begin_closing(self) -> None:
        """The peer has its time to go, unless too many are to."""
        self._stop_timers()
        if self not in self.closing:
            self.closing.add(self)

    def give_up(self) -> None:
        """It has not gone in time, or too many came behind it that are to go."""
        self.abort()

    def _stop_timers(self) -> None:
        self._keepalive.stop()
        self.send_buffer.end()


def _forget_where(error: BaseException | None) -> None:
    """It knows the core that keeps it, and what was read there."""
    while error is not None:
        error = error.with_traceback(None).__cause__
