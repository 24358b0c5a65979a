"""An engine on a socket: its model is loaded once, and it computes for one gateway after the other.

What goes through the socket is what goes through a pipe, behind a `Join` with the shared token. When a
gateway goes its streams go with it, and the next one hears `Hello` when nothing is left of them. This knows
connections and bytes, and of commands only which streams they begin.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import socket
import ssl
import threading
from collections.abc import Callable

import msgspec

from engine import api

log = logging.getLogger("engine")

JOIN_S = 5.0  # within which whoever connects says who it is
LARGEST_JOIN = 4096
QUEUE = 16  # steps' news on their way between the threads
LEAVE_S = 2.0  # for a gateway to take in that the engine ends
# A gateway whose machine is gone says nothing any more: after so many seconds, and so many questions. Nobody
# is asked while something is on its way to them, which may be for so long then.
IDLE_S, BETWEEN_S, QUESTIONS = 5, 2, 3
UNTAKEN_S = IDLE_S + BETWEEN_S * QUESTIONS


class Listener:
    """For one engine, in a thread of its own. `send` gives that commands, from any thread. Without a token
    whoever can connect may join."""

    def __init__(
        self,
        listening: socket.socket,
        token: str,
        hello: api.Hello,
        send: Callable[[list[api.AnyCommand]], None],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.token = token
        self.hello = api.encoded(hello)
        self.send = send
        self.streams = set[int]()  # that the engine knows, of whichever gateway
        self.connections = set[Gateway]()
        self._listening = listening
        self._tls = tls
        self._gateway: Gateway | None = None
        self._ending = False  # soon: no gateway is waited for
        self._leaving = False
        self._left = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="listener", daemon=True)
        self._thread.start()

    def emit(self, output: api.StepOutput) -> None:
        """A step's news, from the engine's thread, which waits while the gateway takes nothing."""
        gateway = self._gateway
        hears = gateway is not None and gateway.joined  # before the last of its streams is gone, or another's
        self.streams.difference_update(
            news.stream for news in output.news if news.finish is not None and not news.finish.held
        )
        if gateway is not None and hears:
            if not self._ending:
                gateway.writable.wait()
            gateway.queue.acquire()
            self._loop.call_soon_threadsafe(gateway.tell, api.encoded(output))
        if not self.streams:
            self._loop.call_soon_threadsafe(self._welcome)

    def end_soon(self) -> None:
        """From any thread, or a signal's handler: the engine is told to end, and waits for nobody who takes
        nothing."""
        self._ending = True
        if (gateway := self._gateway) is not None:
            gateway.writable.set()

    def leave(self) -> None:
        """The engine ends, and nobody is to blame for it: so the gateway hears, if it listens."""
        self._loop.call_soon_threadsafe(self._leave)
        self._thread.join(LEAVE_S)

    # -- in the listener's thread ------------------------------------------------------------------

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        server = await self._loop.create_server(
            lambda: Gateway(self),
            sock=self._listening,
            ssl=self._tls,
            ssl_handshake_timeout=JOIN_S if self._tls else None,
        )
        await self._left.wait()
        server.close()
        for connection in list(self.connections):
            connection.abort()
        await asyncio.sleep(0)  # in which they hear of it

    def admit(self, gateway: Gateway) -> bool:
        """Whether it is the one that is computed for."""
        if self._gateway is not None:
            return False
        self._gateway = gateway
        log.info("a gateway has joined")
        if not self.streams:
            self._welcome()
        return True

    def _welcome(self) -> None:
        """Nothing is left of the gateway before."""
        if self._gateway is not None and not self._gateway.joined:
            self._gateway.welcome()

    def dismiss(self, gateway: Gateway) -> None:
        if self._gateway is gateway:
            self._gateway = None
            log.info("the gateway is gone, and its %d streams with it", len(self.streams))
            self.send([api.Cancel(stream) for stream in list(self.streams)])
            if self._leaving:
                self._left.set()

    def _leave(self) -> None:
        self._leaving = True
        if self._gateway is None:
            self._left.set()
        else:
            self._gateway.write(api.encoded(api.Leaving()))
            self._gateway.close()


class Gateway(asyncio.Protocol):
    """One connection, from its first byte to its end."""

    def __init__(self, listener: Listener) -> None:
        self.joined = False  # it has heard Hello
        self.writable = threading.Event()
        self.writable.set()
        self.queue = threading.Semaphore(QUEUE)
        self._listener = listener
        self._admitted = False
        self._messages = api.Messages()
        self._commands = msgspec.msgpack.Decoder(list[api.AnyCommand])
        self._transport: asyncio.Transport | None = None
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._listener.connections.add(self)
        _ask_now_and_then(transport.get_extra_info("socket"))
        self._late = asyncio.get_running_loop().call_later(JOIN_S, self._too_late)

    def data_received(self, data: bytes) -> None:
        """Who has not heard Hello has only one thing to say, and says it once."""
        for message in self._messages.of(data, None if self.joined else LARGEST_JOIN):
            try:
                if self.joined:
                    self._take(self._commands.decode(message))
                elif not self._admitted:
                    self._join(msgspec.msgpack.decode(message, type=api.Join))
                else:
                    self.refuse("it speaks before it has heard what is served")
            except msgspec.MsgspecError:
                self.refuse("what was sent is no message of a gateway")
            if self._is_closing:
                return
        if self._messages.too_large:
            self.refuse("what was sent is no message of a gateway")

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.joined = False
        self.writable.set()
        self._in_time()
        self._listener.connections.discard(self)
        self._listener.dismiss(self)

    def welcome(self) -> None:
        self.write(self._listener.hello)
        self.joined = True

    def write(self, message: bytes) -> None:
        if self._transport is not None and not self._is_closing:
            self._transport.write(message)

    def tell(self, message: bytes) -> None:
        """From the queue."""
        self.write(message)
        self.queue.release()

    def refuse(self, why: str) -> None:
        log.warning("a connection is refused: %s", why)
        self.write(api.encoded(api.Failed(why)))
        self.close()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    @property
    def _is_closing(self) -> bool:
        return self._transport is not None and self._transport.is_closing()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _join(self, join: api.Join) -> None:
        token = self._listener.token
        if token and not hmac.compare_digest(join.token.encode(), token.encode()):
            self.refuse("its token is not this engine's")
        elif not self._listener.admit(self):
            self.refuse("this engine computes for another gateway")
        else:
            self._admitted = True
            self._in_time()

    def _take(self, commands: list[api.AnyCommand]) -> None:
        self._listener.streams.update(
            command.stream for command in commands if isinstance(command, api.Submit)
        )
        self._listener.send(commands)

    def _in_time(self) -> None:
        if self._late is not None:
            self._late.cancel()

    def _too_late(self) -> None:
        self.refuse(f"nothing was said for {JOIN_S:g} s")


def _ask_now_and_then(connected: socket.socket) -> None:
    """Whether whoever says nothing is still there."""
    if connected.family == socket.AF_UNIX:
        return
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", IDLE_S), ("TCP_KEEPINTVL", BETWEEN_S), ("TCP_KEEPCNT", QUESTIONS)):
        if hasattr(socket, name):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(UNTAKEN_S * 1000))
