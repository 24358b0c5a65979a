"""The link to an engine in a process of its own: commands down a socket pair, its messages up.

It knows how to start the process, frame messages and end it. It knows nothing of streams, and not what to
do when the process dies: it only says so, once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
from collections.abc import Callable

import msgspec

from engine import api
from realtime.fleet.engine_reads import EngineReads
from realtime.fleet.forked_spares import AdoptedProcess, ForkedSpares
from realtime.fleet.watched_engine import Hear

CLOSE_S, KILLED_S = 3.0, 2.0

log = logging.getLogger(__name__)


class ProcessLink(EngineReads):
    """One engine process. `on_messages` is told those that come together, `on_closed` that there will be no
    more."""

    def __init__(
        self,
        options: api.EngineOptions,
        on_messages: Hear,
        on_closed: Callable[[], None],
        spares: ForkedSpares | None = None,
    ) -> None:
        self._options = options
        self._on_messages = on_messages
        self._on_closed = on_closed
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(api.AnyMessage)
        self._messages = api.Messages()
        self._loaded = False
        self._is_lost = False  # its end of the pair is closed
        self._is_end_known = False  # why it comes: it was told, or we are why
        self._process: asyncio.subprocess.Process | AdoptedProcess | None = None
        self._spares = spares
        self._connection: socket.socket | None = None

    async def prepare(self) -> None:
        """Take the spare that an engine left behind, or start a process. It loads what it needs for any model
        of this kind, and waits for its options."""
        forked = self._spares.take() if self._spares else None
        ours, theirs = (forked, None) if forked else socket.socketpair()
        try:
            if theirs is not None:
                with theirs:
                    self._process = await self._start(theirs)
            ours.setblocking(False)
            await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=ours)
        except BaseException:
            ours.close()  # or each attempt would take a descriptor with it, where those are what is lacking
            self.kill()
            raise
        self._connection = ours

    async def _start(self, theirs: socket.socket) -> asyncio.subprocess.Process:
        command = [sys.executable, "-m", "engine", str(theirs.fileno()), self._options.model]
        return await asyncio.create_subprocess_exec(*command, pass_fds=[theirs.fileno()])

    async def open(self) -> None:
        if self._transport is None:
            await self.prepare()
        message = self._encoder.encode(self._options)
        theirs = self._spares.expect() if self._spares else None
        if theirs is None:
            self._write(message)
            return
        assert self._connection is not None
        with theirs, contextlib.suppress(OSError):  # it has ended, as will be heard
            socket.send_fds(self._connection, [api.framed(message)], [theirs.fileno()])

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def send(self, commands: list[api.AnyCommand]) -> None:
        self._write(self._encoder.encode(commands))

    def kill(self) -> None:
        if self._process is not None:
            self._is_end_known = True
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def close(self) -> None:
        """End the process: it stops when its end of the pair closes, or else it is killed; one that is still
        loading has nothing to bring to an end. What waits in the system, as for a device that hangs, does not
        end even so, and nobody waits for that."""
        if self._transport is not None:
            self._transport.close()
        if self._process is None:
            return
        if not (self._loaded or self._is_lost):
            self.kill()
        if not await self._ended(CLOSE_S):
            self.kill()
            if not await self._ended(KILLED_S):
                log.error("process %d, an engine's, does not end, though it was killed", self._process.pid)

    async def _ended(self, within_s: float) -> bool:
        assert self._process is not None
        try:
            # Not by `wait_for`, which before Python 3.12 goes on where it ends as whoever waits is cancelled.
            async with asyncio.timeout(within_s):
                status = await self._process.wait()
        except TimeoutError:
            return False
        if status < 0 and not self._is_end_known:  # who is ended so, as where memory is short, says nothing
            self._is_end_known = True
            log.error("process %d, an engine's, was ended by signal %d", self._process.pid, -status)
        return True

    def _write(self, message: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(api.framed(message))

    # -- asyncio.BufferedProtocol ----------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        messages = [self._decoder.decode(encoded) for encoded in self._messages.of(data)]
        if not self._loaded:
            self._look_how_far(messages)
        self._on_messages(messages)

    def _look_how_far(self, messages: list[api.AnyMessage]) -> None:
        for message in messages:
            self._loaded = self._loaded or not isinstance(message, api.Starting | api.Prepared)
            if self._process is None and isinstance(message, api.Prepared):
                self._process = AdoptedProcess(message.pid)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        self._on_closed()
