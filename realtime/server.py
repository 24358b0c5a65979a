"""The uvicorn server as Midstream runs it, and its graceful shutdown: nothing new starts, what runs may
finish."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any

import uvicorn

from midstream.protocol import GoingAway
from realtime.app import Endpoints
from realtime.bind import BACKLOG
from realtime.hub.hub import Hub

log = logging.getLogger("midstream")


class Server(uvicorn.Server):
    """uvicorn, but that the first signal begins an orderly end, and only the second ends it at once."""

    def __init__(self, config: uvicorn.Config, ending: Callable[[], Coroutine[Any, Any, None]]) -> None:
        super().__init__(config)
        self._loop = asyncio.get_running_loop()
        self._ending = ending
        self._end: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listening in sockets or []:
            listening.listen(BACKLOG)  # uvicorn takes what is accepted in one go for what may wait, too

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._loop.call_soon_threadsafe(self._asked_to_end, sig, frame)

    def _asked_to_end(self, sig: int, frame: FrameType | None) -> None:
        if self._end is None:
            self._end = self._loop.create_task(self._ending())
            self._end.add_done_callback(self._ended)
        else:
            super().handle_exit(sig, frame)

    def _ended(self, end: asyncio.Task[None]) -> None:
        self.should_exit = True
        end.result()


async def let_finish(hub: Hub, endpoints: Endpoints, grace_s: float) -> None:
    """Start nothing new, let what runs finish within the grace, then close."""
    hub.draining = True
    log.info("going away: %d streams have %g s to finish", len(hub.streams), grace_s)
    for connection in list(endpoints.open.values()):
        connection.send_event(GoingAway(deadline_ms=int(grace_s * 1000)))
    try:
        await asyncio.wait_for(hub.wait_until_empty(), grace_s)
    except TimeoutError:
        hub.cancel_all()
        await hub.wait_until_empty()
    await asyncio.gather(*(connection.close_for_good() for connection in list(endpoints.open.values())))
