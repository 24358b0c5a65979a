"""`CuttingProxy` for tests that have no event loop of their own: it runs in a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass

from tests.fakes.cutting_proxy import CuttingProxy, How


@dataclass(frozen=True)
class CutWire:
    url: str
    _proxy: CuttingProxy
    _loop: asyncio.AbstractEventLoop
    _over: asyncio.Event

    def cut(self, how: How = "reset") -> None:
        """Cut every connection that is open."""
        self._do(lambda: self._proxy.cut(how))

    def refuse(self, refusing: bool) -> None:
        """Whether connections are reset before anything is said on them."""
        self._do(lambda: setattr(self._proxy, "refusing", refusing))

    def end(self) -> None:
        self._do(self._over.set)

    def _do(self, what: Callable[[], None]) -> None:
        async def done() -> None:
            what()

        asyncio.run_coroutine_threadsafe(done(), self._loop).result()


@contextmanager
def cut_wire(port: int) -> Iterator[CutWire]:
    """A wire to the server on that port of this machine."""
    laid: Future[CutWire] = Future()
    thread = threading.Thread(target=lambda: asyncio.run(_lie(port, laid)))
    thread.start()
    wire = laid.result()
    try:
        yield wire
    finally:
        wire.end()
        thread.join()


async def _lie(port: int, laid: Future[CutWire]) -> None:
    async with CuttingProxy(port) as proxy:
        over = asyncio.Event()
        laid.set_result(CutWire(proxy.url, proxy, asyncio.get_running_loop(), over))
        await over.wait()
