"""The link to an engine that listens for gRPC: one call, through which commands go down and its messages come
up.

It knows how to connect and to show token and certificate. The engine is not ours to start or to end: to end
the call is all that can be done to it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from engine import api
from engine.grpc_frames import METHOD, SERVICE, showing, unwrapped, wrapped
from realtime.certificates import Certificates
from realtime.fleet import socket_link
from realtime.fleet.address import Address
from realtime.fleet.socket_link import WHERE_CERTIFICATES_DIFFER, WHERE_IT_IS_TO_BE_ENCRYPTED
from realtime.fleet.watched_engine import Hear

# It reads these when it is imported. What it logs comes as errors, too, once; and its own event engine wakes
# three threads for a message, where the poller that it had before wakes one, for 0.6 of the processor's time.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client")
import grpc

log = logging.getLogger(__name__)

OPTIONS = [
    ("grpc.max_receive_message_length", api.LARGEST_NEWS),
    ("grpc.max_send_message_length", -1),
    # A fixed window in place of one that is measured, by pings that cost more than a step's news.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 2**20),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),  # or a new link would wait as long as one before it was to
]


class GrpcLink:
    """`on_messages` is called for each message alone, `on_closed` when there will be no more."""

    def __init__(
        self,
        address: Address,
        token: str,
        certificates: Certificates,
        on_messages: Hear,
        on_closed: Callable[[], None],
    ) -> None:
        self._address = address
        self._token = token
        self._certificates = certificates
        self._on_messages = on_messages
        self._on_closed = on_closed
        self._decoder = msgspec.msgpack.Decoder(api.AnyMessage)
        self._encoder = msgspec.msgpack.Encoder()
        self._unsent = asyncio.Queue[bytes]()
        self._channel: Any = None
        self._call: Any = None
        self._has_spoken = False
        self._tasks: list[asyncio.Task[None]] = []

    async def prepare(self) -> None:
        """Nothing can be done before it is opened."""

    async def open(self) -> None:
        if not self._token.isascii():
            raise OSError("a token that goes by gRPC has letters of ASCII alone")
        self._channel = self._connected()
        join = self._channel.stream_stream(f"/{SERVICE}/{METHOD}")
        self._call = join(metadata=showing(self._token))
        try:
            async with asyncio.timeout(socket_link.CONNECT_S):
                await self._call.wait_for_connection()
        except TimeoutError:
            raise OSError(f"nothing answered there for {socket_link.CONNECT_S:g} s") from None
        except grpc.aio.AioRpcError as error:
            raise OSError(self._why(error)) from None
        self._on_messages([api.Prepared()])  # one that can be connected to has its model
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._write())]

    def _connected(self) -> Any:
        if not self._address.is_tls:
            return grpc.aio.insecure_channel(self._address.place, options=OPTIONS)
        self._certificates.of_a_gateway()  # which says it in a sentence if it cannot be
        credentials = grpc.ssl_channel_credentials(*self._certificates.contents())
        return grpc.aio.secure_channel(self._address.place, credentials, options=OPTIONS)

    def send(self, commands: list[api.AnyCommand]) -> None:
        self._unsent.put_nowait(wrapped(self._encoder.encode(commands)))

    def kill(self) -> None:
        if self._call is not None:
            self._call.cancel()

    async def close(self) -> None:
        self.kill()
        if self._channel is not None:
            await self._channel.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _read(self) -> None:
        try:
            while (data := await self._call.read()) is not grpc.aio.EOF:
                self._has_spoken = True
                self._on_messages([self._message(data)])
        except grpc.aio.AioRpcError as error:
            self._on_messages([api.Failed(self._why(error))])
        except Exception:
            log.exception("what an engine has said could not be taken in")  # as asyncio says it of a socket
        finally:
            self.kill()
            self._on_closed()

    def _message(self, data: bytes) -> api.AnyMessage:
        try:
            message: api.AnyMessage = self._decoder.decode(unwrapped(data))
        except (ValueError, msgspec.MsgspecError, RecursionError):
            self.kill()
            return api.Failed("what it says is no message of an engine")
        return message

    async def _write(self) -> None:
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # it is over, as is read
            while True:
                await self._call.write(await self._unsent.get())

    def _why(self, error: grpc.aio.AioRpcError) -> str:
        details = re.sub(r".*last error: \w+: ", "", error.details() or error.code().name)
        if self._has_spoken or "Socket closed" not in details:
            return details
        where = WHERE_CERTIFICATES_DIFFER if self._address.is_tls else WHERE_IT_IS_TO_BE_ENCRYPTED
        return f"{details}, {where}"
