"""What a connection needs of a WebSocket, and of the peer in its scope: all but what is said on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from realtime.transport.asgi_websocket_extension import PEER


class FakeWebSocket:
    def __init__(self, subprotocols: Sequence[str] = ()) -> None:
        self.scope = {"subprotocols": [*subprotocols], "extensions": {PEER: self}}
        self.headers: dict[str, str] = {}
        self.writable = True
        self.on_pong: Any = None
        self.on_writable: Any = None

    async def accept(self, subprotocol: str | None) -> None:
        """It is."""
