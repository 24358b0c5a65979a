"""What an engine has said of its streams, and nobody has taken in: who is to blame for its death hangs on it.
Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from engine import api
from realtime.stream.stream import Stream


def moves(news: api.News) -> bool:
    """Whether their stream has moved on."""
    return bool(news.tokens or news.changes)


class Untaken:
    def __init__(self) -> None:
        self._moved = Counter[int]()  # by stream: how often
        self._tokens = Counter[int]()
        self._ended = set[int]()

    def add(self, news: api.News) -> None:
        self._moved[news.stream] += moves(news)
        self._tokens[news.stream] += len(news.tokens)
        if news.finish is not None:
            self._ended.add(news.stream)

    @property
    def moved(self) -> Iterable[int]:
        """Each stream as often as it has moved on."""
        return self._moved.elements()

    def rests(self, stream: Stream) -> bool:
        """Whether the engine had nothing to compute for it: it has said its end, or all that was granted, if
        that was not known before."""
        tokens = self._tokens[stream.number]
        is_all = tokens > 0 and len(stream.output) + tokens >= stream.credit.granted
        return is_all or stream.number in self._ended or not stream.needs_compute
