"""Small reads: what a socket has is taken in pieces, so that nobody's bytes, however dear they are to parse,
hold everybody up for long. asyncio would hand on a quarter of a megabyte in one go. And each piece is parsed
when whoever sends has paid for those before, on whatever connection: until then nothing more is read.

It knows the pieces' size and who pays, and nothing of what they hold.
"""

from __future__ import annotations

import asyncio
import time
from typing import ClassVar, Protocol

from realtime.work_budget import READ_S
from realtime.work_ledger import PayerWork

READ_BYTES = 4 * 1024  # at most in one go: some 650 frames or chunks, or five milliseconds of the loop


def new_buffer() -> memoryview:
    """For connections of one event loop to share."""
    return memoryview(bytearray(READ_BYTES))


class Reading(Protocol):
    """What a connection is read by, which may have other reasons to wait."""

    def hold(self) -> None: ...

    def release(self) -> None: ...


class SmallReads(asyncio.BufferedProtocol):
    buffer: ClassVar[memoryview]
    transport: asyncio.Transport
    work: PayerWork  # of whoever sends
    reading: Reading
    _late: asyncio.Task[None] | None = None  # parses what has to wait

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        data = bytes(self.buffer[:nbytes])
        if self._late is None and self.work.is_free:
            began_s = time.thread_time()
            self.data_received(data)
            self.work.owe(time.thread_time() - began_s + READ_S)
        else:
            assert self._late is None, "nothing is read while something waits"
            self.reading.hold()
            self._late = asyncio.get_running_loop().create_task(self._parse_late(data))

    def data_received(self, data: bytes) -> None:
        raise NotImplementedError

    def forget_reads(self) -> None:
        """There is nobody any more for whom to parse what waits."""
        if self._late is not None:
            self._late.cancel()

    async def _parse_late(self, data: bytes) -> None:
        """A mistake of ours ends the connection, as it does where asyncio itself calls `data_received`."""
        try:
            await self.work.do(lambda: self.data_received(data), READ_S)
        except Exception as error:  # noqa: BLE001 - logged, with its stack, by the loop's own handler
            told = {"message": "a connection's bytes could not be taken", "exception": error}
            asyncio.get_running_loop().call_exception_handler(told)
            self.transport.abort()
        finally:
            self._late = None
            self.reading.release()
