"""`CuttingProxy` in a thread, for tests that have no event loop of their own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass

from tests.fakes.cutting_proxy import CutKind, CuttingProxy


@dataclass(frozen=True)
class CuttingProxyThread:
    url: str
    _proxy: CuttingProxy
    _loop: asyncio.AbstractEventLoop
    _over: asyncio.Event

    def cut(self, kind: CutKind = "reset") -> None:
        """Cut every connection that is open."""
        self._do(lambda: self._proxy.cut(kind))

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
def cutting_proxy(port: int) -> Iterator[CuttingProxyThread]:
    """A proxy to the server on that port of this machine."""
    started: Future[CuttingProxyThread] = Future()
    thread = threading.Thread(target=lambda: asyncio.run(_run(port, started)))
    thread.start()
    proxy = started.result()
    try:
        yield proxy
    finally:
        proxy.end()
        thread.join()


async def _run(port: int, started: Future[CuttingProxyThread]) -> None:
    async with CuttingProxy(port) as proxy:
        over = asyncio.Event()
        started.set_result(CuttingProxyThread(proxy.url, proxy, asyncio.get_running_loop(), over))
        await over.wait()
