"""The HTTP protocol class for uvicorn: its own, with timeouts for everything that a peer may do slowly.

It knows how long a request may take to arrive, how long an answer may take to leave, that a peer may vanish
without a word, and how the kernel is to treat such a connection. What requests and answers say is the
business of uvicorn and the app. An upgrade hands the connection on to the WebSocket's protocol class, and
nothing here concerns it any longer; what is refused there is bounded there.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http.client import responses as phrases
from typing import Any, ClassVar, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from realtime.transport.asgi_http_extension import with_cut_off
from realtime.transport.awaited_connections import AwaitedConnections, network_of, peer_of
from realtime.transport.flow_control import SendBuffer, cut_off, end_output
from realtime.transport.http_connections import HttpConnections
from realtime.transport.http_reading import HttpReading
from realtime.transport.request_parser import RequestParser, RequestProblem
from realtime.transport.small_reads import SmallReads, new_buffer
from realtime.transport.small_writes import in_small_writes
from realtime.work_budget import ANSWER_S
from realtime.work_ledger import WorkLedger

# Whoever sends rubbish is told so; it is no news for the log. Failures of the app are.
_logger = logging.getLogger("midstream.http")
_logger.setLevel(logging.ERROR)

_TOO_SLOW = RequestProblem("The head of this request took too long to arrive.", error_status_hint=408)
_TOO_SLOW_BODY = RequestProblem("The body of this request took too long to arrive.", error_status_hint=408)
_NO_TURN = RequestProblem(
    "Your address asks for more than its share of this server's time: send this again later.",
    error_status_hint=429,
)
_NO_ROOM = RequestProblem(
    "There are too many connections, of your address or of all: try again later.", error_status_hint=429
)
_GOING_AWAY = RequestProblem("The server is going away.", error_status_hint=503)

_TCP_OPTIONS = (
    # The peer's kernel answers for it, however busy it is itself: no answer means that its host is gone.
    ("TCP_KEEPIDLE", 15),
    ("TCP_KEEPINTVL", 5),
    ("TCP_KEEPCNT", 3),
    # Our own kernel would take megabytes for a reader that reads nothing, and all of it would be stale.
    ("TCP_NOTSENT_LOWAT", 16 * 1024),
)


@dataclass(frozen=True)
class HttpLimits:
    handshake_timeout_s: float = 5.0  # from the first byte, or the connection, to the whole head of a request
    body_timeout_s: float = 60.0
    body_piece_bytes: int = 8 * 1024  # of a body: so much of it, or the rest, has to come within ...
    body_piece_timeout_s: float = 15.0
    body_limit: int = 512  # connections whose bodies are awaited
    body_limit_per_address: int = 256
    unread_limit: int = 1024  # connections that take nothing of an answer
    unread_limit_per_address: int = 512
    send_timeout_s: float = 20.0  # how long a peer may take nothing of an answer
    close_timeout_s: float = 5.0  # how long the last bytes may take to leave
    pending_limit: int = 1024  # connections that wait for a request, their first or another
    pending_limit_per_address: int = 512
    open_limit: int = 2048  # connections in all, whatever they do
    open_limit_per_address: int = 1536
    high_water_bytes: int = 16 * 1024
    head_bytes: int = 16 * 1024  # of a request
    late_body_bytes: int = 64 * 1024  # of a body that comes behind its answer, as it was sent

    @property
    def unheard_timeout_s(self) -> float:
        """How long sent bytes may stay unacknowledged: more than a reader that is only slow is given."""
        return self.send_timeout_s + 10


def _ignore(status: int, address: str) -> None:
    pass


def protocol_class(
    limits: HttpLimits,
    refused: Callable[[int, str], None] = _ignore,
    ledger: WorkLedger | None = None,
) -> type[TimedHttpProtocol]:
    """What to give to `uvicorn.Config(http=...)`. The connections of one class count together. `refused` is
    told the status and the peer's address of whatever is refused before it is a request. They share a buffer,
    so they belong to one event loop. An address pays into the `ledger` for what it sends."""
    pending = AwaitedConnections(
        timeout_s=limits.handshake_timeout_s,
        limit=limits.pending_limit,
        limit_per_address=limits.pending_limit_per_address,
    )
    indebted = AwaitedConnections(
        timeout_s=None,  # it is we who are awaited
        limit=limits.open_limit,
        limit_per_address=limits.open_limit_per_address,
    )
    bodies = AwaitedConnections(
        timeout_s=limits.body_piece_timeout_s,
        limit=limits.body_limit,
        limit_per_address=limits.body_limit_per_address,
    )
    unread = AwaitedConnections(
        timeout_s=None,  # each has a send buffer, which judges it
        limit=limits.unread_limit,
        limit_per_address=limits.unread_limit_per_address,
    )
    connections = HttpConnections(
        indebted,
        pending,
        bodies,
        unread,
        limit=limits.open_limit,
        limit_per_address=limits.open_limit_per_address,
    )
    own = {
        "limits": limits,
        "indebted": indebted,
        "pending": pending,
        "bodies": bodies,
        "unread": unread,
        "open": connections,
        "ledger": WorkLedger() if ledger is None else ledger,
        "refused": staticmethod(refused),
        "buffer": new_buffer(),
    }
    return type(TimedHttpProtocol.__name__, (TimedHttpProtocol,), own)


class TimedHttpProtocol(H11Protocol, SmallReads):
    limits: ClassVar[HttpLimits]
    indebted: ClassVar[AwaitedConnections]  # whose next request has come, and waits for its turn
    pending: ClassVar[AwaitedConnections]
    bodies: ClassVar[AwaitedConnections]
    unread: ClassVar[AwaitedConnections]  # who take nothing of an answer
    ledger: ClassVar[WorkLedger]
    open: ClassVar[HttpConnections]
    refused: Callable[[int, str], None]

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.logger = _logger
        self.conn: RequestParser = RequestParser(self.limits.head_bytes)
        self._late_bytes = 0
        self._answered = False  # whether an answer ends just now
        self._said = asyncio.Event()  # all of one, or the connection is lost
        self._piece_bytes = 0  # of a body, since it was last looked at
        self._body_timer: asyncio.TimerHandle | None = None
        self._close_timer: asyncio.TimerHandle | None = None

    # -- what the transport tells ----------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # Of the transport, which forgets this connection at its end, as nothing does that knows it itself.
        self.app = with_cut_off(in_small_writes(self.app), partial(cut_off, transport))
        self.client = peer_of(transport)
        self.address = network_of(self.client[0]) if self.client else ""
        self._send_buffer = SendBuffer(
            transport,
            high_water_bytes=self.limits.high_water_bytes,
            timeout_s=self.limits.send_timeout_s,
        )
        self.flow = self.reading = HttpReading(transport)
        self.work = self.ledger.of(self.address)
        set_up(transport.get_extra_info("socket"), self.limits.unheard_timeout_s)
        if not self.open.add(self):
            self.pending.remove(self)
            self._refuse(_NO_ROOM)
            self._close()

    def data_received(self, data: bytes) -> None:
        self.indebted.remove(self)
        if self._body_is_late or self.conn.problem is not None:
            self._late_bytes += len(data)
            if self._late_bytes > self.limits.late_body_bytes:
                self._hear_no_more()
                return
        if self.conn.problem is not None:
            return
        if self._is_kept and not self.conn.trailing_data[0]:
            self.pending.remove(self)  # the time of another request begins with its first byte
        super().data_received(data)
        self._watch(len(data))

    def handle_events(self) -> None:
        """What came behind a request is parsed as if it came now, when that is answered."""
        if self._answered and self.conn.trailing_data[0]:
            self._answered = False
            self._unset_keepalive_if_required()
            self.parse_in_turn(self._handle_waiting)
            return
        cycle = self.cycle
        super().handle_events()
        if self.cycle is not cycle:
            self.work.owe(ANSWER_S)

    def _handle_waiting(self) -> None:
        self.indebted.remove(self)
        self.handle_events()
        self._watch(0)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._said.set()
        self.forget_reads()
        self._leave()
        self._send_buffer.end()
        self._unset_keepalive_if_required()
        if self._close_timer is not None:
            self._close_timer.cancel()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._send_buffer.pause()
        if self not in self.unread:
            self.unread.add(self)

    def resume_writing(self) -> None:
        self.unread.remove(self)
        super().resume_writing()
        self._send_buffer.resume()

    # -- the request -----------------------------------------------------------------------------

    def give_up(self) -> None:
        """What is awaited of it has not come in time, or there are too many of whom that is true."""
        if self.conn.our_state is h11.SEND_BODY and not self._send_buffer.writable:
            cut_off(self.transport)
        elif self._awaits_body:
            if self.conn.our_state is h11.SEND_RESPONSE:
                self._refuse(_TOO_SLOW_BODY)
        elif self.conn.their_state is h11.IDLE and self.conn.problem is None:
            if self.awaits_turn:
                self._refuse(_NO_TURN)
            elif self.conn.trailing_data[0]:
                self._refuse(_TOO_SLOW)
        self._close()

    def send_400_response(self, msg: str) -> None:
        """uvicorn's word for whatever is no request."""
        assert self.conn.problem is not None
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._refuse(self.conn.problem)
        if self.conn.our_state in (h11.SEND_RESPONSE, h11.SEND_BODY):
            self._close()  # the app is told, and says nothing behind this
        else:
            self._hear_no_more()

    def _refuse(self, problem: RequestProblem) -> None:
        status = problem.error_status_hint
        self.refused(status, self.client[0] if self.client else "")
        body = f"{problem}\n".encode()
        head = (
            f"HTTP/1.1 {status} {phrases[status]}\r\nConnection: close\r\n"
            f"Content-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self.transport.write(head.encode() + body)

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._leave()
        self.work.owe(ANSWER_S)
        super().handle_websocket_upgrade(event)
        if behind := self.conn.trailing_data[0]:
            cast(asyncio.Protocol, self.transport.get_protocol()).data_received(behind)

    @property
    def _body_is_late(self) -> bool:
        """Whether a request was answered before it was whole, and nobody awaits the rest of it."""
        return self.conn.our_state is h11.DONE and self.conn.their_state is h11.SEND_BODY

    @property
    def _awaits_body(self) -> bool:
        return self.conn.their_state is h11.SEND_BODY and not self._body_is_late

    def _watch(self, came: int) -> None:
        if self.transport.get_protocol() is not self:
            return  # it is a WebSocket now, and no body is awaited of it
        if not (self.conn.their_state is h11.IDLE or self._body_is_late or self.conn.problem is not None):
            self.pending.remove(self)
        elif self not in self.pending:
            self.pending.add(self)
        self._watch_body(came)

    def _watch_body(self, came: int) -> None:
        if not self._awaits_body:
            self._stop_watching_body()
            return
        self._piece_bytes += came
        if self._body_timer is None:
            self._body_timer = self.loop.call_later(self.limits.body_timeout_s, self.give_up)
        elif self._piece_bytes < self.limits.body_piece_bytes:
            return
        self._piece_bytes = 0
        self.bodies.remove(self)
        self.bodies.add(self)

    def _stop_watching_body(self) -> None:
        self.bodies.remove(self)
        self._piece_bytes = 0
        if self._body_timer is not None:
            self._body_timer.cancel()
            self._body_timer = None

    def _leave(self) -> None:
        """It is no HTTP connection any longer."""
        self.open.remove(self)
        self.reading.release()
        self._stop_watching_body()

    # -- the answer, and the end -----------------------------------------------------------------

    def on_response_complete(self) -> None:
        self._said.set()
        self._late_bytes, self._answered = 0, True
        super().on_response_complete()
        self._answered = False
        if (self._is_kept or self._body_is_late) and not self.transport.is_closing():
            waiting = self.indebted if self.awaits_turn else self.pending
            if self not in waiting:
                waiting.add(self)
        self._bound_closing()

    async def until_answered(self) -> None:
        """What was asked is answered, and all of that has left."""
        if self._owes_answer:
            self._said.clear()
            await self._said.wait()
        self._send_buffer.hold_nothing()
        await self._send_buffer.released()

    @property
    def _owes_answer(self) -> bool:
        """Whether an answer is under way, or to come to a request that is whole: one that is not streamed is
        made when its stream has ended."""
        ours = self.conn.our_state
        return ours is h11.SEND_BODY or (ours is h11.SEND_RESPONSE and self.conn.their_state is h11.DONE)

    @property
    def _is_kept(self) -> bool:
        """Whether it waits for another request, behind one that was answered."""
        return self.conn.their_state is h11.IDLE and self.cycle is not None

    def timeout_keep_alive_handler(self) -> None:
        self._close()

    def shutdown(self) -> None:
        """uvicorn is stopping: what is being answered is waited for, and what is still to be asked is not."""
        if self._awaits_body and self.conn.our_state is h11.SEND_RESPONSE:
            self._refuse(_GOING_AWAY)
            self._close()
        else:
            super().shutdown()
            self._bound_closing()

    def _close(self) -> None:
        self.transport.close()
        self._bound_closing()

    def _bound_closing(self) -> None:
        """A peer that reads nothing would keep its last bytes, and with them the connection, for ever."""
        if self.transport.is_closing():
            self._bound_end()

    def _hear_no_more(self) -> None:
        """Closing with the peer's bytes unread would reset the connection, and the answer might be lost with
        it: so end our half only, and throw away unparsed what comes until the peer ends its own."""
        if self.transport.can_write_eof():
            end_output(self.transport)
        else:
            self.transport.close()
        self._bound_end()

    def _bound_end(self) -> None:
        if self._close_timer is None:
            self._close_timer = self.loop.call_later(self.limits.close_timeout_s, cut_off, self.transport)


def set_up(sock: socket.socket, unheard_timeout_s: float) -> None:
    """Have the kernel notice a host that is gone, and buffer little. An option that it lacks is left out, and
    so is one that it does not take, as in a sandbox, or of a peer that has gone already."""
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    user_timeout = ("TCP_USER_TIMEOUT", int(unheard_timeout_s * 1000))
    tcp = [(socket.IPPROTO_TCP, name, value) for name, value in (*_TCP_OPTIONS, user_timeout)]
    for level, name, value in [(socket.SOL_SOCKET, "SO_KEEPALIVE", 1), *tcp]:
        with suppress(OSError, AttributeError):
            sock.setsockopt(level, getattr(socket, name), value)
