"""The link to an engine that listens: commands through a socket of ours, its messages back.

It knows how to connect and to show the token. The engine is not ours to start or to end: to close the link is
all that can be done to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from engine import api
from realtime.certificates import Certificates
from realtime.fleet.address import Address
from realtime.fleet.engine_reads import EngineReads
from realtime.fleet.watched_engine import Hear

CONNECT_S = 3.0
WHERE_CERTIFICATES_DIFFER = "as where our certificate is not what the engine asks for"
WHERE_IT_IS_TO_BE_ENCRYPTED = "as where what goes there is to be encrypted"


class SocketLink(EngineReads):
    """`on_messages` is called for those that come together, `on_closed` when there will be no more."""

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
        self._messages = api.Messages()
        self._has_spoken = False

    async def prepare(self) -> None:
        """Nothing can be done before it is opened."""

    async def open(self) -> None:
        try:
            async with asyncio.timeout(CONNECT_S):
                await self._connect()
        except TimeoutError:
            raise OSError(f"nothing answered there for {CONNECT_S:g} s") from None
        except UnicodeError:  # as the standard library says it
            raise OSError("its host is no name of a machine") from None
        self._write(api.encoded(api.Join(self._token)))
        self._on_messages([api.Prepared()])  # one that can be connected to has its model

    async def _connect(self) -> None:
        loop, address = asyncio.get_running_loop(), self._address
        if address.path is not None:
            await loop.create_unix_connection(lambda: self, address.path)
            return
        host, port = address.host_and_port
        tls = self._certificates.of_a_gateway() if address.is_tls else None
        await loop.create_connection(lambda: self, host, port, ssl=tls)

    def send(self, commands: list[api.AnyCommand]) -> None:
        self._write(api.encoded(commands))

    def kill(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def close(self) -> None:
        self.kill()

    def _write(self, message: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(message)

    # -- asyncio.BufferedProtocol ----------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._has_spoken = True
        messages = list[api.AnyMessage]()
        try:
            for message in self._messages.of(data, api.LARGEST_NEWS):
                messages.append(self._decoder.decode(message))
            if self._messages.too_large:
                raise ValueError("a message is too large")
        except (msgspec.MsgspecError, ValueError, RecursionError):
            messages.append(api.Failed("what it says is no message of an engine"))
            self.kill()
        self._on_messages(messages)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._has_spoken:
            where = WHERE_CERTIFICATES_DIFFER if self._address.is_tls else WHERE_IT_IS_TO_BE_ENCRYPTED
            why = "it ends the connection before it says anything"
            self._on_messages([api.Failed(why if self._address.path else f"{why}, {where}")])
        self._on_closed()
