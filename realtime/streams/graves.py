"""Streams that have ended: still there for whoever missed the end, then only names, then nothing.

Pure: it is told the time. It keeps what it is given, bounded in number, in tokens and in time, the oldest
going first.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from realtime.streams.stream import Stream

Key = tuple[str, str]  # tenant, request_id

KEPT_S = 300.0
MOST_KEPT = 4_096
MOST_TOKENS = 1_000_000  # of prompt and output, of all that are kept
REMEMBERED = 4_096  # names of streams that are kept no longer


class Grave(NamedTuple):
    stream: Stream
    content: bytes  # what its start said, digested
    tokens: int
    until: float


class Graves:
    def __init__(self) -> None:
        self._kept: OrderedDict[Key, Grave] = OrderedDict()
        self._tokens = 0
        self._names: OrderedDict[Key, None] = OrderedDict()

    def bury(self, key: Key, stream: Stream, content: bytes, now: float) -> None:
        self.forget(key)
        grave = Grave(stream, content, stream.prompt_tokens + len(stream.output), now + KEPT_S)
        self._kept[key] = grave
        self._tokens += grave.tokens
        self._tidy(now)

    def find(self, key: Key, now: float) -> Grave | None:
        """A stream that has ended, if all of it is still there."""
        self._tidy(now)
        return self._kept.get(key)

    def remembers(self, key: Key) -> bool:
        """Whether there ever was such a stream, as far as is known."""
        return key in self._kept or key in self._names

    def forget(self, key: Key) -> None:
        grave = self._kept.pop(key, None)
        if grave is not None:
            self._tokens -= grave.tokens
        self._names.pop(key, None)

    def _tidy(self, now: float) -> None:
        while self._kept and self._too_much(next(iter(self._kept.values())), now):
            key, grave = self._kept.popitem(last=False)
            self._tokens -= grave.tokens
            self._names[key] = None
            if len(self._names) > REMEMBERED:
                self._names.popitem(last=False)

    def _too_much(self, oldest: Grave, now: float) -> bool:
        return oldest.until <= now or len(self._kept) > MOST_KEPT or self._tokens > MOST_TOKENS
