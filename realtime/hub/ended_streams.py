"""The streams that have ended: kept whole for whoever missed the end, then by name alone, then forgotten.

Pure: it is told the time. It keeps what it is given, bounded in number, in bytes and in time, and shared
fairly among tenants: what one ends pushes out nothing of whoever keeps within an equal share.
"""

from __future__ import annotations

from typing import NamedTuple

from realtime.hub.fair_cache import FairCache
from realtime.hub.stream_key import StreamKey
from realtime.stream.stream import Stream

KEPT_S = 300.0
STREAM_LIMIT = 4_096
BYTE_LIMIT = 20 << 20  # of tokens and events, of all that are kept
NAME_LIMIT = 4_096  # names of streams that are kept no longer
OLD_AT_ONCE = 100  # that are forgotten: thousands may be old by now, and everybody waits meanwhile


class EndedStream(NamedTuple):
    stream: Stream
    start_digest: bytes  # what its start said, digested
    until: float


class EndedStreams:
    def __init__(self, *, stream_limit: int = STREAM_LIMIT, byte_limit: int = BYTE_LIMIT) -> None:
        # One measure for both limits: a stream counts as its part of the bytes at least, however small it is.
        self._least_bytes = max(1, byte_limit // stream_limit)
        self._kept = FairCache[str, StreamKey, EndedStream](byte_limit)
        self._names = FairCache[str, StreamKey, None](NAME_LIMIT)

    def add(self, key: StreamKey, stream: Stream, start_digest: bytes, now: float) -> None:
        self.forget(key)
        self._expire(now)
        ended = EndedStream(stream, start_digest, now + KEPT_S)
        for gone in self._kept.put(key.tenant, key, ended, max(stream.bytes, self._least_bytes)):
            self._keep_name(gone)

    def find(self, key: StreamKey, now: float) -> EndedStream | None:
        """A stream that has ended, if all of it is still there. Its forks may be many, and end while others
        are to begin: none of them pushes it out."""
        self._expire(now)
        ended = self._kept.get(key)
        if ended is None or ended.until > now:
            self._kept.renew(key)
            return ended
        self._keep_name_alone(key)
        return None

    def remembers(self, key: StreamKey) -> bool:
        """Whether there ever was such a stream, as far as is known."""
        return key in self._kept or key in self._names

    def forget(self, key: StreamKey) -> None:
        self._kept.pop(key)
        self._names.pop(key)

    def _expire(self, now: float) -> None:
        for _ in range(OLD_AT_ONCE):
            oldest = self._kept.oldest
            if oldest is None or oldest[1].until > now:
                return
            self._keep_name_alone(oldest[0])

    def _keep_name_alone(self, key: StreamKey) -> None:
        self._kept.pop(key)
        self._keep_name(key)

    def _keep_name(self, key: StreamKey) -> None:
        self._names.put(key.tenant, key, None)
