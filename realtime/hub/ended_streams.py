"""Streams that have ended: still there for whoever missed the end, then only names, then nothing.

Pure: it is told the time. It keeps what it is given, bounded in number, in bytes and in time, the oldest
going first.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from realtime.hub.stream_key import StreamKey
from realtime.stream.stream import Stream

KEPT_S = 300.0
MOST_KEPT = 4_096
MOST_BYTES = 128 << 20  # of tokens and events, of all that are kept
REMEMBERED = 4_096  # names of streams that are kept no longer


class Grave(NamedTuple):
    stream: Stream
    content: bytes  # what its start said, digested
    bytes: int
    until: float


class Graves:
    def __init__(self) -> None:
        self._kept: OrderedDict[StreamKey, Grave] = OrderedDict()
        self._bytes = 0
        self._names: OrderedDict[StreamKey, None] = OrderedDict()

    def bury(self, key: StreamKey, stream: Stream, content: bytes, now: float) -> None:
        self.forget(key)
        grave = Grave(stream, content, stream.bytes, now + KEPT_S)
        self._kept[key] = grave
        self._bytes += grave.bytes
        self._tidy(now)

    def find(self, key: StreamKey, now: float) -> Grave | None:
        """A stream that has ended, if all of it is still there."""
        self._tidy(now)
        return self._kept.get(key)

    def remembers(self, key: StreamKey) -> bool:
        """Whether there ever was such a stream, as far as is known."""
        return key in self._kept or key in self._names

    def forget(self, key: StreamKey) -> None:
        grave = self._kept.pop(key, None)
        if grave is not None:
            self._bytes -= grave.bytes
        self._names.pop(key, None)

    def _tidy(self, now: float) -> None:
        while self._kept and self._too_much(next(iter(self._kept.values())), now):
            key, grave = self._kept.popitem(last=False)
            self._bytes -= grave.bytes
            self._names[key] = None
            if len(self._names) > REMEMBERED:
                self._names.popitem(last=False)

    def _too_much(self, oldest: Grave, now: float) -> bool:
        return oldest.until <= now or len(self._kept) > MOST_KEPT or self._bytes > MOST_BYTES
