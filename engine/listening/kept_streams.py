"""The streams of a listening engine that may outlive their gateways: whose each is now, and its journal.

One that has lost its gateway runs as far as its credit goes, and waits for another. One that has ended is
kept for a while, for whoever missed the end. Where all take too much, the tenant pays whose streams take
most. It knows gateways as owners alone. Pure: it is told the time of what happens, and for how long something
is kept goes by a clock that nobody sets.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from engine import api
from engine.listening import limits
from engine.listening.journal import Journal

G = TypeVar("G")

STREAM_BYTES = 1100  # of one, beside what stands in its journal: thousands may be short, and have ended
OLD_AT_ONCE = 100  # that are dropped: very many may be old by now, and the engine waits meanwhile


class Timer(Protocol):
    def cancel(self) -> None: ...


class KeptStream(Generic[G]):
    def __init__(self, journal: Journal, tenant: int, owner: G, number: int) -> None:
        self.journal = journal
        self.tenant = tenant
        self.bytes = 0  # as they were counted
        self.owner: G | None = owner
        self.number: int | None = number  # the engine's; None once it has ended
        self.until = 0.0  # for which it is kept, once it has, by the clock
        self._waiting: Timer | None = None

    @property
    def is_orphan(self) -> bool:
        return self.owner is None

    def wait(self, timer: Timer) -> None:
        """For another gateway, until the time is over."""
        self.owner, self._waiting = None, timer

    def belong_to(self, owner: G) -> None:
        """Who may leave it again, and so may the next, very often within that time."""
        if self._waiting is not None:
            self._waiting.cancel()
        self.owner, self._waiting = owner, None


class _Share(Generic[G]):
    """What the streams of one tenant take, and what could go of it; the first that came comes first. (A dict
    would look for it among all that have gone.)"""

    def __init__(self) -> None:
        self.bytes = 0
        self.ended = OrderedDict[bytes, KeptStream[G]]()
        self.live = OrderedDict[bytes, KeptStream[G]]()  # of which there is a whole journal


class KeptStreams(Generic[G]):
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._by_key: dict[bytes, KeptStream[G]] = {}
        self._ended = OrderedDict[bytes, KeptStream[G]]()  # the first that has comes first
        self._bytes = 0
        self._shares: dict[int, _Share[G]] = {}  # by tenant, of those that have any
        self._given_up: list[KeptStream[G]] = []  # and nobody was told yet

    def begin(self, submit: api.Submit, keep: api.Keep, owner: G, number: int, now: float) -> KeptStream[G]:
        """A stream is submitted, or is again: then it has no record."""
        kept = self._by_key.get(keep.key)
        again = kept is not None and kept.owner is owner and kept.journal.keep.moves == keep.moves
        if kept is not None and again and not keep.record:
            kept.number = number
            self._ended.pop(keep.key, None)
            self._settle(kept)
            return kept
        if kept is not None:
            self.drop(kept)
            self._given_up.append(kept)
        kept = self._by_key[keep.key] = KeptStream(Journal(submit, keep, now), submit.tenant, owner, number)
        if not kept.journal.whole:  # its record was here once, and is no more
            self._given_up.append(kept)
        self._settle(kept)
        self._make_room(kept)
        return kept

    def take_given_up(self) -> list[KeptStream[G]]:
        """Of streams that live, those that can be built no more since this was asked last: their gateways
        cannot know."""
        given_up, self._given_up = self._given_up, []
        return given_up

    def find(self, key: bytes) -> KeptStream[G] | None:
        for _ in range(OLD_AT_ONCE):
            if not self._drop_old():
                break
        kept = self._ended.get(key)
        if kept is not None and kept.until <= self._clock():
            self.drop(kept)
        return self._by_key.get(key)

    def take(self, kept: KeptStream[G], command: api.AnyCommand) -> None:
        """From its gateway. One that is cancelled, and cannot be built, is found no more: another may stand
        in its place."""
        kept.journal.take(command)
        if isinstance(command, api.Cancel) and not kept.journal.whole:
            self.drop(kept)

    def note(self, kept: KeptStream[G], note: api.Note, now: float) -> None:
        kept.journal.note(note, now)
        self._settle(kept)
        self._make_room(kept)

    def tell(self, kept: KeptStream[G], news: api.News, now: float) -> None:
        kept.journal.tell(news, now)
        if self._knows(kept) and news.finish is not None and not news.finish.held:
            kept.number, kept.until = None, self._clock() + limits.ENDED_S
            self._ended[kept.journal.keep.key] = kept
        self._settle(kept)
        self._make_room(kept)

    def drop(self, kept: KeptStream[G]) -> None:
        """Nobody can adopt it any more."""
        if self._knows(kept):
            del self._by_key[kept.journal.keep.key]
            self._ended.pop(kept.journal.keep.key, None)
            kept.journal.give_up()
            self._settle(kept)

    def _knows(self, kept: KeptStream[G]) -> bool:
        """Whether it is the one of its name still."""
        return self._by_key.get(kept.journal.keep.key) is kept

    def _settle(self, kept: KeptStream[G]) -> None:
        """Count what it takes now, and as what."""
        key, known = kept.journal.keep.key, self._knows(kept)
        before, kept.bytes = kept.bytes, STREAM_BYTES + kept.journal.bytes if known else 0
        self._bytes += kept.bytes - before
        share = self._shares.setdefault(kept.tenant, _Share())
        share.bytes += kept.bytes - before
        if known and key not in self._ended and kept.journal.whole:
            share.live[key] = kept
        elif share.live.get(key) is kept:
            del share.live[key]
        if known and key in self._ended:
            share.ended[key] = kept
        elif share.ended.get(key) is kept:
            del share.ended[key]
        if not share.bytes:
            del self._shares[kept.tenant]

    def _make_room(self, kept: KeptStream[G]) -> None:
        """Of the tenant that takes most those go that have ended, the first before the last; where there is
        none, whoever asks for more, if it is one of its own, or else the first, can be built no more."""
        while self._bytes > limits.JOURNALS_BYTES:
            if self._drop_old():
                continue
            shares = [share for share in self._shares.values() if share.ended or share.live]
            if not shares:
                return
            most = max(shares, key=lambda share: share.bytes)
            if most.ended:
                self.drop(next(iter(most.ended.values())))
                continue
            given_up = most.live.get(kept.journal.keep.key) or next(iter(most.live.values()))
            given_up.journal.give_up()
            self._given_up.append(given_up)
            self._settle(given_up)

    def _drop_old(self) -> bool:
        """The first that has ended, if it was kept for long enough."""
        first = next(iter(self._ended.values()), None)
        if first is None or first.until > self._clock():
            return False
        self.drop(first)
        return True
