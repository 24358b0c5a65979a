"""What a connection needs of a WebSocket, and of the peer in its scope: all but what is said on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from realtime.transport.asgi_websocket_extension import PEER
from realtime.work_ledger import PayerWork


class FakeWebSocket:
    def __init__(self, subprotocols: Sequence[str] = ()) -> None:
        self.scope = {"subprotocols": [*subprotocols], "extensions": {PEER: self}}
        self.headers: dict[str, str] = {}
        self.writable = True
        self.gives_utf8 = False
        self.on_pong: Any = None
        self.on_writable: Any = None

    def hold_nothing(self) -> None:
        """A test says when it is writable."""

    def paid_by(self, work: PayerWork) -> None:
        """What it sends comes from no socket."""

    async def accept(self, subprotocol: str | None) -> None:
        """It is."""
