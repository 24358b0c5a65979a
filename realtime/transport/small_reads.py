"""Small reads: what a socket has is taken in pieces, so that nobody's bytes, however dear they are to parse,
hold everybody up for long. asyncio would hand on a quarter of a megabyte in one go.

It knows the pieces' size, and nothing of what they hold.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar

READ_BYTES = 8 * 1024  # at most in one go: some 1,300 frames or chunks, or ten milliseconds of the loop


def new_buffer() -> memoryview:
    """For connections of one event loop to share."""
    return memoryview(bytearray(READ_BYTES))


class SmallReads(asyncio.BufferedProtocol):
    buffer: ClassVar[memoryview]

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(self.buffer[:nbytes]))

    def data_received(self, data: bytes) -> None:
        raise NotImplementedError
