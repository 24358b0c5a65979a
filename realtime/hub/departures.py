"""The departures of listeners: each stream that one leaves behind does what its start said, waits as long as
that said for somebody who comes back, and is at its tenant's expense meanwhile.

Of a thousand streams each turn of the event loop some are brought in order, or when somebody attaches.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from realtime.hub.deadlines import Deadlines
from realtime.hub.listener import Listener
from realtime.hub.mistakes import MistakesEnd
from realtime.hub.observers import DisconnectCause, Observer
from realtime.hub.registry import LiveStream, StreamRegistry, Timer, weight_of_end
from realtime.hub.slices import Slices
from realtime.hub.stream_accounts import StreamAccounts
from realtime.hub.subscriptions import Subscriptions
from realtime.hub.told import Abandoned, Detached
from realtime.hub.waking import Wake, Waking
from realtime.stream.stream import Stream

LEFT_A_TURN = 64  # streams


class Left(NamedTuple):
    """What a listener that is gone leaves behind."""

    listener: Listener
    stream: Stream | None  # None behind the last
    cause: DisconnectCause
    number: int  # of the listener, among all that went


class Departures:
    def __init__(
        self,
        registry: StreamRegistry,
        subscriptions: Subscriptions[Stream, Listener],
        accounts: StreamAccounts,
        observer: Observer,
        waking: Waking,
        deadlines: Deadlines,
        clock: Callable[[], float],
        call_later: Callable[[float, Callable[[], None]], Timer],
        *,
        max_grace_ms: int,
    ) -> None:
        self.left: dict[Stream, Left] = {}  # and not brought in order yet
        self._registry = registry
        self._subscriptions = subscriptions
        self._accounts = accounts
        self._observer = observer
        self._clock = clock
        self._deadlines = deadlines
        self._waking = waking
        self._max_grace_s = max_grace_ms / 1000
        self._numbers = itertools.count()
        self._slices = Slices(self._leave, most=LEFT_A_TURN, next_turn=partial(call_later, 0), weight=_weight)

    def leave(self, listener: Listener, cause: DisconnectCause) -> None:
        """It is gone."""
        number = next(self._numbers)
        left = [Left(listener, stream, cause, number) for stream in self._subscriptions.remove(listener)]
        self.left |= {one.stream: one for one in left if one.stream is not None}
        self._slices.add([*left, Left(listener, None, cause, number)])

    def bring_in_order(self, stream: Stream) -> None:
        """Now, since somebody comes for it."""
        if (left := self.left.get(stream)) is not None:
            self._leave([left])

    def _leave(self, some: Iterable[Left]) -> None:
        with self._waking() as wake:
            for one in some:
                if one.stream is None:
                    one.listener.memory.close()
                elif self.left.get(one.stream) is one:
                    del self.left[one.stream]
                    self._let_wait(one.stream, one, wake)

    def _let_wait(self, stream: Stream, left: Left, wake: Wake) -> None:
        """Nobody reads it: it waits at its tenant's expense, and where that has reached its limit it ends."""
        entry = self._registry.by_number(stream.number)
        if entry is None:  # it has ended: what was to be told again is kept for nobody
            stream.detach(self._clock(), 0)
            return
        self._observer.detached(stream, left.cause)
        account = self._accounts.unread(entry.key.tenant)
        stream.use_account(account)
        if account.over_limit:
            self._end(entry)
        else:
            self._detach(entry)
        if stream.terms.on_disconnect != "cancel":
            self._begin_grace(entry, left.number, wake)
        wake(stream)

    def _detach(self, entry: LiveStream) -> None:
        now = self._clock()
        with MistakesEnd(entry, "let it wait for a reader", now):
            entry.stream.detach(now, entry.step)
            entry.note(Detached())

    def await_somebody(self, entry: LiveStream) -> None:
        """It was adopted, and nobody listens to it yet."""
        entry.stream.use_account(self._accounts.unread(entry.key.tenant))
        with self._waking() as wake:
            self._begin_grace(entry, next(self._numbers), wake)
            wake(entry.stream)

    def _begin_grace(self, entry: LiveStream, left_by: int, wake: Wake) -> None:
        """It waits for somebody who comes back; those that must not end, since too many do."""
        grace_s = min(entry.stream.terms.grace_s, self._max_grace_s)
        entry.grace = self._deadlines.after(grace_s, entry, self._abandon)
        for crowded_out in self._registry.detach(entry, left_by):
            self._end(crowded_out)
            wake(crowded_out.stream)

    def _abandon(self, entry: LiveStream) -> None:
        """Nobody came back."""
        with self._waking() as wake:
            self._end(entry)
            wake(entry.stream)

    def _end(self, entry: LiveStream) -> None:
        now = self._clock()
        with MistakesEnd(entry, "end it without a reader", now):
            entry.stream.abandon(now, entry.step)
            entry.note(Abandoned())


def _weight(left: Left) -> int:
    return 1 if left.stream is None else weight_of_end(left.stream)
