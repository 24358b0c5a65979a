"""The deadlines of streams: how long one may live, waits for somebody who comes back, or has its memory held.

Clients say when, so that thousands may be over at once: each turn of the event loop some are acted on, of
those who pay in turn. It does not know what is done then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from realtime.hub.registry import LiveStream, Timer, weight_of_end
from realtime.hub.slices import Slices

OVER_A_TURN = 64  # streams

Act = Callable[[LiveStream], None]


class Deadline:
    """Of one stream. Who cancels one that is over, and waits for its turn, has nothing done."""

    def __init__(self, entry: LiveStream, act: Act) -> None:
        self.payer = entry.stream.owner.payer
        self._entry: LiveStream | None = entry
        self._act = act
        self._timer: Timer | None = None

    @property
    def weight(self) -> int:
        return 0 if self._entry is None else weight_of_end(self._entry.stream)

    def wait(self, timer: Timer) -> None:
        self._timer = timer

    def cancel(self) -> None:
        self._entry = None
        if self._timer is not None:
            self._timer.cancel()

    def act(self) -> None:
        if self._entry is not None:
            self._act(self._entry)


class Deadlines:
    def __init__(self, call_later: Callable[[float, Callable[[], None]], Timer]) -> None:
        self._call_later = call_later
        self._over = Slices(
            _act, most=OVER_A_TURN, next_turn=partial(call_later, 0), weight=_weight, owner=_payer
        )

    def after(self, delay_s: float, entry: LiveStream, act: Act) -> Timer:
        deadline = Deadline(entry, act)
        deadline.wait(self._call_later(delay_s, partial(self._over.add, (deadline,))))
        return deadline


def _act(some: Iterator[Deadline]) -> None:
    for deadline in some:
        deadline.act()


def _weight(deadline: Deadline) -> int:
    return deadline.weight


def _payer(deadline: Deadline) -> int:
    return deadline.payer
