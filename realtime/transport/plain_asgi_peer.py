"""The peer on plain ASGI servers, which offer no extension: plain sends, and what has been sent counts as
read.

Without a transport of our own nobody can say how far a reader has come, so automatic credit then follows what
the server's `send` accepted. Everything else is the same.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from starlette.websockets import WebSocket, WebSocketDisconnect

from realtime.work_ledger import PayerWork


class PlainAsgiPeer:
    def __init__(self, websocket: WebSocket, *, text: bool) -> None:
        self.on_pong: Callable[[bytes], None] | None = None
        self.on_writable: Callable[[], None] | None = None
        self.gives_utf8 = False  # whatever is asked: what comes has been read
        self._websocket = websocket
        self._text = text
        self._waiting: list[bytes] = []
        self._ping: bytes | None = None
        self._some = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._send())

    @property
    def writable(self) -> bool:
        return not self._waiting

    def write(self, messages: list[bytes], *, text: bool, ping: bytes | None = None) -> None:
        self._waiting += messages
        self._ping = ping or self._ping
        self._some.set()

    def hold_nothing(self) -> None:
        """It is writable only where all was sent."""

    def paid_by(self, work: PayerWork) -> None:
        """The server reads as it likes."""

    def stop(self) -> None:
        self._task.cancel()

    async def _send(self) -> None:
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):  # gone: the reading side hears of it too
            while True:
                await self._some.wait()
                self._some.clear()
                for message in self._waiting:
                    await (
                        self._websocket.send_text(message.decode())
                        if self._text
                        else self._websocket.send_bytes(message)
                    )
                self._waiting.clear()
                self._sent()

    def _sent(self) -> None:
        ping, self._ping = self._ping, None
        if ping is not None and self.on_pong is not None:
            self.on_pong(ping)
        if self.on_writable is not None:
            self.on_writable()
