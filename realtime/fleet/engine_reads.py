"""Engine reads: what an engine has said is read in pieces, so that nobody waits while what came of very many
streams is taken apart. asyncio would hand on a quarter of a megabyte in one go: 17,000 news, which take 30 to
50 ms. And uvloop reads as often as its buffer was full, up to 32 times before others have their turn.

It knows the pieces' size, and nothing of what they hold.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar, cast

READ_BYTES = 32 * 1024  # some 2,000 news of a token each, or 4 ms of the event loop


class EngineReads(asyncio.BufferedProtocol):
    buffer: ClassVar[memoryview] = memoryview(bytearray(READ_BYTES))  # what is read is handed on at once
    _transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        if nbytes == READ_BYTES and self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._read_on, self._transport)
        self.data_received(bytes(self.buffer[:nbytes]))

    @staticmethod
    def _read_on(transport: asyncio.Transport) -> None:
        if not transport.is_closing():
            transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        raise NotImplementedError
