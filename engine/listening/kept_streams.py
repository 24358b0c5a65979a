"""The streams of a listening engine that may outlive their gateways: whose each is now, and its journal.

One that has lost its gateway runs as far as its credit goes, and waits for another. One that has ended is
kept for a while, for whoever missed the end. It knows gateways as owners alone. Pure: it is told the time.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from engine import api
from engine.listening import limits
from engine.listening.journal import Journal

G = TypeVar("G")


class KeptStream(Generic[G]):
    def __init__(self, journal: Journal, owner: G, number: int) -> None:
        self.journal = journal
        self.owner: G | None = owner
        self.number: int | None = number  # the engine's; None once it has ended
        self.until = 0.0  # for which it is kept, once it has

    @property
    def is_orphan(self) -> bool:
        return self.owner is None


class KeptStreams(Generic[G]):
    def __init__(self) -> None:
        self._by_key: dict[bytes, KeptStream[G]] = {}
        self._ended: dict[bytes, None] = {}  # the first that has comes first
        self._bytes = 0

    def begin(self, submit: api.Submit, keep: api.Keep, owner: G, number: int, now: float) -> KeptStream[G]:
        """A stream is submitted, or is again: then it has no record."""
        kept = self._by_key.get(keep.key)
        again = kept is not None and kept.owner is owner and kept.journal.keep.moves == keep.moves
        if kept is not None and again and not keep.record:
            kept.number = number
            self._ended.pop(keep.key, None)
            return kept
        if kept is not None:
            self.drop(kept)
        kept = self._by_key[keep.key] = KeptStream(Journal(submit, keep, now), owner, number)
        self._bytes += kept.journal.bytes
        self._make_room(now, kept)
        return kept

    def find(self, key: bytes, now: float) -> KeptStream[G] | None:
        self._expire(now)
        return self._by_key.get(key)

    def note(self, kept: KeptStream[G], note: api.Note, now: float) -> None:
        before = kept.journal.bytes
        kept.journal.note(note, now)
        self._bytes += kept.journal.bytes - before
        self._make_room(now, kept)

    def tell(self, kept: KeptStream[G], news: api.News, now: float) -> None:
        before = kept.journal.bytes
        kept.journal.tell(news, now)
        self._bytes += kept.journal.bytes - before
        is_known = self._by_key.get(kept.journal.keep.key) is kept
        if is_known and news.finish is not None and not news.finish.held:
            kept.number, kept.until = None, now + limits.ENDED_S
            self._ended[kept.journal.keep.key] = None
        self._make_room(now, kept)

    def drop(self, kept: KeptStream[G]) -> None:
        """Nobody can adopt it any more."""
        key = kept.journal.keep.key
        if self._by_key.get(key) is kept:
            del self._by_key[key]
            self._ended.pop(key, None)
            self._bytes -= kept.journal.bytes
            kept.journal.give_up()

    def _make_room(self, now: float, kept: KeptStream[G]) -> None:
        """Those go that have ended, the first before the last; where there is none, whoever asks for more
        can be built no more."""
        if self._bytes <= limits.JOURNALS_BYTES:
            return
        self._expire(now)
        while self._bytes > limits.JOURNALS_BYTES and self._ended:
            self.drop(self._by_key[next(iter(self._ended))])
        if self._bytes > limits.JOURNALS_BYTES:
            self._bytes -= kept.journal.bytes
            kept.journal.give_up()
            self._bytes += kept.journal.bytes

    def _expire(self, now: float) -> None:
        while self._ended and (first := self._by_key[next(iter(self._ended))]).until <= now:
            self.drop(first)
