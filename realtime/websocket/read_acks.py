"""Read acknowledgements: how far a peer has read, by the pongs to pings that were sent behind its tokens.

Pure: it decides when a ping is due and what its payload is, and turns a pong into the streams and indices
that it acknowledges. A payload is a number; a pong acknowledges all that was sent before its ping.
"""

from __future__ import annotations

from collections import deque

from msgspec import Struct

from realtime.stream.stream import Stream

OPEN_LIMIT = 64  # pings that wait for their pongs
RARELY = 4  # where only what is kept to be told again hangs on it, so many times as many tokens


class ReadPosition(Struct, frozen=True):
    """How much of a stream was sent: output up to an index, events up to a seq."""

    stream: Stream
    index: int
    seq: int


class ReadAcks:
    def __init__(self, every: int) -> None:
        self._every = RARELY * every
        self._count = 0
        self._behind: dict[Stream, int] = {}  # tokens sent since the last ping, or several times as many
        self._due = False  # whether some of them are so many
        self._open: deque[tuple[int, dict[Stream, ReadPosition]]] = deque()

    def forget(self, stream: Stream) -> None:
        """It is somebody else's now, or all of it was sent: nobody asks any more how far it was read."""
        if self._behind.pop(stream, 0) >= self._every:
            self._due = any(behind >= self._every for behind in self._behind.values())
        for _, positions in self._open:
            positions.pop(stream, None)
        while self._open and not self._open[0][1]:
            self._open.popleft()

    def forget_all(self) -> None:
        self._behind.clear()
        self._open.clear()

    def sent(self, stream: Stream, tokens: int) -> None:
        if stream.credit.automatic:
            tokens *= RARELY
        self._behind[stream] = behind = self._behind.get(stream, 0) + tokens
        if behind >= self._every:
            self._due = True

    def ask(self, stream: Stream) -> None:
        """It is not known how far the peer has read this stream: a ping is due."""
        self.sent(stream, self._every)

    def due(self) -> bytes | None:
        """The payload of the ping that should follow what was just sent, if one should."""
        if not self._due or len(self._open) >= OPEN_LIMIT:
            return None  # with the next that is answered goes what was sent since
        self._count += 1
        behind = {
            stream: ReadPosition(stream, stream.outbox.sent, stream.outbox.seq - 1) for stream in self._behind
        }
        self._open.append((self._count, behind))
        self._behind.clear()
        self._due = False
        return self._count.to_bytes(8, "big")

    def receive_pong(self, payload: bytes) -> list[ReadPosition]:
        """What a pong acknowledges; nothing if no ping of ours had this payload."""
        count = int.from_bytes(payload, "big") if len(payload) == 8 else 0
        if not self._open or not self._open[0][0] <= count <= self._count:
            return []
        read: dict[Stream, ReadPosition] = {}
        while self._open and self._open[0][0] <= count:
            read |= self._open.popleft()[1]
        return list(read.values())
