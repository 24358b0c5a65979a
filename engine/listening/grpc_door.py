"""The door for gRPC: a gateway calls `Join`, with the token in the call's metadata, and the messages of both
go through that call.

It knows calls and gRPC's options. Who has not called yet is gRPC's business, within the bounds that it is
given here: it ends no connection in favour of another, so one that comes when there are too many is refused.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any
from urllib.parse import unquote

import grpc

from engine.grpc_frames import METHOD, SERVICE, shown, unwrapped, wrapped
from engine.listening import limits
from engine.listening.gateway import NO_MESSAGE, Gateway
from engine.listening.listener import DoorError, Listener
from engine.listening.socket_door import host_and_port

Pems = tuple[bytes | None, bytes | None, bytes | None]  # authorities of gateways, our key, our certificate


class GrpcDoor:
    def __init__(self, bound: socket.socket, tls: Pems | None = None) -> None:
        """Where that socket is bound, which gRPC replaces by one of its own."""
        self._place = host_and_port(bound.getsockname())
        self._bound = bound
        self._tls = tls
        self._server: Any = None

    @property
    def address(self) -> str:
        return ("grpc:tls:" if self._tls else "grpc:") + self._place

    async def open(self, listener: Listener) -> None:
        async def join(_: object, context: Any) -> None:
            call = GrpcCall(listener, context)
            await call.run()

        handler = grpc.stream_stream_rpc_method_handler(join)
        self._server = server = grpc.aio.server(options=_options())
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),))
        self._bound.close()
        try:
            if self._tls is None:
                server.add_insecure_port(self._place)
            else:
                authorities, key, own = self._tls
                asks = authorities is not None
                credentials = grpc.ssl_server_credentials([(key, own)], authorities, asks)
                server.add_secure_port(self._place, credentials)
        except RuntimeError:
            raise DoorError("gRPC cannot listen there") from None
        await server.start()

    async def close(self) -> None:
        await self._server.stop(limits.GOODBYE_S)


class GrpcCall:
    """One call, from its beginning to its end."""

    def __init__(self, listener: Listener, context: Any) -> None:
        self._context = context
        self._gateway = Gateway(listener, self)
        self._unsent = asyncio.Queue[bytes | None]()
        self.unsent = 0
        self._closing = False
        self._sending: asyncio.Task[None] | None = None

    async def run(self) -> None:
        self._sending = sending = asyncio.create_task(self._send())
        reading = asyncio.create_task(self._read())
        try:
            await asyncio.wait((sending, reading), return_when=asyncio.FIRST_COMPLETED)
            if self._closing:  # the other side says by itself how much it takes, which may be nothing
                await asyncio.wait((sending,), timeout=limits.GOODBYE_S)
        finally:
            sending.cancel()
            reading.cancel()
            self._gateway.gone()

    @property
    def whence(self) -> str:
        return f" from {unquote(self._context.peer()).partition(':')[2]}"

    def write(self, message: bytes) -> None:
        if self._closing:
            return
        self._unsent.put_nowait(message)
        self.unsent += len(message)

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._unsent.put_nowait(None)

    def abort(self) -> None:
        if self._sending is not None:
            self._sending.cancel()

    async def _send(self) -> None:
        await self._context.send_initial_metadata(())  # it is heard, whoever has the engine now
        while (message := await self._unsent.get()) is not None:
            await self._context.write(wrapped(message))
            self.unsent -= len(message)

    async def _read(self) -> None:
        if not self._gateway.join(shown(self._context.invocation_metadata())):
            return
        while not self._closing and (data := await self._context.read()) is not grpc.aio.EOF:
            try:
                message = unwrapped(data)
            except ValueError:
                self._gateway.refuse(NO_MESSAGE)
            else:
                self._gateway.take(message)


def _options() -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
        ("grpc.so_reuseport", 0),  # of two engines at one place, the second hears that it is taken
        ("grpc.max_concurrent_streams", 1),
        ("grpc.max_allowed_incoming_connections", limits.MOST_STRANGERS),
        ("grpc.server_handshake_timeout_ms", int(limits.JOIN_S * 1000)),
        ("grpc.max_connection_idle_ms", int(limits.JOIN_S * 1000)),
        ("grpc.http2.max_pings_without_data", 0),  # or it would soon ask no more
        ("grpc.http2.ping_timeout_ms", int((limits.UNTAKEN_S - limits.IDLE_S) * 1000)),
        ("grpc.keepalive_time_ms", int(limits.IDLE_S * 1000)),
        ("grpc.keepalive_timeout_ms", int((limits.UNTAKEN_S - limits.IDLE_S) * 1000)),
    ]
