"""A TCP proxy that cuts connections, as a train's tunnel does: on loopback, and by the byte.

`CuttingProxy` knows no WebSocket. It forwards both ways, and each connection may be given a `Cut`: after so
many bytes in one direction it is reset, closed, or goes silent: then neither side hears anything of
the other any more, its end included, as when a cable was pulled out. Or it stalls: what is under way comes
late, perhaps when nobody waits for it any longer.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import socket
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self, get_args

CutKind = Literal["reset", "close", "silence", "stall"]
Direction = Literal["up", "down"]  # to the server, to the client
BLOCK = 2**16
STALL_S = 1.0
ABORTING = struct.pack("ii", 1, 0)  # SO_LINGER of 0 seconds: closing sends RST


@dataclass(frozen=True)
class Cut:
    """What befalls one connection: after `after` bytes in one direction, or in the middle of the first
    message that says `within`, both are cut."""

    after: int = 0
    direction: Direction = "down"
    kind: CutKind = "reset"
    within: bytes | None = None

    def left(self, said: bytes, data: bytes) -> int | None:
        """Of this, that comes behind what was said, so much passes; None for all of it."""
        assert self.within is not None
        at = (said + data).find(self.within)
        return None if at < 0 else max(0, at - len(said))


def cuts(seed: int, count: int, most: int, kinds: Iterable[CutKind] = ("reset", "close")) -> Iterator[Cut]:
    """Cuts for the next `count` connections, each after fewer than `most` bytes; the seed says them all."""
    chance, choices = random.Random(seed), tuple(kinds)
    for _ in range(count):
        yield Cut(chance.randrange(most), chance.choice(get_args(Direction)), chance.choice(choices))


class CuttingProxy:
    """`async with CuttingProxy(port, cuts) as proxy`, then connect to `proxy.url`.

    Each connection takes the next of `cuts`; where that is None, or there are none left, it is left alone.
    `cut` cuts what is open at the moment. `refusing` resets new connections at once.
    """

    def __init__(self, port: int, cuts: Iterable[Cut | None] = (), host: str = "127.0.0.1") -> None:
        self.connections = 0
        self.cuts_done = 0
        self.refusing = False
        self._address = (host, port)
        self._cuts: Iterator[Cut | None] = iter(cuts)
        self._open: set[ProxiedConnection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def redirect(self, port: int) -> None:
        """Connect to another server from now on."""
        self._address = (self._address[0], port)

    def cut_every_new(self, kind: CutKind) -> None:
        """Cut every later connection before its first byte."""
        self._cuts = itertools.repeat(Cut(0, "up", kind))

    def cut(self, kind: CutKind = "reset") -> None:
        """Cut every connection that is open."""
        for connection in list(self._open):
            connection.cut(kind)

    def _cut_one(self) -> None:
        self.cuts_done += 1

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection in a task of ours. Whatever becomes of that, also before its first step, the
        client's side is closed: asyncio leaves it open where its own task for it is cancelled."""
        self.connections += 1
        if self.refusing:
            _end(writer, "reset")
            return
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: writer.close())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await asyncio.open_connection(*self._address)
        except OSError:
            _end(writer, "reset")
            return
        connection = ProxiedConnection((reader, writer), there, next(self._cuts, None), self._cut_one)
        self._open.add(connection)
        try:
            await connection.run()
        finally:
            self._open.discard(connection)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=BLOCK)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)


Side = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class ProxiedConnection:
    """One connection, carried both ways until either side ends it, or the cut."""

    def __init__(self, client: Side, server: Side, cut: Cut | None, on_cut: Callable[[], None]) -> None:
        self._client, self._server = client, server
        self._cut = cut
        self._on_cut = on_cut
        self._kind: CutKind = "close"  # of its end
        self._silent = False
        self._moving = asyncio.Event()
        self._moving.set()
        self._over = asyncio.Event()

    def cut(self, kind: CutKind) -> None:
        self._on_cut()
        if kind == "stall":
            self._moving.clear()
            asyncio.get_running_loop().call_later(STALL_S, self._moving.set)
            return
        self._silent = kind == "silence"
        self._kind = kind
        if not self._silent:
            self._over.set()

    async def run(self) -> None:
        up = asyncio.create_task(self._pump(self._client[0], self._server[1], "up"))
        down = asyncio.create_task(self._pump(self._server[0], self._client[1], "down"))
        over = asyncio.create_task(self._over.wait())
        try:
            await asyncio.wait((up, down, over), return_when=asyncio.FIRST_COMPLETED)
            if self._silent:
                await asyncio.wait((up, down))  # each side finds out for itself
        finally:
            for task in (up, down, over):
                task.cancel()
            for _, writer in (self._client, self._server):
                _end(writer, self._kind)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Direction) -> None:
        """Forward until the sender ends it. A silent connection swallows what comes."""
        cut = self._cut if self._cut is not None and self._cut.direction == way else None
        left, said = None if cut is None else cut.after, b""
        try:
            while (data := await reader.read(BLOCK)) and not self._over.is_set():
                await self._moving.wait()
                if cut is not None and cut.within is not None:
                    left, said = cut.left(said, data), (said + data)[-len(cut.within) :]
                if self._silent:
                    continue
                writer.write(data[:left])
                await writer.drain()
                if cut is not None and left is not None and left <= len(data):
                    self.cut(cut.kind)
                    if cut.kind == "stall":
                        await self._moving.wait()
                        writer.write(data[left:])
                        left = None
                        continue
                left = None if left is None else left - len(data)
        except OSError:
            self._kind = "reset"


def _end(writer: asyncio.StreamWriter, kind: CutKind) -> None:
    if kind == "reset":
        bare = writer.get_extra_info("socket")
        if bare.fileno() >= 0:  # the other side may have ended it already
            bare.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORTING)
        writer.transport.abort()
    else:
        writer.close()
