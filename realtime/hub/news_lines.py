"""The lines in which engines' news wait until they are taken in: what takes long has one of its own, so that
nobody else waits behind it.

A stream's news are taken in in their order: while some of them wait, others stand behind those, in the same
line. What is dear and came behind what is plain goes to the other line when its turn comes, and all that came
behind it follows. Of each line's, payers take turns. Steps are told of in their order, each behind all of its
news. It knows neither streams nor engines: whoever makes it says what is dear, and takes the news in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from operator import attrgetter

from msgspec import Struct
from msgspec.structs import replace

from engine import api
from realtime.hub.serving_engine import ServingEngine
from realtime.hub.slices import Slices


class StepNews(Struct, eq=False):
    """What a step did; `left`: to how many that has not been told."""

    engine: ServingEngine
    output: api.StepOutput
    at: float
    left: int = 0


class StreamNews(Struct, eq=False, gc=False):
    """What a step did to a payer's stream, and how long that takes, as `weight` says; `is_dear`: perhaps too
    long for others to wait behind it."""

    step: StepNews
    news: api.News
    payer: int
    weight: int
    is_dear: bool
    is_more: bool = False  # of what was taken in before


_weight_of, _payer_of = attrgetter("weight"), attrgetter("payer")


def _weight_of_plain(one: StreamNews) -> int:
    """What is dear only passes there."""
    return 1 if one.is_dear else one.weight


class _Waiting(Struct, eq=False):
    """How many news of one stream, in each line: the dear ones came first."""

    payer: int  # of the first: one that is adopted meanwhile has another
    dear: int = 0
    plain: int = 0


class NewsLines:
    def __init__(
        self,
        take_in: Callable[[Iterator[StreamNews]], None],
        told: Callable[[StepNews], None],
        weighed: Callable[[StepNews, api.News], StreamNews],
        *,
        most: int,
        wait_s: Callable[[int], float],
        call_later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        """Each line has a slice in each turn of the event loop, of which `most` is the `weight`. `wait_s`:
        how long nothing dear of that stream is to be taken in."""
        line = partial(Slices[StreamNews], most=most, next_turn=partial(call_later, 0), owner=_payer_of)
        self._plain = line(self._take_in_plain, weight=_weight_of_plain)
        self._dear = line(self._take_in_dear, weight=_weight_of)
        self._wait_s = wait_s
        self._call_later = call_later
        self._held: dict[int, list[StreamNews]] = {}  # by stream, until it may be taken in
        self._tell_streams = take_in
        self._told = told
        self._weighed = weighed
        self._waiting: dict[int, _Waiting] = {}  # by stream
        self._steps = deque[StepNews]()  # that were not told of

    @property
    def empty(self) -> bool:
        """Whether nothing waits: what need not stand in line comes behind nothing."""
        return not (self._waiting or self._steps)

    def add(self, steps: list[StepNews]) -> None:
        """Of steps that came together."""
        self._steps.extend(steps)
        plain: list[StreamNews] = []
        dear: list[StreamNews] = []
        for step in steps:
            step.left = len(step.output.news)
            for one in [self._weighed(step, news) for news in step.output.news]:
                (dear if self._stand(one) is self._dear else plain).append(one)
        try:
            self._plain.add(plain)
        finally:
            self._dear.add(dear)
            self._tell_steps()

    def more(self, one: StreamNews) -> None:
        """More of what is being taken in, before all that comes behind it. Its step is not waited for."""
        again = replace(self._weighed(replace(one.step, left=1), one.news), is_more=one.is_more)
        self._wait(again).dear += 1
        self._dear.first(again)

    def __iter__(self) -> Iterator[StreamNews]:
        """All that waits, of each stream in its order."""
        return chain(*self._held.values(), self._dear, self._plain)

    def _stand(self, one: StreamNews) -> Slices[StreamNews]:
        waiting = self._wait(one)
        if waiting.plain or not (waiting.dear or one.is_dear):
            waiting.plain += 1
            return self._plain
        waiting.dear += 1
        return self._dear

    def _wait(self, one: StreamNews) -> _Waiting:
        waiting = self._waiting.get(one.news.stream)
        if waiting is None:
            waiting = self._waiting[one.news.stream] = _Waiting(one.payer)
        one.payer = waiting.payer
        return waiting

    def _take_in_plain(self, some: Iterator[StreamNews]) -> None:
        dear: list[StreamNews] = []
        try:
            self._take_in(self._plain_of(some, dear))
        finally:
            self._dear.add(dear)

    def _plain_of(self, some: Iterator[StreamNews], dear: list[StreamNews]) -> Iterator[StreamNews]:
        for one in some:
            waiting = self._waiting[one.news.stream]
            waiting.plain -= 1
            if waiting.dear or one.is_dear:
                waiting.dear += 1
                dear.append(one)
            else:
                yield one

    def _take_in_dear(self, some: Iterator[StreamNews]) -> None:
        self._take_in(self._paid_of(some))

    def _paid_of(self, some: Iterator[StreamNews]) -> Iterator[StreamNews]:
        """What is to wait holds up neither others' news nor the steps behind it; of each stream that is asked
        once."""
        paid = set[int]()
        for one in some:
            stream = one.news.stream
            if stream in self._held:
                self._hold(one)
            elif stream not in paid and (wait_s := self._wait_s(stream)):
                self._held[stream] = []
                self._hold(one)
                self._call_later(wait_s, partial(self._let_go, stream))
            else:
                paid.add(stream)
                self._waiting[stream].dear -= 1
                yield one

    def _hold(self, one: StreamNews) -> None:
        one.step.left -= 1
        self._held[one.news.stream].append(replace(one, step=replace(one.step, left=1)))

    def _let_go(self, stream: int) -> None:
        for one in reversed(self._held.pop(stream, [])):
            self._dear.first(one)

    def _take_in(self, some: Iterator[StreamNews]) -> None:
        try:
            self._tell_streams(map(self._taken, some))
        finally:
            self._tell_steps()

    def _taken(self, one: StreamNews) -> StreamNews:
        one.step.left -= 1
        waiting = self._waiting[one.news.stream]
        if not (waiting.dear or waiting.plain):
            del self._waiting[one.news.stream]
        return one

    def _tell_steps(self) -> None:
        while self._steps and not self._steps[0].left:
            self._told(self._steps.popleft())
