"""The ASGI extension for WebSockets: the peer, as an app may use it beside ASGI's receive and send.

ASGI has no words for many messages in one write, for pings with a payload and the pongs that answer them,
for texts that are not read yet, for whether the peer keeps up, or for an end without ceremony. An app finds a
`WebSocketPeer` in its scope's extensions under PEER; then a disconnection says also whether its code is the
peer's own (`by_peer`). This knows what an app may ask of a connection, and
nothing of how that is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from realtime.transport.flow_control import SendBuffer
from realtime.transport.websocket_framing import data_frames, ping_frame
from realtime.work_ledger import PayerWork

PEER = "midstream.peer"
TOOK_NOTHING = "it took nothing of what was sent"  # the reason of a disconnection that is our own doing
UNANSWERED = (
    "keepalive ping timeout"  # the reason of whoever heard no pong, ours or a peer's of the same library
)
KEEPALIVE = b"midstream keepalive "  # so begins the payload of a ping that is not the app's


class PeerGone(ConnectionError):
    """There is nobody left to send to."""


class Connection(Protocol):
    send_buffer: SendBuffer

    def write(self, frames: bytes) -> None: ...

    async def drain(self) -> None: ...

    def abort(self) -> None: ...

    def paid_by(self, work: PayerWork) -> None: ...


class WebSocketPeer:
    """To be used from the event loop's thread. The callbacks are called there too, and must not raise."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.on_pong: Callable[[bytes], None] | None = None
        self.on_writable: Callable[[], None] | None = None
        self.gives_utf8 = False  # a text as the bytes that it came in, under `utf8`: it may have to wait

    def write(self, messages: Iterable[bytes], *, text: bool, ping: bytes | None = None) -> None:
        """Send each as a message, and then perhaps a ping, in one write. Text must be UTF-8.

        It never waits, so look at `writable` first. To a peer that is gone it does nothing: the app hears of
        that by `websocket.disconnect`.
        """
        self._connection.write(data_frames(messages, text=text, ping=ping))

    def ping(self, payload: bytes) -> None:
        self._connection.write(ping_frame(payload))

    @property
    def writable(self) -> bool:
        return self._connection.send_buffer.writable

    def hold_nothing(self) -> None:
        """From now on it is writable only where all that was written has left."""
        self._connection.send_buffer.hold_nothing()

    def paid_by(self, work: PayerWork) -> None:
        """Whoever this is pays for what they send from now on, and not their address."""
        self._connection.paid_by(work)

    async def drain(self) -> None:
        """Wait until the peer is writable; raises PeerGone when it never will be."""
        await self._connection.drain()

    def abort(self) -> None:
        """Drop the connection now, with all that waits in it and no close frame."""
        self._connection.abort()
