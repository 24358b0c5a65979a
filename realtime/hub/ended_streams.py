"""The streams that have ended: kept whole for whoever missed the end, then by name alone, then forgotten.

Pure: it is told the time. It keeps what it is given, bounded in number, in bytes and in time, the oldest
going first.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from realtime.hub.stream_key import StreamKey
from realtime.stream.stream import Stream

KEPT_S = 300.0
STREAM_LIMIT = 4_096
BYTE_LIMIT = 128 << 20  # of tokens and events, of all that are kept
NAME_LIMIT = 4_096  # names of streams that are kept no longer


class EndedStream(NamedTuple):
    stream: Stream
    start_digest: bytes  # what its start said, digested
    bytes: int
    until: float


class EndedStreams:
    def __init__(self) -> None:
        self._kept: OrderedDict[StreamKey, EndedStream] = OrderedDict()
        self._bytes = 0
        self._names: OrderedDict[StreamKey, None] = OrderedDict()

    def add(self, key: StreamKey, stream: Stream, start_digest: bytes, now: float) -> None:
        self.forget(key)
        ended = EndedStream(stream, start_digest, stream.bytes, now + KEPT_S)
        self._kept[key] = ended
        self._bytes += ended.bytes
        self._tidy(now)

    def find(self, key: StreamKey, now: float) -> EndedStream | None:
        """A stream that has ended, if all of it is still there."""
        self._tidy(now)
        return self._kept.get(key)

    def remembers(self, key: StreamKey) -> bool:
        """Whether there ever was such a stream, as far as is known."""
        return key in self._kept or key in self._names

    def forget(self, key: StreamKey) -> None:
        ended = self._kept.pop(key, None)
        if ended is not None:
            self._bytes -= ended.bytes
        self._names.pop(key, None)

    def _tidy(self, now: float) -> None:
        while self._kept and self._too_much(next(iter(self._kept.values())), now):
            key, ended = self._kept.popitem(last=False)
            self._bytes -= ended.bytes
            self._names[key] = None
            if len(self._names) > NAME_LIMIT:
                self._names.popitem(last=False)

    def _too_much(self, oldest: EndedStream, now: float) -> bool:
        return oldest.until <= now or len(self._kept) > STREAM_LIMIT or self._bytes > BYTE_LIMIT
