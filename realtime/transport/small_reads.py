"""Small reads: what a socket has is taken in pieces, so that nobody's bytes, however dear they are to parse,
hold everybody up for long. asyncio would hand on a quarter of a megabyte in one go. And each piece is parsed
when whoever sends has paid for those before, on whatever connection: until then nothing more is read.

It knows the pieces' size and who pays, and nothing of what they hold.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from functools import partial
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
    _waiting: deque[Callable[[], None]]  # what has to
    _late: asyncio.Task[None] | None = None  # parses that

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.parse_in_turn(partial(self.data_received, bytes(self.buffer[:nbytes])))

    @property
    def awaits_turn(self) -> bool:
        """Whether it has something to parse: it is we who are awaited."""
        return self._late is not None and bool(self._waiting)

    def parse_in_turn(self, parse: Callable[[], None]) -> None:
        """At once, or when what is owed has been paid: until then nothing more is read."""
        if self._late is None and self.work.is_free:
            began_s = time.thread_time()
            parse()
            self.work.owe(time.thread_time() - began_s + READ_S)
            return
        self.reading.hold()
        if self._late is None:
            self._waiting = deque([parse])
            self._late = asyncio.get_running_loop().create_task(self._parse_late())
        else:
            self._waiting.append(parse)

    def data_received(self, data: bytes) -> None:
        raise NotImplementedError

    def forget_reads(self) -> None:
        """There is nobody any more for whom to parse what waits."""
        if self._late is not None:
            self._late.cancel()
            self._waiting.clear()  # each knows this connection: a ring, which would stand for minutes

    def _parse_next(self) -> None:
        parse = self._waiting.popleft()
        if not self.transport.is_closing():
            parse()

    async def _parse_late(self) -> None:
        """A mistake of ours ends the connection, as it does where asyncio itself calls `data_received`."""
        try:
            while self._waiting:
                await self.work.do(self._parse_next, READ_S)
        except Exception as error:  # noqa: BLE001 - logged, with its stack, by the loop's own handler
            told = {"message": "a connection's bytes could not be taken", "exception": error}
            asyncio.get_running_loop().call_exception_handler(told)
            self.transport.abort()
        finally:
            self._late = None
            self.reading.release()
